"""What a run directory holds. Nothing here raises over a broken file: it is said in a notice, and the rest is shown."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError
from tacit.runs.alarms import Alarm, first_alarms
from tacit.runs.directory import SETTINGS, SUMMARY
from tacit.runs.records import read_records
from tacit.runs.replay import recorded_steps
from tacit.runs.watching import ALARMS, read_alarms

Record = Mapping[str, Any]
NEEDED_OF_EPISODE = {"task": str, "success": bool, "stop": str, "turns": list}
NEEDED_OF_TURN = {"saw": str, "wrote": str, "action": str, "valid": bool}
"""without these a recorded episode cannot be told; everything else may be absent"""
MOST_WATCHED = 2000
"""iterations looked at for alarms in a run that kept none: every one is held against all before it"""
EVALUATIONS = ("eval-untrained", "eval-sft", "eval-rl")
"""recordings of the run's own panel, in the order of the stages"""
STAGE_ORDER = {"untrained": 0, "sft": 1, "rl": 2}


@dataclass(frozen=True)
class Episodes:
    """The readable episodes of one file."""

    stage: str
    """`rl` for practice, `eval-sft` and the like for evaluations"""
    step: int
    records: Sequence[Record]
    name: str = ""
    """what to call them, where it is not their stage and step"""

    @property
    def title(self) -> str:
        if self.name:
            return self.name
        if self.stage.startswith("eval-"):
            stage = self.stage.removeprefix("eval-")
            return "evaluation, untrained" if stage == "untrained" else f"evaluation after {stage} {self.step}"
        return f"training, iteration {self.step}"


@dataclass(frozen=True)
class RunFiles:
    path: Path
    settings: Record
    summary: Record | None
    """None where the run has not finished"""
    versions: Record
    metrics: Sequence[Record]
    evaluations: Sequence[Record]
    """in the order they were made"""
    later: Sequence[Record]
    """made by `tacit eval` on the finished or unfinished run"""
    alarms: Sequence[Alarm]
    """as the run recorded them; of a run that recorded none, what its metrics say"""
    notices: tuple[str, ...] = field(default=())

    @property
    def finished(self) -> bool:
        return self.summary is not None


def read_run(path: Path) -> RunFiles:
    """`path` must hold a settings.json; anything beyond that may be missing or broken."""
    notices: list[str] = []
    settings = _json(path / SETTINGS, notices)
    if settings is None:
        raise TacitError(f"{path / SETTINGS} cannot be read as settings, so nothing can be said about the run: {notices[-1]}")
    summary = _json(path / SUMMARY, notices) if (path / SUMMARY).exists() else None
    versions = _json(path / "versions.json", notices) or {}
    metrics = _lines(path / "metrics.jsonl", notices)
    evaluations = _evaluations(path, summary, notices)
    if not (path / SUMMARY).exists():
        done = [f"{r['stage']} {r['step']}" for r in metrics[-1:]]
        notices.insert(
            0,
            f"This run has not finished{f': it has come to {done[0]}' if done else ''}. Below is what it has written so far; "
            f"`tacit train --resume {path}` continues it.",
        )
    if (path / "failed").is_dir():
        notices.append(f"The run met a loss that was not a number; the batch and the policy are kept in {path / 'failed'}.")
    if not metrics:
        notices.append("There are no metrics (metrics.jsonl), so there are no learning curves.")
    later = [r for file in sorted((path / "evaluations").glob("*.json")) if (r := _json(file, notices)) and is_score(r)]
    return RunFiles(
        path, settings, summary, versions, metrics, evaluations, later, _alarms(path, metrics, notices), tuple(notices)
    )


def read_episodes(path: Path, stage: str, step: int, file: Path, notices: list[str]) -> Episodes | None:
    """What can be read of a file of recorded episodes; None where that is nothing."""
    try:
        found: Sequence[Any] = read_records(file)
    except (OSError, EOFError, ValueError) as error:
        found, reason = _whole_lines(file), str(error) or type(error).__name__
        kept = f"its first {len(found)} episodes are shown" if found else "it is left out"
        notices.append(f"{file.relative_to(path)} is damaged ({reason}); {kept}.")
    sound = [r for r in found if _is_episode(r)]
    if len(sound) < len(found):
        notices.append(
            f"{len(found) - len(sound)} of {len(found)} episodes in {file.relative_to(path)} lack what this version reads "
            f"({', '.join([*NEEDED_OF_EPISODE, *NEEDED_OF_TURN])}): they were written by another version, and are left out."
        )
    return Episodes(stage, step, sound) if sound else None


def newest_episodes(path: Path, stages: Sequence[str], notices: list[str], most: int = 1) -> list[Episodes]:
    """The newest readable files over `stages` (later stages count as newer), newest first."""
    found: list[Episodes] = []
    for stage in reversed(stages):
        for step, file in sorted(recorded_steps(path, stage).items(), reverse=True):
            if len(found) < most and (episodes := read_episodes(path, stage, step, file, notices)):
                found.append(episodes)
    return found


def _evaluations(path: Path, summary: Record | None, notices: list[str]) -> list[Record]:
    """From the summary; of an unfinished run, from its newest checkpoint."""
    if summary is not None:
        found = summary.get("evaluations")
    else:
        states = [s for f in (path / "checkpoints").glob("*/state.json") if (s := _json(f, notices)) is not None]
        states.sort(key=lambda s: (STAGE_ORDER.get(str(s.get("stage")), 0), s.get("step", 0)))
        found = states[-1].get("evaluations") if states else []
    said: list[Any] = found if isinstance(found, list) else []
    sound: list[Record] = [e for e in said if isinstance(e, dict) and is_score(e)]
    if len(sound) < len(said):
        notices.append(f"{len(said) - len(sound)} evaluations have no count of episodes and successes, and are left out.")
    return sound


def _alarms(path: Path, metrics: Sequence[Record], notices: list[str]) -> list[Alarm]:
    try:
        if (path / ALARMS).exists():
            return read_alarms(path)
        return first_alarms([r for r in metrics if r["stage"] == "rl"][:MOST_WATCHED])
    except (OSError, ValueError, TypeError) as error:
        notices.append(f"{ALARMS} cannot be read ({error}).")
        return []


def is_score(record: Record) -> bool:
    """Whether it counts episodes and successes, in numbers that can be."""
    won, played = record.get("successes"), record.get("episodes")
    return type(won) is int and type(played) is int and 0 <= won <= played


def _is_episode(record: Any) -> bool:
    return _has(record, NEEDED_OF_EPISODE) and all(_has(turn, NEEDED_OF_TURN) for turn in record["turns"])


def _has(record: Any, needed: Mapping[str, type]) -> bool:
    return isinstance(record, dict) and all(isinstance(record.get(name), kind) for name, kind in needed.items())


def _json(file: Path, notices: list[str]) -> dict[str, Any] | None:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        notices.append(f"{file.name} is missing.")
        return None
    except (OSError, ValueError) as error:
        notices.append(f"{file.name} cannot be read ({error}).")
        return None
    if not isinstance(value, dict):
        notices.append(f"{file.name} does not hold a table of values.")
        return None
    return value


def _lines(file: Path, notices: list[str]) -> list[Record]:
    """Whole records that say which step they are of; others are counted."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        notices.append(f"{file.name} cannot be read ({error}).")
        return []
    records = [_parsed(line) for line in lines if line.strip()]
    sound: list[Record] = [
        r for r in records if isinstance(r, dict) and isinstance(r.get("stage"), str) and isinstance(r.get("step"), int)
    ]
    # The half line of a killed write is no news; more than one is.
    if len(records) - len(sound) > 1:
        notices.append(f"{len(records) - len(sound)} of {len(records)} lines of {file.name} cannot be read, and are left out.")
    return sound


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _whole_lines(file: Path) -> list[Any]:
    """The records before the damage in a gzip file."""
    found: list[Any] = []
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                found.append(json.loads(line))
    except (OSError, EOFError, ValueError, zlib.error):
        pass
    return found
