"""The radius of a run: found on the policy's first groups, for hidden states and for n-grams."""

from __future__ import annotations

import numpy as np
import pytest
from scripted import ScriptedPolicy, stumble_through_countdown

from tacit.calibration import FoundRadius, find_radius
from tacit.core.method import Alike
from tacit.core.protocols import Sampling
from tacit.credit.partitions import ActorHidden, AdaptiveRadius, HashNgram, by_cosine, median_cluster_size, search_radius
from tacit.prompts.history import History
from tacit.rollout.episodes import rollout_groups
from tacit.rollout.worlds import InProcessPool
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
CONTEXT = History(WORLD.wording("terse"), 1, False, "bare")
POLICY = ScriptedPolicy(stumble_through_countdown)
GROUPS = rollout_groups(
    WORLD.tasks("train", 4, 0), 6, 0, Alike(), CONTEXT, InProcessPool(WORLD.make), POLICY, Sampling(max_tokens=8), 6
)


@pytest.mark.parametrize("embedder", [ActorHidden(-1, "mean"), HashNgram()])
def test_find_radius_equals_adaptive_radius(embedder):
    features = embedder(GROUPS, POLICY)
    epsilon, median = search_radius(features)
    found = find_radius(embedder, GROUPS, POLICY)
    parts = [by_cosine(rows, epsilon) for rows in features]
    assert (found.epsilon, found.median_cluster) == (epsilon, median) and median == median_cluster_size(parts)
    largest = [np.bincount(cluster_N).max() / len(cluster_N) for cluster_N in parts]
    assert found.largest_cluster == pytest.approx(np.mean(largest))
    companion = AdaptiveRadius(embedder)
    assert companion.observe(GROUPS, POLICY)["radius"] == epsilon, "what a run with --adaptive finds on the same groups"


def test_bad_radius_warns():
    good = FoundRadius(0.1, 6.0, 0.1, 0.3)
    assert good.warning == ""
    assert "nearest was chosen" in FoundRadius(0.21, 1.0, 0.9, 0.1).warning
    assert "70% of a group" in FoundRadius(0.1, 8.0, 0.0, 0.7).warning
