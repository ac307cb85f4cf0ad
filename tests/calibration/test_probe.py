"""Calibration: the probe, the scan and the selection rule."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tacit.calibration import Audit, Slice, choose, late_layer, layers_to_scan, probe_accuracy, scan, scan_layers, solve_ridge
from tacit.core.errors import TacitError


def test_layers_to_scan_match_the_paper():
    assert layers_to_scan(28) == [-24, -20, -16, -12, -8, -4, -1]
    assert layers_to_scan(4) == [-4, -3, -2, -1]
    assert all(-layers <= layer <= -1 for layers in range(1, 60) for layer in layers_to_scan(layers))


def test_late_layer_is_never_the_last():
    assert [late_layer(n) for n in (28, 36, 12, 8, 4, 2)] == [-8, -10, -3, -2, -2, -2]


def make_features(rng, separation: float, n: int = 240, width: int = 32):
    """Steps of 40 tasks in six families. `separation` controls how well the features predict the family."""
    task_N = np.repeat(np.arange(n // 6), 6)
    label_N = task_N % 6
    centers = rng.normal(size=(6, width))
    return separation * centers[label_N] + rng.normal(size=(n, width)), label_N, task_N


@pytest.mark.parametrize("width", [32, 400])
def test_probe_finds_linear_information_only(width):
    """With fewer and with more dimensions than steps."""
    rng = np.random.default_rng(0)
    accuracy, error = probe_accuracy(*make_features(rng, 3.0, width=width))
    assert accuracy > 0.98 and error < 0.02
    accuracy, error = probe_accuracy(*make_features(rng, 0.0, width=width))
    assert accuracy < 0.35, "chance is 1/6"
    assert 0.01 < error < 0.1


def test_ridge_primal_and_dual_agree():
    rng = np.random.default_rng(5)
    for n, d in ((30, 7), (7, 30)):
        x_ND, y_NC = rng.normal(size=(n, d)), rng.normal(size=(n, 3))
        damping = 0.01 * (x_ND * x_ND).sum() / n
        primal = np.linalg.solve(x_ND.T @ x_ND + damping * np.eye(d), x_ND.T @ y_NC)
        np.testing.assert_allclose(solve_ridge(x_ND, y_NC, 0.01), primal, atol=1e-9)


def test_probe_is_evaluated_on_held_out_tasks():
    """Each task has its own direction, unrelated to its family, and eight episodes along it. If folds split tasks, the probe
    memorizes the family; with held-out tasks it must be at chance."""
    rng = np.random.default_rng(1)
    task_N = np.repeat(np.arange(30), 8 * 6)
    features = 5 * rng.normal(size=(30, 64))[task_N] + 0.1 * rng.normal(size=(len(task_N), 64))
    family_N = task_N % 6
    accuracy, _ = probe_accuracy(features, family_N, task_N)
    assert accuracy < 0.4, "chance is 1/6"
    episode_N = np.repeat(np.arange(240), 6)
    assert _by_episode(features, family_N, episode_N) > 0.99, "cut by episode it read 1.000 whatever the layer"


def test_scan_holds_out_whole_tasks():
    """The same features through `scan_layers`, which must split by tasks, not by episodes."""
    rng = np.random.default_rng(1)
    task_N = np.repeat(np.arange(30), 8 * 6)
    features = 5 * rng.normal(size=(30, 64))[task_N] + 0.1 * rng.normal(size=(len(task_N), 64))
    played = Audit([np.zeros(1, np.int64)] * len(task_N), task_N, np.repeat(np.arange(240), 6), task_N % 6, tuple("abcdef"))

    class Knowing:
        engine = SimpleNamespace(model=SimpleNamespace(layers=2))

        def hidden_scan(self, prompts, layers, poolings):
            return {(layer, pooling): features for layer in layers for pooling in poolings}

    (found,) = scan_layers(Knowing(), played, [-1], ["last"], [0.1])
    assert found.probe < 0.4, "chance is 1/6; cut by episode it reads 1.000"


def _by_episode(features, family_N, episode_N) -> float:
    """The same probe, split by episodes."""
    return probe_accuracy(features, family_N, episode_N)[0]


def test_probe_edge_cases():
    rng = np.random.default_rng(2)
    features, label_N, task_N = make_features(rng, 3.0)
    assert probe_accuracy(features, np.zeros(240, int), task_N) == (1.0, 0.0), "with one family every guess is right"
    # A family with one task is left out; the others are unaffected.
    rare_N = np.where(task_N == 39, 6, label_N)
    assert probe_accuracy(features, rare_N, task_N)[0] > 0.98
    with pytest.raises(TacitError, match="two families with two tasks each"):
        probe_accuracy(features, (task_N == 0).astype(int), task_N)


def test_scan_counts_clusters():
    rng = np.random.default_rng(2)
    features, label_N, task_N = make_features(rng, 4.0)
    slices = scan({(-2, "last"): features, (-1, "last"): np.tile([1.0, 0.0, 0.0], (240, 1))}, label_N, task_N, (0.0, 0.2, 2.0))
    assert [(s.layer, s.epsilon) for s in slices] == [(-2, 0.0), (-2, 0.2), (-2, 2.0), (-1, 0.0), (-1, 0.2), (-1, 2.0)]
    alone, good, giant, *flat = slices
    assert alone.clusters == 240 and alone.singletons == alone.singleton_steps == 1.0 and alone.refusal() == "all singletons"
    assert good.clusters >= 6 and good.refusal() == "" and good.probe > 0.98
    assert giant.clusters == 1 and giant.refusal() == "one giant cluster"
    assert all(s.refusal() == "one giant cluster" for s in flat)
    assert choose(slices, 4) == good


def test_selection_rule_of_the_paper():
    """Table H.1: layer 27 has the better probe (0.812 against 0.808) but only four clusters, so layer 16 is chosen."""
    chosen = Slice(-12, "last", 0.05, 0.808, 12, 0.2, 0.1, 0.5)
    last = replace(chosen, layer=-1, probe=0.812, clusters=4)
    assert last.refusal() == "fewer than 5 clusters"
    assert choose([chosen, last], 28) == chosen
    assert choose([chosen, last], 28, min_clusters=4) == last
    with pytest.raises(TacitError, match="fewer than 5 clusters"):
        choose([last], 28)


def test_ties_prefer_last_token_and_a_late_inner_layer():
    mean = Slice(-1, "mean", 0.05, 0.60, 12, 0.2, 0.1, 0.5, probe_error=0.05)
    tied = replace(mean, pooling="last", probe=0.56)
    worse = replace(tied, layer=-8, probe=0.54)
    assert choose([mean, tied, worse], 28) == tied, "within a standard error of the best; the other is not"
    assert choose([mean, replace(tied, probe_error=0.0), replace(mean, probe_error=0.0)], 28).pooling == "last"
    exact = replace(mean, probe_error=0.0)
    assert choose([exact, tied], 28) == exact, "no error, no tie"
    layers = [replace(tied, layer=layer) for layer in (-24, -12, -8, -4, -1)]
    assert choose(layers, 28).layer == -8
    assert choose([s for s in layers if s.layer != -8], 28).layer == -4, "as near as -12, and later"
    assert choose([replace(tied, layer=layer) for layer in (-4, -3, -2, -1)], 4).layer == -2
    assert choose([replace(tied, layer=layer) for layer in (-3, -1)], 4).layer == -3, "as far off as the final one"
