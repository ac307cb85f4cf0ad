"""Episodes as readable JSON, and back; the format of all recorded episodes of runs and evaluations."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from tacit.core.credit import Batch, Credit, Iteration, Rewards
from tacit.core.errors import TacitError
from tacit.core.files import refuse_links
from tacit.core.types import PLAIN, Completion, Condition, Group, Observation, Prompt, Step, StopReason, Task, Trajectory
from tacit.runs.files import explain_disk_errors, read_lines


def trajectory_record(trajectory: Trajectory) -> dict[str, Any]:
    """The record of an episode (one line of a file); each turn has its observation, completion, action and result."""
    return {
        "task": trajectory.task.id,
        "family": trajectory.task.family,
        "goal": trajectory.task.goal,
        "success": trajectory.success,
        "score": round(trajectory.score, 4),
        "stop": trajectory.stop.value,
        "detail": trajectory.detail,
        **condition_record(trajectory.condition),
        "seed": trajectory.seed,
        "turns": [
            {
                "saw": step.observation.text,
                "wrote": step.completion.text,
                "action": step.action,
                "valid": step.valid,
                "effective": step.effective,
                "prompt_tokens": len(step.prompt_tokens),
                "tokens": len(step.completion.tokens),
                "logprob": round(float(step.completion.logprobs.sum()), 3),
                **({"thought": step.thought} if step.thought else {}),
                **({"label": step.label} if step.label else {}),
                **({"earned": step.reward} if step.reward else {}),
                **({"signals": dict(step.signals)} if step.signals else {}),
            }
            for step in trajectory.steps
        ],
        "saw": trajectory.final.text,
    }


def trajectory_from_record(record: Mapping[str, Any], task: Task) -> Trajectory:
    """The trajectory of a record. Records have no prompts and no token ids: prompts hold the observation, token arrays have the
    right length but zeros."""
    return Trajectory(
        task, tuple(_step(turn) for turn in record["turns"]), record["success"], record["score"], StopReason(record["stop"]),
        Observation(record["saw"]), condition_from_record(record), record["detail"], record["seed"],
    )  # fmt: skip


def condition_record(condition: Condition) -> dict[str, str]:
    """`{"condition": "plain"}`; any other condition also has `note` and `entry`."""
    note = {} if condition == PLAIN else {"note": condition.note, "entry": condition.entry}
    return {"condition": condition.name, **note}


def condition_from_record(record: Mapping[str, Any]) -> Condition:
    """The inverse of `condition_record`. Old records have no `note`; the condition's note is then empty."""
    return Condition(record["condition"], record.get("note", ""), record.get("entry", ""))


def _step(turn: Mapping[str, Any]) -> Step:
    # Zeros without memory: only the number of tokens is known.
    read, written = (np.broadcast_to(np.int64(0), (turn.get(name, 0),)) for name in ("prompt_tokens", "tokens"))
    completion = Completion(written, np.zeros(len(written), np.float32), turn["wrote"], "stop")
    return Step(
        Observation(turn["saw"]), Prompt("", turn["saw"]), read, completion, turn["action"], turn["valid"], turn["effective"],
        turn.get("label", ""), turn.get("signals", {}), turn.get("earned", 0.0), turn.get("thought", ""),
    )  # fmt: skip


def group_records(
    group: Group,
    rewards: Rewards | None = None,
    credit: Credit | None = None,
    marks: Mapping[str, Sequence[Any] | np.ndarray] | None = None,
) -> list[dict[str, Any]]:
    """Records of a group's trajectories; each turn has its reward, its mean credit and the credit terms' marks, if given."""
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


def iteration_records(done: Iteration) -> tuple[list[Trajectory], list[dict[str, Any]]]:
    """(episodes, records) of an iteration: first those trained on, with reward and credit, then crashed and unselected ones."""
    records = []
    for group, rewards, credit, marks in zip(done.groups, done.rewards, done.credits, done.marks, strict=True):
        records += group_records(group, rewards, credit, marks)
    episodes = [t for group in done.groups for t in group.trajectories]
    trained = set(map(id, episodes))
    rest = [t for group in done.played for t in group.trajectories if id(t) not in trained]
    return [*episodes, *rest], [*records, *map(trajectory_record, rest)]


MAX_PROMPTS = 24  # maximum episodes per file with recorded prompts: as many as a report page shows


def add_prompts(records: Sequence[dict[str, Any]], played: Sequence[Trajectory]) -> None:
    """Record the prompts of the episodes that a report page shows first. All prompts would take too much disk space."""
    trajectories = {id(record): trajectory for record, trajectory in zip(records, played, strict=True)}
    for record in order_by_interest([records])[:MAX_PROMPTS]:
        for turn, step in zip(record["turns"], trajectories[id(record)].steps, strict=True):
            turn["prompt"] = split_sections(step.prompt)


def split_sections(prompt: Prompt) -> list[list[str]]:
    """[name, text] in prompt order"""
    history = prompt.separator.join(prompt.history)
    named = [("task", prompt.task), ("note", prompt.task_note), ("history", history), ("now", prompt.now)]
    return [[name, text] for name, text in [*named, ("note", prompt.step_note), ("request", prompt.request)] if text]


def order_by_interest(files: Sequence[Sequence[Any]]) -> list[Any]:
    """All records, without duplicates: first a success, a failure and the longest episode of each family in each file, then the
    others, alternating between families."""
    families: dict[tuple[int, str], list[Any]] = {}
    for number, records in enumerate(files):
        for record in records:
            families.setdefault((number, str(record.get("family", ""))), []).append(record)
    groups = [families[key] for key in sorted(families)]
    ordered = [
        record for success in (True, False) for own in groups for record in [r for r in own if r["success"] is success][:1]
    ]
    ordered += [max(own, key=lambda record: len(record["turns"])) for own in groups]
    ordered += [record for column in zip_longest(*groups) for record in column if record is not None]
    return list({id(record): record for record in ordered}.values())


def batch_records(batch: Batch) -> Iterable[dict[str, Any]]:
    """A training batch as one record per row, to debug a non-finite loss."""
    for i in range(len(batch)):
        yield {
            "group": int(batch.group[i]),
            "trajectory": int(batch.trajectory[i]),
            "step": int(batch.step[i]),
            "prompt": batch.prompts[i].tolist(),
            "completion": batch.completions[i].tolist(),
            "behaviour": np.asarray(batch.behavior[i], float).tolist(),
            "advantages": np.asarray(batch.advantages[i], float).tolist(),
            **{name: np.asarray(column[i], float).tolist() for name, column in batch.tokens.items()},
            **{name: float(column[i]) for name, column in batch.rows.items()},
        }


def write_records(path: Path, records: Iterable[dict[str, Any]]) -> None:
    with explain_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            # mtime=0: the same trajectories give the same bytes.
            with open(temporary, "wb", opener=refuse_links) as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
                for record in records:
                    file.write((json.dumps(record, ensure_ascii=False) + "\n").encode())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def read_records(path: Path) -> Sequence[dict[str, Any]]:
    return [json.loads(line) for line in read_lines(path)]


RECORDED = ".jsonl.gz"


def list_recordings(run: Path, stage: str = "rl") -> dict[int, Path]:
    """The files of recorded episodes by step; `stage` is `rl`, or `eval-rl` and the like for evaluations."""
    named = {parse_recording_name(file): file for file in (run / "trajectories").glob(f"*{RECORDED}")}
    return {key[1]: named[key] for key in sorted(filter(None, named)) if key[0] == stage}


def find_recording(run: Path, number: int | None = None) -> Path:
    """The file of an iteration of RL; without a number, the last recorded one."""
    files = list_recordings(run)
    if not files:
        raise TacitError(f"{run} has no recorded iterations; train with --trajectories (the default).")
    number = max(files) if number is None else number
    if number not in files:
        raise TacitError(f"iteration {number} is not recorded in {run}; there are {min(files)} to {max(files)}.")
    return files[number]


def parse_recording_name(file: Path) -> tuple[str, int] | None:
    """(stage, step) of `rl-000012.jsonl.gz`; None for a file of any other name."""
    match = re.fullmatch(rf"(.+)-([0-9]{{1,12}}){re.escape(RECORDED)}", file.name)
    return (match[1], int(match[2])) if match and file.name.isprintable() else None


def read_trajectories(file: Path, tasks: Iterable[Task]) -> list[Trajectory]:
    """The episodes of one file. Records have only the id of their task; the task itself must be among `tasks`."""
    by_id = {task.id: task for task in tasks}
    try:
        records = read_records(file)
        missing = next((r["task"] for r in records if r["task"] not in by_id), None)
        if missing is not None:
            raise TacitError(
                f"{file} has an episode of task {missing!r}, which is not among the run's tasks: the world has changed since."
            )
        return [trajectory_from_record(record, by_id[record["task"]]) for record in records]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise TacitError(f"cannot read the recorded episodes {file}: {type(error).__name__}: {error}.") from error
