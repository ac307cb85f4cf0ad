"""Behavior section: one column per world, each with the world's own failure labels."""

from __future__ import annotations

from written import episode

from tacit.report.run_files import Episodes
from tacit.report.run_page import build_behavior, prompt_series, split_by_world


def records(world: str, label: str) -> list[dict]:
    return [episode(n, False, 2, labels={"world": world, "failure": label}) for n in range(5)]


def test_each_world_has_its_own_behavior_column():
    parted = split_by_world([Episodes("rl", 7, [*records("countdown", "stuck"), *records("cooking", "burned")])])
    assert [(e.title, len(e.records)) for e in parted] == [
        ("training, iteration 7, countdown", 5),
        ("training, iteration 7, cooking", 5),
    ]
    notices: list[str] = []
    behavior = build_behavior(parted, notices)
    assert behavior["titles"] == [e.title for e in parted] and not notices
    title, _, rows = behavior["failures"]
    assert title == "why episodes failed" and rows == [["burned", "0.0%", "100.0%"], ["stuck", "100.0%", "0.0%"]]


def test_episodes_of_one_world_keep_their_title():
    whole = Episodes("rl", 7, records("cooking", "burned"))
    assert split_by_world([whole]) == [whole]


def test_episodes_without_labels_show_stop_reasons():
    behavior = build_behavior([Episodes("rl", 7, [episode(1, False)])], [])
    assert behavior["failures"][2] == [["out of steps", "100.0%"]]


def test_prompt_tokens_are_averaged_over_episodes_that_reached_the_turn():
    series = prompt_series(Episodes("rl", 1, [episode(1, True, 1), episode(2, True, 3)]))
    assert [(p.x, p.y, p.low, p.high) for p in series.points] == [(1, 10, 10, 10), (2, 11, 11, 11), (3, 12, 12, 12)]
