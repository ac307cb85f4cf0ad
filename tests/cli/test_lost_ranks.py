"""A run whose ranks are killed resumes from its last checkpoint and ends with the same weights."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import forked_ranks

import tacit
from tacit.core.errors import EngineLost
from tacit.engines.sharded.launch import RankGroup
from tacit.runs.directory import read_metrics, read_settings, read_summary

SMALL = {
    "world": "countdown", "model": "tiny", "iterations": 3, "groups": 2, "group_size": 2, "lr": 1e-3, "kl": 0.0, "tasks": 20,
    "checkpoint_every": 1, "quiet": True, "tiny": {"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 2},
    "evaluation": {"tasks": 2, "every": 0, "untrained": False},
    "engine": {"name": "sharded", "ranks": 2, "threads": 1, "device": "cpu", "timeout_s": 60.0},
}  # fmt: skip


@pytest.fixture()
def groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RankGroup]]:
    """All rank groups that were started."""
    started: list[RankGroup] = []
    begin = RankGroup.__init__

    def remembered(self: RankGroup, *arguments: Any) -> None:
        begin(self, *arguments)
        started.append(self)

    monkeypatch.setattr(RankGroup, "__init__", remembered)
    with forked_ranks():
        yield started


def kill(group: RankGroup, rank: int) -> None:
    os.kill(int(group.ranks[rank].started.name.split()[-1]), signal.SIGKILL)


@pytest.mark.slow
def test_run_with_a_killed_rank_equals_undisturbed_run(tmp_path: Path, groups: list[RankGroup]) -> None:
    tacit.train(**SMALL, out=tmp_path / "calm")
    done: list[int] = []

    def at_the_second(event: Any) -> None:
        if event.kind == "step" and event.step == 2 and not done:
            done.append(event.step)
            kill(groups[-1], 1)

    tacit.train(**SMALL, out=tmp_path / "killed", callbacks=at_the_second)
    assert done == [2] and len(groups) == 3
    assert read_summary(tmp_path / "killed")["digest"] == read_summary(tmp_path / "calm")["digest"]
    steps = [
        [m["step"] for m in read_metrics(tmp_path / name / "metrics.jsonl") if m["stage"] == "rl"]
        for name in ("calm", "killed")
    ]
    assert steps == [[1, 2, 3]] * 2


@pytest.mark.slow
def test_repeatedly_lost_ranks_end_the_run(tmp_path: Path, groups: list[RankGroup]) -> None:
    def always(event: Any) -> None:
        kill(groups[-1], 0)

    alone = {"checkpoint_every": 5, "engine": {**SMALL["engine"], "ranks": 1}}
    with pytest.raises(EngineLost, match=r"rank 0 of 1 .*SIGKILL.*--resume"):
        tacit.train(**{**SMALL, **alone}, out=tmp_path / "run", callbacks=always)
    assert len(groups) == 4


@pytest.mark.slow
def test_token_budget_is_reduced_after_ranks_run_out_of_memory(tmp_path: Path, groups: list[RankGroup]) -> None:
    """When a rank runs out of memory and cannot split further, the run restarts with half the token budget."""
    lost: list[int] = []

    def at_the_second(event: Any) -> None:
        if event.kind == "step" and event.step == 2 and not lost:
            lost.append(event.step)
            error = EngineLost("rank 1 of 2 failed in 'update': out of GPU memory, say.")
            error.settings = {"token_budget": 64}
            raise error

    tacit.train(**SMALL, out=tmp_path / "run", callbacks=at_the_second)
    assert lost == [2] and len(groups) == 2
    assert read_settings(tmp_path / "run")["engine"]["token_budget"] == 64
    assert [m["step"] for m in read_metrics(tmp_path / "run" / "metrics.jsonl") if m["stage"] == "rl"] == [1, 2, 3]
