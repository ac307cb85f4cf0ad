"""Metrics of a run: JSON lines, TensorBoard, and W&B if requested."""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError, install_command
from tacit.core.files import refuse_links
from tacit.runs.files import explain_disk_errors, read_objects, write_text


class Metrics:
    """Appends one record per step of a stage. `rewind` drops the records after a checkpoint, so that a resumed run writes the
    same file as an uninterrupted one, except for times."""

    def __init__(self, directory: Path, wandb_project: str = "", run_name: str = "") -> None:
        self._path = directory / "metrics.jsonl"
        self._tensorboard_directory = directory / "tensorboard"
        self.writers: dict[str, Any] = {}
        self._wandb: Any = None
        if wandb_project:
            try:
                import wandb
            except ImportError as error:
                raise TacitError(f"wandb is not installed; {install_command('wandb')}, or remove --wandb.") from error
            identity = run_name.replace("/", "-")
            self._wandb = wandb.init(project=wandb_project, name=run_name, dir=str(directory), resume="allow", id=identity)

    def rewind(self, stages: tuple[str, ...], stage: str, step: int) -> list[dict[str, Any]]:
        """Keep the records up to and including (stage, step), and return them. An empty stage keeps none."""
        here = (stages.index(stage), step) if stage else (-1, 0)
        kept = [r for r in read_metrics(self._path) if (stages.index(r["stage"]), r["step"]) <= here]
        write_text(self._path, "".join(json.dumps(r) + "\n" for r in kept))
        return kept

    def write(self, stage: str, step: int, values: dict[str, float]) -> None:
        record = {"stage": stage, "step": step, **{k: _plain(v) for k, v in values.items()}, "at": round(time.time(), 1)}
        with explain_disk_errors(self._path):
            with open(self._path, "a", encoding="utf-8", opener=refuse_links) as file:
                file.write(json.dumps(record) + "\n")
            if stage not in self.writers:
                self.writers[stage] = self.open_writer(stage, step)
            for name, value in values.items():
                self.writers[stage].add_scalar(f"{stage}/{name}", value, step)
        if self._wandb is not None:
            self._wandb.log({f"{stage}/{name}": value for name, value in values.items()})

    def open_writer(self, stage: str, step: int) -> Any:
        """A TensorBoard writer, with a folder per stage: `purge_step` drops later steps of *all* curves in its folder."""
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._tensorboard_directory / stage), purge_step=step, flush_secs=30)

    def close(self) -> None:
        for writer in self.writers.values():
            # On a full disk the last events are lost, but metrics.jsonl has them. Do not hide the original error.
            with suppress(OSError):
                writer.close()
        if self._wandb is not None:
            self._wandb.finish()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All records that have a stage and a step."""
    records = read_objects(path)
    return [record for record in records if isinstance(record.get("stage"), str) and isinstance(record.get("step"), int)]


def _plain(value: float) -> float | None:
    """Rounded to six digits; None if not finite, since JSON has no NaN."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
