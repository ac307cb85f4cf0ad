"""The learning-rate schedule of RL, and early stopping with patience."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from guessing import SAME

import tacit
from tacit.core.errors import TacitError
from tacit.core.method import Schedule
from tacit.core.types import IterationInfo

SMALL = {
    "groups": 2,
    "group_size": 2,
    "kl": 0.0,
    "tasks": 20,
    "tiny": {"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 2},
    "engine": {"threads": 1},
    "evaluation": {"tasks": 4, "every": 1, "patience": 2},
}


def rates(schedule: Schedule, iterations: int) -> list[float]:
    return [schedule.lr_at(IterationInfo(0, n, iterations)) for n in range(1, iterations + 1)]


def test_learning_rate_is_constant_by_default():
    assert rates(Schedule(lr=0.3), 4) == [0.3] * 4


def test_learning_rate_warms_up_then_decays():
    assert rates(Schedule(lr=1.0, warmup=0.4), 5) == [0.5, 1, 1, 1, 1]
    assert rates(Schedule(lr=1.0, decay="linear"), 4) == [1, 0.75, 0.5, 0.25]
    warm = rates(Schedule(lr=2.0, warmup=0.5, decay="linear"), 8)
    assert warm == [0.5, 1, 1.5, 2, 2, 1.5, 1, 0.5], "the last iteration has a learning rate above 0"
    cosine = rates(Schedule(lr=1.0, decay="cosine"), 4)
    assert cosine == pytest.approx([1, 0.5 * (1 + math.cos(math.pi / 4)), 0.5, 0.5 * (1 + math.cos(3 * math.pi / 4))])
    assert rates(Schedule(lr=1.0, warmup=1.0, decay="linear"), 2) == [0.5, 1.0]
    assert rates(Schedule(lr=1.0, warmup=0.1, decay="cosine"), 1) == [1.0]


def test_run_uses_the_scheduled_learning_rate(tmp_path: Path):
    short = {**SMALL, "evaluation": {"tasks": 2, "every": 0}}
    run = tacit.train(
        SAME, "grpo", "tiny-0.5m", out=tmp_path / "run", quiet=True, iterations=4, lr=1e-3, warmup=0.5, decay="linear", **short
    )
    assert [r["lr"] for r in run.metrics("rl", rows=True)] == [5e-4, 1e-3, 1e-3, 5e-4]
    with pytest.raises(TacitError, match=r"warmup = 1.5 must be between 0 and 1"):
        tacit.train(SAME, "grpo", "tiny-0.5m", out=tmp_path / "other", warmup=1.5)


@pytest.mark.slow
def test_rl_stops_without_improvement_and_resumes_with_more_patience(tmp_path: Path):
    run = tacit.train(SAME, "grpo", "tiny-0.5m", out=tmp_path / "run", quiet=True, iterations=9, lr=0.0, **SMALL)
    assert run.summary["stopped"] == "patience" and run.checkpoints[-1] == "rl-000003", "two without improvement"
    assert run.finished and run.resume(quiet=True).checkpoints[-1] == "rl-000003"
    (run.path / "summary.json").unlink()  # as if killed between the last checkpoint and the summary
    assert run.resume(quiet=True).summary["stopped"] == "patience" and run.checkpoints[-1] == "rl-000003"
    run.resume(quiet=True, evaluation={"patience": 4})
    assert run.summary["stopped"] == "patience" and run.checkpoints[-1] == "rl-000005"
    run.resume(quiet=True, evaluation={"patience": 0})
    assert run.summary["stopped"] == "" and run.checkpoints[-1] == "rl-000009"
