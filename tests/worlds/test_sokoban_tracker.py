"""Sokoban's tracker over hundreds of episodes: done exactly when won, stuck when deadlocked, rewards as specified."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from tracker_episodes import fold, rules_met, some_of_all

from tacit.core.types import Task
from tacit.worlds import get_environment
from tacit.worlds.sokoban.skills import is_deadlocked, pushes_left
from tacit.worlds.sokoban.tasks import FAMILIES, GENERATED, make_task
from tacit.worlds.sokoban.world import read_position

ENVIRONMENT = get_environment("sokoban")
SMALL = replace(ENVIRONMENT, families=tuple(FAMILIES.values()))
"""the environment with only the generated families"""
TRACKER = ENVIRONMENT.tracker
EPISODES = 600
NONSENSE = ("fly to the moon", "", "upwards")


def check(task: Task, purposeful: float, rng: Random) -> tuple[bool, Counter[str]]:
    """Play one episode with a share `purposeful` of expert moves and check the tracker against independent counts. Returns
    (won, sum of each signal)."""
    world, expert = ENVIRONMENT.make(), ENVIRONMENT.expert()(task)
    observation = world.reset(task)
    first_moves, state = observation.actions, TRACKER.start(task, observation)
    positions, expected, sums, lost = {read_position(observation.text)}, Counter[str](), Counter[str](), False
    distances, placed = [], [0]
    for _ in range(ENVIRONMENT.max_steps):
        layout, at = read_position(observation.text)
        distances.append(pushes_left(layout, at.boxes))
        assert len(TRACKER.render(state)) <= 80
        wise = rng.random() < purposeful
        action = expert.act(observation) if wise else rng.choice([*first_moves, "up", "left", *NONSENSE])
        transition = world.step(action)
        before, state = state, TRACKER.update(state, action, transition)
        signals = TRACKER.signals(before, state)
        sums.update(signals)
        observation = transition.observation
        position = read_position(observation.text)
        assert (state.phase == "done") == transition.success and (state.phase == "stuck") == is_deadlocked(*position)
        assert set(signals) <= {"progress", "error", *TRACKER.components}
        for kind in ("progress", "error"):
            assert signals[kind] == pytest.approx(sum(v for name, v in signals.items() if name.startswith(f"{kind}.")))
        if not transition.effective:
            expected["unreadable" if action in NONSENSE else "refused"] += 1
        elif is_deadlocked(*position) and not lost:
            expected["deadlock"] += 1
        else:
            expected["repeated"] += position in positions
        lost = lost or is_deadlocked(*position)
        positions.add(position)
        placed.append(round(transition.score * position[1].boxes.bit_count()))
        if transition.done:
            distances.append(0)
            break
    assert sums["progress.subgoal"] == max(placed)
    assert sums["progress.nearer"] == pytest.approx(0.05 * (distances[0] - min(*distances, state.distance)))
    for name, worth in TRACKER.errors.items():
        assert sums[f"error.{name}"] == pytest.approx(worth * expected[name])
    return bool(transition.success), sums


@pytest.mark.slow
def test_expert_episodes_win_without_penalties() -> None:
    for task in some_of_all(SMALL, GENERATED, EPISODES):
        won, sums = check(task, 1.0, Random(0))
        assert won and sums["error"] == 0.0, task.id


@pytest.mark.slow
def test_random_episodes_satisfy_invariants_and_trigger_every_rule() -> None:
    met = rules_met(some_of_all(SMALL, GENERATED, EPISODES), check)
    assert set(TRACKER.components) <= met, "every rule came up"


def test_state_block_and_signals_by_hand():
    room = make_task(["WWWWW", "W..CW", "W.A.W", "W@..W", "WWWWW"])
    assert TRACKER.render(TRACKER.start(room, ENVIRONMENT.make().reset(room))) == (
        "phase: push\nboxes on targets: 0 of 1\npushes left: at least 2"
    )
    state, signals = fold(room, ["up", "right", "up", "down", "hm", "left", "left"])
    assert TRACKER.render(state) == "phase: push\nboxes on targets: 0 of 1\npushes left: at least 1"
    assert [round(s["progress"], 2) for s in signals] == [0.0, 0.05, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert [s["error"] for s in signals] == [0.0, 0.0, 0.0, 0.1, 0.3, 0.0, 0.2]
    state, signals = fold(room, ["right", "right", "up", "left", "right"])
    assert TRACKER.render(state) == "phase: stuck\nboxes on targets: 0 of 1\npushes left: no way"
    assert [s["error"] for s in signals] == [0.0, 0.0, 0.0, 0.3, 0.0], "a deadlock is an error once"
    state, _ = fold(room, ["up", "right", "down", "right", "up"])
    assert state.phase == "done" and TRACKER.render(state).endswith("1 of 1\npushes left: at least 0")


def test_reward_values_and_names():
    assert TRACKER.progress == {"subgoal": 1.0, "nearer": 0.05}
    assert TRACKER.errors == {"unreadable": 0.3, "deadlock": 0.3, "refused": 0.2, "repeated": 0.1}
    assert TRACKER.components == (
        *("progress.subgoal", "progress.nearer"),
        *("error.unreadable", "error.deadlock", "error.refused", "error.repeated"),
    )
