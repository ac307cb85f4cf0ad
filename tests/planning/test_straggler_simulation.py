"""The simulation beside the closed form where nothing straggles, its limit cases, and what holds of any course of events."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tacit.core.errors import TacitError
from tacit.planning.simulation import Scenario, Simulation, simulate
from tacit.planning.timing import Server, iteration_s, rollout_s
from tacit.planning.workload import Workload, uniform

ONE = Server(prefill_rate=40_000.0, fixed_s=0.007, row_s=7e-5, compute_s=6e-5, compute_fixed_s=1e-3, slots=256)


def ragged(episodes: int = 64, world_s: float = 0.01) -> Workload:
    """Geometric turns, up to 50; 5 to 60 tokens a turn"""
    draw = np.random.default_rng(0)
    lengths = np.minimum(50, draw.geometric(0.08, 100))
    turns = tuple(np.stack([draw.integers(200, 500, n), draw.integers(5, 60, n)], 1) for n in lengths)
    return Workload(episodes, turns, world_s)


@pytest.mark.parametrize("world_s", [0.0, 0.1])
@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("overlap", [0, 1, 2])
@pytest.mark.parametrize("update_s", [1.0, 20.0])
def test_without_stragglers_it_is_the_closed_form(world_s, gathered, overlap, update_s):
    work = uniform(64, 10, 300, 20, world_s)
    found = simulate(Scenario(work, ONE, 4, update_s, 0.3, overlap, gathered), overlap + 4)
    expected = iteration_s(rollout_s(work, ONE, 4), update_s, 0.3, overlap)
    assert found.iterations == pytest.approx([expected] * len(found.iterations))
    assert found.ranks_wait == pytest.approx(1 - (update_s + 0.3) / expected, abs=1e-9)


def test_more_episodes_than_places_come_in_waves():
    work, narrow = uniform(64, 5, 100, 10), replace(ONE, slots=8)
    assert simulate(Scenario(work, narrow, 2, 1.0), 3).iteration_s == pytest.approx(
        4 * rollout_s(replace(work, episodes=16), narrow, 2) + 1
    )
    assert rollout_s(work, narrow, 2) == pytest.approx(4 * rollout_s(replace(work, episodes=16), narrow, 2))


def test_one_server_and_one_episode_wait_for_each_other():
    work = uniform(1, 3, 400, 10, world_s=2.0)
    found = simulate(Scenario(work, ONE, 1, update_s=4.0), 5)
    writing = 3 * (400 / ONE.prefill_rate + 10 * ONE.step_s(1))
    assert found.iteration_s == pytest.approx(writing + 3 * 2.0 + 4.0)
    assert found.servers_wait == pytest.approx(1 - writing / found.iteration_s) and found.rows == pytest.approx(
        writing / found.iteration_s
    )


def test_the_longest_episode_decides_an_iteration_on_policy():
    """Two episodes on two servers, of 1 and 9 turns: the second alone is what everybody waits for."""
    work = Workload(2, (np.tile([100, 10], (9, 1)),))
    short = Workload(2, (np.tile([100, 10], (9, 1)), np.tile([100, 10], (1, 1))))
    alike = simulate(Scenario(work, ONE, 2, 1e-9), 6).iteration_s
    assert max(simulate(Scenario(short, ONE, 2, 1e-9), 12, seed=3).iterations) == pytest.approx(alike)


def test_stragglers_cost_and_overlap_pays():
    work = ragged()
    alike = rollout_s(uniform(64, round(work.turns), round(work.prompt), round(work.completion), 0.01), ONE, 4)
    on_policy = simulate(Scenario(work, ONE, 4, 10.0), 8)
    assert on_policy.iteration_s > 1.5 * alike + 10.0
    assert on_policy.iteration_s == pytest.approx(rollout_s(work, ONE, 4) + 10.0, rel=0.3)  # the closed form knows the longest
    one, two = (simulate(Scenario(work, ONE, 4, 10.0, overlap=k, gathered=True), 8 + k) for k in (1, 2))
    assert on_policy.ranks_wait > one.ranks_wait > two.ranks_wait
    assert on_policy.iteration_s > one.iteration_s > two.iteration_s


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("overlap", [0, 1, 2, 3])
def test_no_episode_is_used_later_than_it_may(gathered, overlap):
    found = simulate(Scenario(ragged(), ONE, 4, 0.1, 0.01, overlap, gathered), 12)
    assert found.oldest <= overlap


def test_the_same_seed_is_the_same_course():
    scene = Scenario(ragged(), ONE, 4, 5.0, 0.2, 1, True, server_life_s=200.0, restart_s=20.0, world_deaths=0.01)
    assert simulate(scene, 6, seed=4) == simulate(scene, 6, seed=4) != simulate(scene, 6, seed=5)


def test_dead_servers_lose_no_episode():
    """Every turn of every episode is written, however often its server died."""
    scene = Scenario(ragged(32), ONE, 3, 2.0, server_life_s=30.0, restart_s=5.0)
    simulation = Simulation(scene, 1)
    found = simulation.run(8)
    alive = simulate(replace(scene, server_life_s=0.0), 8, 1)
    assert found.server_deaths > 5 and found.iteration_s > alive.iteration_s
    assert len(simulation.stale) == 8 * 32 and found.world_deaths == 0


def test_the_only_server_comes_back():
    found = simulate(Scenario(ragged(8), ONE, 1, 1.0, server_life_s=20.0, restart_s=30.0), 6)
    assert found.server_deaths > 0 and np.isfinite(found.iteration_s)


def test_dead_worlds_are_not_learned_from():
    scene = Scenario(ragged(), ONE, 4, 1.0, overlap=1, world_deaths=0.02)
    ordered = Simulation(scene, 2)
    found = ordered.run(6)
    assert found.world_deaths > 20 and len(ordered.stale) < 6 * 64
    gathered = Simulation(replace(scene, gathered=True), 2)
    gathered.run(6)
    assert len(gathered.stale) == 6 * 64  # others are begun in their place


def test_few_workers_make_worlds_wait():
    """64 steps of 0.1 s on 4 workers take at least 1.6 s a turn."""
    work = uniform(64, 5, 100, 10, world_s=0.1)
    free = simulate(Scenario(work, ONE, 4, 1.0), 4).iteration_s
    few = simulate(Scenario(work, ONE, 4, 1.0, world_workers=4), 4).iteration_s
    assert few > free + 5 * (1.6 - 0.1) * 0.8
    assert simulate(Scenario(work, ONE, 4, 1.0, world_workers=64), 4).iteration_s == pytest.approx(free)


def test_what_makes_no_scene_is_refused():
    with pytest.raises(TacitError, match="at least one server"):
        Scenario(ragged(), ONE, 0, 1.0)
    with pytest.raises(TacitError, match="too few to measure with overlap 2"):
        simulate(Scenario(ragged(), ONE, 1, 1.0, overlap=2), 3)


def test_a_slow_driver_is_what_everybody_waits_for():
    """64 episodes of 5 turns, 0.05 s each in one process: an iteration cannot be quicker than 16 s, and is not much slower."""
    work = replace(uniform(64, 5, 100, 10), driver_s=0.05)
    found = simulate(Scenario(work, ONE, 4, 1.0), 4).iteration_s
    assert rollout_s(work, ONE, 4) == pytest.approx(16.0) and 17.0 <= found < 17.0 + rollout_s(
        replace(work, driver_s=0), ONE, 4
    )
