"""Calibration: the probe, the scan and the selection rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tacit.calibration.probe import Slice, choose, layers_to_scan, probe_accuracy, scan
from tacit.core.errors import TacitError


def test_layers_as_in_the_paper_and_all_of_a_shallow_model():
    assert layers_to_scan(28) == [-24, -20, -16, -12, -8, -4, -1]
    assert layers_to_scan(4) == [-4, -3, -2, -1]
    assert all(-layers <= layer <= -1 for layers in range(1, 60) for layer in layers_to_scan(layers))


def made(rng, separation: float, n: int = 240, width: int = 32):
    label_N = np.arange(n) % 6
    centres = rng.normal(size=(6, width))
    return separation * centres[label_N] + rng.normal(size=(n, width)), label_N, np.repeat(np.arange(n // 6), 6)


def test_the_probe_reads_what_is_linear_and_nothing_else():
    rng = np.random.default_rng(0)
    features, label_N, episode_N = made(rng, 3.0)
    assert probe_accuracy(features, label_N, episode_N) > 0.98
    features, label_N, episode_N = made(rng, 0.0)
    assert probe_accuracy(features, label_N, episode_N) < 0.35, "chance is 1/6"


def test_the_probe_is_not_fooled_by_episodes():
    """Each episode has its own direction and a label that says nothing about it: held out, nothing can be known."""
    rng = np.random.default_rng(1)
    directions = 5 * rng.normal(size=(40, 64))
    episode_N = np.repeat(np.arange(40), 6)
    features = directions[episode_N] + 0.1 * rng.normal(size=(240, 64))
    assert probe_accuracy(features, rng.integers(0, 2, 40)[episode_N], episode_N) < 0.75
    with pytest.raises(TacitError, match="two episodes"):
        probe_accuracy(features, episode_N % 2, np.zeros(240, int))


def test_the_scan_counts_clusters():
    rng = np.random.default_rng(2)
    features, label_N, episode_N = made(rng, 4.0)
    slices = scan(
        {(-2, "last"): features, (-1, "last"): np.tile([1.0, 0.0, 0.0], (240, 1))}, label_N, episode_N, (0.0, 0.2, 2.0)
    )
    assert [(s.layer, s.epsilon) for s in slices] == [(-2, 0.0), (-2, 0.2), (-2, 2.0), (-1, 0.0), (-1, 0.2), (-1, 2.0)]
    alone, good, giant, *flat = slices
    assert alone.clusters == 240 and alone.singletons == alone.singleton_steps == 1.0 and alone.refusal() == "all singletons"
    assert good.clusters >= 6 and good.refusal() == "" and good.probe > 0.98
    assert giant.clusters == 1 and giant.refusal() == "one giant cluster"
    assert all(s.refusal() == "one giant cluster" for s in flat)
    assert choose(slices) == good


def test_the_rule_of_the_paper():
    """Table H.1: layer 27 has the better probe (0.812 against 0.808) and only four clusters, so layer 16 is taken."""
    chosen = Slice(-12, "last", 0.05, 0.808, 12, 0.2, 0.1, 0.5)
    last = replace(chosen, layer=-1, probe=0.812, clusters=4)
    assert last.refusal() == "fewer than 5 clusters"
    assert choose([chosen, last]) == chosen
    assert choose([chosen, last], min_clusters=4) == last
    assert choose([chosen, replace(chosen, pooling="mean", singleton_steps=0.0)]) == chosen, "the last token's state is free"
    assert choose([chosen, replace(chosen, layer=-8)]).layer == -8
    with pytest.raises(TacitError, match="fewer than 5 clusters"):
        choose([last])
