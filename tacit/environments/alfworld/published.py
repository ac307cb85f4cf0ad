"""Loads published games, in either form they come in, as tasks.

    game.tw-pddl   one JSON file per game, in the folders that `alfworld-download` makes:
                   <root>/json_2.1.1/{train,valid_seen,valid_unseen}/<task>/<trial>/game.tw-pddl
    JSON lines     one line per game with task, trial, goal_text, walkthrough, pddl_problem:
                   <root>/{train,valid_seen,valid_unseen}.jsonl or .jsonl.xz

Both give the same tasks with the same ids in the same order. A game that cannot be read does not stop the others.
"""

from __future__ import annotations

import hashlib
import json
import logging
import lzma
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.finding import path_named_by
from tacit.core.types import Task
from tacit.environments.alfworld.game import FAMILIES, PUBLISHED_TYPES
from tacit.environments.alfworld.pddl import parse_problem

NAME = "alfworld"
DATA_VARIABLE = "ALFWORLD_DATA"
FOLDERS: Mapping[str, str] = {
    "published_train": "train",
    "valid_seen": "valid_seen",
    "valid_unseen": "valid_unseen",
}
"""split -> what published data calls it"""
SIZES: Mapping[str, int] = {"published_train": 3553, "valid_seen": 140, "valid_unseen": 134}
"""split -> games that are played of it, in release 2.1.1"""

_SPLIT_OF_FOLDER = {folder: split for split, folder in FOLDERS.items()}
_SENTENCE = re.compile(r'"Your task is to: ((?:[^"\\]|\\.)*)"')
_log = logging.getLogger(__name__)


class _NotPlayed(Exception):
    """A game that the published lists leave out: unsolvable, or of a kind that the text engine does not have."""


@dataclass(frozen=True)
class Entry:
    """One game that may be loaded. `where` names its file (and line)."""

    id: str
    where: str
    load: Callable[[], Task] = field(repr=False)


@dataclass(frozen=True)
class Loaded:
    """What came out of a file or directory."""

    tasks: tuple[Task, ...]
    failures: tuple[str, ...] = ()
    """`file: why`, one for each game that could not be read"""
    left_out: int = 0
    """games marked unsolvable, or of unpublished kinds"""

    @property
    def report(self) -> str:
        text = f"{len(self.tasks)} games loaded"
        if self.left_out:
            text += f", {self.left_out} left out (unsolvable or of unpublished kinds)"
        if self.failures:
            shown = "\n".join(f"  {failure}" for failure in self.failures[:5])
            more = f"\n  … and {len(self.failures) - 5} more" if len(self.failures) > 5 else ""
            text += f", {len(self.failures)} could not be read:\n{shown}{more}"
        return text


def load_games(source: Path | str) -> Loaded:
    """Every game of a `game.tw-pddl`, a JSON-lines file, or a directory of either, sorted by id.

    Raises TacitError where there is nothing to load: no such path, no games below it, or none that can be read.
    """
    entries, failures = find_games(source)
    loaded = _load(entries, len(entries), failures)
    if not loaded.tasks:
        reason = failures[0] if failures else f"{source} holds no games: no game.tw-pddl and no .jsonl or .jsonl.xz."
        raise TacitError(f"nothing could be loaded. {reason}")
    return loaded


def find_games(source: Path | str) -> tuple[list[Entry], list[str]]:
    """What a path holds, sorted by id and not yet read, and what is wrong with the rest."""
    failures: list[str] = []
    entries = sorted(_entries(Path(source).expanduser(), failures), key=lambda entry: entry.id)
    return entries, failures


def published_tasks(
    split: str, count: int, seed: int, families: Sequence[str] = FAMILIES, root: Path | str | None = None
) -> tuple[Task, ...]:
    """`count` games of a published split in an order that depends on the seed and the ids alone. Of some families only, as many
    as there are where they are fewer."""
    source = _split_source(Path(root) if root else data_root(), FOLDERS[split])
    entries, failures = find_games(source)
    every = set(families) >= set(FAMILIES)
    if not every:
        # The name of a game begins with its type: what is not wanted need not be read.
        wanted = tuple(f"{PUBLISHED_TYPES[family]}-" for family in families)
        entries = [entry for entry in entries if entry.id.partition("/")[2].startswith(wanted)]
    entries.sort(key=lambda entry: _shuffle_key(seed, entry.id))
    loaded = _load(entries, count, failures)
    if loaded.failures:
        _log.warning("%s: %s", source, loaded.report)
    if len(loaded.tasks) < count and every:
        raise TacitError(f"{count} games of {split!r} were asked for, but {source} has {loaded.report}.")
    return loaded.tasks


def data_root() -> Path:
    """The directory that ALFWORLD_DATA names."""
    return path_named_by(
        DATA_VARIABLE,
        f"published ALFWorld games are not found: set {DATA_VARIABLE} to the directory that alfworld-download filled "
        "(it holds json_2.1.1) or that holds train.jsonl.xz, or use a generated split.",
    )


def read_game_file(path: Path) -> Task:
    """The task of one `game.tw-pddl`; its folders give trial, task and split."""
    folder, task, trial = _place(path)
    with _naming(str(path)):
        if "movable" in task or "Sliced" in task:
            raise _NotPlayed
        game = json.loads(path.read_text(encoding="utf-8"))
        if not game.get("solvable", True):
            raise _NotPlayed
        sentence = _SENTENCE.search(game["grammar"])
        if sentence is None:
            raise TacitError("its grammar does not say what the task is.")
        told = json.loads(f'"{sentence.group(1)}"')
        return _task(folder, task, trial, told, game["pddl_problem"], game.get("walkthrough") or [])


def _task(folder: str, task: str, trial: str, sentence: str, problem: str, walkthrough: list[str]) -> Task:
    game = parse_problem(problem, sentence)
    return Task(
        world=NAME,
        id=_id(folder, task, trial),
        family=game.goal.family,
        split=_SPLIT_OF_FOLDER.get(folder, folder),
        seed=0,
        goal=sentence,
        data={"game": game.to_data(), "walkthrough": list(walkthrough)},
    )


def _load(entries: list[Entry], count: int, failures: list[str]) -> Loaded:
    """The first `count` that load."""
    tasks: list[Task] = []
    left_out = 0
    for entry in entries:
        if len(tasks) == count:
            break
        try:
            tasks.append(entry.load())
        except _NotPlayed:
            left_out += 1
        except TacitError as error:
            failures.append(str(error))
    return Loaded(tuple(tasks), tuple(failures), left_out)


def _entries(source: Path, failures: list[str]) -> Iterator[Entry]:
    if not source.exists():
        raise TacitError(f"there is no file or directory {source}.")
    if source.is_file():
        yield from _entries_of_file(source, failures)
        return
    paths = [p for p in source.rglob("game.tw-pddl") if p.is_file()]
    if not paths:
        paths = [p for p in source.iterdir() if p.name.endswith((".jsonl", ".jsonl.xz")) and "transcript" not in p.name]
    if not paths:
        raise TacitError(f"{source} holds no games: no game.tw-pddl and no .jsonl or .jsonl.xz.")
    for path in sorted(paths):
        yield from _entries_of_file(path, failures)


def _entries_of_file(path: Path, failures: list[str]) -> Iterator[Entry]:
    if not path.name.endswith((".jsonl", ".jsonl.xz")):
        yield Entry(_id(*_place(path)), str(path), partial(read_game_file, path))
        return
    number = 0
    try:
        with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                where = f"{path}, line {number}"
                try:
                    with _naming(where):
                        row = json.loads(line)
                        entry = Entry(_id(row["split"], row["task"], row["trial"]), where, partial(_read_row, where, row))
                except TacitError as error:
                    failures.append(str(error))
                    continue
                yield entry
    except (EOFError, lzma.LZMAError, UnicodeDecodeError, OSError) as error:
        failures.append(f"{path}: cannot be read beyond line {number} (truncated, or not such a file?): {error}.")


def _read_row(where: str, row: Mapping[str, Any]) -> Task:
    with _naming(where):
        parts = (row["split"], row["task"], row["trial"], row["goal_text"], row["pddl_problem"])
        return _task(*parts, walkthrough=row.get("walkthrough") or [])


def _split_source(root: Path, folder: str) -> Path:
    places = (root / "json_2.1.1" / folder, root / folder, root / f"{folder}.jsonl.xz", root / f"{folder}.jsonl")
    for place in places:
        if place.exists():
            return place
    raise TacitError(f"{root} has no published games of {folder!r}: none of {', '.join(map(str, places))} exists.")


def _place(path: Path) -> tuple[str, str, str]:
    """(split folder, task, trial) of a game file, by the names of the folders it lies in"""
    folder, task, trial = ["", "", "", *path.absolute().parent.parts[1:]][-3:]
    return folder, task, trial


def _id(folder: str, task: str, trial: str) -> str:
    return f"{_SPLIT_OF_FOLDER.get(folder, folder)}/{task}/{trial}"


def _shuffle_key(seed: int, task_id: str) -> bytes:
    """Orders ids at random but alike everywhere; leaving some out does not move the others."""
    return hashlib.sha256(f"{seed}:{task_id}".encode()).digest()


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Errors inside become TacitErrors that begin with where they happened."""
    try:
        yield
    except TacitError as error:
        raise TacitError(f"{where}: {error}") from error
    except KeyError as error:
        raise TacitError(f"{where}: not a household game: it has no {error}.") from error
    except json.JSONDecodeError as error:
        raise TacitError(f"{where}: not valid JSON (truncated, or not a game file?): {error}.") from error
    except (OSError, TypeError, ValueError, AttributeError) as error:
        raise TacitError(f"{where}: not a household game ({type(error).__name__}: {error}).") from error
