"""Reads a published problem (PDDL text) into a `Game`.

Only the problem is read: all published games share one domain, whose fifteen action schemas are `household.py`.
Identifiers such as `Mug_bar__minus_00_dot_38_bar__plus_01_dot_09` fix two things and are then forgotten: sorted (in
lower case, as the engine's planner sees them) they give the listing order, and within one prefix the first in that
order gets the highest number.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator

from tacit.core.errors import TacitError
from tacit.environments.alfworld.game import Game, Goal, Receptacle, Thing, numbered

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
    """The game of a PDDL problem; `sentence` is how its goal is told. Raises TacitError saying what is wrong."""
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
        raise TacitError(f"the agent is at {len(starts)} places at the start, not at one.")
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
    """The goal of a `(:goal …)` section, which must be one of the six published shapes, in any order of its parts."""
    atoms: set[tuple[str, ...]] = set()
    tokens = _TOKEN.findall(text.lower())
    tree = _tree(tokens)
    if len(tree) != 2 or not isinstance(tree[1], list):
        raise TacitError("the goal is not one expression.")
    distinct = _collect(tree[1], atoms)
    return _recognise(atoms, distinct)


def _recognise(atoms: set[tuple[str, ...]], distinct: set[frozenset[str]]) -> Goal:
    """A goal by its atoms: the kinds of its objects and receptacles, their properties, and the relations between them."""
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
    """One object with a property, or two distinct ones without, in one receptacle."""
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
    """A toggled lamp in a receptacle where the agent is, and an object in its hand."""
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
    """Adds a conjunction's atoms to `atoms`; returns the pairs of variables it says are not equal."""
    head, *rest = tree or [""]
    distinct: set[frozenset[str]] = set()
    if head == "and":
        for part in rest:
            distinct |= _collect(part, atoms) if isinstance(part, list) else _refuse(part)
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
        _refuse(head)
    return distinct


def _refuse(part: object) -> set[frozenset[str]]:
    raise TacitError(f"the goal has a part that no published task has: {part!r}.")


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
    """The text of :objects, :init and :goal, in lower case as the planner reads it."""
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
    """`mug_bar_…` -> `mug 2`; the basin of a sink or bathtub carries its parent's prefix and gets `basin` added."""
    prefixes = {i: i.split("_bar_", 1)[0] + ("basin" if "basin" in i else "") for i in ids if "_bar_" in i}
    return {**{i: i for i in ids}, **dict(zip(prefixes, numbered(prefixes.values()), strict=True))}


def _kind(type_name: str) -> str:
    return type_name.removesuffix("type")
