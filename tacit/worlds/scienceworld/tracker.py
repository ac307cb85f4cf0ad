"""ScienceWorld's progress state for constant-context agents (Xie et al., 2026, §3.1): the phase of the procedure, the selected
entity, the inventory, the room where the answer is given, and the subgoals completed; and what a step is worth (Table 6).

    progress   Δscore / 33, so that a task of 100 points adds up to 3; each milestone of the family once (procedures.py)
    error      0.15 unreadable, 0.05 no effect, 0.05 the same again with the same answer, 0.1 back and forth between two rooms,
               0.2 an answer before anything was measured or tested, 0.25 the wrong focus, 0.05 what the family has no use for,
               0.1 a connection or a mixture that cannot be made, 0.03 waiting on and on; and what a lost score is worth

Table 6 names these and their range; where it says "family-specific", the amounts are ours. Errors are positive amounts. What a
success is worth besides is the method's: `--success-reward 1` is the paper's for this world.

Everything comes from the goal's sentence, the actions and the texts, and the score, which no agent reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from tacit.core.hindsight import component_names, counted, summed
from tacit.core.types import Observation, Task, Transition
from tacit.worlds.scienceworld.world import UNREADABLE, WRONG_FOCUS, Event, read_event, read_inventory, read_room

# What each family of ScienceWorld's tasks takes, as milestones in their usual order, each with what reaching it is worth.
#
# A milestone is a rule on what is known after a turn and on what happened in it. The phase of an episode is the first milestone
# that is still to be reached; one that may be left out is passed over once a later one is reached. Worths are ours, within the
# +0.08 to +2.0 of Table 6 and rising towards the end of a procedure.


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


SCORE_SHARE = 100 / 33
"""Δscore / 33 for a score of at most 100; ours is at most 1"""
MILESTONES = tuple(dict.fromkeys(m.name for procedure in PROCEDURES.values() for m in procedure))
ERRORS: Mapping[str, float] = {
    "unreadable": 0.15,
    "no_effect": 0.05,
    "repeated": 0.05,
    "oscillated": 0.1,
    "premature": 0.2,
    "wrong_focus": 0.25,
    "wrong_skill": 0.05,
    "bad_operation": 0.1,
    "waited_long": 0.03,
}
PATIENCE = 12
"""waits in a row before one waits on and on: the longest of a gold path between two looks"""
BOUND = 900
"""the most characters a state block has"""
_FIELD = 100
"""the most characters of a field"""
_TRIED = {"conductivity": ("connect_target",), "measurement": ("measure",), "inclined_plane": ("place_block",)}
"""what has to be done before an answer means anything"""


@dataclass(frozen=True)
class Progress:
    goal: Goal
    family: str
    room: str = ""
    rooms: tuple[str, ...] = ()
    """visited, the latest last, each once"""
    trail: tuple[str, ...] = ()
    """the last four rooms, one after another, since something was achieved"""
    inventory: tuple[str, ...] = ()
    focused: tuple[str, ...] = ()
    measured: str = ""
    reached: tuple[str, ...] = ()
    """milestones, in the order they were reached"""
    earned: float = 0.0
    """of the score, by the last action"""
    text: str = ""
    action: str = ""
    waits: int = 0
    progress: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def phase(self) -> str:
        """The first milestone that is left; `finish` where none is, since only the world says that it is over."""
        names = [m.name for m in PROCEDURES[self.family]]
        furthest = max((names.index(name) for name in self.reached), default=-1)
        for at, milestone in enumerate(PROCEDURES[self.family]):
            if milestone.name not in self.reached and (at > furthest or not milestone.optional):
                return milestone.name
        return "finish"


class ScienceTracker:
    version = "scienceworld-1"
    components = component_names(("score", *MILESTONES), ("lost_score", *ERRORS))

    def start(self, task: Task, observation: Observation) -> Progress:
        room = read_room(observation.text)
        return Progress(read_goal(task.goal), task.family, room, (room,), (room,), text=observation.text)

    def update(self, state: Progress, action: str, transition: Transition) -> Progress:
        text, command = transition.observation.text, " ".join(action.lower().split())
        event = read_event(text)
        lost = transition.label == WRONG_FOCUS
        after = _seen(replace(state, action=command, text=text, earned=transition.reward), event)
        new = (
            [m for m in PROCEDURES[state.family] if m.name not in state.reached and m.reached(after, event)] if not lost else []
        )
        progress = tuple(m.name for m in new)
        after = replace(after, reached=(*state.reached, *progress), progress=progress)
        if progress:
            after = replace(after, trail=(after.room,))
        return replace(after, errors=_errors(state, after, event, lost))

    def signals(self, before: Progress, after: Progress) -> Mapping[str, float]:
        worth = {m.name: m.worth for m in PROCEDURES[after.family]}
        earned = SCORE_SHARE * after.earned
        progress = {"score": max(0.0, earned), **counted(after.progress, worth)}
        return summed(progress, {"lost_score": max(0.0, -earned), **counted(after.errors, ERRORS)})

    def render(self, state: Progress) -> str:
        fields = {
            "phase": state.phase,
            "target": state.goal.target[:_FIELD],
            "selected": _listed(state.focused),
            "inventory": _listed(state.inventory),
            "room": state.room,
            "visited": _listed(state.rooms),
            "answer": " or ".join(state.goal.answers),
            "answer room": state.goal.room,
            "measured": state.measured,
            "done": ", ".join(state.reached),
        }
        return "\n".join(f"{name}: {value or 'none'}" for name, value in fields.items())


class PaperTracker(ScienceTracker):
    """The five fields that §3.1 names, and no more."""

    version = "scienceworld-paper-1"

    def render(self, state: Progress) -> str:
        fields = {
            "phase": state.phase,
            "selected_entity": _listed(state.focused[-1:]),
            "inventory": _listed(state.inventory),
            "answer_room": state.goal.room,
            "completed_subgoals": ", ".join(state.reached),
        }
        return "\n".join(f"{name}: {value or 'None'}" for name, value in fields.items())


FORMS = {"paper": PaperTracker()}


def _seen(state: Progress, event: Event) -> Progress:
    """With what the answer tells of the room, of what is carried, focused on and measured."""
    room = event.what if event.kind in ("went", "room") else state.room
    if room != state.room:
        rooms = (*(r for r in state.rooms if r != room), room)
        state = replace(state, room=room, rooms=rooms, trail=(*state.trail, room)[-4:])
    carried = read_inventory(state.text)
    if carried is not None:
        state = replace(state, inventory=carried)
    elif event.kind == "took":
        state = replace(state, inventory=(*(i for i in state.inventory if i != event.what), event.what))
    elif event.kind == "moved":
        state = replace(state, inventory=tuple(i for i in state.inventory if i != event.what))
    elif event.kind == "focused":
        state = replace(state, focused=(*state.focused, event.what))
    elif event.kind == "measured":
        state = replace(state, measured=f"{event.what} C")
    elif event.kind == "timed":
        state = replace(state, measured=f"{event.what} ticks")
    return replace(state, waits=state.waits + 1 if event.kind == "waited" else 0)


def _errors(before: Progress, after: Progress, event: Event, lost: bool) -> tuple[str, ...]:
    if lost:
        return ("wrong_focus",)
    errors, verb = [], after.action.partition(" ")[0]
    if UNREADABLE.match(after.text):
        errors.append("unreadable")
    elif event.kind == "refused":
        errors.append("bad_operation" if verb in ("connect", "mix") else "no_effect")
    if after.family not in VERBS.get(verb, {after.family}):
        errors.append("wrong_skill")
    if after.progress:
        answers = {"answer", "choose"} & set(after.progress)
        untried = [name for name in _TRIED.get(after.family, ()) if name not in before.reached]
        return (*errors, "premature") if answers and untried else tuple(errors)
    if (after.action, after.text) == (before.action, before.text) and event.kind != "waited":
        errors.append("repeated")
    if event.kind == "went" and len(after.trail) == 4 and after.trail[:2] == after.trail[2:]:
        errors.append("oscillated")
    if event.kind == "waited" and after.waits > PATIENCE:
        errors.append("waited_long")
    return tuple(errors)


def _listed(names: tuple[str, ...]) -> str:
    """The latest of them, as many as there is room for."""
    while len(names) > 1 and len(", ".join(names)) > _FIELD:
        names = names[1:]
    return ", ".join(names)[:_FIELD]
