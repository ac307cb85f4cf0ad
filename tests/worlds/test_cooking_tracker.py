"""Cooking's tracker over thousands of episodes: done exactly when won, rewards as specified, bounded state block."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from tracker_episodes import rules_met, some_of_all

from tacit.core.types import Task
from tacit.worlds import get_environment
from tacit.worlds.cooking.skills import (
    CookingState,
    Direction,
    Explored,
    Item,
    Recipe,
    Scene,
    read_scene,
    skill,
)
from tacit.worlds.cooking.world import COOKING_VERBS, CUTS, FOODS, NEIGHBOURS, RAW, UNCUT

ENVIRONMENT = get_environment("cooking")
TRACKER = ENVIRONMENT.tracker
BOUND = 600
"""maximum characters of a state block"""
EPISODES = 1000


def subgoals(task: Task) -> int:
    """Number of subgoals: read the recipe, take each ingredient, follow each direction, prepare and eat the meal."""
    directions = sum((cooking != RAW) + (cutting != UNCUT) for _, cooking, cutting in task.data["recipe"])
    return 1 + len(task.data["recipe"]) + directions + 2


def check(task: Task, purposeful: float, rng: Random) -> tuple[bool, Counter[str]]:
    """Play one episode with a share `purposeful` of expert moves and check the tracker against independent counts. Returns
    (won, sum of each signal)."""
    world, expert = ENVIRONMENT.make(), ENVIRONMENT.expert()(task)
    observation = world.reset(task)
    state = TRACKER.start(task, observation)
    room = read_scene(observation.text).room
    rooms, opened = {room}, set(read_scene(observation.text).opened)
    by_luck, containers, expected, sums = False, 0, Counter[str](), Counter[str]()
    for _ in range(ENVIRONMENT.max_steps):
        assert len(TRACKER.render(state)) <= BOUND
        if purposeful < 1 and rng.random() >= purposeful:
            action = rng.choice([*observation.actions, "fly to the moon", "", "cook salt with stove"])
        elif purposeful < 1:
            action = ENVIRONMENT.expert()(task).act(observation)  # a fresh expert: random moves would confuse its map
        else:
            action = expert.act(observation)
        transition = world.step(action)
        before, state = state, TRACKER.update(state, action, transition)
        signals = TRACKER.signals(before, state)
        sums.update(signals)
        observation = transition.observation
        if "prepare" in state.achieved - before.achieved:
            by_luck = "read" not in before.achieved
        assert (state.phase == "done") == transition.success == ("eat" in state.achieved)
        assert not state.left or state.phase in ("gather", "process"), "a prepared meal leaves nothing to do but eat"
        assert set(signals) <= {"progress", "error", *TRACKER.components}
        for kind in ("progress", "error"):
            assert signals[kind] == pytest.approx(sum(v for name, v in signals.items() if name.startswith(f"{kind}.")))
        if not transition.effective:
            expected["refused" if skill(action) else "unreadable"] += 1
        else:
            scene = read_scene(observation.text)
            containers += len(set(scene.opened) - opened)
            opened |= set(scene.opened)
            rooms.add(scene.room)
            expected["lost"] += transition.done and not transition.success
        if transition.done:
            break
    assert len(TRACKER.render(state)) <= BOUND
    assert sums["progress.new_room"] == pytest.approx(0.02 * (len(rooms) - 1))
    assert sums["progress.new_container"] == pytest.approx(0.05 * containers)
    assert sums["progress.subgoal"] == len(state.achieved) <= subgoals(task)
    # An agent that holds everything by chance may prepare the meal unread; then the recipe's subgoals are never achieved.
    assert not transition.success or by_luck or sums["progress.subgoal"] == subgoals(task)
    for name in ("refused", "unreadable", "lost"):
        assert sums[f"error.{name}"] == pytest.approx(TRACKER.errors[name] * expected[name])
    return bool(transition.success), sums


@pytest.mark.slow
def test_expert_episodes_win_with_almost_no_penalties() -> None:
    turned_back = 0
    for task in some_of_all(ENVIRONMENT, ENVIRONMENT.splits, EPISODES):
        won, sums = check(task, 1.0, Random(0))
        assert won and sums["error"] == sums["error.back"], task.id
        turned_back += sums["error"] > 0
    # An untried exit may lead to a known room; then the expert walks back.
    assert turned_back <= 0.01 * EPISODES


@pytest.mark.slow
def test_random_episodes_satisfy_invariants_and_trigger_every_rule() -> None:
    met = rules_met(some_of_all(ENVIRONMENT, ENVIRONMENT.splits, EPISODES), check)
    assert set(TRACKER.components) <= met, "every rule came up"


def test_reward_values_and_names():
    assert TRACKER.progress == {"subgoal": 1.0, "new_room": 0.02, "new_container": 0.05}
    assert TRACKER.errors == {"unreadable": 0.3, "lost": 0.3, "refused": 0.2, "back": 0.1, "reopened": 0.1}
    assert TRACKER.components == (
        *("progress.subgoal", "progress.new_room", "progress.new_container"),
        *("error.unreadable", "error.lost", "error.refused", "error.back", "error.reopened"),
    )


def house_of(rooms: tuple[str, ...], carried: tuple[str, ...] = ()) -> Explored:
    """A kitchen with four untried exits, and empty rooms."""
    scenes = {room: Scene("", room) for room in rooms}
    exits = dict.fromkeys(("north", "south", "east", "west"), "")
    closed = {"fridge", "oven"}
    places = {name: [] for name in ("fridge", "oven", "table", "counter", "stove")}
    scenes["kitchen"] = Scene("", "kitchen", places, closed, set(), exits, {food: Item(food) for food in carried})
    return Explored("kitchen", scenes, {room: {} for room in scenes})


def test_longest_state_block_is_within_bound():
    """The six longest room names, the two longest foods with the longest directions, and nothing found yet."""
    foods = sorted(FOODS, key=len)[-2:]
    cut, cook = max(CUTS, key=len), max(COOKING_VERBS.values(), key=len)
    directions = tuple(Direction(verb, food) for food in foods for verb in (cut, cook))
    left = (*(f"take {food}" for food in foods), *(f"{d.verb} {d.food}" for d in directions))
    rooms = tuple(sorted(NEIGHBOURS, key=len)[-6:])
    blocks = [
        TRACKER.render(CookingState(house_of(rooms, carried), recipe=Recipe(tuple(foods), directions), left=left, phase=phase))
        for phase in ("gather", "process", "prepare")
        for carried in ((), foods[:1], tuple(foods))
    ]
    assert BOUND / 2 < max(map(len, blocks)) <= BOUND


def test_state_block_locates_needed_objects():
    """A needed object is on furniture here, along a known way, or not seen; then the block lists what to search."""
    ways = 0
    for task in [t for t in ENVIRONMENT.tasks("hard", 80, 3) if t.data["start"] == "kitchen"]:
        world, expert = ENVIRONMENT.make(), ENVIRONMENT.expert()(task)
        observation = world.reset(task)
        state, blocks = TRACKER.start(task, observation), []
        while state.phase != "done":
            blocks.append(TRACKER.render(state).splitlines())
            action = expert.act(observation)
            transition = world.step(action)
            state, observation = TRACKER.update(state, action, transition), transition.observation
        assert blocks[0][-1] in ("needs: cookbook (counter)", "needs: cookbook (table)")
        assert "needs: kitchen (here)" in blocks[-2] and blocks[-1][0] == "phase: eat"
        for block in blocks:
            assert ("(not seen)" in "".join(block)) == any(line.startswith("to search: ") for line in block)
            ways += any(line.startswith("needs: ") and "(way " in line for line in block)
    assert ways > 10, "something was needed in a room that had been left"


@pytest.mark.parametrize("split", ["test", "hard"])
def test_state_block_lists_everything_the_expert_uses(split):
    """The block names the objects it takes, the ways it goes, the containers it opens and the appliances it uses."""
    for task in ENVIRONMENT.tasks(split, 60, 5):
        world, expert = ENVIRONMENT.make(), ENVIRONMENT.expert()(task)
        observation = world.reset(task)
        state = TRACKER.start(task, observation)
        while True:
            action, block = expert.act(observation), TRACKER.render(state)
            if action.startswith("take "):
                thing, _, place = action.removeprefix("take ").partition(" from ")
                assert f"{thing} ({place or 'floor'})" in block
            elif action.startswith("go "):
                assert f"way {action.removeprefix('go ')}" in block
            elif action.startswith("open ") and "door" not in action:
                assert action.removeprefix("open ") in block.partition("to search: ")[2]
            elif action.startswith("cook "):
                assert f"{action.rpartition(' with ')[2]} (here)" in block
            transition = world.step(action)
            state, observation = TRACKER.update(state, action, transition), transition.observation
            if transition.done:
                assert transition.success
                break
