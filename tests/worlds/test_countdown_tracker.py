"""Countdown's tracker over thousands of episodes: done exactly when won, rewards as specified, bounded state block."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from tracker_episodes import rules_met, some_of_all

from tacit.core.types import Task
from tacit.worlds import get_environment
from tacit.worlds.countdown.world import LARGEST_NUMBER, SHOWN_OPENINGS, Operation, SearchState, parse_action, parse_observation

ENVIRONMENT = get_environment("countdown")
BOUND = 200
"""maximum characters of a state block, with numbers up to 100"""
TRACKER = ENVIRONMENT.tracker
EPISODES = 1000
NONSENSE = ("fly to the moon", "", "op(+, 1000, 1)", "op(^, 1, 2)")


def check(task: Task, purposeful: float, rng: Random) -> tuple[bool, Counter[str]]:
    """Play one episode with a share `purposeful` of expert moves and check the tracker against independent counts. Returns
    (won, sum of each signal)."""
    world, expert = ENVIRONMENT.make(), ENVIRONMENT.expert()(task)
    observation = world.reset(task)
    state = TRACKER.start(task, observation)
    pools, expected, sums = {_pool(observation)}, Counter[str](), Counter[str]()
    for _ in range(ENVIRONMENT.max_steps):
        assert len(TRACKER.render(state)) <= BOUND
        wise = rng.random() < purposeful
        action = expert.act(observation) if wise else rng.choice([*observation.actions, *NONSENSE])
        transition = world.step(action)
        before, state = state, TRACKER.update(state, action, transition)
        signals = TRACKER.signals(before, state)
        sums.update(signals)
        observation = transition.observation
        assert (state.phase == "done") == transition.success
        assert set(signals) <= {"progress", "error", *TRACKER.components}
        for kind in ("progress", "error"):
            assert signals[kind] == pytest.approx(sum(v for name, v in signals.items() if name.startswith(f"{kind}.")))
        if not transition.effective:
            expected["refused" if parse_action(action) else "unreadable"] += 1
        else:
            expected["repeated"] += isinstance(parse_action(action), Operation) and _pool(observation) in pools
            pools.add(_pool(observation))
        if transition.done:
            break
    assert len(TRACKER.render(state)) <= BOUND
    assert sums["progress.new_pool"] == pytest.approx(0.02 * (len(pools) - 1))
    assert sums["progress.subgoal"] == float(transition.success)
    for name, worth in TRACKER.errors.items():
        assert sums[f"error.{name}"] == pytest.approx(worth * expected[name])
    return bool(transition.success), sums


def _pool(observation) -> tuple[int, ...]:
    return tuple(sorted(parse_observation(observation.text).pool))


@pytest.mark.slow
def test_expert_episodes_earn_full_reward_without_penalties() -> None:
    for task in some_of_all(ENVIRONMENT, ENVIRONMENT.splits, EPISODES):
        won, sums = check(task, 1.0, Random(0))
        assert won and sums["error"] == 0.0, task.id
        assert sums["progress"] == pytest.approx(1.0 + 0.02 * (len(task.data["numbers"]) - 1))


@pytest.mark.slow
def test_random_episodes_satisfy_invariants_and_trigger_every_rule() -> None:
    met = rules_met(some_of_all(ENVIRONMENT, ENVIRONMENT.splits, EPISODES), check)
    assert set(TRACKER.components) <= met, "every rule came up"


def test_reward_values_and_names():
    assert TRACKER.progress == {"subgoal": 1.0, "new_pool": 0.02}
    assert TRACKER.errors == {"unreadable": 0.3, "refused": 0.2, "repeated": 0.1}
    assert TRACKER.components == (
        *("progress.subgoal", "progress.new_pool"),
        *("error.unreadable", "error.refused", "error.repeated"),
    )


def test_longest_state_block_is_within_bound():
    opening = str(Operation("*", LARGEST_NUMBER, LARGEST_NUMBER))
    state = SearchState(4, (1, 2, 3, 4), frozenset(), (opening,) * SHOWN_OPENINGS, undone=10**9)
    assert BOUND / 2 < len(TRACKER.render(state)) <= BOUND
