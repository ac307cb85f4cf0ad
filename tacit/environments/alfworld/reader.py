"""A rule that plays the household by its prompt alone: what the state block is worth without any learning.

It has no memory and sees no list of actions. Each turn it is given the text a policy would be given, in any form of the block
and in either wording, and answers with an action. What it knows beside is what anyone knows of a house (`places.py`).

Where the block names the places left, the likeliest is next. Where it does not, the usual places are walked through in a fixed
order; the last action in the prompt says how far one has come, and a refusal that there is no such place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tacit.core.errors import TacitError
from tacit.environments.alfworld.game import Goal
from tacit.environments.alfworld.household import APPLIANCES
from tacit.environments.alfworld.observed import kind_of, read_goal
from tacit.environments.alfworld.places import OPENED_KINDS, PLACES, chance
from tacit.environments.alfworld.progress import SEARCHES
from tacit.environments.alfworld.prompt import brief

_FIELD = re.compile(
    r"^(subgoal|holding|destination|at|unchecked|checked|seen|where|"
    r"current_subgoal|checked_locations|searched_containers): (.*)$",
    re.M,
)
_GOAL = re.compile(r"(?:Your task is to: )?([^:\n]+)$", re.M)
_NOW = re.compile(r"[Yy]our current observation is: (.*)\nNow it's your turn", re.S)
_TURN = re.compile(r"^\[Observation \d+: '(?:.*)', Action \d+: '(.*)'\]$", re.M | re.S)
_GROUP = re.compile(r"([a-z]+) (\d+(?:-\d+)?(?: \d+(?:-\d+)?)*)")
_PLACE = re.compile(r"(?:go to|open|examine|close) (\w+ \d+)$|(?:to|from|with) (\w+ \d+)$")
_SHOWN = re.compile(r"^(\w+ \d+)(?: open)?: (?!\+)(.*)$")
_KINDS = tuple(dict.fromkeys(kind for places in PLACES.values() for kind in places))


@dataclass(frozen=True)
class Page:
    """A prompt taken apart."""

    goal: Goal
    fields: dict[str, str]
    now: str
    """what is seen, tersely"""
    last: str
    """the action before"""

    @property
    def subgoal(self) -> str:
        return self.fields.get("subgoal") or self.fields["current_subgoal"].replace("reach_dest", "reach_destination")

    @property
    def refused(self) -> bool:
        return self.now == "nothing happens"

    @property
    def closed(self) -> str:
        """the receptacle that is seen to be closed"""
        return self.now.removesuffix(" closed") if self.now.endswith(" closed") else ""

    @property
    def came_to(self) -> str:
        """the place the last action named"""
        match = _PLACE.search(self.last)
        return (match[1] or match[2]) if match else ""

    @property
    def shown(self) -> tuple[str, list[str]]:
        """the receptacle that is looked into, and what is there"""
        match = _SHOWN.match(self.now)
        return (match[1], match[2].split(", ")) if match else ("", [])

    def names(self, field: str) -> list[str]:
        return expand(self.fields.get(field, ""))


def take_apart(prompt: str) -> Page:
    fields = dict(_FIELD.findall(prompt))
    if not fields.keys() & {"subgoal", "current_subgoal"}:
        raise TacitError("the household's reader reads a state block, and this prompt has none: --state-block --history 1.")
    goal = _GOAL.search(prompt.partition("\n")[0])
    told = _NOW.search(prompt)
    if told:
        turn = _TURN.search(prompt)
        now, last = brief(told[1]), turn[1] if turn else ""
    else:
        lines = prompt.rstrip().split("\n")
        before = lines[1].rpartition(" > ") if " > " in lines[1] else ("", "", "")
        now, last = lines[-1].removesuffix(">").rstrip(), before[2]
    return Page(read_goal(goal[1] if goal else ""), fields, now, last)


def expand(listed: str) -> list[str]:
    """`drawer 1-3 5, bed 1` -> drawer 1, drawer 2, drawer 3, drawer 5, bed 1"""
    found = []
    for kind, spans in _GROUP.findall(listed):
        for span in spans.split():
            first, _, last = span.partition("-")
            found += [f"{kind} {number}" for number in range(int(first), int(last or first) + 1)]
    return found


def act(prompt: str) -> str:
    """The action for what this prompt says."""
    page = take_apart(prompt)
    subgoal = page.subgoal
    if subgoal in SEARCHES:
        return _search(page)
    if subgoal == "take_object":
        return _take(page)
    if subgoal == "use_light":
        return _use(page)
    if subgoal == "reach_light" and "where" not in page.fields:
        return _walk(page, page.goal.target, ())
    place = _place(page)
    if subgoal.startswith("reach"):
        return f"go to {place}"
    if subgoal == "transform_object":
        return f"{page.goal.family} {page.fields['holding']} with {place}"
    if subgoal == "place_object":
        shut = page.closed == place or (page.refused and page.last.startswith("move "))
        return f"open {place}" if shut else f"move {page.fields['holding']} to {place}"
    return "look"


def _search(page: Page) -> str:
    sought = page.goal.target if page.subgoal == "find_light" else page.goal.kind
    if page.closed and page.closed not in page.names("searched_containers"):
        return f"open {page.closed}"
    if "unchecked" not in page.fields:
        return _walk(page, sought, page.names("checked") + page.names("checked_locations"))
    left = sorted(page.names("unchecked"), key=lambda place: -chance(sought, kind_of(place)))
    here = next((place for place in left if place in page.names("at")), "")
    if here:
        return _look_at(page, here)
    return f"go to {left[0]}" if left else "look"


def _look_at(page: Page, place: str) -> str:
    """What stands here and has not been seen: it shares the place with what one went to."""
    shut = kind_of(place) in OPENED_KINDS and not (page.refused and page.last == f"open {place}")
    return f"open {place}" if shut else f"examine {place}"


def _walk(page: Page, sought: str, checked: Sequence[str]) -> str:
    """The next usual place after the one the last action named."""
    came, listed = page.came_to, expand(page.now.removeprefix("room: ")) if page.now.startswith("room: ") else None
    if page.refused and page.last == f"go to {came}" and came in (*page.names("checked_locations"), *page.names("at")):
        return _look_at(page, came)
    if page.closed and page.last == f"go to {page.closed}":
        return f"open {page.closed}"
    kinds = sorted(_KINDS, key=lambda kind: -chance(sought, kind))
    for place in _onwards(kinds, came, page.refused and page.last.startswith("go to ")):
        if place not in checked and (listed is None or place in listed):
            return f"go to {place}"
    return "look"


def _onwards(kinds: Sequence[str], came: str, missing: bool) -> Iterator[str]:
    """Places in the order of the walk, from the one after `came`; of the next kind where there is no `came`."""
    start = kinds.index(kind_of(came)) if kind_of(came) in kinds else -1
    if start >= 0 and not missing:
        number = int(came.rpartition(" ")[2])
        yield from (f"{kinds[start]} {n}" for n in range(number + 1, _MOST + 1))
    yield from (f"{kind} {n}" for kind in (*kinds[start + 1 :], *kinds[: start + 1]) for n in range(1, _MOST + 1))


_MOST = 40
"""receptacles of one kind that a house may have"""


def _take(page: Page) -> str:
    if "seen" in page.fields:
        thing, _, place = page.fields["seen"].partition(", ")[0].partition(" at ")
        if place not in page.names("at"):
            return f"go to {place}"
    else:
        place, there = page.shown
        thing = next((thing for thing in there if kind_of(thing) == page.goal.kind), "")
        if not thing or place == page.fields["destination"]:
            return _walk(page, page.goal.kind, ())
    return f"open {place}" if page.closed == place else f"take {thing} from {place}"


def _use(page: Page) -> str:
    kind = page.goal.target
    shown = next((thing for thing in page.shown[1] if kind_of(thing) == kind), f"{kind} 1")
    if page.refused and page.last.startswith(f"use {kind} "):
        return f"use {kind} {int(page.last.rpartition(' ')[2]) + 1}"
    return f"use {shown}"


def _place(page: Page) -> str:
    """Where the subgoal is achieved: as the block has it, else the first of its kind, or the one that is here."""
    if "where" in page.fields:
        return page.names("where")[0]
    treating = page.subgoal in ("reach_appliance", "transform_object")
    target = page.fields["destination"]
    kinds = APPLIANCES[page.goal.family][1] if treating else (kind_of(target) or target,)
    if kind_of(target) and not treating:
        return target
    here = next((place for place in (page.shown[0], page.closed, page.came_to) if kind_of(place) in kinds), "")
    if page.subgoal.startswith("reach"):
        tried = kinds.index(kind_of(here)) + 1 if here and page.refused else 0
        return f"{kinds[tried % len(kinds)]} 1"
    return here or f"{kinds[0]} 1"
