"""Progress tracker: boxes on targets, a lower bound of the pushes left, and whether the room is still solvable.

    phase      push -> done, or stuck
    progress   +1.0 per box above the most ever on targets, +0.05 per push below the smallest distance so far
    error      0.3 for an unreadable action and for a push into a deadlock, 0.2 for a refused step, 0.1 for a repeated position

Values follow Table 6 of the constant-context paper; errors are positive. A deadlock counts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from tacit.core.hindsight import component_names, sum_signals
from tacit.core.types import Observation, Task, Transition
from tacit.worlds.sokoban.expert import is_deadlocked, pushes_left
from tacit.worlds.sokoban.world import Layout, Position, parse_direction, read_position

PROGRESS: Mapping[str, float] = {"subgoal": 1.0, "nearer": 0.05}
ERRORS: Mapping[str, float] = {"unreadable": 0.3, "deadlock": 0.3, "refused": 0.2, "repeated": 0.1}
BOUND = 80
"""maximum characters of a state block"""


@dataclass(frozen=True)
class PushState:
    layout: Layout
    at: Position
    met: frozenset[Position]
    distance: float
    """lower bound of the pushes left"""
    nearest: float
    placed: int
    most_placed: int
    phase: str = "push"
    fault: str = ""
    """the error of the last action, a key of ERRORS"""


class SokobanTracker:
    version = "sokoban-1"
    components = component_names(PROGRESS, ERRORS)

    def start(self, task: Task, observation: Observation) -> PushState:
        layout, at = read_position(observation.text)
        distance, placed = pushes_left(layout, at.boxes), (at.boxes & layout.targets).bit_count()
        return PushState(layout, at, frozenset([at]), distance, distance, placed, placed, _phase(layout, at))

    def update(self, state: PushState, action: str, transition: Transition) -> PushState:
        if not transition.effective:
            return replace(state, fault="refused" if parse_direction(action) else "unreadable")
        layout, at = read_position(transition.observation.text)
        distance, placed = pushes_left(layout, at.boxes), (at.boxes & layout.targets).bit_count()
        phase = "done" if transition.success else _phase(layout, at)
        fault = "deadlock" if phase == "stuck" != state.phase else "repeated" if at in state.met else ""
        return PushState(
            layout=layout,
            at=at,
            met=state.met | {at},
            distance=distance,
            nearest=min(state.nearest, distance),
            placed=placed,
            most_placed=max(state.most_placed, placed),
            phase=phase,
            fault=fault,
        )

    def render(self, state: PushState) -> str:
        boxes = state.at.boxes.bit_count()
        left = "no way" if state.distance == inf else f"at least {state.distance}"
        return f"phase: {state.phase}\nboxes on targets: {state.placed} of {boxes}\npushes left: {left}"

    def signals(self, before: PushState, after: PushState) -> Mapping[str, float]:
        nearer = before.nearest - after.nearest if before.nearest < inf else 0
        progress = {
            "subgoal": PROGRESS["subgoal"] * (after.most_placed - before.most_placed),
            "nearer": PROGRESS["nearer"] * nearer,
        }
        return sum_signals(progress, {after.fault: ERRORS[after.fault]} if after.fault else {})


def _phase(layout: Layout, at: Position) -> str:
    return "stuck" if is_deadlocked(layout, at) else "push"
