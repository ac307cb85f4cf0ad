"""TextCraft's tracker over hundreds of episodes: done exactly when won, rewards as specified, bounded state block."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from tracker_episodes import fold, rules_met, some_of_all

from tacit.core.types import Task
from tacit.worlds import get_environment
from tacit.worlds.textcraft.recipes import open_book
from tacit.worlds.textcraft.skills import plan
from tacit.worlds.textcraft.world import make_task, parse_observation

ENVIRONMENT = get_environment("textcraft")
BOUND = 600
"""maximum characters of a state block"""
TRACKER = ENVIRONMENT.tracker
GENERATED = ("train", "test", "hard")
EPISODES = 1000
UNREADABLE = ("fly to the moon", "", "get all", "craft 1 peg using twig")
REFUSED = ("get 1 moon", "get 1 boards", "craft 1 moon using 1 sun")
STOOL = make_task("workshop", "minecraft:ash_stool")


def check(task: Task, purposeful: float, rng: Random) -> tuple[bool, Counter[str]]:
    """Play one episode with a share `purposeful` of expert moves and check the tracker against independent counts. Returns
    (won, sum of each signal)."""
    world, expert, book = ENVIRONMENT.make(), ENVIRONMENT.expert()(task), open_book(task.data["book"])
    observation = world.reset(task)
    state = TRACKER.start(task, observation)
    first = before = least = len(plan(book, task.data["goal"], {}))
    expected, sums = Counter[str](), Counter[str]()
    for _ in range(ENVIRONMENT.max_steps):
        assert len(TRACKER.render(state)) <= BOUND
        wise = rng.random() < purposeful
        action = expert.act(observation) if wise else rng.choice([*observation.actions, *UNREADABLE, *REFUSED])
        transition = world.step(action)
        last, state = state, TRACKER.update(state, action, transition)
        signals = TRACKER.signals(last, state)
        sums.update(signals)
        observation = transition.observation
        assert (state.phase == "done") == transition.success and set(signals) <= {"progress", "error", *TRACKER.components}
        for kind in ("progress", "error"):
            assert signals[kind] == pytest.approx(sum(v for name, v in signals.items() if name.startswith(f"{kind}.")))
        if not transition.effective:
            expected["unreadable" if action in UNREADABLE else "refused"] += 1
            continue
        left = 0 if transition.success else len(plan(book, task.data["goal"], parse_observation(observation.text).held))
        expected["needless"] += left >= before
        before, least = left, min(left, least)
        if transition.done:
            break
    assert sums["progress.subgoal"] == first - least
    for name, worth in TRACKER.errors.items():
        assert sums[f"error.{name}"] == pytest.approx(worth * expected[name])
    return bool(transition.success), sums


@pytest.mark.slow
def test_expert_episodes_win_without_penalties() -> None:
    for task in some_of_all(ENVIRONMENT, GENERATED, EPISODES):
        won, sums = check(task, 1.0, Random(0))
        assert won and sums["error"] == 0.0, task.id


@pytest.mark.slow
def test_random_episodes_satisfy_invariants_and_trigger_every_rule() -> None:
    met = rules_met(some_of_all(ENVIRONMENT, GENERATED, EPISODES), check)
    assert set(TRACKER.components) <= met, "every rule came up"


def test_state_block_lists_remaining_steps():
    assert TRACKER.render(TRACKER.start(STOOL, ENVIRONMENT.make().reset(STOOL))) == (
        "phase: gather\nto get: 1 ash log\nto make: 4 ash boards, 4 ash leg, 1 ash stool"
    )
    state, signals = fold(STOOL, ["get 1 ash log", "craft 4 ash boards using 1 ash log", "craft 2 ash leg using 1 ash boards"])
    assert TRACKER.render(state) == "phase: craft\nto make: 2 ash leg, 1 ash stool"
    assert [s["progress"] for s in signals] == [1.0, 1.0, 1.0]
    state, signals = fold(STOOL, ["get 2 chalk", "inventory", "get 1 moon", "hm"])
    assert [s["error"] for s in signals] == [0.1, 0.1, 0.2, 0.3] and not any(s["progress"] for s in signals)


def test_repeating_a_lost_subgoal_is_not_rewarded():
    wasted = ["get 1 ash log", "craft 4 ash boards using 1 ash log", "craft 1 ash shelf using 3 ash boards", "get 1 ash log"]
    _, signals = fold(STOOL, wasted)
    assert [s["progress"] for s in signals] == [1.0, 1.0, 0.0, 0.0]
    assert [s["error"] for s in signals] == [0.0, 0.0, 0.1, 0.0]


def test_state_blocks_of_published_goals_are_within_bound(shared_data, monkeypatch):
    monkeypatch.setenv("TEXTCRAFT_DATA", str(shared_data / "textcraft"))
    world, longest = ENVIRONMENT.make(), 0
    for goal in open_book("published").goals():
        task = make_task("published", goal)
        longest = max(longest, len(TRACKER.render(TRACKER.start(task, world.reset(task)))))
    assert BOUND / 4 < longest <= BOUND


def test_reward_values_and_names():
    assert TRACKER.progress == {"subgoal": 1.0} and TRACKER.errors == {"unreadable": 0.3, "refused": 0.2, "needless": 0.1}
    assert TRACKER.components == ("progress.subgoal", "error.unreadable", "error.refused", "error.needless")
