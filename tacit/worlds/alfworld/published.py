"""Published games as tasks: the `game.tw-pddl` files of `alfworld-download` (<root>/json_2.1.1/<split>/…), or JSON lines in
<root>/<split>.jsonl[.xz] with task, trial, goal_text, walkthrough and pddl_problem. Both give the same tasks, ids and order.
Games that cannot be read are reported and skipped."""

from __future__ import annotations

import itertools
import json
import logging
import lzma
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tacit.core.errors import TacitError
from tacit.core.registry import path_from_env
from tacit.core.tasks import describe_failures, shuffle_key
from tacit.core.types import Task
from tacit.worlds.alfworld import world
from tacit.worlds.alfworld.world import ABILITIES, FAMILIES, PUBLISHED_TYPES, STATES, Game, Goal, Receptacle, Thing

# PDDL problem -> Game. The domain is not read: all games share it, and `Household` implements it. Identifiers such as
# `Mug_bar__minus_00_dot_38_bar__plus_01_dot_09`, in lower case and sorted, give the listing order; within one prefix, the first
# gets the highest number.

_FACT = re.compile(r"\(\s*([\w-]+)((?:\s+[^\s()]+)*)\s*\)")
_TOKEN = re.compile(r"[()]|[^\s()]+")
_SECTION = re.compile(r"\(\s*:(objects|init|goal)\b")
_TRAITS = {**{a: a for a in ABILITIES}, "isreceptacleobject": "vessel", **{f"is{state}": state for state in STATES}}
"""predicate -> trait"""
_FAMILY_OF_PROPERTIES = {
    frozenset[str](): "pick",
    frozenset({"cleanable", "isclean"}): "clean",
    frozenset({"heatable", "ishot"}): "heat",
    frozenset({"coolable", "iscool"}): "cool",
}
_Facts = dict[str, set[tuple[str, ...]]]


def parse_problem(text: str, sentence: str) -> Game:
    """The game of a PDDL problem; `sentence` is its goal in words. Raises TacitError if the problem is malformed."""
    sections = _sections(text)
    types, waiting = dict[str, str](), list[str]()  # `a b - type` declares two objects
    tokens = iter(sections["objects"].partition("objects")[2].replace("(", " ").replace(")", " ").split())
    for token in tokens:
        if token == "-":
            types |= dict.fromkeys(waiting, next(tokens, ""))
            waiting = []
        else:
            waiting.append(token)
    facts: _Facts = defaultdict(set)
    for predicate, arguments in _FACT.findall(sections["init"]):
        facts[predicate].add(tuple(arguments.split()))
    mentioned = sorted({argument for rows in facts.values() for row in rows for argument in row} & set(types))
    # A sink's or bathtub's basin has its parent's prefix, so `basin` is appended: `mug_bar_…` -> `mug 2`.
    prefixes = {i: i.split("_bar_", 1)[0] + ("basin" if "basin" in i else "") for i in mentioned if "_bar_" in i}
    names = {**{i: i for i in mentioned}, **dict(zip(prefixes, world.number_names(prefixes.values()), strict=True))}
    receptacles, things, locations = (
        {i: n for n, i in enumerate(i for i in mentioned if types[i] == wanted)}
        for wanted in ("receptacle", "object", "location")
    )

    starts = [locations[place] for _, place in _pairs(facts, "atlocation") if place in locations]
    if len(starts) != 1:
        raise TacitError(f"the problem has {len(starts)} start locations of the agent; it needs exactly one.")
    receptacle_kind = {i: kind.removesuffix("type") for i, kind in _pairs(facts, "receptacletype")}
    thing_kind = {i: kind.removesuffix("type") for i, kind in _pairs(facts, "objecttype")}
    at = {i: locations[place] for i, place in _pairs(facts, "receptacleatlocation")}
    inside = _indices(facts, "inreceptacle", receptacles)
    places = _indices(facts, "objectatlocation", locations)
    facts["contents"] = {(outer, inner) for inner, outer in _pairs(facts, "inreceptacleobject")}
    contents = _indices(facts, "contents", things)
    openable, opened = facts["openable"], facts["opened"]
    traits = {i: frozenset(trait for predicate, trait in _TRAITS.items() if (i,) in facts[predicate]) for i in things}
    fits = {(r.removesuffix("type"), o.removesuffix("type")) for r, o in _pairs(facts, "cancontain")}
    return Game(
        receptacles=tuple(
            Receptacle(names[i], receptacle_kind.get(i, ""), at.get(i), (i,) in openable, (i,) in opened) for i in receptacles
        ),
        things=tuple(Thing(names[i], thing_kind.get(i, ""), traits[i], inside[i], places[i], contents[i]) for i in things),
        fits=frozenset((r, o) for r, o in fits if r in receptacle_kind.values() and o in thing_kind.values()),
        start=starts[0],
        goal=parse_goal(sections["goal"]),
        sentence=sentence,
    )


def parse_goal(text: str) -> Goal:
    """The goal of a `(:goal …)` section: one of the six published types, its conditions in any order."""
    atoms: set[tuple[str, ...]] = set()
    stack: list[list] = [[]]
    for token in _TOKEN.findall(text.lower()):  # the first parenthesised expression, as nested lists
        if token == "(":
            stack.append([])
        elif token != ")":
            stack[-1].append(token)
        elif len(stack) == 2:
            tree = stack[1]
            break
        else:
            stack[-2].append(stack.pop())
    else:
        raise TacitError("the problem text ends inside a parenthesis (a truncated file?).")
    if len(tree) != 2 or not isinstance(tree[1], list):
        raise TacitError("the goal is not one expression.")
    distinct = _collect(tree[1], atoms)
    # The goal with these atoms: kinds of objects and receptacles, their properties, and the relations between them.
    kinds = {row[1]: row[2].removesuffix("type") for row in atoms if row[0] == "objecttype" and len(row) == 3}
    targets = {row[1]: row[2].removesuffix("type") for row in atoms if row[0] == "receptacletype" and len(row) == 3}
    properties = {v: frozenset(row[0] for row in atoms if row[1:] == (v,)) for v in kinds}
    relations = {row for row in atoms if len(row) == 3 and row[0] not in ("objecttype", "receptacletype")}
    goal, things = None, sorted(kinds)
    if len(kinds) + len(targets) + len(relations) + sum(map(len, properties.values())) != len(atoms):
        pass
    elif len(targets) == 1:
        # One object, possibly with a property, or two distinct objects without one, in a receptacle.
        ((receptacle, target),) = targets.items()
        if relations != {("inreceptacle", thing, receptacle) for thing in things}:
            pass
        elif len(things) == 1 and not distinct and properties[things[0]] in _FAMILY_OF_PROPERTIES:
            goal = Goal(_FAMILY_OF_PROPERTIES[properties[things[0]]], kinds[things[0]], target)
        elif distinct == {frozenset(things)} and len(set(kinds.values())) == 1 and not any(properties.values()):
            goal = Goal("pick2", kinds[things[0]], target)
    elif not targets and not distinct and len(things) == 2:
        # A toggled lamp in a receptacle at the agent's location, and a held object.
        lamp, held = sorted(things, key=lambda v: properties[v] != {"toggleable", "istoggled"})
        by_name = {row[0]: row[1:] for row in relations}
        receptacle, place = by_name.get("receptacleatlocation", ("", ""))
        agent, held_by = by_name.get("atlocation", ("",))[0], by_name.get("holds", ("",))[0]
        wanted = {
            ("receptacleatlocation", receptacle, place),
            ("inreceptacle", lamp, receptacle),
            ("atlocation", agent, place),
            ("holds", held_by, held),
        }
        if relations == wanted and properties[lamp] == {"toggleable", "istoggled"} and not properties[held]:
            goal = Goal("look", kinds[held], kinds[lamp])
    if goal is None:
        raise TacitError("the goal is none of the six published task types.")
    return goal


def _collect(tree: list, atoms: set[tuple[str, ...]]) -> set[frozenset[str]]:
    """Add a conjunction's atoms to `atoms`; return the pairs of variables that must differ."""
    head, *rest = tree or [""]
    parts = rest if head == "and" else rest[1:] if head == "exists" and len(rest) == 2 else None
    if parts is not None and all(isinstance(part, list) for part in parts):
        return set().union(*(_collect(part, atoms) for part in parts))
    if head == "not" and len(rest) == 1 and isinstance(rest[0], list) and rest[0][:1] == ["="]:
        return {frozenset(rest[0][1:])}
    unsupported = ("", "and", "or", "forall", "not", "imply", "when", "exists")
    if not isinstance(head, str) or head in unsupported or not all(isinstance(part, str) for part in rest):
        raise TacitError(f"the goal has an unsupported part: {head!r}.")
    atoms.add((head, *rest))
    return set()


def _sections(text: str) -> dict[str, str]:
    text = re.sub(r";[^\n]*", "", text).lower()
    starts = {match.group(1): match.start() for match in _SECTION.finditer(text)}
    for name in ("objects", "init", "goal"):
        if name not in starts:
            raise TacitError(f"the problem has no (:{name} …) section (a truncated or foreign file?).")
    if text.count("(") != text.count(")"):
        raise TacitError("the parentheses of the problem do not match (a truncated file?).")
    ends = dict(itertools.pairwise([*sorted(starts.values()), len(text)]))
    return {name: text[start : ends[start]] for name, start in starts.items()}


def _pairs(facts: _Facts, predicate: str) -> Iterator[tuple[str, str]]:
    for row in facts[predicate]:
        if len(row) != 2:
            raise TacitError(f"the fact ({predicate} {' '.join(row)}) should have two arguments.")
        yield row[0], row[1]


def _indices(facts: _Facts, predicate: str, index: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """first argument -> sorted indices of the second arguments"""
    indices: dict[str, tuple[int, ...]] = defaultdict(tuple)
    for first, second in sorted(_pairs(facts, predicate)):
        if second not in index:
            raise TacitError(f"the fact ({predicate} {first} {second}) names something that is not declared.")
        indices[first] += (index[second],)
    return indices


NAME = "alfworld"
DATA_VARIABLE = "ALFWORLD_DATA"
FOLDERS: Mapping[str, str] = {"published_train": "train", "valid_seen": "valid_seen", "valid_unseen": "valid_unseen"}
"""split -> its folder in the published data"""
SIZES: Mapping[str, int] = {"published_train": 3553, "valid_seen": 140, "valid_unseen": 134}
"""split -> number of playable games in release 2.1.1"""
_SENTENCE = re.compile(r'"Your task is to: ((?:[^"\\]|\\.)*)"')
_NO_GAMES = "{} holds no games: no game.tw-pddl and no .jsonl or .jsonl.xz."
_log = logging.getLogger(__name__)


class _ExcludedGame(Exception):
    """A game that the published splits exclude: unsolvable, or of an unsupported type."""


class Entry(NamedTuple):
    id: str
    load: Callable[[], Task]


class Loaded(NamedTuple):
    tasks: tuple[Task, ...]
    failures: tuple[str, ...] = ()  # `file: reason` for each game that could not be read
    left_out: int = 0  # games that are unsolvable or of unpublished types

    @property
    def report(self) -> str:
        left_out = f", {self.left_out} left out (unsolvable or of unpublished kinds)" if self.left_out else ""
        return f"{len(self.tasks)} games loaded{left_out}{describe_failures(self.failures)}"


def load_games(source: Path | str) -> Loaded:
    """Every game of a `game.tw-pddl`, a JSON-lines file, or a directory of either, sorted by id.

    Raises TacitError if there is nothing to load: no such path, no games in it, or none that can be read.
    """
    entries, failures = find_games(source)
    loaded = _load(entries, len(entries), failures)
    if not loaded.tasks:
        raise TacitError(f"nothing could be loaded. {failures[0] if failures else _NO_GAMES.format(source)}")
    return loaded


def published_tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> tuple[Task, ...]:
    """`count` games of a published split, ordered by seed and id. With `families`, fewer if there are not enough."""
    root, folder = data_root(), FOLDERS[split]
    places = (root / "json_2.1.1" / folder, root / folder, root / f"{folder}.jsonl.xz", root / f"{folder}.jsonl")
    source = next((place for place in places if place.exists()), None)
    if source is None:
        raise TacitError(f"{root} has no published games of {folder!r}: none of {', '.join(map(str, places))} exists.")
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
    return path_from_env(
        DATA_VARIABLE,
        f"published ALFWorld games not found: set {DATA_VARIABLE} to the directory filled by alfworld-download (with "
        "json_2.1.1 in it) or to one with train.jsonl.xz, or use a generated split.",
    )


def _load(entries: list[Entry], count: int, failures: list[str]) -> Loaded:
    """The first `count` games that can be read."""
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


def find_games(source: Path | str) -> tuple[list[Entry], list[str]]:
    """The games of a path, sorted by id and not yet read, and the errors of unreadable ones."""
    source, failures, entries = Path(source).expanduser(), list[str](), list[Entry]()
    if not source.exists():
        raise TacitError(f"no such file or directory: {source}.")
    paths = [source]
    if source.is_dir():
        paths = sorted(p for p in source.rglob("game.tw-pddl") if p.is_file())
        lists = (p for p in source.iterdir() if p.name.endswith((".jsonl", ".jsonl.xz")) and "transcript" not in p.name)
        paths = paths or sorted(lists)
    if not paths:
        raise TacitError(_NO_GAMES.format(source))
    for path in paths:
        if path.name.endswith((".jsonl", ".jsonl.xz")):
            entries += _list_games(path, failures)
        else:
            parts = ["", "", "", *path.absolute().parent.parts[1:]][-3:]
            entries.append(Entry(_id(*parts), partial(_read_game_file, path, *parts)))
    return sorted(entries, key=lambda entry: entry.id), failures


def _list_games(path: Path, failures: list[str]) -> Iterator[Entry]:
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
                        name = _id(row["split"], row["task"], row["trial"])
                except TacitError as error:
                    failures.append(str(error))
                    continue
                yield Entry(name, partial(_make_task, where, name, row))
    except (EOFError, lzma.LZMAError, UnicodeDecodeError, OSError) as error:
        failures.append(f"{path}: cannot be read beyond line {number} (truncated, or not such a file?): {error}.")


def _read_game_file(path: Path, folder: str, task: str, trial: str) -> Task:
    """The task of one `game.tw-pddl`; its folders are named after the split, task and trial."""
    with _locate_errors(str(path)):
        if "movable" in task or "Sliced" in task:
            raise _ExcludedGame
        game = json.loads(path.read_text(encoding="utf-8"))
        if not game.get("solvable", True):
            raise _ExcludedGame
        sentence = _SENTENCE.search(game["grammar"])
        if sentence is None:
            raise TacitError("its grammar does not state the task.")
        game["goal_text"] = json.loads(f'"{sentence.group(1)}"')
    return _make_task(str(path), _id(folder, task, trial), game)


def _make_task(where: str, name: str, row: Mapping[str, Any]) -> Task:
    with _locate_errors(where):
        game = parse_problem(row["pddl_problem"], row["goal_text"])
        data = {"game": game.to_data(), "walkthrough": list(row.get("walkthrough") or [])}
        return Task(NAME, name, game.goal.family, name.partition("/")[0], 0, row["goal_text"], data)


def _id(folder: str, task: str, trial: str) -> str:
    """`split/task/trial`"""
    return f"{next((split for split, name in FOLDERS.items() if name == folder), folder)}/{task}/{trial}"


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
