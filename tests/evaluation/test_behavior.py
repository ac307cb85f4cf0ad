"""Behavior statistics by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from skilled import ABC, episode, step

from tacit.core.protocols import Sampling
from tacit.core.types import Observation, StopReason, Task, Trajectory
from tacit.evaluation.behavior import behavior, behavior_from_labels, describe_episode, kind, repeated, revisits
from tacit.evaluation.panels import Panel, Rules
from tacit.evaluation.scores import score_panel
from tacit.worlds import get_environment


def test_lengths_invalid_and_repeats_by_hand():
    refused = replace(episode("AAB"), steps=(step("A"), step("A", effective=False), step("B"), step("A")))
    found = behavior([episode("AB-B"), refused, episode("ABCABC", success=False)], ABC)
    assert (found.episodes, found.successes) == (3, 2)
    assert found.success_length == 4 and found.failure_length == 6
    assert found.invalid == 2 / 8, "one does not parse, one is refused; a failed world takes no action"
    assert found.repeats == 3 / 8, "B once, A twice"
    assert found.unparsed == 1 / 8 and found.refused == 1 / 8
    assert found.all_repeats == (3 + 3) / 14, "the failure repeats A, B and C"
    assert found.per_success == {"A": 4 / 2, "B": 3 / 2} and found.without == {"A": 0.0, "B": 0.0, "C": 1.0}
    assert found.closings == {"A": 1, "B": 1}
    assert found.failures == {"step_limit": 1.0}


def test_repeats_count_from_the_second_occurrence():
    assert repeated(episode("ABAA")) == [False, False, True, True]


def test_unparsed_turn_is_neither_refused_nor_repeated():
    """The world refuses an unparsed completion each time. It counts once, as unparsed."""
    mumbled = replace(step("hm", effective=False), valid=False)
    played = replace(episode("A"), steps=(mumbled, mumbled, step("hm"), mumbled))
    assert repeated(played) == [False] * 4, "nor is an action one that was only mumbled before"
    found = behavior([played])
    assert (found.unparsed, found.refused, found.repeats, found.all_repeats) == (3 / 4, 0.0, 0.0, 0.0)
    score = score_panel(Panel("p", (played.task,)), [played], Rules(Sampling(), 4))
    assert (score.invalid, score.ineffective) == (3 / 4, 0.0)


def test_unformatted_but_executed_action_counts_as_taken():
    """A completion without a thought is still executed, so its action counts for repeats and revisits."""
    mumbled = replace(step("A"), valid=False)
    assert repeated(replace(episode("A"), steps=(mumbled, step("A"), mumbled))) == [False, True, False]
    there, back = ("go to shelf 1", "On the shelf 1"), ("go to desk 1", "On the desk 1")
    walked = walk(there, back, there)
    unformatted = replace(walked, steps=tuple(replace(s, valid=False) for s in walked.steps))
    assert revisits(unformatted, HOUSEHOLD) == revisits(walked, HOUSEHOLD) == 1


def test_failures_use_the_worlds_labels():
    world = get_environment("cooking")
    burned = replace(episode("A", success=False), stop=StopReason.FAILURE, detail="burned")
    late = episode("AB", success=False)
    found = behavior([burned, burned, late, burned], None, world.failure)
    assert found.failures == {"burned": 0.75, "timeout": 0.25} and found.per_success == {} == found.without


def test_countdown_operators_and_resets():
    world = get_environment("countdown")
    task = Task("countdown", "c/0", "three", "train", 0, "", {"numbers": [2, 3, 4], "target": 24})

    def solved(*actions: str) -> Trajectory:
        return Trajectory(task, tuple(map(step, actions)), True, 1.0, StopReason.SUCCESS, Observation(""))

    played = [
        solved("op(*, 2, 3)", "op(*, 6, 4)"),
        solved("op(+, 2, 3)", "reset", "op(*, 3, 4)", "op(*, 12, 2)"),
        solved("op(-, 4, 3)", "reset", "reset", "op(*, 2, 3)", "op(*, 6, 4)"),
    ]
    found = behavior(played, world.alphabet, world.failure)
    assert found.operators == pytest.approx({"OP_ADD": 1 / 8, "OP_MUL": 6 / 8, "OP_SUB": 1 / 8})
    assert found.per_success["RESET"] == 1.0 and found.without["RESET"] == pytest.approx(1 / 3)
    assert found.closings == {"OP_MUL": 3}
    assert found.operators_per_success == pytest.approx((1 + 2 + 2) / 3)


def test_failures_are_counted_by_family():
    def lost(family: str, label: str) -> Trajectory:
        task = Task("toy", "toy/0", family, "test", 0, "do it")
        return replace(episode("A", success=False, task=task), stop=StopReason.FAILURE, detail=label)

    played = [lost("clean", "stuck"), lost("clean", "timeout"), lost("clean", "stuck"), lost("heat", "stuck"), episode("A")]
    found = behavior(played, None, lambda t: t.detail)
    assert found.failure_counts == {"clean": {"stuck": 2, "timeout": 1}, "heat": {"stuck": 1}}
    assert found.failures == {"stuck": 0.75, "timeout": 0.25}


def walk(*turns: tuple[str, str], start: str = "-= Kitchen =-", refused: str = "") -> Trajectory:
    """`turns` are (action, resulting observation)."""
    observations = [start, *(shows for _, shows in turns)]
    steps = tuple(
        replace(step(action, effective=action != refused), observation=Observation(f"{here}\nand so on"))
        for here, (action, _) in zip(observations, turns, strict=False)
    )
    return replace(episode("A"), steps=steps, final=Observation(observations[-1]))


HOUSEHOLD, COOKING = get_environment("alfworld").place, get_environment("cooking").place


def test_revisits_of_named_places():
    there, back = ("go to shelf 1", "On the shelf 1"), ("go to desk 1", "On the desk 1")
    picks = ("take mug 1 from shelf 1", "You pick up")
    assert revisits(walk(there, picks, back, there, back, start="You are in a room"), HOUSEHOLD) == 2
    assert revisits(walk(there, there, refused="go to shelf 1"), HOUSEHOLD) == 0, "a movement that did nothing visits nothing"
    assert revisits(walk(), HOUSEHOLD) == 0 == revisits(walk(there, there), None), "a world without places has none to visit"


def test_revisits_of_places_reached_by_direction():
    round_trip = walk(("go east", "-= Hall =-"), ("go west", "-= Kitchen =-"), ("go north", "-= Yard =-"))
    assert revisits(round_trip, COOKING) == 1
    played = [walk(("go east", "-= Hall =-"), ("go west", "-= Kitchen =-")), walk(("go east", "-= Hall =-"))]
    assert behavior(played, place=COOKING).revisits == 0.5


def test_place_is_the_room_name_not_the_command_response():
    """`You go east.` precedes the room name. Two rooms reached in the same direction are two places; one room reached from
    different directions is one place."""
    east, west = "You go east.\n-= {} =-", "You go west.\n-= {} =-"
    onward = walk(("go east", east.format("Hall")), ("go east", east.format("Yard")))
    assert revisits(onward, COOKING) == 0
    back = walk(("go east", east.format("Hall")), ("go west", west.format("Kitchen")))
    assert revisits(back, COOKING) == 1


def test_visited_places_are_rooms_of_the_game():
    world = get_environment("cooking")
    task = next(t for t in world.tasks("hard", 20, 0))
    live, explorer, rooms = world.make(), world.expert()(task), []
    observation, done = live.reset(task), False
    rooms.append(world.place("", observation))
    while not done:
        action = explorer.act(observation)
        transition = live.step(action)
        observation, done = transition.observation, transition.done
        rooms += [room] if (room := world.place(action, observation)) else []
    assert len(rooms) > 2 and set(rooms) <= set(task.data["house"]), "the rooms of the house, by their names"


def test_crashed_episodes_are_excluded():
    crashed = replace(episode("A", success=False), stop=StopReason.WORLD_ERROR)
    found = behavior([crashed], ABC)
    assert found.episodes == 0 and found.success_length is None and found.invalid is None and found.failures == {}
    assert found.to_json()["successes"] == 0


def test_kind_is_the_label_without_arguments():
    assert kind("OP_ADD-LARGE-SMALL") == "OP_ADD" and kind("RESET") == "RESET"


@pytest.mark.parametrize(("place", "found"), [(COOKING, 0.0), (None, None)])
def test_world_without_places_has_no_revisits(place, found):
    won = walk(("go to shelf 1", "There is a shelf."), start="You are in a room")
    assert won.success and behavior([won], place=place).revisits == found
    world = replace(get_environment("countdown"), place=place, alphabet=None)
    assert behavior_from_labels([won], [describe_episode(won, world)]).revisits == found
