"""What each family of ScienceWorld's tasks takes, as milestones in their usual order, each with what reaching it is worth.

A milestone is a rule on what is known after a turn and on what happened in it. The phase of an episode is the first milestone
that is still to be reached; one that may be left out is passed over once a later one is reached. Worths are ours, within the
+0.08 to +2.0 of Table 6 and rising towards the end of a procedure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from tacit.environments.scienceworld.observed import Event


class Known(Protocol):
    """As much of the tracker's state as a rule may look at."""

    @property
    def room(self) -> str: ...
    @property
    def goal(self) -> Goal: ...
    @property
    def inventory(self) -> tuple[str, ...]: ...
    @property
    def focused(self) -> tuple[str, ...]: ...
    @property
    def text(self) -> str: ...


class Goal(NamedTuple):
    """What the sentence of a task says, as far as a tracker needs it."""

    target: str
    answers: tuple[str, ...]
    """the boxes an answer is given with"""
    room: str
    """where the answer is given, or what is looked for is found; empty where it is not said"""


Rule = Callable[[Known, Event], bool]


class Milestone(NamedTuple):
    name: str
    worth: float
    reached: Rule
    optional: bool = False


_BOX = re.compile(r"(\w+ box)\b")
_ROOMS = (r"in the '?(\w+(?: \w+)?)'? location", r"box in the ([\w ]+?)\.", r"boxes are located around the ([\w ]+?)\.")
_SOUGHT = (
    r"Seeds can be found in the ([\w ]+?)\.",
    r"found near the ([\w ]+?)\.",
    r"located around the ([\w ]+?)[.,]",
    r"located (outside)\.",
)
_TARGETS = (
    r"find a\(n\) ([\w -]+?)\.",
    r"(?:temperature|melting point) of ([\w ]+?), which",
    r"determine if (.+?) is electrically",
    r"turn on the ([\w ]+?)(?: by powering it using a (?:non)?renewable power source)?\.",
    r"grow a ([\w ]+?)(?: plant from seed)?\.",
    r"create (?:the substance '(.+?)'|([\w-]+ paint))",
    r"stages of the ([\w ]+?),",
    r"animal with the ((?:longest|shortest) life span(?:, then the shortest life span)?)",
    r"(?:boil|melt|freeze|matter of) ([\w ]+?)\.",
    r"whether ([\w ]+?) is a dominant",
    r"planes \((.+?)\)",
)


def read_goal(sentence: str) -> Goal:
    target = _first(_TARGETS, sentence)
    boxes = tuple(dict.fromkeys(_BOX.findall(sentence)))
    room = _first(_ROOMS, sentence) or _first(_SOUGHT, sentence)
    return Goal(target, boxes, room)


def _first(patterns: tuple[str, ...], sentence: str) -> str:
    for pattern in patterns:
        found = re.search(pattern, sentence)
        if found:
            return next(group for group in found.groups() if group)
    return ""


def focuses(count: int) -> Rule:
    return lambda known, event: event.kind == "focused" and len(known.focused) >= count


def happened(kind: str, what: str = "", where: str = "") -> Rule:
    return lambda known, event: event.kind == kind and bool(re.search(what, event.what)) and bool(re.search(where, event.where))


def seen(pattern: str) -> Rule:
    return lambda known, event: bool(re.search(pattern, known.text))


def either(*rules: Rule) -> Rule:
    return lambda known, event: any(rule(known, event) for rule in rules)


def in_answer_room(known: Known, event: Event) -> bool:
    return bool(known.goal.room) and known.room == known.goal.room and event.kind in ("went", "room")


def carrying_the_focused(known: Known, event: Event) -> bool:
    return bool(known.focused) and event.kind == "took" and _same(event.what, known.focused[-1])


def answered(known: Known, event: Event) -> bool:
    """Put into a box, or focused on one."""
    place = event.where if event.kind == "moved" else event.what if event.kind == "focused" else ""
    return place in known.goal.answers


def source_connected(known: Known, event: Event) -> bool:
    return event.kind == "connected" and bool(re.search(SOURCES, known.text))


def target_connected(known: Known, event: Event) -> bool:
    return event.kind == "connected" and known.goal.target in known.text


def _same(one: str, other: str) -> bool:
    """`butterfly` and `butterfly egg`"""
    return bool(set(one.split()) & set(other.split()))


SOURCES = r"battery|generator|solar panel|wind turbine"
CHANGED = r"^a substance called (?:liquid|solid|gaseous|steam|ice|water vapor)"
HEATERS = r"stove|oven|furnace|hot plate|fire pit"
COOLERS = r"fridge|freezer"
_AT_LAST = Milestone("answer", 2.0, answered)

PROCEDURES: Mapping[str, tuple[Milestone, ...]] = {
    "find_X": (
        Milestone("find", 0.5, focuses(1)),
        Milestone("take", 0.3, carrying_the_focused, optional=True),
        Milestone("reach_answer_room", 0.3, in_answer_room, optional=True),
        _AT_LAST,
    ),
    "lifespan": (
        Milestone("reach_answer_room", 0.3, in_answer_room, optional=True),
        Milestone("focus_first", 1.0, focuses(1)),
        Milestone("focus_next", 2.0, focuses(2), optional=True),
    ),
    "conductivity": (
        Milestone("find", 0.5, focuses(1)),
        Milestone("connect_source", 0.2, source_connected, optional=True),
        Milestone("connect_target", 0.5, target_connected),
        Milestone("test", 0.2, happened("waited"), optional=True),
        _AT_LAST,
    ),
    "measurement": (
        Milestone("take_thermometer", 0.2, happened("took", "thermometer")),
        Milestone("focus_thermometer", 0.3, focuses(1)),
        Milestone("focus_substance", 0.5, focuses(2)),
        Milestone("heat", 0.2, either(happened("started", HEATERS), happened("started", "burner")), optional=True),
        Milestone("measure", 0.5, happened("measured")),
        _AT_LAST,
    ),
    "growth": (
        Milestone("take_seeds", 0.2, happened("took", "seed"), optional=True),
        Milestone("reach_pots", 0.2, lambda known, event: known.room == "greenhouse", optional=True),
        Milestone("plant", 0.3, happened("moved", "seed", "pot")),
        Milestone("focus_seed", 0.3, happened("focused", "seed"), optional=True),
        Milestone("water", 0.3, happened("poured", "", "pot")),
        Milestone("see_seedling", 0.3, seen("in the seedling stage"), optional=True),
        Milestone("see_adult", 0.5, seen("in the adult stage|reproducing"), optional=True),
        Milestone("let_bees_out", 0.3, happened("opened", "bee hive"), optional=True),
        Milestone("focus_fruit", 2.0, lambda known, event: event.kind == "focused" and "seed" not in event.what, optional=True),
    ),
    "state_change": (
        Milestone("find", 0.5, focuses(1)),
        Milestone("contain", 0.2, happened("moved", "", "pot|cup|jug|bowl|can"), optional=True),
        Milestone("place", 0.3, happened("moved", "", f"{HEATERS}|{COOLERS}")),
        Milestone("start", 0.3, either(happened("started", HEATERS), happened("moved", "", COOLERS)), optional=True),
        Milestone("measure", 0.08, happened("measured"), optional=True),
        Milestone("see_change", 1.0, seen(CHANGED), optional=True),
    ),
    "power": (
        Milestone("focus_component", 0.5, focuses(1)),
        Milestone("connect_source", 0.3, source_connected, optional=True),
        Milestone("connect_component", 0.5, target_connected),
        Milestone("start_source", 0.3, happened("started"), optional=True),
    ),
    "chemistry": (
        Milestone("read_recipe", 0.3, happened("read"), optional=True),
        Milestone("gather", 0.2, either(happened("poured"), happened("moved", "", "pot|cup|jug|bowl|jar"))),
        Milestone("mix", 1.0, happened("mixed")),
        Milestone("focus_product", 1.0, focuses(1)),
        Milestone("focus_last_product", 1.0, focuses(2), optional=True),
    ),
    "life_stages": (
        Milestone("reach_answer_room", 0.3, lambda known, event: known.room == "outside", optional=True),
        *(Milestone(f"focus_stage_{n}", 0.5, focuses(n)) for n in (1, 2, 3)),
        Milestone("focus_stage_4", 0.5, focuses(4), optional=True),
    ),
    "inclined_plane": (
        Milestone("place_block", 0.3, happened("moved", "", "plane")),
        Milestone("time_first", 0.3, happened("started", "stopwatch"), optional=True),
        Milestone("read_time", 0.5, happened("timed"), optional=True),
        Milestone("choose", 2.0, focuses(1)),
    ),
    "genetics": (
        Milestone("take_seeds", 0.2, happened("took", "seed"), optional=True),
        Milestone("plant", 0.3, happened("moved", "seed", "pot")),
        Milestone("water", 0.3, happened("poured", "", "pot")),
        Milestone("see_adult", 0.5, seen("in the adult stage|reproducing"), optional=True),
        Milestone("let_bees_out", 0.3, happened("opened", "bee hive"), optional=True),
        _AT_LAST,
    ),
}
"""family -> its milestones"""
VERBS: Mapping[str, frozenset[str]] = {
    "connect": frozenset(("conductivity", "power")),
    "disconnect": frozenset(("conductivity", "power")),
    "mix": frozenset(("chemistry", "state_change", "growth")),
    "dunk": frozenset(("chemistry", "growth", "genetics", "state_change")),
    "eat": frozenset(),
    "flush": frozenset(),
}
"""what is done in some families only: elsewhere it is the wrong skill"""
