"""A run's episodes on disk: JSON lines, gzipped, each turn with its reward and its credit."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit.core.batch import Batch
from tacit.core.credit import Credit, Rewards
from tacit.core.iteration import Iteration
from tacit.core.types import Group
from tacit.runs.files import disk_errors
from tacit.runs.trajectories import trajectory_record


def group_records(
    group: Group,
    rewards: Rewards | None = None,
    credit: Credit | None = None,
    marks: Mapping[str, Sequence[Any] | np.ndarray] | None = None,
) -> list[dict[str, Any]]:
    """A group's trajectories, each turn with its reward, its mean credit and what credit terms noted, where known."""
    records = [trajectory_record(t) for t in group.trajectories]
    turns = [turn for record in records for turn in record["turns"]]
    if rewards is not None:
        for turn, reward in zip(turns, rewards.flow_N + rewards.local_N, strict=True):
            turn["reward"] = round(float(reward), 4)
    if credit is not None:
        for turn, tokens in zip(turns, credit.steps(), strict=True):
            turn["credit"] = round(float(tokens.mean()), 4) if len(tokens) else 0.0
    for name, values_N in (marks or {}).items():
        for turn, value in zip(turns, values_N.tolist() if isinstance(values_N, np.ndarray) else values_N, strict=True):
            if value is not None:
                turn[name] = round(value, 4) if isinstance(value, (int, float)) else value
    return records


def iteration_records(done: Iteration) -> Iterable[dict[str, Any]]:
    """Every episode of an iteration: those trained on with reward and credit, then the crashed and the unselected."""
    for group, rewards, credit, marks in zip(done.groups, done.rewards, done.credits, done.marks, strict=True):
        yield from group_records(group, rewards, credit, marks)
    trained = {id(t) for group in done.groups for t in group.trajectories}
    yield from (trajectory_record(t) for group in done.played for t in group.trajectories if id(t) not in trained)


def batch_records(batch: Batch) -> Iterable[dict[str, Any]]:
    """A training batch row by row: what to look at when a loss was not a number."""
    for i in range(len(batch)):
        yield {
            "group": int(batch.group[i]),
            "trajectory": int(batch.trajectory[i]),
            "step": int(batch.step[i]),
            "prompt": batch.prompts[i].tolist(),
            "completion": batch.completions[i].tolist(),
            "behaviour": np.asarray(batch.behaviour[i], float).tolist(),
            "advantages": np.asarray(batch.advantages[i], float).tolist(),
            **{name: np.asarray(column[i], float).tolist() for name, column in batch.tokens.items()},
            **{name: float(column[i]) for name, column in batch.rows.items()},
        }


def write_records(path: Path, records: Iterable[dict[str, Any]]) -> None:
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            # mtime=0: the same trajectories give the same bytes.
            with temporary.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as file:
                for record in records:
                    file.write((json.dumps(record, ensure_ascii=False) + "\n").encode())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def read_records(path: Path) -> Sequence[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]
