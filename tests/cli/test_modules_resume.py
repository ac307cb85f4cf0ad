"""`tacit modules train`, killed twice with SIGKILL and repeated, gives the same modules as an uninterrupted run."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import Forked, start
from small_modules import Trained

from tacit.modules import Module, find_modules
from tacit.runs.directory import read_metrics

SKILLS = ("--skills", "heat,pick")


def kill_after(process: Forked, run: Path, records: int) -> None:
    """Send SIGKILL once the run's metrics have `records` lines."""
    process.until(lambda: len(read_metrics(run / "metrics.jsonl")) >= records)
    process.kill()


def played(module: Module) -> list[tuple]:
    counted = ("stage", "step", "panel_hash", "successes", "steps", "invalid", "prompt_tokens", "completion_tokens", "seed")
    return [tuple(score[name] for name in counted) for score in module.scores.values()]


@pytest.mark.slow
def test_twice_killed_modules_train_equals_uninterrupted_one(tmp_path: Path, monkeypatch, trained_modules: Trained) -> None:
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    recipe, whole, broken = trained_modules.recipe, trained_modules.modules, tmp_path / "broken"
    words = ("modules", "train", "--config", recipe, "--out", broken, *SKILLS)

    kill_after(start(*words), broken / "runs" / "heat", records=61)  # imitation is finished, RL has begun
    assert not (broken / "heat").exists() and not (broken / "runs" / "pick").exists()
    kill_after(start(*words), broken / "runs" / "pick", records=25)  # heat is exported, pick is in imitation
    assert (broken / "heat" / "module.json").exists() and not (broken / "pick").exists()
    printed = start(*words).finish()
    assert f"heat: {broken / 'runs' / 'heat'} is finished" in printed and "resuming after sft" in printed

    expected, actual = find_modules(whole), find_modules(broken)
    assert list(actual) == list(expected) == ["heat", "pick"]
    for skill, module in actual.items():
        assert module.digest == expected[skill].digest and module.files == expected[skill].files
        assert played(module) == played(expected[skill]) and module.fingerprint == expected[skill].fingerprint
    assert not list(broken.glob(".*.tmp"))
