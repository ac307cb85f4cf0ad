"""Progress tracker for constant-context agents (Xie et al., 2026, §3.1); signals after its Table 6.

    progress   Δscore / 33, so that a task of 100 points adds up to 3; each milestone of the family once
    error      0.15 unreadable, 0.05 no effect, 0.05 repeated with the same answer, 0.1 oscillating between two rooms,
               0.2 an answer before measuring or testing, 0.25 wrong focus, 0.05 a verb that the family does not use,
               0.1 an impossible connection or mixture, 0.03 long waiting; and the loss of score

Table 6 names these and their range; "family-specific" amounts are ours. Errors are positive. The paper's reward of a success is
`--success-reward 1` for this world. The tracker uses the goal, the actions, the observations, and the score, which no agent
reads.

A milestone is a rule on the state and event of a step. The phase is the first milestone not yet reached; an optional one is
skipped once a later one is reached. Milestone values are ours, within Table 6's +0.08 to +2.0, increasing towards the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from tacit.core.hindsight import component_names, score_events, sum_signals
from tacit.core.types import Observation, Task, Transition
from tacit.worlds.scienceworld.world import UNREADABLE, WRONG_FOCUS, Event, read_event, read_inventory, read_room


class RuleState(Protocol):
    """The part of the tracker's state that milestone rules use."""

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
    """The task's sentence, parsed as far as the tracker needs it."""

    target: str
    answers: tuple[str, ...]
    """the answer boxes"""
    room: str
    """where the answer is given, or the object found; empty if not stated"""


Rule = Callable[[RuleState, Event], bool]


class Milestone(NamedTuple):
    name: str
    worth: float
    reached: Rule
    optional: bool = False


_BOX = re.compile(r"\b(\w+ box)\b")
_ROOMS = tuple(
    re.compile(pattern)
    for pattern in (
        r"in the '?(\w+(?: \w+)?)'? location",
        r"box in the ([\w ]{1,80}?)\.",
        r"boxes are located around the ([\w ]{1,80}?)\.",
    )
)
_SOUGHT = tuple(
    re.compile(pattern)
    for pattern in (
        r"Seeds can be found in the ([\w ]{1,80}?)\.",
        r"found near the ([\w ]{1,80}?)\.",
        r"located around the ([\w ]{1,80}?)[.,]",
        r"located (outside)\.",
    )
)
_TARGETS = tuple(
    re.compile(pattern)
    for pattern in (
        r"find a\(n\) ([\w -]{1,80}?)\.",
        r"(?:temperature|melting point) of ([\w ]{1,80}?), which",
        r"determine if (.{1,80}?) is electrically",
        r"turn on the ([\w ]{1,80}?)(?: by powering it using a (?:non)?renewable power source)?\.",
        r"grow a ([\w ]{1,80}?)(?: plant from seed)?\.",
        r"create (?:the substance '(.{1,80}?)'|([\w-]+ paint))",
        r"stages of the ([\w ]{1,80}?),",
        r"animal with the ((?:longest|shortest) life span(?:, then the shortest life span)?)",
        r"(?:boil|melt|freeze|matter of) ([\w ]{1,80}?)\.",
        r"whether ([\w ]{1,80}?) is a dominant",
        r"planes \((.{1,80}?)\)",
    )
)


def read_goal(sentence: str) -> Goal:
    target = _first(_TARGETS, sentence)
    boxes = tuple(dict.fromkeys(_BOX.findall(sentence)))
    room = _first(_ROOMS, sentence) or _first(_SOUGHT, sentence)
    return Goal(target, boxes, room)


def _first(patterns: tuple[re.Pattern[str], ...], sentence: str) -> str:
    for pattern in patterns:
        found = pattern.search(sentence)
        if found:
            return next(group for group in found.groups() if group)
    return ""


def on_focus(count: int) -> Rule:
    return lambda known, event: event.kind == "focused" and len(known.focused) >= count


def on_event(kind: str, what: str = "", where: str = "") -> Rule:
    return lambda known, event: event.kind == kind and bool(re.search(what, event.what)) and bool(re.search(where, event.where))


def on_text(pattern: str) -> Rule:
    return lambda known, event: bool(re.search(pattern, known.text))


def any_of(*rules: Rule) -> Rule:
    return lambda known, event: any(rule(known, event) for rule in rules)


def in_answer_room(known: RuleState, event: Event) -> bool:
    return bool(known.goal.room) and known.room == known.goal.room and event.kind in ("went", "room")


def carrying_the_focused(known: RuleState, event: Event) -> bool:
    return bool(known.focused) and event.kind == "took" and _share_word(event.what, known.focused[-1])


def is_answer(known: RuleState, event: Event) -> bool:
    """Something was put into an answer box, or the box was focused on."""
    place = event.where if event.kind == "moved" else event.what if event.kind == "focused" else ""
    return place in known.goal.answers


def source_connected(known: RuleState, event: Event) -> bool:
    return event.kind == "connected" and bool(re.search(SOURCES, known.text))


def target_connected(known: RuleState, event: Event) -> bool:
    return event.kind == "connected" and known.goal.target in known.text


def _share_word(one: str, other: str) -> bool:
    """`butterfly` and `butterfly egg`"""
    return bool(set(one.split()) & set(other.split()))


SOURCES = r"battery|generator|solar panel|wind turbine"
CHANGED = r"^a substance called (?:liquid|solid|gaseous|steam|ice|water vapor)"
HEATERS = r"stove|oven|furnace|hot plate|fire pit"
COOLERS = r"fridge|freezer"
_ANSWER = Milestone("answer", 2.0, is_answer)

PROCEDURES: Mapping[str, tuple[Milestone, ...]] = {
    "find_X": (
        Milestone("find", 0.5, on_focus(1)),
        Milestone("take", 0.3, carrying_the_focused, optional=True),
        Milestone("reach_answer_room", 0.3, in_answer_room, optional=True),
        _ANSWER,
    ),
    "lifespan": (
        Milestone("reach_answer_room", 0.3, in_answer_room, optional=True),
        Milestone("focus_first", 1.0, on_focus(1)),
        Milestone("focus_next", 2.0, on_focus(2), optional=True),
    ),
    "conductivity": (
        Milestone("find", 0.5, on_focus(1)),
        Milestone("connect_source", 0.2, source_connected, optional=True),
        Milestone("connect_target", 0.5, target_connected),
        Milestone("test", 0.2, on_event("waited"), optional=True),
        _ANSWER,
    ),
    "measurement": (
        Milestone("take_thermometer", 0.2, on_event("took", "thermometer")),
        Milestone("focus_thermometer", 0.3, on_focus(1)),
        Milestone("focus_substance", 0.5, on_focus(2)),
        Milestone("heat", 0.2, any_of(on_event("started", HEATERS), on_event("started", "burner")), optional=True),
        Milestone("measure", 0.5, on_event("measured")),
        _ANSWER,
    ),
    "growth": (
        Milestone("take_seeds", 0.2, on_event("took", "seed"), optional=True),
        Milestone("reach_pots", 0.2, lambda known, event: known.room == "greenhouse", optional=True),
        Milestone("plant", 0.3, on_event("moved", "seed", "pot")),
        Milestone("focus_seed", 0.3, on_event("focused", "seed"), optional=True),
        Milestone("water", 0.3, on_event("poured", "", "pot")),
        Milestone("see_seedling", 0.3, on_text("in the seedling stage"), optional=True),
        Milestone("see_adult", 0.5, on_text("in the adult stage|reproducing"), optional=True),
        Milestone("let_bees_out", 0.3, on_event("opened", "bee hive"), optional=True),
        Milestone("focus_fruit", 2.0, lambda known, event: event.kind == "focused" and "seed" not in event.what, optional=True),
    ),
    "state_change": (
        Milestone("find", 0.5, on_focus(1)),
        Milestone("contain", 0.2, on_event("moved", "", "pot|cup|jug|bowl|can"), optional=True),
        Milestone("place", 0.3, on_event("moved", "", f"{HEATERS}|{COOLERS}")),
        Milestone("start", 0.3, any_of(on_event("started", HEATERS), on_event("moved", "", COOLERS)), optional=True),
        Milestone("measure", 0.08, on_event("measured"), optional=True),
        Milestone("see_change", 1.0, on_text(CHANGED), optional=True),
    ),
    "power": (
        Milestone("focus_component", 0.5, on_focus(1)),
        Milestone("connect_source", 0.3, source_connected, optional=True),
        Milestone("connect_component", 0.5, target_connected),
        Milestone("start_source", 0.3, on_event("started"), optional=True),
    ),
    "chemistry": (
        Milestone("read_recipe", 0.3, on_event("read"), optional=True),
        Milestone("gather", 0.2, any_of(on_event("poured"), on_event("moved", "", "pot|cup|jug|bowl|jar"))),
        Milestone("mix", 1.0, on_event("mixed")),
        Milestone("focus_product", 1.0, on_focus(1)),
        Milestone("focus_last_product", 1.0, on_focus(2), optional=True),
    ),
    "life_stages": (
        Milestone("reach_answer_room", 0.3, lambda known, event: known.room == "outside", optional=True),
        *(Milestone(f"focus_stage_{n}", 0.5, on_focus(n)) for n in (1, 2, 3)),
        Milestone("focus_stage_4", 0.5, on_focus(4), optional=True),
    ),
    "inclined_plane": (
        Milestone("place_block", 0.3, on_event("moved", "", "plane")),
        Milestone("time_first", 0.3, on_event("started", "stopwatch"), optional=True),
        Milestone("read_time", 0.5, on_event("timed"), optional=True),
        Milestone("choose", 2.0, on_focus(1)),
    ),
    "genetics": (
        Milestone("take_seeds", 0.2, on_event("took", "seed"), optional=True),
        Milestone("plant", 0.3, on_event("moved", "seed", "pot")),
        Milestone("water", 0.3, on_event("poured", "", "pot")),
        Milestone("see_adult", 0.5, on_text("in the adult stage|reproducing"), optional=True),
        Milestone("let_bees_out", 0.3, on_event("opened", "bee hive"), optional=True),
        _ANSWER,
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
"""verb -> the families that use it: elsewhere it is a `wrong_skill`"""


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
"""consecutive waits before `waited_long`: the most in any gold path"""
BOUND = 900
"""maximum characters of a state block"""
_FIELD = 100
"""maximum characters of a field"""
_TRIED = {"conductivity": ("connect_target",), "measurement": ("measure",), "inclined_plane": ("place_block",)}
"""milestones required before an answer"""


@dataclass(frozen=True)
class Progress:
    goal: Goal
    family: str
    room: str = ""
    rooms: tuple[str, ...] = ()
    """visited, the latest last, each once"""
    trail: tuple[str, ...] = ()
    """the last four rooms since the last progress"""
    inventory: tuple[str, ...] = ()
    focused: tuple[str, ...] = ()
    measured: str = ""
    reached: tuple[str, ...] = ()
    """milestones, in the order they were reached"""
    earned: float = 0.0
    """score change of the last action"""
    text: str = ""
    action: str = ""
    waits: int = 0
    progress: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def phase(self) -> str:
        """The first milestone not yet reached; `finish` if all are, since only the world ends the task."""
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
        after = _apply_event(replace(state, action=command, text=text, earned=transition.reward), event)
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
        progress = {"score": max(0.0, earned), **score_events(after.progress, worth)}
        return sum_signals(progress, {"lost_score": max(0.0, -earned), **score_events(after.errors, ERRORS)})

    def render(self, state: Progress) -> str:
        fields = {
            "phase": state.phase,
            "target": state.goal.target[:_FIELD],
            "selected": _join_latest(state.focused),
            "inventory": _join_latest(state.inventory),
            "room": state.room,
            "visited": _join_latest(state.rooms),
            "answer": " or ".join(state.goal.answers),
            "answer room": state.goal.room,
            "measured": state.measured,
            "done": ", ".join(state.reached),
        }
        return "\n".join(f"{name}: {value or 'none'}" for name, value in fields.items())


class PaperTracker(ScienceTracker):
    """The five fields of §3.1."""

    version = "scienceworld-paper-1"

    def render(self, state: Progress) -> str:
        fields = {
            "phase": state.phase,
            "selected_entity": _join_latest(state.focused[-1:]),
            "inventory": _join_latest(state.inventory),
            "answer_room": state.goal.room,
            "completed_subgoals": ", ".join(state.reached),
        }
        return "\n".join(f"{name}: {value or 'None'}" for name, value in fields.items())


FORMS = {"paper": PaperTracker()}


def _apply_event(state: Progress, event: Event) -> Progress:
    """Update the room, inventory, focus and measurement."""
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


def _join_latest(names: tuple[str, ...]) -> str:
    """As many of the latest names as fit."""
    while len(names) > 1 and len(", ".join(names)) > _FIELD:
        names = names[1:]
    return ", ".join(names)[:_FIELD]
