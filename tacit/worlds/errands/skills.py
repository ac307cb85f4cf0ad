"""Experts, tracker (amounts after Table 6 of the constant-context paper), skill alphabet, handbook, hindsight, failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random

from tacit.core.hindsight import RuleTracker, critical_steps
from tacit.core.types import Observation, Skills, StopReason, Task, Trajectory, Transition
from tacit.core.world import Alphabet, ByReading
from tacit.worlds.errands.world import DOORS, THINGS, door_of, parse_observation


class Resident(ByReading):
    """Knows the door of every thing."""

    def __init__(self, task: Task) -> None:
        self._thing = str(task.data["thing"])
        self._door = door_of(self._thing, int(task.data["town"]))

    def act(self, observation: Observation) -> str:
        return f"take {self._thing}" if self._thing in parse_observation(observation.text)[1] else f"open {self._door}"


class Stranger:
    """Opens each door once in random order; with a hint about the wanted thing (`mug behind red`), that door first."""

    def __init__(self, task: Task, hint: str = "") -> None:
        self._thing = str(task.data["thing"])
        doors = list(DOORS)
        Random(f"stranger/{task.id}/{task.seed}").shuffle(doors)
        thing, _, door = hint.partition(" behind ")
        hinted = [door] if thing == self._thing and door in DOORS else []
        self._left = [*hinted, *(d for d in doors if d not in hinted)]

    def act(self, observation: Observation) -> str:
        if self._thing in parse_observation(observation.text)[1]:
            return f"take {self._thing}"
        return f"open {self._left.pop(0)}" if self._left else f"open {DOORS[0]}"


PHASES = ("search", "found", "done")


@dataclass(frozen=True)
class ErrandState:
    wanted: str
    opened: tuple[str, ...] = ()  # distinct doors, in order of opening
    phase: str = "search"
    fault: str = ""


class ErrandTracker(RuleTracker):
    version = "errands-1"
    progress = {"subgoal": 1.0, "new_door": 0.02}
    errors = {"unreadable": 0.3, "refused": 0.2, "repeated": 0.1}

    def start(self, task: Task, observation: Observation) -> ErrandState:
        return ErrandState(str(task.data["thing"]))

    def update(self, state: ErrandState, action: str, transition: Transition) -> ErrandState:
        if transition.success:
            return replace(state, phase="done", fault="")
        door, things, refused = parse_observation(transition.observation.text)
        if not transition.effective:
            return replace(state, fault="unreadable" if refused == "not an action" else "refused")
        again = door in state.opened
        opened = state.opened if again or not door else (*state.opened, door)
        phase = "found" if state.wanted in things else "search"
        return replace(state, opened=opened, phase=phase, fault="repeated" if again else "")

    def render(self, state: ErrandState) -> str:
        return f"phase: {state.phase}\nopened: {', '.join(state.opened) or 'nothing'}"

    def count(self, before: ErrandState, after: ErrandState) -> Mapping[str, float]:
        phases = max(0, PHASES.index(after.phase) - PHASES.index(before.phase))
        return {"subgoal": phases, "new_door": len(after.opened) - len(before.opened)}


def project(trajectory: Trajectory) -> Iterator[str]:
    opened: set[str] = set()
    for step in trajectory.steps:
        verb, _, name = step.action.strip().partition(" ")
        if verb == "open" and name in DOORS:
            yield "OPEN-AGAIN" if name in opened else "OPEN-NEW"
            opened.add(name)
        elif verb == "take" and name in THINGS:
            yield "TAKE-WANTED" if name == trajectory.task.data["thing"] else "TAKE-OTHER"


ALPHABET = Alphabet(("OPEN-NEW", "OPEN-AGAIN", "TAKE-WANTED", "TAKE-OTHER"), project, operators=("OPEN", "TAKE"))
HANDBOOK = {"": "open the door behind which the thing was seen before; take it as soon as it is in sight"}


def hindsight(trajectory: Trajectory) -> Skills:
    """The door of the wanted thing, if it was seen; else empty advice."""
    wanted = str(trajectory.task.data["thing"])
    parsed = (parse_observation(observation.text) for observation in trajectory.observations)
    seen = {thing: door for door, things, _ in parsed for thing in things if door}
    steps = critical_steps(trajectory, Resident(trajectory.task), ErrandTracker())
    advice = f"{wanted} behind {seen[wanted]}" if wanted in seen else ""
    return Skills(advice, steps, f"{trajectory.task.goal}. {'Done' if trajectory.success else 'Failed'}.")


def failure(trajectory: Trajectory) -> str:
    """`not_taken` if the thing was visible, `unreadable` if no door was opened, else `not_found`; or the stop reason."""
    if trajectory.stop is not StopReason.STEP_LIMIT:
        return str(trajectory.stop)
    things_seen = [parse_observation(observation.text)[1] for observation in trajectory.observations]
    if any(trajectory.task.data["thing"] in things for things in things_seen):
        return "not_taken"
    return "not_found" if any(things_seen) else "unreadable"
