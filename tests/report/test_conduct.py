"""Behaviour: episodes of several worlds are told apart, and each world names its own failures."""

from __future__ import annotations

import pytest
from written import episode

from tacit.report.run_files import Episodes, WorldInfo, find_world_info
from tacit.report.run_page import build_behavior, prompt_series, split_by_world


@pytest.fixture(scope="module")
def known() -> WorldInfo:
    """A run in two worlds."""
    scenes = {}
    for world in ("countdown", "cooking"):
        scenes |= find_world_info(
            {"world": world, "method": "grpo", "model": "tiny", "tasks": 3, "evaluation": {"tasks": 2}}
        ).scenes
    found = WorldInfo()
    found.scenes = scenes
    return found


def records(known: WorldInfo, world: str) -> list[dict]:
    own = [task for task, scene in known.scenes.items() if scene.world.name == world]
    return [episode(0, False, 2, task=task) for task in own]


def test_episodes_of_several_worlds_are_several_columns_with_their_own_labels(known):
    stuck = [{**record, "stop": "failure", "detail": "stuck"} for record in records(known, "countdown")]
    mixed = [*stuck, *records(known, "cooking")]
    parted = split_by_world([Episodes("rl", 7, mixed)], known)
    assert [(e.title, len(e.records)) for e in parted] == [
        ("training, iteration 7, countdown", 5),
        ("training, iteration 7, cooking", 5),
    ]
    notices: list[str] = []
    told = build_behavior(parted, known, notices)
    assert told["titles"] == [e.title for e in parted] and not notices
    title, _, rows = told["failures"]
    assert title == "why episodes failed" and all(len(row) == 3 for row in rows)
    assert ["stuck", "100.0%", "0.0%"] in rows, "the label is the world's, which only ended it for the rollout"


def test_episodes_of_one_world_keep_their_title(known):
    whole = Episodes("rl", 7, records(known, "cooking"))
    assert split_by_world([whole], known) == [whole] and split_by_world([whole], WorldInfo()) == [whole]


def test_tasks_that_the_world_does_not_know_are_said(known):
    notices: list[str] = []
    told = build_behavior([Episodes("rl", 7, [episode(1, False)])], known, notices)
    assert told["failures"][2] == [["out of steps", "100.0%"]]
    assert notices == ["The world's version has changed and some recorded tasks no longer exist; failures are not labelled."]


def test_reading_load_is_over_the_episodes_that_came_so_far():
    series = prompt_series(Episodes("rl", 1, [episode(1, True, 1), episode(2, True, 3)]))
    assert [(p.x, p.y, p.low, p.high) for p in series.points] == [(1, 10, 10, 10), (2, 11, 11, 11), (3, 12, 12, 12)]
