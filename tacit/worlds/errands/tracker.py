"""Progress tracker: the doors opened, and whether the thing is visible.

    phase      search -> found -> done
    progress   +1.0 per phase; +0.02 for a new door
    error      0.3 for an unreadable action, 0.2 for a thing that is not here or not wanted, 0.1 for a door opened again

Values follow Table 6 of the constant-context paper; errors are positive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tacit.core.hindsight import component_names, sum_signals
from tacit.core.types import Observation, Task, Transition
from tacit.worlds.errands.world import parse_observation

PROGRESS: Mapping[str, float] = {"subgoal": 1.0, "new_door": 0.02}
ERRORS: Mapping[str, float] = {"unreadable": 0.3, "refused": 0.2, "repeated": 0.1}
PHASES = ("search", "found", "done")
BOUND = 160
"""maximum characters of a state block"""


@dataclass(frozen=True)
class ErrandState:
    wanted: str
    opened: tuple[str, ...] = ()
    """doors, each once, in order"""
    phase: str = "search"
    fault: str = ""
    """the error of the last action, a key of ERRORS"""


class ErrandTracker:
    version = "errands-1"
    components = component_names(PROGRESS, ERRORS)

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

    def signals(self, before: ErrandState, after: ErrandState) -> Mapping[str, float]:
        progress = {
            "subgoal": PROGRESS["subgoal"] * max(0, PHASES.index(after.phase) - PHASES.index(before.phase)),
            "new_door": PROGRESS["new_door"] * (len(after.opened) - len(before.opened)),
        }
        return sum_signals(progress, {after.fault: ERRORS[after.fault]} if after.fault else {})
