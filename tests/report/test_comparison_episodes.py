"""Trajectories on a comparison page: the same tasks for every method, and training episodes with their credit."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from written import WORLDS, episode, write_comparison

from tacit.report.comparison_page import render_comparison
from tacit.runs.trajectories import read_records, write_records


@pytest.fixture
def place(tmp_path) -> Path:
    return write_comparison(tmp_path / "compared")


def embedded(html: str) -> list[dict]:
    found = re.search(r'id="episodes"[^>]*>(.*?)</script>', html, re.DOTALL)
    return json.loads(found.group(1))["episodes"] if found else []


def train(place: Path, world: str, method: str, credits: list[list[float]]) -> None:
    played = []
    for number, own in enumerate(credits):
        record = episode(70 + number, True, len(own))
        turns = [{**turn, "credit": credit} for turn, credit in zip(record["turns"], own, strict=True)]
        played.append({**record, "turns": turns})
    write_records(place / f"runs/{world}/{method}/0/trajectories/rl-000040.jsonl.gz", played)


@pytest.mark.slow
def test_all_methods_show_the_same_tasks_with_different_outcomes(place):
    episodes = embedded(render_comparison(place))
    assert [e["from"].split(",")[0] for e in episodes] == [
        f"{world} / {method} / 0" for world in WORLDS for _ in range(2) for method in ("grpo", "bipace", "reuserl")
    ]
    for world in WORLDS:
        own = [e for e in episodes if e["from"].startswith(world)]
        by_method = [
            {r["task"]: r["success"] for r in read_records(place / f"runs/{world}/{m}/0/trajectories/eval-rl-000040.jsonl.gz")}
            for m in ("grpo", "bipace", "reuserl")
        ]
        differ = [task for task in by_method[0] if len({outcomes[task] for outcomes in by_method}) == 2]
        assert [e["task"] for e in own] == [differ[0]] * 3 + [differ[1]] * 3
        assert [e["success"] for e in own] == [outcomes[e["task"]] for e, outcomes in zip(own, by_method * 2, strict=True)]


@pytest.mark.slow
def test_training_episode_with_largest_credit_difference_is_shown(place):
    for method in ("grpo", "bipace", "reuserl"):
        train(place, "countdown", method, [[0.5, 0.5, 0.5], [0.9, -0.4], [0.1, 0.2, 0.3, 0.2]])
    episodes = embedded(render_comparison(place, most_trajectories=11))
    practice = [e for e in episodes if e["from"].endswith("training, iteration 40")]
    assert len(episodes) == 11 and len(practice) == 3 and {len(e["turns"]) for e in practice} == {2}
    assert sum(e["from"].startswith("countdown") for e in episodes) == 6
    assert [turn["credit"] for turn in practice[0]["turns"]] == [0.9, -0.4]
    assert len(embedded(render_comparison(place, most_trajectories=2))) == 2


@pytest.mark.slow
def test_missing_and_unfinished_runs_are_skipped(place):
    shutil.rmtree(place / "runs/countdown/grpo/0")
    shutil.rmtree(place / "runs/letters")
    episodes = embedded(render_comparison(place))
    assert [e["from"].split(",")[0] for e in episodes][:3] == [
        f"countdown / {m}" for m in ("grpo / 1", "bipace / 0", "reuserl / 0")
    ]
    assert len(episodes) == 6
    shutil.rmtree(place / "runs/countdown")
    html = render_comparison(place)
    assert embedded(html) == [] and "No trajectories were recorded, or none can be read." in html
