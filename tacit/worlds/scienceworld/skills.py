"""Progress tracker for constant-context agents (Xie et al., 2026, §3.1), skill alphabet, handbook, failures and hindsight.

Signals follow Table 6 of the paper; it names the errors and ranges; "family-specific" amounts are ours. Errors are positive.
`score` is Δscore / 33; it alone uses the score, which the agent does not see. A milestone is a rule on the state and event of a
step, and counts once. The phase is the first milestone not yet reached; an optional one is skipped once a later one is reached.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from tacit.core.hindsight import component_names, critical_steps, score_events, sum_signals, tracker_signals, tracker_states
from tacit.core.tasks import normalize_goal
from tacit.core.types import Observation, Skills, StopReason, Task, Trajectory, Transition
from tacit.core.world import Alphabet, ByReading
from tacit.worlds.scienceworld.world import (
    AMBIGUOUS,
    OUT_OF_STEPS,
    TABLES,
    UNREADABLE,
    WRONG_FOCUS,
    Event,
    read_event,
    read_inventory,
    read_room,
)
from tacit.worlds.scienceworld.world import strip_description as name_of


class Goal(NamedTuple):
    """The task's sentence, parsed as far as the tracker needs it."""

    target: str
    answers: tuple[str, ...]  # the answer boxes
    room: str  # where the answer is given, or the object found; empty if not stated
    matter: str  # the state of matter to reach: solid, liquid, gas or any; empty if the task asks for none


Rule = Callable[["Progress", "Event"], bool]  # (state with this step's event applied, event) -> reached


class Milestone(NamedTuple):
    name: str
    worth: float
    reached: Rule
    optional: bool = False


_ROOMS = (
    r"in the '?(\w+(?: \w+)?)'? location",
    r"box in the ([\w ]{1,80}?)\.",
    r"boxes are located around the ([\w ]{1,80}?)\.",
    r"Seeds can be found in the ([\w ]{1,80}?)\.",
    r"found near the ([\w ]{1,80}?)\.",
    r"located around the ([\w ]{1,80}?)[.,]",
    r"located (outside)\.",
)
_TARGETS = (
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
_MATTER = {"boil": "gas", "melt": "liquid", "freeze": "solid", "change the state": "any"}


def read_goal(sentence: str) -> Goal:
    sentence = " ".join(sentence.split())
    boxes = tuple(dict.fromkeys(re.findall(r"\b(\w+ box)\b", sentence)))
    matter = next((form for verb, form in _MATTER.items() if normalize_goal(sentence).startswith(verb)), "")
    return Goal(_first(_TARGETS, sentence), boxes, _first(_ROOMS, sentence), matter)


def _first(patterns: tuple[str, ...], sentence: str) -> str:
    match = next((match for pattern in patterns if (match := re.search(pattern, sentence))), None)
    return next(filter(None, match.groups())) if match else ""


# Rules

_FORMS = {"solid": "solid", "liquid": "liquid", "gaseous": "gas"}
_WATER = {"ice": "solid", "water": "liquid", "steam": "gas"}
_ADULTS = {"tadpole": "frog", "caterpillar": "butterfly", "chrysalis": "butterfly"}
"""young -> adult: an animal may grow up between the focus and the answer"""


def read_form(name: str) -> str:
    """The state of matter in a name (`ice`, `gaseous …`); empty if the name has none, as for a substance before any change."""
    return _WATER.get(name) or _FORMS.get(name.partition(" ")[0], "")


def _words(name: str) -> frozenset[str]:
    """The words that identify a thing, independent of state of matter and age: `ice` is water."""
    words = "water" if name in _WATER else name.lower().replace("-", " ")
    return frozenset(_ADULTS.get(word, word) for word in words.split()) - {*_FORMS, "substance"}


def matches(name: str, other: str) -> bool:
    """Whether two names can mean the same thing: `dove` and `dove egg`, not `unknown substance B` and `unknown substance C`."""
    one, two = _words(name), _words(other)
    return bool(one and two) and (one <= two or two <= one)


def on_focus(count: int) -> Rule:
    return lambda state, event: event.kind == "focused" and len(state.focused) >= count


def on_event(kind: str, what: str = "", where: str = "", after: str = "", of: str = "") -> Rule:
    """A rule for events whose names match the patterns `what` and `where`, after milestone `after`. With `of`, the event must
    concern the `target`, or the `subject` (the task's object, or what holds it)."""

    def reached(state: Progress, event: Event) -> bool:
        if event.kind != kind or not re.search(what, event.what) or not re.search(where, event.where):
            return False
        if of == "target" and not matches(event.where if kind == "mixed" else event.what, state.goal.target):
            return False
        return (not after or after in state.reached) and (of != "subject" or state.is_subject(event.what))

    return reached


on_target, on_subject = partial(on_event, of="target"), partial(on_event, of="subject")


def in_answer_room(state: Progress, event: Event) -> bool:
    return bool(state.goal.room) and state.room == state.goal.room and event.kind in ("went", "room")


def is_answer(state: Progress, event: Event) -> bool:
    """The task's object was put into an answer box, or the box was focused on, and the answer is not premature."""
    if event.kind == "focused":
        answered = event.what in state.goal.answers
    else:
        answered = event.kind == "moved" and event.where in state.goal.answers and state.is_subject(event.what)
    return answered and not state.untried


def source_connected(state: Progress, event: Event) -> bool:
    return event.kind == "connected" and bool(re.search(SOURCES, state.text))


def target_connected(state: Progress, event: Event) -> bool:
    return event.kind == "connected" and state.goal.target in state.text


def heater_started(state: Progress, event: Event) -> bool:
    """The heater that holds the object was activated, or the object was put into a cooler."""
    if event.kind == "started":
        return event.what in state.places
    return event.kind == "moved" and state.is_subject(event.what) and bool(re.search(COOLERS, event.where))


def subject_measured(state: Progress, event: Event) -> bool:
    return event.kind == "measured" and state.is_subject(state.action.partition(" on ")[2])


def state_changed(state: Progress, event: Event) -> bool:
    """The object's state of matter changed to the one that the task requires."""
    before, now = state.change
    # An empty state is the initial one, solid or liquid; it is reached again after another one.
    wanted = now == state.goal.matter or (not now and state.goal.matter in ("solid", "liquid") and before != state.goal.matter)
    return before != now and (wanted or state.goal.matter == "any")


def pot_watered(state: Progress, event: Event) -> bool:
    return event.kind == "poured" and event.where in state.pots


def plant_seen(stages: str) -> Rule:
    """A rule: after planting, the target was seen in one of these stages."""
    return lambda state, event: bool(
        state.pots and re.search(rf"\b{re.escape(state.goal.target)}\b[\w ]* in the (?:{stages}) stage", state.text)
    )


def ingredient_gathered(state: Progress, event: Event) -> bool:
    """An ingredient of the read recipe, or a primary color, was moved into a container."""
    what = f"{event.what} {state.action}".lower()
    return event.kind in ("poured", "moved") and any(name in what for name in state.ingredients) and event.where != "inventory"


SOURCES = r"battery|generator|solar panel|wind turbine"
HEATERS = r"stove|oven|furnace|hot plate|fire pit"
COOLERS = r"fridge|freezer"
ADULT = r"in the adult stage|reproducing"
_ANSWER = Milestone("answer", 2.0, is_answer)

PROCEDURES: Mapping[str, tuple[Milestone, ...]] = {
    "find_X": (
        Milestone("find", 0.5, on_focus(1)),
        Milestone("take", 0.3, on_subject("took"), optional=True),
        Milestone("reach_answer_room", 0.3, lambda k, e: in_answer_room(k, e) and "take" in k.reached, optional=True),
        _ANSWER,
    ),
    "lifespan": (
        Milestone("reach_answer_room", 0.3, in_answer_room, optional=True),
        Milestone("focus_first", 1.0, on_focus(1)),
        Milestone("focus_next", 2.0, on_focus(2), optional=True),
    ),
    "conductivity": (
        Milestone("find", 0.5, on_target("focused")),
        Milestone("connect_source", 0.2, source_connected, optional=True),
        Milestone("connect_target", 0.5, target_connected),
        Milestone(  # a wait after both ends of the object and the source were connected
            "test", 0.2, lambda k, e: e.kind == "waited" and len(k.wired) > 1 and "connect_source" in k.reached, optional=True
        ),
        _ANSWER,
    ),
    "measurement": (
        Milestone("take_thermometer", 0.2, on_event("took", "thermometer")),
        Milestone("focus_thermometer", 0.3, on_event("focused", "thermometer")),
        Milestone("focus_substance", 0.5, on_target("focused")),
        Milestone("heat", 0.2, heater_started, optional=True),
        Milestone("measure", 0.5, subject_measured),
        _ANSWER,
    ),
    "growth": (
        Milestone("take_seeds", 0.2, on_event("took", "seed"), optional=True),
        Milestone("reach_pots", 0.2, lambda state, event: state.room == "greenhouse", optional=True),
        Milestone("plant", 0.3, on_target("moved", where="pot")),
        Milestone("focus_seed", 0.3, lambda k, e: on_target("focused")(k, e) and "seed" in e.what, optional=True),
        Milestone("water", 0.3, pot_watered),
        Milestone("see_seedling", 0.3, plant_seen("seedling"), optional=True),
        Milestone("see_adult", 0.5, plant_seen("adult|reproducing"), optional=True),
        Milestone("let_bees_out", 0.3, on_event("opened", "bee hive"), optional=True),
        Milestone(
            "focus_fruit",
            2.0,
            lambda k, e: (e.kind, e.what) == ("focused", k.goal.target) and "see_adult" in k.reached,
            optional=True,
        ),
    ),
    "state_change": (
        Milestone("find", 0.5, on_focus(1)),
        Milestone("contain", 0.2, on_subject("moved", where="pot|cup|jug|bowl|can"), optional=True),
        Milestone("place", 0.3, on_subject("moved", where=f"{HEATERS}|{COOLERS}")),
        Milestone("start", 0.3, heater_started, optional=True),
        Milestone("measure", 0.08, subject_measured, optional=True),
        Milestone("see_change", 1.0, state_changed, optional=True),
    ),
    "power": (
        Milestone("focus_component", 0.5, on_target("focused")),
        Milestone("connect_source", 0.3, source_connected, optional=True),
        Milestone("connect_component", 0.5, target_connected),
        Milestone("start_source", 0.3, on_event("started", SOURCES, after="connect_source"), optional=True),
    ),
    "chemistry": (
        Milestone("read_recipe", 0.3, on_event("read", "recipe|instructions"), optional=True),
        Milestone("gather", 0.2, ingredient_gathered, optional=True),
        Milestone("mix", 1.0, on_target("mixed")),
        Milestone("focus_product", 1.0, on_target("focused")),
        Milestone("focus_last_product", 1.0, on_focus(2), optional=True),
    ),
    "life_stages": (
        Milestone("reach_answer_room", 0.3, lambda state, event: state.room == "outside", optional=True),
        *(Milestone(f"focus_stage_{n}", 0.5, on_focus(n)) for n in (1, 2, 3)),
        Milestone("focus_stage_4", 0.5, on_focus(4), optional=True),
    ),
    "inclined_plane": (
        Milestone("place_block", 0.3, on_event("moved", "block", "plane")),
        Milestone("time_first", 0.3, on_event("started", "stopwatch", after="place_block"), optional=True),
        Milestone("read_time", 0.5, on_event("timed", after="time_first"), optional=True),
        Milestone("choose", 2.0, lambda k, e: e.kind == "focused" and "plane" in e.what and not k.untried),
    ),
    "genetics": (
        Milestone("take_seeds", 0.2, on_event("took", "seed"), optional=True),
        Milestone("plant", 0.3, on_event("moved", "seed", "flower pot")),
        Milestone("water", 0.3, pot_watered),
        Milestone("see_adult", 0.5, lambda k, _: bool(k.pots and re.search(ADULT, k.text)), optional=True),
        Milestone("let_bees_out", 0.3, on_event("opened", "bee hive"), optional=True),
        _ANSWER,
    ),
}  # family -> its milestones
VERBS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("connect", "disconnect"), frozenset(("conductivity", "power"))),
    "mix": frozenset(("chemistry", "state_change", "growth")),
    "dunk": frozenset(("chemistry", "growth", "genetics", "state_change")),
    **dict.fromkeys(("eat", "flush"), frozenset[str]()),
}  # verb -> the families that use it: elsewhere it is a `wrong_skill`


SCORE_SHARE = 100 / 33  # Δscore / 33 for a score of at most 100; ours is at most 1
MILESTONES = tuple(dict.fromkeys(m.name for procedure in PROCEDURES.values() for m in procedure))
ERRORS: Mapping[str, float] = {
    "unreadable": 0.15, "no_effect": 0.05, "repeated": 0.05, "oscillated": 0.1, "premature": 0.2, "wrong_focus": 0.25,
    "wrong_skill": 0.05, "bad_operation": 0.1, "waited_long": 0.03,
}  # fmt: skip
PATIENCE = 12  # consecutive waits before `waited_long`: the most in any gold path
BOUND = 900  # maximum characters of a state block
_FIELD = 100  # maximum characters of a field
_TRIED = {
    "find_X": "find", "conductivity": "connect_target", "measurement": "measure", "inclined_plane": "place_block",
    "genetics": "water",
}  # fmt: skip
"""family -> the milestone required before an answer"""
_PRIMARY = ("red paint", "yellow paint", "blue paint")


@dataclass(frozen=True)
class Progress:
    goal: Goal
    family: str
    room: str = ""
    rooms: tuple[str, ...] = ()  # visited, the latest last, each once
    trail: tuple[str, ...] = ()  # the last four rooms since the last progress
    inventory: tuple[str, ...] = ()
    focused: tuple[str, ...] = ()
    places: tuple[str, ...] = ()  # what holds the task's object: its container, then the container's place
    change: tuple[str, str] = ("", "")  # the object's last seen state of matter before and after this step
    wired: tuple[str, ...] = ()  # connections of the target
    pots: tuple[str, ...] = ()  # with a seed in them
    ingredients: tuple[str, ...] = ()
    measured: str = ""
    reached: tuple[str, ...] = ()  # milestones, in the order they were reached
    earned: float = 0.0  # score change of the last action
    text: str = ""
    action: str = ""
    waits: int = 0
    progress: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def untried(self) -> bool:
        """Whether an answer would be premature."""
        return self.family in _TRIED and _TRIED[self.family] not in self.reached

    def is_subject(self, name: str) -> bool:
        """Whether a name means the task's object or what holds it. `move flower pot 8 containing cherry tree` names both."""
        contents = self.action.partition(" containing ")[2].partition(" to ")[0]
        # The focus of a measurement is first the thermometer.
        names = (self.goal.target, *(self.focused[-1:] if self.family != "measurement" else ()))
        return any(matches(name, own) or (contents and _words(own) <= _words(contents)) for own in names) or any(
            place in name for place in self.places
        )

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
    version = "scienceworld-3"
    components = component_names(MILESTONES, ERRORS, ("score",))

    def start(self, task: Task, observation: Observation) -> Progress:
        room = read_room(observation.text)
        ingredients = _PRIMARY if task.family == "chemistry" and " paint" in task.goal else ()
        state = Progress(
            read_goal(task.goal), task.family, room, (room,), (room,), ingredients=ingredients, text=observation.text
        )
        # Milestones that hold at the start count as reached, without a reward.
        there = Event("room", room)
        return replace(state, reached=tuple(m.name for m in PROCEDURES[task.family] if m.reached(state, there)))

    def update(self, state: Progress, action: str, transition: Transition) -> Progress:
        text, command = transition.observation.text, " ".join(action.lower().split())
        option = re.search(rf"^{re.escape(command)}:\t(.+)", state.text, re.MULTILINE)
        if option and state.text.startswith(AMBIGUOUS):
            command = option[1].lower()
        event = read_event(text)
        lost = transition.label == WRONG_FOCUS
        after = _apply_event(replace(state, action=command, text=text, earned=transition.reward), event)
        left = [m for m in PROCEDURES[state.family] if m.name not in state.reached and not lost]
        progress = tuple(m.name for m in left if m.reached(after, event))
        trail = (after.room,) if progress else after.trail
        after = replace(after, reached=(*state.reached, *progress), progress=progress, trail=trail)
        return replace(after, errors=_errors(state, after, event, lost))

    def signals(self, before: Progress, after: Progress) -> Mapping[str, float]:
        worth = {m.name: m.worth for m in PROCEDURES[after.family]}
        progress, errors = score_events(after.progress, worth), score_events(after.errors, ERRORS)
        return sum_signals(progress, errors, {"score": SCORE_SHARE * after.earned})

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

    version = "scienceworld-paper-3"

    def render(self, state: Progress) -> str:
        fields = {
            "phase": state.phase,
            "selected_entity": _join_latest(state.focused[-1:]),
            "inventory": _join_latest(state.inventory),
            "answer_room": state.goal.room,
            "completed_subgoals": ", ".join(state.reached),
        }
        return "\n".join(f"{name}: {value or 'None'}" for name, value in fields.items())


def _apply_event(state: Progress, event: Event) -> Progress:
    """Update the room, inventory, focus and measurement, and the facts about the task's object."""
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
    state = replace(state, waits=state.waits + 1 if event.kind == "waited" else 0)
    # Where the task's object is, its state of matter, its connections, planted seeds and the recipe.
    places, form = state.places, state.change[1]
    if event.kind in ("moved", "took", "poured") and state.is_subject(event.what):
        kept = places[: places.index(event.what) + 1] if event.what in places and event.kind != "poured" else ()
        places = kept if event.kind == "took" else (*kept, event.where)
    if event.kind == "focused":
        held = state.action.rpartition(" in ")[2] if " in " in state.action else ""
        places, form = (held,) if held else places, read_form(event.what)
    change = (form, form)
    seen = name_of(state.text.split("\n")[0]) if not event.kind else ""
    if seen and state.focused and matches(seen, state.focused[-1]):
        change = (form, read_form(seen))
    wired, pots, recipe = state.wired, state.pots, re.search(r"you need to mix (.+?)\.", state.text)
    if target_connected(state, event) and state.text not in wired:
        wired = (*wired, state.text)
    if event.kind == "moved" and "seed" in event.what and "pot" in event.where and event.where not in pots:
        pots = (*pots, event.where)
    ingredients = tuple(recipe[1].lower().replace(" and ", ", ").split(", ")) if recipe else state.ingredients
    return replace(state, places=places, change=change, wired=wired, pots=pots, ingredients=ingredients)


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
    answers = event.what in after.goal.answers or event.where in after.goal.answers
    if event.kind in ("moved", "focused") and before.untried and (answers or "plane" in event.what):
        errors.append("premature")
    if after.progress:
        return tuple(errors)
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


# Skill alphabet, handbook, failure reasons and hindsight. Nine atomic skills, by the command's verb (ours, in the style of
# ReuseRL). Every command has a skill; numbers, which answer ambiguity questions, are OBSERVE.

SKILLS = ("MOVE", "ACCESS", "OBSERVE", "CARRY", "OPERATE", "COMBINE", "CONNECT", "FOCUS", "WAIT")
_VERBS = {
    **dict.fromkeys(("go", "teleport"), "MOVE"),
    **dict.fromkeys(("open", "close"), "ACCESS"),
    **dict.fromkeys(("pick", "move", "put", "drop"), "CARRY"),
    **dict.fromkeys(("activate", "deactivate", "use", "flush", "eat"), "OPERATE"),
    **dict.fromkeys(("mix", "pour", "dunk"), "COMBINE"),
    **dict.fromkeys(("connect", "disconnect"), "CONNECT"),
    "focus": "FOCUS",
    **dict.fromkeys(("wait", "wait1"), "WAIT"),
}


def skill(action: str) -> str:
    verb, *rest = action.lower().split() or [""]
    if verb in ("open", "close") and "door" in rest:
        return "MOVE"
    return _VERBS.get(verb, "OBSERVE")


ALPHABET = Alphabet(SKILLS, lambda trajectory: [skill(step.action) for step in trajectory.steps])
HANDBOOK: Mapping[str, str] = TABLES["handbook"]


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed. Out of steps: `never_focused`, `unfinished` (score above 0) or `timeout` (score 0)."""
    if trajectory.detail == WRONG_FOCUS:
        return WRONG_FOCUS
    if trajectory.stop is not StopReason.STEP_LIMIT and trajectory.detail != OUT_OF_STEPS:
        return str(trajectory.stop)
    if not any(step.effective and step.action.lower().startswith("focus on") for step in trajectory.steps):
        return "never_focused"
    return "unfinished" if trajectory.score > 0 else "timeout"


MAX_NAMED = 3  # maximum milestones named after a failure
_ACHIEVED = tuple(f"progress.{name}" for name in MILESTONES)
ADVICE: Mapping[str, str] = TABLES["advice"]  # milestone -> advice for reaching it


class _Adviser(ByReading):
    """Advises on the first milestone not yet reached."""

    def __init__(self, states: list[Progress]) -> None:
        self._states = iter(states)

    def act(self, observation: Observation) -> str:
        state = next(self._states)
        return _advice(state, state.phase)


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success, the commands that reached milestones; after a failure, the remaining milestones, from the tracker."""
    states = tracker_states(trajectory, ScienceTracker())
    steps = critical_steps(trajectory, _Adviser(states), ScienceTracker(), achieved=_ACHIEVED)
    if trajectory.success:
        signals = tracker_signals(trajectory, ScienceTracker())
        paid = [any(own.get(name, 0.0) > 0 for name in _ACHIEVED) for own in signals]
        done = [step.action for step, reached in zip(trajectory.steps, paid, strict=True) if reached]
        return Skills("; ".join(dict.fromkeys(done)), steps, f"Done in {len(trajectory)} steps.")
    label = failure(trajectory)
    if label == WRONG_FOCUS:
        return Skills(f"do not {trajectory.steps[-1].action}: the task does not ask for it, and it ended there", steps, "Lost.")
    last = states[-1]
    left = [m.name for m in PROCEDURES[last.family] if m.name not in last.reached and not m.optional] or [last.phase]
    advice = dict.fromkeys(_advice(last, name) for name in left)
    return Skills(f"still to do: {'; '.join(list(advice)[:MAX_NAMED])}", steps, f"Failed: {label}.")


def _advice(state: Progress, milestone: str) -> str:
    goal = state.goal
    answers = " or ".join(goal.answers) or "what the task names"
    return ADVICE[milestone].format(target=goal.target or "what is asked for", room=goal.room or "place named", answers=answers)
