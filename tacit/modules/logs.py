"""Logs of work: every line read or said why not, sorted by family, and how much there is of each.

Any number of files (JSON lines, plain or gzipped, in any form of `training/recordings` and `training/transcripts`) and
directories of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.core.world import FULL_BLOCK, Brief, Environment, Numbered, World
from tacit.modules.drafting.tracker import DraftedTracker, RewardedTracker, read_draft
from tacit.training.recordings import Reading, Recording, read_recordings
from tacit.worlds import get_environment

ENDINGS = ("*.jsonl", "*.jsonl.gz")
FEW = 12
"""won episodes of a family below which imitation has little to go by: after twelve houses a policy of a million parameters won
42% of new ones by imitation, after six 21% (docs/methods/constant_context.md)"""
ONE_KIND = "work"
"""the family of episodes that name none, where there is no world to ask"""
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}")


@dataclass(frozen=True)
class Logged:
    """One episode, and where it stands."""

    file: Path
    recording: Recording
    family: str

    @property
    def place(self) -> str:
        return f"{self.file} line {self.recording.line}"

    def to_json(self) -> dict[str, Any]:
        """In the form that `--sft.from` reads."""
        told = self.recording
        turns = [
            {"saw": saw, "action": action, **({} if spoken else {"valid": False})}
            for saw, action, spoken in zip(told.seen, told.actions, told.spoken, strict=False)
        ]
        last = {"saw": told.seen[-1]} if len(told.seen) > len(told.actions) else {}
        named = {"task": told.task, "goal": told.goal, "family": self.family, "success": told.success}
        return {**named, "turns": turns, **last, "source": self.place}


@dataclass
class Logs:
    episodes: list[Logged] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    """`FILE line N: reason`, each"""
    files: list[Path] = field(default_factory=list)

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(sorted({logged.family for logged in self.episodes}))

    def of(self, families: Iterable[str]) -> list[Logged]:
        wanted = set(families)
        return [logged for logged in self.episodes if logged.family in wanted]


@dataclass(frozen=True)
class Coverage:
    """How much there is of a family."""

    family: str
    episodes: int
    won: int
    turns: int
    """of won episodes: what can be imitated"""

    @property
    def remark(self) -> str:
        if not self.episodes:
            return "none"
        if not self.won:
            return "nothing won: nothing to imitate"
        return f"few: fewer than {FEW} won" if self.won < FEW else ""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "remark": self.remark}


def find_logs(paths: Sequence[Path]) -> list[Path]:
    """The files that are meant; of a directory all that have a log's ending."""
    found: list[Path] = []
    for path in (path.expanduser() for path in paths):
        inside = sorted({file for ending in ENDINGS for file in path.rglob(ending)}) if path.is_dir() else [path]
        if not inside:
            raise TacitError(f"--from {path}: a directory without a log ({', '.join(ENDINGS)}).")
        for file in inside:
            if not file.is_file():
                raise TacitError(f"--from {file}: there is no such file of recorded episodes.")
            found += [file] if file not in found else []
    return found


def read_logs(paths: Sequence[Path], family_of: Callable[[Recording], str]) -> Logs:
    """Every episode that can be used, and every line that cannot. `family_of` names the kind of work, or nothing."""
    logs = Logs(files=find_logs(paths))
    for file in logs.files:
        reading = Reading()
        for recording in read_recordings(file, reading):
            family = family_of(recording)
            if not family:
                reason = f"family {recording.family!r} is none of these" if recording.family else "names no family"
                logs.unusable.append(f"{file} line {recording.line}: {reason}, and its task and goal are none that are known")
            elif not _PLAIN.fullmatch(family):
                logs.unusable.append(f"{file} line {recording.line}: family {family[:80]!r} cannot be the name of a module")
            elif not recording.goal and not recording.task:
                logs.unusable.append(f"{file} line {recording.line}: names neither a task nor a goal")
            else:
                logs.episodes.append(Logged(file, recording, family))
        logs.unusable += [f"{file} {reason}" for reason in reading.unusable]
    return logs


def family_without_world(recording: Recording) -> str:
    return recording.family or ONE_KIND


def family_in(world: Environment, tasks: Sequence[Task]) -> Callable[[Recording], str]:
    """By what the line says, else by its task, else by its goal."""
    by_id = {task.id: task.family for task in tasks}
    by_goal: dict[str, str] = {}
    for task in tasks:
        known = by_goal.setdefault(task.goal, task.family)
        if known != task.family:
            by_goal[task.goal] = ""  # of two kinds: it says nothing

    def family_of(recording: Recording) -> str:
        if recording.family in world.families:
            return recording.family
        return by_id.get(recording.task) or by_goal.get(recording.goal, "")

    return family_of


def cover(logs: Logs, families: Iterable[str]) -> list[Coverage]:
    """Of these families, and of any others there are."""
    found = []
    for family in dict.fromkeys((*families, *logs.families)):
        own = [logged.recording for logged in logs.episodes if logged.family == family]
        won = [recording for recording in own if recording.success]
        found.append(Coverage(family, len(own), len(won), sum(len(recording.actions) for recording in won)))
    return found


def as_lines(episodes: Sequence[Logged]) -> str:
    return "".join(json.dumps(logged.to_json(), ensure_ascii=False) + "\n" for logged in episodes)


def report_of(logs: Logs, covered: Sequence[Coverage]) -> Mapping[str, Any]:
    return {
        "files": [str(file) for file in logs.files],
        "families": [coverage.to_json() for coverage in covered],
        "unusable": logs.unusable,
    }


# Work of which there are only logs: a world that can be told and tracked, and not acted in.
#
#     WORK                                      no tracker: an agent reads the turns before
#     work_of("mugs_tracker.py", __file__)      with a drafted tracker, in a file beside the one that says so
#     work_of(…, world="alfworld")              a world there is, in which the draft is one more form of the state block
#     work_of(rewards=…, world="alfworld")      the world's own block, and drafted rewards
#
# A tracker's file is never imported: it is run behind a fence (`drafting/fence.py`), in training and in play.

NAME = "tacit.modules.logs:WORK"
"""as `--world` takes it"""
DRAFTED = "drafted"
"""the form of the state block that a draft writes in a world with a tracker of its own"""
MAX_STEPS = 50


class FullWording(Numbered):
    asked = "Your task: "


class TerseWording(Brief):
    ends = " >"

    def task(self, task: Task) -> str:
        return task.goal


def _nowhere() -> World:
    raise TacitError(
        "there is no world to act in: these modules were taught from logs alone. Play them from a program of yours (Agent) or "
        "serve them (tacit serve), and tell them what they see."
    )


def _no_tasks(split: str, count: int, seed: int) -> Sequence[Task]:
    return ()


WORK = Environment(
    name="work",
    summary="work known from logs alone",
    max_steps=MAX_STEPS,
    make=_nowhere,
    tasks=_no_tasks,
    splits=(),
    families=(),
    wordings={"full": FullWording(), "terse": TerseWording()},
    playable=False,
)


def work_of(tracker: str = "", beside: str = "", world: str = "", rewards: str = "", block: str = FULL_BLOCK) -> Environment:
    """`tracker`, and `rewards` where they were drafted apart, are files beside the file `beside`. Without a tracker the rewards
    are for the world's own, of the form `block`."""
    place = Path(beside).parent
    if not tracker:
        source, name = read_draft(place / rewards), Path(rewards).stem
        return with_draft(RewardedTracker(get_environment(world).tracker_of(block), source, name, world, block))
    return with_draft(DraftedTracker.read(place / tracker, place / rewards if rewards else None, world))


def with_draft(drafted: DraftedTracker | RewardedTracker) -> Environment:
    """The world that a draft is for, with it."""
    if not drafted.world:
        return replace(WORK, tracker=drafted)
    known = get_environment(drafted.world)
    return replace(known, forms={**known.forms, DRAFTED: drafted}) if known.tracker else replace(known, tracker=drafted)
