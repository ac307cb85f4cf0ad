"""Behaviour statistics by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from skilled import ABC, episode, step

from tacit.core.types import Observation, StopReason, Task, Trajectory
from tacit.environments import get_environment
from tacit.evaluation.behaviour import behaviour, kind, repeated


def test_lengths_invalid_and_repeats():
    refused = replace(episode("AAB"), steps=(step("A"), step("A", effective=False), step("B"), step("A")))
    found = behaviour([episode("AB-B"), refused, episode("ABCABC", success=False)], ABC)
    assert (found.episodes, found.successes) == (3, 2)
    assert found.success_length == 4 and found.failure_length == 6
    assert found.invalid == 2 / 8, "one does not parse, one is refused; the failure is not asked"
    assert found.repeats == 3 / 8, "B once, A twice"
    assert found.per_success == {"A": 4 / 2, "B": 3 / 2} and found.without == {"A": 0.0, "B": 0.0, "C": 1.0}
    assert found.closings == {"A": 1, "B": 1}
    assert found.failures == {"step_limit": 1.0}


def test_repeats_are_counted_from_the_second_time():
    assert repeated(episode("ABAA")) == [False, False, True, True]


def test_failures_by_the_worlds_own_labels():
    world = get_environment("cooking")
    burned = replace(episode("A", success=False), stop=StopReason.FAILURE, detail="burned")
    late = episode("AB", success=False)
    found = behaviour([burned, burned, late, burned], None, world.failure)
    assert found.failures == {"burned": 0.75, "timeout": 0.25} and found.per_success == {} == found.without


def test_operators_and_resets_of_countdown():
    world = get_environment("countdown")
    task = Task("countdown", "c/0", "three", "train", 0, "", {"numbers": [2, 3, 4], "target": 24})

    def solved(*actions: str) -> Trajectory:
        return Trajectory(task, tuple(map(step, actions)), True, 1.0, StopReason.SUCCESS, Observation(""))

    played = [
        solved("op(*, 2, 3)", "op(*, 6, 4)"),
        solved("op(+, 2, 3)", "reset", "op(*, 3, 4)", "op(*, 12, 2)"),
        solved("op(-, 4, 3)", "reset", "reset", "op(*, 2, 3)", "op(*, 6, 4)"),
    ]
    found = behaviour(played, world.alphabet, world.failure)
    assert found.operators == pytest.approx({"OP_ADD": 1 / 8, "OP_MUL": 6 / 8, "OP_SUB": 1 / 8})
    assert found.per_success["RESET"] == 1.0 and found.without["RESET"] == pytest.approx(1 / 3)
    assert found.closings == {"OP_MUL": 3}


def test_broken_worlds_say_nothing_and_nothing_is_nothing():
    crashed = replace(episode("A", success=False), stop=StopReason.WORLD_ERROR)
    found = behaviour([crashed], ABC)
    assert found.episodes == 0 and found.success_length is None and found.invalid is None and found.failures == {}
    assert found.to_json()["successes"] == 0


def test_kinds():
    assert kind("OP_ADD-LARGE-SMALL") == "OP_ADD" and kind("RESET") == "RESET"
