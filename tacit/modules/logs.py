"""Read logs of recorded episodes, sort them by family, and count them.

Accepts files (JSON lines, plain or gzipped, in any format of `training/imitation`) and directories.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.core.world import Environment
from tacit.training.imitation import Known, Reading, Recording, read_recordings

ENDINGS = ("*.jsonl", "*.jsonl.gz")
FEW = 12
"""fewer won episodes of a family get a remark: with 12 demonstrations a 1M-parameter policy won 42% of new tasks by imitation,
with 6 only 21% (docs/experiments/constant_context.md)"""
DEFAULT_FAMILY = "work"  # of episodes without a family, if there is no world
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}")


@dataclass(frozen=True)
class LoggedEpisode:
    file: Path
    recording: Recording
    family: str

    @property
    def location(self) -> str:
        return f"{self.file} line {self.recording.line}"

    def to_json(self) -> dict[str, Any]:
        """In the format of `--sft.from`."""
        own = self.recording
        turns = [
            {"saw": saw, "action": action, **({} if parsed else {"valid": False})}
            for saw, action, parsed in zip(own.seen, own.actions, own.parsed, strict=False)
        ]
        last = {"saw": own.seen[-1]} if len(own.seen) > len(own.actions) else {}
        named = {"task": own.task, "goal": own.goal, "family": self.family, "success": own.success}
        return {**named, "turns": turns, **last, "source": self.location}


@dataclass
class Logs:
    episodes: list[LoggedEpisode] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)  # `FILE line N: reason`
    files: list[Path] = field(default_factory=list)

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(sorted({logged.family for logged in self.episodes}))

    def select(self, families: Iterable[str]) -> list[LoggedEpisode]:
        wanted = set(families)
        return [logged for logged in self.episodes if logged.family in wanted]


@dataclass(frozen=True)
class Coverage:
    """Counts of one family."""

    family: str
    episodes: int
    won: int
    turns: int  # of won episodes

    @property
    def remark(self) -> str:
        if not self.episodes:
            return "none"
        if not self.won:
            return "nothing won: nothing to imitate"
        return f"few: fewer than {FEW} won" if self.won < FEW else ""


def find_logs(paths: Sequence[Path]) -> list[Path]:
    """The given files, and all logs in the given directories."""
    files: list[Path] = []
    for path in (path.expanduser() for path in paths):
        inside = sorted({file for ending in ENDINGS for file in path.rglob(ending)}) if path.is_dir() else [path]
        if not inside:
            raise TacitError(f"--from {path}: the directory has no logs ({', '.join(ENDINGS)}).")
        for file in inside:
            if not file.is_file():
                raise TacitError(f"--from {file}: the file does not exist.")
            files += [file] if file not in files else []
    return files


def read_logs(paths: Sequence[Path], family_of: Callable[[Recording], str]) -> Logs:
    """Read all episodes and list all unusable lines. `family_of` returns an episode's family, or ""."""
    logs = Logs(files=find_logs(paths))
    for file in logs.files:
        reading = Reading()
        for recording in read_recordings(file, reading):
            family = family_of(recording)
            if not family:
                reason = f"unknown family {recording.family!r}" if recording.family else "no family"
                logs.unusable.append(f"{file} line {recording.line}: {reason}, and unknown task and goal")
            elif not _PLAIN.fullmatch(family):
                logs.unusable.append(f"{file} line {recording.line}: family {family[:80]!r} cannot be the name of a module")
            elif not recording.goal and not recording.task:
                logs.unusable.append(f"{file} line {recording.line}: names neither a task nor a goal")
            else:
                logs.episodes.append(LoggedEpisode(file, recording, family))
        logs.unusable += [f"{file} {reason}" for reason in reading.unusable]
    return logs


def family_without_world(recording: Recording) -> str:
    return recording.family or DEFAULT_FAMILY


def make_family_lookup(world: Environment, tasks: Sequence[Task]) -> Callable[[Recording], str]:
    """A lookup by the recording's own family, else its task, else its goal, else the goal's words."""
    by_id, lookup = {task.id: task.family for task in tasks}, Known(world, tasks)

    def family_of(recording: Recording) -> str:
        if recording.family in world.families:
            return recording.family
        return by_id.get(recording.task) or lookup.family_of(replace(recording, family=""))

    return family_of


def count_coverage(logs: Logs, families: Iterable[str]) -> list[Coverage]:
    """Counts of the given families and of any others in the logs."""
    coverage = []
    for family in dict.fromkeys((*families, *logs.families)):
        own = [logged.recording for logged in logs.episodes if logged.family == family]
        won = [recording for recording in own if recording.success]
        coverage.append(Coverage(family, len(own), len(won), sum(len(recording.actions) for recording in won)))
    return coverage


def to_jsonl(episodes: Sequence[LoggedEpisode]) -> str:
    return "".join(json.dumps(logged.to_json(), ensure_ascii=False) + "\n" for logged in episodes)
