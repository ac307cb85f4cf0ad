"""Run metrics: append, rewind to a checkpoint, export to TensorBoard and wandb."""

from __future__ import annotations

import math

import pytest

from tacit.core.errors import TacitError
from tacit.runs import directory as module
from tacit.runs.directory import Metrics, read_metrics
from tacit.training.loop import rollout_metrics

STAGES = ("sft", "rl")


@pytest.fixture
def quiet(monkeypatch):
    """Without TensorBoard, which takes seconds to import."""

    class Writer:
        def add_scalar(self, *args):
            pass

        def close(self):
            pass

    monkeypatch.setattr(Metrics, "open_writer", lambda self, stage, step: Writer())


def written(folder):
    return [(r["stage"], r["step"]) for r in read_metrics(folder / "metrics.jsonl")]


def test_one_record_per_step(tmp_path, quiet):
    metrics = Metrics(tmp_path)
    metrics.write("sft", 1, {"loss": 0.123456789, "bad": math.nan})
    metrics.write("rl", 1, {"success": 1})
    metrics.close()
    first, second = read_metrics(tmp_path / "metrics.jsonl")
    assert (first["stage"], first["step"], first["loss"], first["bad"]) == ("sft", 1, 0.123457, None)
    assert second["success"] == 1 and first["at"] <= second["at"]


@pytest.mark.parametrize(
    ("stage", "step", "left"),
    [
        ("", 0, []),
        ("sft", 2, [("sft", 1), ("sft", 2)]),
        ("rl", 1, [("sft", 1), ("sft", 2), ("sft", 3), ("rl", 1)]),
        ("rl", 9, [("sft", 1), ("sft", 2), ("sft", 3), ("rl", 1), ("rl", 2)]),
    ],
)
def test_rewind_to_a_checkpoint(tmp_path, quiet, stage, step, left):
    metrics = Metrics(tmp_path)
    for place in [("sft", 1), ("sft", 2), ("sft", 3), ("rl", 1), ("rl", 2)]:
        metrics.write(*place, {"loss": 0.5})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "rl", "step": 3, "lo')
    metrics.rewind(STAGES, stage, step)
    assert written(tmp_path) == left
    metrics.write("rl", 7, {"loss": 1.0})
    assert written(tmp_path) == [*left, ("rl", 7)], "the half line of a killed write is gone"


def test_rewind_without_metrics_changes_nothing(tmp_path):
    Metrics(tmp_path).rewind(STAGES, "", 0)
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_full_disk_is_reported(tmp_path, quiet, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.json, "dumps", full)
    with pytest.raises(TacitError, match=r"metrics\.jsonl: the disk is full"):
        Metrics(tmp_path).write("rl", 1, {})


def test_full_disk_on_close_does_not_hide_the_first_error(tmp_path, quiet, monkeypatch):
    metrics = Metrics(tmp_path)
    metrics.write("rl", 1, {"x": 1.0})

    calls = []

    def full(writer):
        calls.append(writer)
        raise OSError(28, "No space left on device")

    for writer in metrics.writers.values():
        monkeypatch.setattr(type(writer), "close", full)
    metrics.close()
    assert calls and written(tmp_path) == [("rl", 1)]


def test_resumed_stage_keeps_curves_of_other_stages(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def curve(stage):
        events = accumulator.EventAccumulator(str(tmp_path / "tensorboard" / stage))
        events.Reload()
        return [(e.step, e.value) for e in events.Scalars(f"{stage}/loss")]

    killed = Metrics(tmp_path)
    for stage, steps in [("sft", 6), ("rl", 4)]:
        for step in range(1, steps + 1):
            killed.write(stage, step, {"loss": float(step)})
    killed.close()
    resumed = Metrics(tmp_path)
    for step in (3, 4, 5):
        resumed.write("rl", step, {"loss": 10.0 * step})
    resumed.close()
    assert curve("sft") == [(n, float(n)) for n in range(1, 7)]
    assert dict(curve("rl")) == {1: 1.0, 2: 2.0, 3: 30.0, 4: 40.0, 5: 50.0}


def test_missing_wandb_is_reported(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(TacitError, match="wandb is not installed"):
        Metrics(tmp_path, wandb_project="p")


def test_rollout_metrics_count_every_stop_reason():
    from scripted import make_group

    from tacit.core.types import StopReason

    mixed = make_group([[2, 4], [3]], success=[True, False], valid=[[True, False], [True]])
    crashed = make_group([[1], []], stops=[StopReason.STEP_LIMIT, StopReason.WORLD_ERROR])
    numbers = rollout_metrics([mixed, crashed])
    assert numbers["success"] == 0.25 and numbers["mixed_groups"] == 0.5 and numbers["steps"] == 1.0
    assert numbers["groups"] == 2 and numbers["group_spread"] == 0.25, "success rates ½ and 0 have a standard deviation of ¼"
    assert numbers["valid"] == 0.75 and numbers["episodes"] == 4 and numbers["turns"] == 4
    assert numbers["generated_tokens"] == 10 and numbers["completion_tokens"] == 2.5 and numbers["crashed"] == 1
    endings = {name: value for name, value in numbers.items() if name.startswith("stop_")}
    assert len(endings) == len(StopReason) and sum(endings.values()) == 1.0
    assert endings["stop_world_error"] == 0.25 and endings["stop_step_limit"] == 0.5
    assert rollout_metrics([]) == {}
