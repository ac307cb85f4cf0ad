"""The claims of BiPACE's appendix C, on a small MDP with known values.

The start has two spellings (`here`, `this place`) with the same dynamics. Action `good` leads to the rich room with
probability 0.8, `bad` with 0.3; otherwise to the poor room. In each room, `good` and `bad` win with that room's
probabilities. Features depend on the dynamics, not on the spelling: exact bisimulation.
"""

from __future__ import annotations

import numpy as np
import pytest
from stepwise import make_group, make_step

from tacit.core.credit import Rewards
from tacit.credit.partitions import ActorHidden, Clusters, by_cosine
from tacit.credit.step_relative import ActionPeers, action_peers, cluster_relative

GAMMA, GOOD = 0.9, 0.6
"""discount; probability that the policy takes `good` in any state"""
RICH = {"good": 0.8, "bad": 0.3}
WINS = {("rich", "good"): 0.9, ("rich", "bad"): 0.5, ("poor", "good"): 0.4, ("poor", "bad"): 0.1}
STATES = {"start": [1.0, 0.0, 0.0], "rich": [0.0, 1.0, 0.0], "poor": [0.0, 0.0, 1.0]}


def true_advantages() -> dict[tuple[str, str], float]:
    value = {room: GOOD * WINS[room, "good"] + (1 - GOOD) * WINS[room, "bad"] for room in ("rich", "poor")}
    q = {**WINS, **{("start", a): GAMMA * (p * value["rich"] + (1 - p) * value["poor"]) for a, p in RICH.items()}}
    value["start"] = GOOD * q["start", "good"] + (1 - GOOD) * q["start", "bad"]
    return {(s, a): q[s, a] - value[s] for s, a in q}


def play(members: int, rng: np.random.Generator):
    """A group, its rewards, and the (state, action) of each flat step."""
    played, won, places = [], [], []
    for _ in range(members):
        first, second = ("good" if rng.random() < GOOD else "bad" for _ in range(2))
        room = "rich" if rng.random() < RICH[first] else "poor"
        spelling = "here" if rng.random() < 0.5 else "this place"
        played.append([make_step(spelling, first, hidden=STATES["start"]), make_step(room, second, hidden=STATES[room])])
        won.append(float(rng.random() < WINS[room, second]))
        places += [("start", first), (room, second)]
    group = make_group(played)
    return group, Rewards.at_the_end(group, np.array(won)), places


def test_q_form_is_unbiased_under_exact_bisimulation():
    rng = np.random.default_rng(0)
    term = ActionPeers(Clusters(ActorHidden(), 0.0), gamma=GAMMA)
    estimates: dict[tuple[str, str], list[float]] = {place: [] for place in true_advantages()}
    for _ in range(250):
        group, rewards, places = play(32, rng)
        done = term([group], [rewards])
        values = dict(zip(places, done.marks[0]["step_credit"], strict=True))  # steps with the same action get the same value
        for place, value in values.items():
            estimates[place].append(float(value))
        assert done.metrics["parts"] == 3, "both spellings of the start are one state"
    for place, truth in true_advantages().items():
        sample = np.array(estimates[place])
        assert len(sample) > 240
        assert abs(sample.mean() - truth) < 3.5 * sample.std() / len(sample) ** 0.5, place
        assert abs(truth) > 10 * sample.std() / len(sample) ** 0.5, "the test could tell a wrong sign or a factor"


def test_q_form_has_lower_error_than_cluster_mean():
    """Q̂ averages outcome noise over peers, so Q̂ − V̂ is closer to the true advantage than R − V̂."""
    rng = np.random.default_rng(2)
    q = np.array([1.0, 0.0])
    errors = {"q": [], "mean": []}
    for _ in range(300):
        key_N = rng.integers(0, 2, size=12)
        returns_N = q[key_N] + rng.normal(size=12)
        cluster_N = np.zeros(12, int)
        truth_N = q[key_N] - q.mean()
        errors["q"].append(np.mean((action_peers(returns_N, cluster_N, key_N, "q")[0] - truth_N) ** 2))
        errors["mean"].append(np.mean((cluster_relative(returns_N, cluster_N, None) - truth_N) ** 2))
    assert np.mean(errors["q"]) < 0.5 * np.mean(errors["mean"])


@pytest.mark.parametrize("epsilon", [0.0005, 0.002, 0.01, 0.03, 0.1])
def test_cluster_mean_bias_is_below_2_l_epsilon(epsilon):
    """Proposition 1: V is L-Lipschitz in the angle between features, and E[Â − A*] = V(s) − mean_C V."""
    rng = np.random.default_rng(3)
    lipschitz = 4.0
    angle_N = rng.uniform(0.0, np.pi / 2, size=240)
    value_N = lipschitz * np.abs(angle_N - 0.7)
    features_ND = np.stack([np.cos(angle_N), np.sin(angle_N)], axis=1)
    cluster_N = by_cosine(features_ND, epsilon)
    noise_SN = rng.normal(size=(4000, 240))
    bias_N = np.mean([cluster_relative(value_N + noise_N, cluster_N, None) - noise_N for noise_N in noise_SN], axis=0)
    bias_N[np.bincount(cluster_N)[cluster_N] == 1] = 0.0  # singletons have no estimate (Corollary 1)
    noise = 5 / 4000**0.5
    widest = max(np.ptp(angle_N[cluster_N == k]) for k in range(cluster_N.max() + 1))
    assert np.abs(bias_N).max() <= lipschitz * widest + noise, "clusters of diameter 2ε"
    radius = np.arccos(1 - epsilon)
    assert np.abs(bias_N).max() <= 2 * lipschitz * radius + noise, "what admission within ε aims at"


def test_larger_radius_gives_more_bias_and_fewer_singletons():
    rng = np.random.default_rng(4)
    angle_N = rng.uniform(0.0, np.pi / 2, size=240)
    features_ND = np.stack([np.cos(angle_N), np.sin(angle_N)], axis=1)
    biases, alone = [], []
    for epsilon in (1e-6, 1e-4, 1e-3, 1e-2, 1e-1):
        cluster_N = by_cosine(features_ND, epsilon)
        biases.append(np.abs(cluster_relative(angle_N, cluster_N, None)).mean())
        alone.append((np.bincount(cluster_N) == 1).sum())
    assert biases == sorted(biases) and biases[-1] > 20 * biases[0]
    assert alone == sorted(alone, reverse=True) and alone[-1] == 0


def shuffled(features_ND: np.ndarray, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """Cluster labels when steps are clustered in a random order."""
    order_N = rng.permutation(len(features_ND))
    cluster_N = np.empty(len(features_ND), np.int64)
    cluster_N[order_N] = by_cosine(features_ND[order_N], epsilon)
    return cluster_N


def pairs_shared(one_N: np.ndarray, other_N: np.ndarray) -> float:
    """Jaccard index of the same-cluster pairs of two clusterings."""
    one_NN, other_NN = one_N[:, None] == one_N, other_N[:, None] == other_N
    apart = ~np.eye(len(one_N), dtype=bool)
    return float((one_NN & other_NN & apart).sum() / ((one_NN | other_NN) & apart).sum())


def test_step_order_does_not_change_well_separated_clusters():
    """Appendix D: "results are stable to within-group shuffling".

    This is exact if the radius is larger than the clusters and smaller than the distance between them.
    """
    rng = np.random.default_rng(5)
    centers = rng.normal(size=(12, 64))
    features_ND = np.repeat(centers, 10, axis=0) + 0.1 * rng.normal(size=(120, 64))
    cluster_N = by_cosine(features_ND, 0.1)
    assert cluster_N.max() + 1 == 12
    for _ in range(20):
        assert pairs_shared(cluster_N, shuffled(features_ND, 0.1, rng)) == 1.0


def test_step_order_changes_touching_clusters_but_hardly_the_credit():
    """If clusters touch, a step at the edge joins the cluster that came first, so labels depend on the order.

    The credit changes much less than the labels. The library fixes the order (rollout-major).
    """
    rng = np.random.default_rng(6)
    where_N = rng.uniform(0.0, np.pi / 2, size=200)
    features_ND = np.stack([np.cos(where_N), np.sin(where_N)], axis=1)
    key_N = rng.integers(0, 2, size=200)
    returns_N = np.where(key_N == 1, 1.0, -1.0) + np.sin(4 * where_N) + 0.5 * rng.normal(size=200)
    cluster_N = by_cosine(features_ND, 0.01)
    credit_N = action_peers(returns_N, cluster_N, key_N)[0]
    shared, alike = [], []
    for _ in range(20):
        other_N = shuffled(features_ND, 0.01, rng)
        shared.append(pairs_shared(cluster_N, other_N))
        alike.append(np.corrcoef(credit_N, action_peers(returns_N, other_N, key_N)[0])[0, 1])
    assert 0.3 < np.mean(shared) < 0.9, "not stable as a partition"
    assert np.mean(alike) > 0.9, "and nearly so as credit"
