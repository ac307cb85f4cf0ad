"""Recorded episodes as trajectories again: what was seen, done and achieved; of tokens only how many."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.core.types import Task, Trajectory
from tacit.runs.records import read_records
from tacit.runs.trajectories import trajectory_from_record


def recorded_steps(run: Path, stage: str = "rl") -> dict[int, Path]:
    """The files of recorded episodes by step; `stage` is `rl`, or `eval-rl` and the like for evaluations."""
    named = {file.name.removesuffix(".jsonl.gz").rpartition("-"): file for file in (run / "trajectories").glob("*.jsonl.gz")}
    return {int(number): named[own, dash, number] for own, dash, number in sorted(named) if own == stage and number.isdigit()}


def replay(file: Path, tasks: Iterable[Task]) -> list[Trajectory]:
    """The episodes of one file. Records name their task; what set it up is found among `tasks`."""
    known = {task.id: task for task in tasks}
    try:
        records = read_records(file)
    except (OSError, EOFError, ValueError) as error:
        raise TacitError(f"cannot read the recorded episodes {file}: {error}.") from error
    strange = next((r["task"] for r in records if r["task"] not in known), None)
    if strange is not None:
        raise TacitError(
            f"{file} has an episode of {strange!r}, which is not among the run's tasks: its world has changed since the run."
        )
    return [trajectory_from_record(record, known[record["task"]]) for record in records]
