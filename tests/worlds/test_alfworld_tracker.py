"""ALFWorld's tracker: subgoals, Table 6 rewards worked out by hand, and invariants over thousands of episodes."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from alfworld_small_house import house_of_pens, task_of
from tracker_episodes import some_of_all

from tacit.core.types import Observation, Task, Transition
from tacit.worlds.alfworld import ENVIRONMENT
from tacit.worlds.alfworld.published import load_games
from tacit.worlds.alfworld.tracker import (
    DONE,
    ERRORS,
    PROGRESS,
    AlfworldTracker,
    Progress,
    command_of,
    format_ranges,
    total_subgoals,
)
from tacit.worlds.alfworld.world import AlfWorld, Game, Goal, Receptacle, Thing

TRACKER = AlfworldTracker()
SPLITS = ("train", "seen", "unseen")
EPISODES = 1000
BOUND = 800
"""maximum characters of a state block"""


@dataclass
class Played:
    task: Task
    states: list[Progress]
    """the first is before any action"""
    transitions: list[Transition]

    @property
    def won(self) -> bool:
        return bool(self.transitions) and self.transitions[-1].success

    def events(self) -> Counter[str]:
        return Counter(event for state in self.states for event in (*state.progress, *state.errors))

    def totals(self) -> Counter[str]:
        """every signal, summed over the episode"""
        sums: Counter[str] = Counter()
        for before, after in pairwise(self.states):
            sums.update(TRACKER.signals(before, after))
        return sums

    def total(self, signal: str) -> float:
        return self.totals()[signal]


def play(task: Task, choose: Callable[[Observation], str], limit: int = 50) -> Played:
    world = AlfWorld()
    observation = world.reset(task)
    played = Played(task, [TRACKER.start(task, observation)], [])
    while len(played.transitions) < limit and not played.won:
        action = choose(observation)
        transition = world.step(action)
        played.states.append(TRACKER.update(played.states[-1], action, transition))
        played.transitions.append(transition)
        observation = transition.observation
    return played


def explore(task: Task) -> Played:
    expert = ENVIRONMENT.expert("explorer")(task)
    return play(task, expert.act)


def stumble(task: Task, purposeful: float) -> Played:
    """Random play with some invalid actions; with probability `purposeful` the expert's action."""
    rng, expert = random.Random(zlib.crc32(task.id.encode())), ENVIRONMENT.expert("explorer")(task)

    def choose(observation: Observation) -> str:
        wise = expert.act(observation) if purposeful else ""
        if rng.random() < purposeful:
            return wise
        # Most actions are `go to`: half of the time, choose among the others.
        here = [a for a in observation.actions if not a.startswith("go ")] if rng.random() < 0.5 else observation.actions
        return rng.choice([*here, "fly to the moon", ""])

    return play(task, choose)


def check_any(played: Played) -> None:
    """Invariants of any episode."""
    for number, state in enumerate(played.states):
        assert (state.subgoal == DONE) == (number > 0 and played.transitions[number - 1].success)
        assert len(TRACKER.render(state)) <= BOUND
    events, objects = played.events(), 2 if played.task.family == "pick2" else 1
    start, best = played.states[0].best, max(state.achieved for state in played.states)
    assert events["subgoal"] == best - start, "each subgoal is paid once"
    assert best < total_subgoals(played.task.family) or played.won
    assert max(events["reached_destination"], events["opened_destination"], events["placed"]) <= objects
    sums = played.totals()
    for signal, table in (("progress", PROGRESS), ("error", ERRORS)):
        assert sums[signal] == pytest.approx(sum(table[e] * n for e, n in events.items() if e in table))
        for rule, worth in table.items():
            assert sums[f"{signal}.{rule}"] == pytest.approx(worth * events[rule]), "each rule by its own name"
    refused = sum(not transition.effective for transition in played.transitions)
    assert events["invalid"] == refused and events["no_effect"] == 0, "this world lists its actions"


def check_expert(played: Played) -> None:
    """Table 6 rewards of an expert episode: every subgoal, reaching and using the destination per object, and hints."""
    check_any(played)
    if not played.won:
        return
    events, family = played.events(), played.task.family
    assert events["subgoal"] == total_subgoals(family) - played.states[0].best
    # A published pan lies on two burners: taken from one and cooled, it counts as delivered without being placed.
    placed_last = command_of(played.transitions[-1].observation.text).startswith("move ")
    assert placed_last == (events["placed"] > 0) == (events["reached_destination"] > 0)
    assert not (placed_last and family == "look")
    fixed = events["subgoal"] * 1.0 + events["reached_destination"] * 0.2 + events["placed"] * 0.5
    extras = 0.02 * events["hinted_place"] + 0.05 * events["hinted_container"] + 0.2 * events["opened_destination"]
    assert played.total("progress") == pytest.approx(fixed + extras)


def test_expert_uses_only_information_in_the_state_block():
    """It takes only objects and uses only lamps that the tracker has seen, so a policy can imitate it from the block."""
    for task in ENVIRONMENT.tasks("unseen", 120, 3):
        played = explore(task)
        for before, transition in zip(played.states, played.transitions, strict=False):
            verb = command_of(transition.observation.text).partition(" ")[0]
            expected = {"take": "take_object", "use": "use_light"}.get(verb, before.subgoal)
            assert before.subgoal == expected, task.id
        assert played.total("error") == 0.0


@pytest.mark.slow
def test_expert_episode_rewards_follow_table_6() -> None:
    experts = [explore(task) for task in some_of_all(ENVIRONMENT, SPLITS, EPISODES)]
    for played in experts:
        check_expert(played)
    assert sum(played.won for played in experts) > 0.9 * len(experts)
    faultless = sum(played.total("error") == 0.0 for played in experts)
    assert faultless == len(experts), f"only {faultless} of {len(experts)} expert episodes without a penalty"


@pytest.mark.slow
def test_random_episodes_satisfy_invariants_and_trigger_every_rule() -> None:
    met: Counter[str] = Counter()
    for i, task in enumerate(some_of_all(ENVIRONMENT, SPLITS, EPISODES)):
        played = stumble(task, purposeful=(i % 3) * 0.3)
        check_any(played)
        met += played.events()
    assert set(met) == {*PROGRESS, *ERRORS} - {"no_effect"}, "every rule but the one for worlds without a list came up"


@pytest.mark.slow
def test_published_games_satisfy_tracker_invariants(shared_data):
    tasks = load_games(shared_data / "alfworld" / "valid_seen.jsonl.xz").tasks
    assert len(tasks) == 140
    for task in tasks:
        played = explore(task)
        check_expert(played)
        assert played.total("error") == 0.0
        check_any(stumble(task, purposeful=0.3))


def test_reward_tables_equal_table_6():
    assert PROGRESS == {
        "subgoal": 1.0,
        "hinted_place": 0.02,
        "hinted_container": 0.05,
        "reached_destination": 0.2,
        "opened_destination": 0.2,
        "placed": 0.5,
    }
    assert ERRORS == {
        "invalid": 0.3,
        "no_effect": 0.2,
        "repeated": 0.2,
        "regression": 0.3,
        "looked_while_placing": 0.2,
        "wrong_destination": 0.3,
        "revisited": 0.1,
        "reopened": 0.1,
        "wandered": 0.15,
    }


ONE_PEN = task_of(house_of_pens("bed 1", "pick", "put a pen in drawer."))
TWO_PENS = task_of(house_of_pens("bed 1"))


def follow(task: Task, *actions: str) -> Played:
    script = iter(actions)
    return play(task, lambda _: next(script), len(actions))


def events_of(*actions: str, task: Task = ONE_PEN) -> tuple[str, ...]:
    """The tracker's events for the last action."""
    last = follow(task, *actions).states[-1]
    return (*last.progress, *last.errors)


CARRY = ("go to desk 1", "take pen 1 from desk 1")
ARRIVE = (*CARRY, "go to drawer 1")


@pytest.mark.parametrize(
    ("actions", "events"),
    [
        (("go to desk 1",), ("subgoal", "hinted_place")),
        (("go to drawer 1",), ("hinted_place",)),
        (("go to drawer 1", "go to drawer 2"), ()),
        (("go to drawer 1", "open drawer 1"), ("hinted_container",)),
        (("go to drawer 1", "go to drawer 2", "look", "inventory", "go to drawer 1"), ("revisited",)),
        (("go to drawer 1", "open drawer 1", "close drawer 1", "open drawer 1"), ("reopened", "repeated")),
        (CARRY, ("subgoal",)),
        (ARRIVE, ("subgoal", "reached_destination")),
        ((*ARRIVE, "open drawer 1"), ("opened_destination",)),
        ((*ARRIVE, "open drawer 1", "move pen 1 to drawer 1"), ("subgoal", "placed")),
        ((*ARRIVE, "look"), ("looked_while_placing",)),
        ((*ARRIVE, "examine drawer 1"), ("looked_while_placing",)),
        ((*ARRIVE, "go to drawer 2"), ("wrong_destination",)),
        ((*ARRIVE, "go to bed 1"), ("regression",)),
        ((*CARRY, "move pen 1 to desk 1"), ("regression",)),
        ((*CARRY, "go to bed 1"), ("wandered",)),
        (("go to desk 1", "go to drawer 1"), ("wandered",)),
        (("fly",), ("invalid",)),
        (("fly", "fly"), ("invalid", "repeated")),
        (("look", "inventory", "look"), ("repeated",)),
        (("go to drawer 1", "open drawer 2", "go to drawer 2", "open drawer 2"), ("hinted_container",)),  # refused before
        (("go to bed 1", "take pillow 1 from bed 1", "go to desk 1", "go to bed 1"), ()),
        (("go to bed 1", "take pillow 1 from bed 1", "go to drawer 1"), ()),  # the agent may look for a place for the pillow
    ],
)
def test_action_triggers_events(actions, events):
    assert events_of(*actions) == events


def test_refusal_counts_as_no_effect_without_action_list():
    state = TRACKER.start(
        ONE_PEN, Observation("You are in the middle of a room. Looking quickly around you, you see a desk 1.")
    )
    after = TRACKER.update(state, "fly", Transition(Observation("Nothing happens."), effective=False))
    assert TRACKER.signals(state, after) == {"progress": 0.0, "error": 0.2, "error.no_effect": 0.2}


def test_tracker_follows_text_without_action_list():
    task, world = ONE_PEN, AlfWorld()
    state = TRACKER.start(task, replace(world.reset(task), actions=()))
    for action in (*ARRIVE, "open drawer 1", "move pen 1 to drawer 1"):
        transition = world.step(action)
        state = TRACKER.update(state, action, replace(transition, observation=replace(transition.observation, actions=())))
    assert state.subgoal == DONE and state.best == 4


def progress_from_text(task: Task, *answers: str) -> list[Progress]:
    """The tracker's states for a sequence of observations without action lists."""
    room = Observation("You are in the middle of a room. Looking quickly around you, you see a desk 1, a drawer 1, a drawer 2.")
    states = [TRACKER.start(task, room)]
    for answer in answers:
        states.append(TRACKER.update(states[-1], answer, Transition(Observation(answer))))
    return states


def test_cooled_object_must_be_heated_again():
    heat = Task("alfworld", "heat", "heat", "", 0, "put a hot mug in drawer.")
    *_, hot, cold, again = progress_from_text(
        heat,
        "You pick up the mug 1 from the desk 1.",
        "You heat the mug 1 using the microwave 1.",
        "You cool the mug 1 using the fridge 1.",
        "You heat the mug 1 using the microwave 1.",
    )
    assert [state.subgoal for state in (hot, cold, again)] == ["reach_destination", "reach_appliance", "reach_destination"]
    assert cold.errors == ("regression",) and "subgoal" not in again.progress


def test_first_used_receptacle_stays_the_destination():
    """Finding a drawer with more pens does not change the destination, unless the first drawer is empty again."""
    *_, placed, seen, emptied = progress_from_text(
        TWO_PENS,
        "You pick up the pen 1 from the desk 1.",
        "You move the pen 1 to the drawer 1.",
        "You arrive at drawer 2. On the drawer 2, you see a pen 2, and a pen 3.",
        "You pick up the pen 1 from the drawer 1.",
    )
    assert (placed.destination, seen.destination, emptied.destination) == ("drawer 1", "drawer 1", "drawer 2")


def test_unsolved_episode_end_is_not_done():
    state = TRACKER.start(ONE_PEN, Observation("You are in the middle of a room."))
    assert TRACKER.update(state, "look", Transition(Observation("You see nothing."), done=True)).subgoal == "find_object"


def test_repeating_a_subgoal_is_rewarded_once():
    """Taking the object again or reaching the destination again is not rewarded a second time."""
    again = ("move pen 1 to desk 1", "take pen 1 from desk 1") * 3
    played = follow(ONE_PEN, *CARRY, *again, "go to drawer 1", "go to bed 1", "go to drawer 1")
    assert played.events()["subgoal"] == 3 and played.events()["reached_destination"] == 1


def test_pick2_rewards_both_objects():
    first = (*ARRIVE, "open drawer 1", "move pen 1 to drawer 1")
    second = ("go to bed 1", "take pen 2 from bed 1", "go to drawer 1", "move pen 2 to drawer 1")
    played = follow(TWO_PENS, *first, *second)
    assert played.won
    assert [state.subgoal for state in played.states] == [
        "find_object",
        *("take_object", "reach_destination", "place_object", "place_object", "find_object"),
        *("take_object", "reach_destination", "place_object", "done"),
    ]
    # 8 subgoals, two arrivals, one opening, two placements, and a hint for each likely place visited first
    hints = played.events()["hinted_place"]
    assert played.total("progress") == pytest.approx(8 * 1.0 + 2 * 0.2 + 0.2 + 2 * 0.5 + 0.02 * hints)
    assert played.total("error") == 0.0


def test_second_object_must_go_to_the_same_receptacle():
    first = (*ARRIVE, "open drawer 1", "move pen 1 to drawer 1", "go to bed 1", "take pen 2 from bed 1")
    assert events_of(*first, "go to drawer 2", task=TWO_PENS) == ("wrong_destination",)
    undone = (*ARRIVE, "open drawer 1", "move pen 1 to drawer 1", "take pen 1 from drawer 1")
    assert events_of(*undone, task=TWO_PENS) == ("regression",)


def test_state_block_during_search():
    state = follow(ONE_PEN, "go to drawer 1", "open drawer 1").states[-1]
    assert TRACKER.render(state).splitlines() == [
        "subgoal: find_object",
        "object: pen",
        "holding: nothing",
        "destination: drawer",
        "at: drawer 1",
        f"likely: {', '.join(state.hints())}",
        f"unchecked: {format_ranges(sorted(['drawer 2', 'desk 1', 'bed 1'], key=lambda r: _order(state, r)))}",
        "checked: drawer 1",
    ]


def _order(state: Progress, receptacle: str) -> int:
    hints, kind = state.hints(), receptacle.split()[0]
    return hints.index(kind) if kind in hints else len(hints)


def test_state_block_after_search():
    assert TRACKER.render(follow(ONE_PEN, "go to desk 1").states[-1]).splitlines()[-1] == "seen: pen 1 at desk 1"
    assert TRACKER.render(follow(ONE_PEN, *CARRY).states[-1]).splitlines()[2:] == [
        "holding: pen 1",
        "destination: drawer",
        "at: desk 1",
        "where: drawer 1-2",
    ]
    assert TRACKER.render(follow(ONE_PEN, *ARRIVE).states[-1]).splitlines()[-1] == "where: drawer 1"


def test_format_ranges_compresses_numbered_places():
    assert format_ranges(["drawer 3", "bed 1", "drawer 1", "drawer 2", "drawer 10"]) == "drawer 1-3 10, bed 1"
    assert format_ranges([]) == ""


def test_state_block_is_bounded_for_very_large_houses():
    """Very long names and hundreds of places: every list is truncated."""
    names = tuple(f"{'cabinet' * 6}{i % 40} {2 * i + 1}" for i in range(400))
    goal = Goal("pick", "watch" * 40, "drawer" * 40)
    state = Progress(goal, names * 2, names[:30], "watch" * 40, checked=names)
    assert len(TRACKER.render(state)) <= BOUND
    seen = {f"{'watch' * 40} {i}": names[i] for i in range(300)}
    assert len(TRACKER.render(replace(state, holding="", seen=seen, subgoal="take_object"))) <= BOUND


def test_tracker_is_registered_with_version():
    assert isinstance(ENVIRONMENT.tracker, AlfworldTracker) and ENVIRONMENT.tracker.version == "alfworld-1"


def test_receptacles_at_one_location_are_checked_together():
    """Two shelves at one location: the text shows one, the action list shows the pen on the other."""
    receptacles = (Receptacle("shelf 2", "shelf", 1), Receptacle("shelf 1", "shelf", 1), Receptacle("desk 1", "desk", 2))
    pen = Thing("pen 1", "pen", frozenset({"pickupable"}), (0,), (1,))
    fits = frozenset({("shelf", "pen"), ("desk", "pen")})
    game = Game(receptacles, (pen,), fits, 0, Goal("pick", "pen", "desk"), "put a pen in desk.")
    state = follow(task_of(game), "go to shelf 1").states[-1]
    assert state.subgoal == "take_object" and state.seen == {"pen 1": "shelf 2"}
    assert set(state.checked) == {"shelf 1", "shelf 2"} and "at: shelf 1-2" in TRACKER.render(state)
