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

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tacit.core.signals import component_names, counted, summed
from tacit.core.types import Observation, Task, Transition
from tacit.environments.scienceworld.observed import UNREADABLE, Event, read_event, read_inventory, read_room
from tacit.environments.scienceworld.procedures import PROCEDURES, VERBS, Goal, read_goal
from tacit.environments.scienceworld.world import WRONG_FOCUS

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
