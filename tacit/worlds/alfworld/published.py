"""Published games as tasks, in either of two formats:

    game.tw-pddl   one JSON file per game, in the folders that `alfworld-download` makes:
                   <root>/json_2.1.1/{train,valid_seen,valid_unseen}/<task>/<trial>/game.tw-pddl
    JSON lines     one line per game with task, trial, goal_text, walkthrough, pddl_problem:
                   <root>/{train,valid_seen,valid_unseen}.jsonl or .jsonl.xz

Both give the same tasks with the same ids in the same order. A game that cannot be read is reported and skipped.
"""

from __future__ import annotations

import itertools
import json
import logging
import lzma
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.registry import path_from_env
from tacit.core.tasks import describe_failures, shuffle_key
from tacit.core.types import Task
from tacit.worlds.alfworld.world import FAMILIES, PUBLISHED_TYPES, Game, Goal, Receptacle, Thing, number_names

# PDDL problem -> Game. The domain is not read: all games share it, and `Household` implements it. Identifiers such as
# `Mug_bar__minus_00_dot_38_bar__plus_01_dot_09`, in lower case and sorted, give the listing order; within one prefix, the first
# gets the highest number.

_FACT = re.compile(r"\(\s*([\w-]+)((?:\s+[^\s()]+)*)\s*\)")
_TOKEN = re.compile(r"[()]|[^\s()]+")
_SECTION = re.compile(r"\(\s*:(objects|init|goal)\b")

_TRAIT_OF_PREDICATE = {
    "pickupable": "pickupable",
    "cleanable": "cleanable",
    "heatable": "heatable",
    "coolable": "coolable",
    "sliceable": "sliceable",
    "toggleable": "toggleable",
    "isreceptacleobject": "vessel",
    "isclean": "clean",
    "ishot": "hot",
    "iscool": "cool",
    "issliced": "sliced",
    "istoggled": "toggled",
}

_FAMILY_OF_PROPERTIES = {
    frozenset[str](): "pick",
    frozenset({"cleanable", "isclean"}): "clean",
    frozenset({"heatable", "ishot"}): "heat",
    frozenset({"coolable", "iscool"}): "cool",
}

_ILLUMINATION = {"receptacleatlocation", "atlocation", "inreceptacle", "holds"}

_Facts = dict[str, set[tuple[str, ...]]]


def parse_problem(text: str, sentence: str) -> Game:
    """The game of a PDDL problem; `sentence` is its goal in words. Raises TacitError if the problem is malformed."""
    sections = _sections(text)
    types = dict(_declarations(sections["objects"]))
    facts = _facts(sections["init"])
    mentioned = sorted({argument for rows in facts.values() for row in rows for argument in row} & set(types))
    names = _names(mentioned)

    receptacle_ids = [i for i in mentioned if types[i] == "receptacle"]
    thing_ids = [i for i in mentioned if types[i] == "object"]
    locations = {i: n for n, i in enumerate(i for i in mentioned if types[i] == "location")}
    receptacle_index = {i: n for n, i in enumerate(receptacle_ids)}
    thing_index = {i: n for n, i in enumerate(thing_ids)}

    starts = [locations[place] for _, place in _pairs(facts, "atlocation") if place in locations]
    if len(starts) != 1:
        raise TacitError(f"the problem has {len(starts)} start locations of the agent; it needs exactly one.")
    receptacle_kind = dict(_pairs(facts, "receptacletype"))
    thing_kind = dict(_pairs(facts, "objecttype"))
    standing = dict(_pairs(facts, "receptacleatlocation"))
    inside = _indices(facts, "inreceptacle", receptacle_index)
    places = _indices(facts, "objectatlocation", locations)
    facts["contents"] = {(outer, inner) for inner, outer in _pairs(facts, "inreceptacleobject")}
    contents = _indices(facts, "contents", thing_index)
    openable, opened = facts["openable"], facts["opened"]
    traits: dict[str, set[str]] = defaultdict(set)
    for predicate, trait in _TRAIT_OF_PREDICATE.items():
        for row in facts[predicate]:
            traits[row[0]].add(trait)

    present = {_kind(k) for k in receptacle_kind.values()}, {_kind(k) for k in thing_kind.values()}
    return Game(
        receptacles=tuple(
            Receptacle(
                name=names[i],
                kind=_kind(receptacle_kind.get(i, "")),
                location=locations[standing[i]] if i in standing else None,
                openable=(i,) in openable,
                opened=(i,) in opened,
            )
            for i in receptacle_ids
        ),
        things=tuple(
            Thing(
                name=names[i],
                kind=_kind(thing_kind.get(i, "")),
                traits=frozenset(traits[i]),
                receptacles=inside[i],
                locations=places[i],
                holds=contents[i],
            )
            for i in thing_ids
        ),
        fits=frozenset(
            (_kind(r), _kind(o)) for r, o in _pairs(facts, "cancontain") if _kind(r) in present[0] and _kind(o) in present[1]
        ),
        start=starts[0],
        goal=parse_goal(sections["goal"]),
        sentence=sentence,
    )


def parse_goal(text: str) -> Goal:
    """The goal of a `(:goal …)` section: one of the six published types, its conditions in any order."""
    atoms: set[tuple[str, ...]] = set()
    tokens = _TOKEN.findall(text.lower())
    tree = _tree(tokens)
    if len(tree) != 2 or not isinstance(tree[1], list):
        raise TacitError("the goal is not one expression.")
    distinct = _collect(tree[1], atoms)
    # The goal with these atoms: kinds of objects and receptacles, their properties, and the relations between them.
    kinds = {row[1]: _kind(row[2]) for row in atoms if row[0] == "objecttype" and len(row) == 3}
    targets = {row[1]: _kind(row[2]) for row in atoms if row[0] == "receptacletype" and len(row) == 3}
    properties = {v: frozenset(row[0] for row in atoms if row[1:] == (v,)) for v in kinds}
    relations: set[tuple[str, ...]] = {row for row in atoms if len(row) == 3 and row[0] not in ("objecttype", "receptacletype")}
    goal = None
    if len(kinds) + len(targets) + len(relations) + sum(map(len, properties.values())) == len(atoms):
        if len(targets) == 1:
            goal = _placement(kinds, targets, properties, relations, distinct)
        elif not targets and not distinct:
            goal = _illumination(kinds, properties, relations)
    if goal is None:
        raise TacitError("the goal is none of the six published task types.")
    return goal


def _placement(
    kinds: dict[str, str],
    targets: dict[str, str],
    properties: dict[str, frozenset[str]],
    relations: set[tuple[str, ...]],
    distinct: set[frozenset[str]],
) -> Goal | None:
    """One object, possibly with a property, or two distinct objects without one, in a receptacle."""
    ((receptacle, target),) = targets.items()
    things = sorted(kinds)
    if relations != {("inreceptacle", thing, receptacle) for thing in things}:
        return None
    if len(things) == 1 and not distinct and properties[things[0]] in _FAMILY_OF_PROPERTIES:
        return Goal(_FAMILY_OF_PROPERTIES[properties[things[0]]], kinds[things[0]], target)
    if distinct == {frozenset(things)} and len(set(kinds.values())) == 1 and not any(properties.values()):
        return Goal("pick2", kinds[things[0]], target)
    return None


def _illumination(kinds: dict[str, str], properties: dict[str, frozenset[str]], relations: set[tuple[str, ...]]) -> Goal | None:
    """A toggled lamp in a receptacle at the agent's location, and a held object."""
    lamps = [v for v in kinds if properties[v] == {"toggleable", "istoggled"}]
    objects = [v for v in kinds if not properties[v]]
    arguments = {row[0]: row[1:] for row in relations}
    if len(lamps) != 1 or len(objects) != 1 or len(relations) != 4 or set(arguments) != _ILLUMINATION:
        return None
    receptacle, place = arguments["receptacleatlocation"]
    if (
        arguments["inreceptacle"] == (lamps[0], receptacle)
        and arguments["atlocation"][1] == place
        and arguments["holds"][1] == objects[0]
    ):
        return Goal("look", kinds[objects[0]], kinds[lamps[0]])
    return None


def _collect(tree: list, atoms: set[tuple[str, ...]]) -> set[frozenset[str]]:
    """Add a conjunction's atoms to `atoms`; return the pairs of variables that must differ."""
    head, *rest = tree or [""]
    distinct: set[frozenset[str]] = set()
    if head == "and":
        for part in rest:
            distinct |= _collect(part, atoms) if isinstance(part, list) else _reject_goal(part)
    elif head == "exists" and len(rest) == 2 and isinstance(rest[1], list):
        distinct |= _collect(rest[1], atoms)
    elif head == "not" and len(rest) == 1 and isinstance(rest[0], list) and rest[0][:1] == ["="]:
        distinct.add(frozenset(rest[0][1:]))
    elif (
        isinstance(head, str)
        and head not in ("", "or", "forall", "not", "imply", "when", "exists")
        and all(isinstance(part, str) for part in rest)
    ):
        atoms.add((head, *rest))
    else:
        _reject_goal(head)
    return distinct


def _reject_goal(part: object) -> set[frozenset[str]]:
    raise TacitError(f"the goal has an unsupported part: {part!r}.")


def _tree(tokens: list[str]) -> list:
    """The first parenthesised expression of the tokens, as nested lists."""
    stack: list[list] = [[]]
    for token in tokens:
        if token == "(":
            stack.append([])
        elif token == ")":
            done = stack.pop()
            stack[-1].append(done)
            if len(stack) == 1:
                return done
        else:
            stack[-1].append(token)
    raise TacitError("the problem text ends inside a parenthesis (a truncated file?).")


def _sections(text: str) -> dict[str, str]:
    """The text of :objects, :init and :goal, in lower case."""
    text = re.sub(r";[^\n]*", "", text).lower()
    starts = {match.group(1): match.start() for match in _SECTION.finditer(text)}
    for name in ("objects", "init", "goal"):
        if name not in starts:
            raise TacitError(f"the problem has no (:{name} …) section (a truncated or foreign file?).")
    if text.count("(") != text.count(")"):
        raise TacitError("the parentheses of the problem do not match (a truncated file?).")
    bounds = [*sorted(starts.values()), len(text)]
    ends = dict(itertools.pairwise(bounds))
    return {name: text[start : ends[start]] for name, start in starts.items()}


def _declarations(section: str) -> Iterator[tuple[str, str]]:
    """(name, type) of each declared object; `a b - type` declares two."""
    waiting: list[str] = []
    tokens = iter(section[section.index("objects") + len("objects") :].replace("(", " ").replace(")", " ").split())
    for token in tokens:
        if token == "-":
            declared = next(tokens, "")
            yield from ((name, declared) for name in waiting)
            waiting = []
        else:
            waiting.append(token)


def _facts(section: str) -> _Facts:
    facts: _Facts = defaultdict(set)
    for predicate, arguments in _FACT.findall(section):
        facts[predicate].add(tuple(arguments.split()))
    return facts


def _pairs(facts: _Facts, predicate: str) -> Iterator[tuple[str, str]]:
    for row in facts[predicate]:
        if len(row) != 2:
            raise TacitError(f"the fact ({predicate} {' '.join(row)}) should have two arguments.")
        yield row[0], row[1]


def _indices(facts: _Facts, predicate: str, index: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """first argument -> sorted indices of the second arguments"""
    found: dict[str, tuple[int, ...]] = defaultdict(tuple)
    for first, second in sorted(_pairs(facts, predicate)):
        if second not in index:
            raise TacitError(f"the fact ({predicate} {first} {second}) names something that is not declared.")
        found[first] += (index[second],)
    return found


def _names(ids: list[str]) -> dict[str, str]:
    """`mug_bar_…` -> `mug 2`. A sink's or bathtub's basin has its parent's prefix, so `basin` is appended."""
    prefixes = {i: i.split("_bar_", 1)[0] + ("basin" if "basin" in i else "") for i in ids if "_bar_" in i}
    return {**{i: i for i in ids}, **dict(zip(prefixes, number_names(prefixes.values()), strict=True))}


def _kind(type_name: str) -> str:
    return type_name.removesuffix("type")


NAME = "alfworld"
DATA_VARIABLE = "ALFWORLD_DATA"
FOLDERS: Mapping[str, str] = {"published_train": "train", "valid_seen": "valid_seen", "valid_unseen": "valid_unseen"}
"""split -> its folder in the published data"""
SIZES: Mapping[str, int] = {"published_train": 3553, "valid_seen": 140, "valid_unseen": 134}
"""split -> number of playable games in release 2.1.1"""

_SPLIT_OF_FOLDER = {folder: split for split, folder in FOLDERS.items()}
_SENTENCE = re.compile(r'"Your task is to: ((?:[^"\\]|\\.)*)"')
_log = logging.getLogger(__name__)


class _ExcludedGame(Exception):
    """The published lists exclude this game: unsolvable, or of a type that the text engine does not support."""


@dataclass(frozen=True)
class Entry:
    """A game that has been found but not loaded. `where` is its file (and line)."""

    id: str
    where: str
    load: Callable[[], Task] = field(repr=False)


@dataclass(frozen=True)
class Loaded:
    """What came out of a file or directory."""

    tasks: tuple[Task, ...]
    failures: tuple[str, ...] = ()
    """`file: reason` for each game that could not be read"""
    left_out: int = 0
    """games that are unsolvable or of unpublished types"""

    @property
    def report(self) -> str:
        text = f"{len(self.tasks)} games loaded"
        if self.left_out:
            text += f", {self.left_out} left out (unsolvable or of unpublished kinds)"
        return text + describe_failures(self.failures)


def load_games(source: Path | str) -> Loaded:
    """Every game of a `game.tw-pddl`, a JSON-lines file, or a directory of either, sorted by id.

    Raises TacitError if there is nothing to load: no such path, no games in it, or none that can be read.
    """
    entries, failures = find_games(source)
    loaded = _load(entries, len(entries), failures)
    if not loaded.tasks:
        reason = failures[0] if failures else f"{source} holds no games: no game.tw-pddl and no .jsonl or .jsonl.xz."
        raise TacitError(f"nothing could be loaded. {reason}")
    return loaded


def find_games(source: Path | str) -> tuple[list[Entry], list[str]]:
    """The games of a path, sorted by id and not yet read, and the reasons why others cannot be."""
    failures: list[str] = []
    entries = sorted(_entries(Path(source).expanduser(), failures), key=lambda entry: entry.id)
    return entries, failures


def published_tasks(
    split: str, count: int, seed: int, families: Sequence[str] = FAMILIES, root: Path | str | None = None
) -> tuple[Task, ...]:
    """`count` games of a published split, ordered by seed and id. With `families`, fewer if there are not enough."""
    source = _split_source(Path(root) if root else data_root(), FOLDERS[split])
    entries, failures = find_games(source)
    every = set(families) >= set(FAMILIES)
    if not every:
        # A game's name begins with its type, so other games need not be read.
        wanted = tuple(f"{PUBLISHED_TYPES[family]}-" for family in families)
        entries = [entry for entry in entries if entry.id.partition("/")[2].startswith(wanted)]
    entries.sort(key=lambda entry: shuffle_key(seed, entry.id))
    loaded = _load(entries, count, failures)
    if loaded.failures:
        _log.warning("%s: %s", source, loaded.report)
    if len(loaded.tasks) < count and every:
        raise TacitError(f"{split!r} has too few games: {count} were requested, but {source} has {loaded.report}.")
    return loaded.tasks


def data_root() -> Path:
    """The directory that ALFWORLD_DATA names."""
    return path_from_env(
        DATA_VARIABLE,
        f"published ALFWorld games not found: set {DATA_VARIABLE} to the directory filled by alfworld-download (with "
        "json_2.1.1 in it) or to one with train.jsonl.xz, or use a generated split.",
    )


def read_game_file(path: Path) -> Task:
    """The task of one `game.tw-pddl`; its folders are named after the split, task and trial."""
    folder, task, trial = _path_parts(path)
    with _locate_errors(str(path)):
        if "movable" in task or "Sliced" in task:
            raise _ExcludedGame
        game = json.loads(path.read_text(encoding="utf-8"))
        if not game.get("solvable", True):
            raise _ExcludedGame
        sentence = _SENTENCE.search(game["grammar"])
        if sentence is None:
            raise TacitError("its grammar does not state the task.")
        goal = json.loads(f'"{sentence.group(1)}"')
        return _make_task(folder, task, trial, goal, game["pddl_problem"], game.get("walkthrough") or [])


def _make_task(folder: str, task: str, trial: str, sentence: str, problem: str, walkthrough: list[str]) -> Task:
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
        except _ExcludedGame:
            left_out += 1
        except TacitError as error:
            failures.append(str(error))
    return Loaded(tuple(tasks), tuple(failures), left_out)


def _entries(source: Path, failures: list[str]) -> Iterator[Entry]:
    if not source.exists():
        raise TacitError(f"no such file or directory: {source}.")
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
        yield Entry(_id(*_path_parts(path)), str(path), partial(read_game_file, path))
        return
    number = 0
    try:
        with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                where = f"{path}, line {number}"
                try:
                    with _locate_errors(where):
                        row = json.loads(line)
                        entry = Entry(_id(row["split"], row["task"], row["trial"]), where, partial(_read_row, where, row))
                except TacitError as error:
                    failures.append(str(error))
                    continue
                yield entry
    except (EOFError, lzma.LZMAError, UnicodeDecodeError, OSError) as error:
        failures.append(f"{path}: cannot be read beyond line {number} (truncated, or not such a file?): {error}.")


def _read_row(where: str, row: Mapping[str, Any]) -> Task:
    with _locate_errors(where):
        parts = (row["split"], row["task"], row["trial"], row["goal_text"], row["pddl_problem"])
        return _make_task(*parts, walkthrough=row.get("walkthrough") or [])


def _split_source(root: Path, folder: str) -> Path:
    places = (root / "json_2.1.1" / folder, root / folder, root / f"{folder}.jsonl.xz", root / f"{folder}.jsonl")
    for place in places:
        if place.exists():
            return place
    raise TacitError(f"{root} has no published games of {folder!r}: none of {', '.join(map(str, places))} exists.")


def _path_parts(path: Path) -> tuple[str, str, str]:
    """(split folder, task, trial) of a game file, from the names of its folders"""
    folder, task, trial = ["", "", "", *path.absolute().parent.parts[1:]][-3:]
    return folder, task, trial


def _id(folder: str, task: str, trial: str) -> str:
    return f"{_SPLIT_OF_FOLDER.get(folder, folder)}/{task}/{trial}"


@contextmanager
def _locate_errors(where: str) -> Iterator[None]:
    """Turn errors inside into TacitErrors that begin with `where`."""
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
