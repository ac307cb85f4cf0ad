"""Progress tracker: what is left to get and craft.

    phase      gather -> craft -> done
    progress   +1.0 whenever the planner's number of remaining commands reaches a new minimum, per command
    error      0.3 for an unreadable command, 0.2 for a refused one, 0.1 for one that makes no progress

Values follow Table 6 of the constant-context paper; errors are positive. The state block names items and counts, not commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tacit.core.hindsight import component_names, sum_signals
from tacit.core.types import Observation, Task, Transition
from tacit.worlds.textcraft.expert import Plan, plan
from tacit.worlds.textcraft.recipes import Book, Refused, format_amounts, parse_command, parse_observation
from tacit.worlds.textcraft.world import open_task

PROGRESS: Mapping[str, float] = {"subgoal": 1.0}
ERRORS: Mapping[str, float] = {"unreadable": 0.3, "refused": 0.2, "needless": 0.1}
BOUND = 600
"""maximum characters of a state block"""


@dataclass(frozen=True)
class CraftState:
    book: Book
    goal: str
    to_get: Mapping[str, int]
    to_make: Mapping[str, int]
    left: int
    """commands of the current plan"""
    nearest: int
    """the fewest of any plan so far"""
    phase: str = "gather"
    fault: str = ""
    """the error of the last command, a key of ERRORS"""


class CraftTracker:
    version = "textcraft-1"
    components = component_names(PROGRESS, ERRORS)

    def start(self, task: Task, observation: Observation) -> CraftState:
        book, goal, _ = open_task(task)
        ahead = plan(book, goal, parse_observation(observation.text).held)
        return CraftState(book, goal, ahead.gets, _to_make(ahead), len(ahead), len(ahead), _phase(ahead))

    def update(self, state: CraftState, action: str, transition: Transition) -> CraftState:
        if not transition.effective:
            return replace(state, fault="refused" if _readable(action, state.book) else "unreadable")
        if transition.success:
            return replace(state, to_get={}, to_make={}, left=0, nearest=0, phase="done", fault="")
        ahead = plan(state.book, state.goal, parse_observation(transition.observation.text).held)
        return CraftState(
            book=state.book,
            goal=state.goal,
            to_get=ahead.gets,
            to_make=_to_make(ahead),
            left=len(ahead),
            nearest=min(state.nearest, len(ahead)),
            phase=_phase(ahead),
            fault="needless" if len(ahead) >= state.left else "",
        )

    def render(self, state: CraftState) -> str:
        lines = [f"phase: {state.phase}"]
        if state.to_get:
            lines.append(f"to get: {format_amounts(state.to_get)}")
        if state.to_make:
            lines.append(f"to make: {format_amounts(state.to_make)}")
        return "\n".join(lines)

    def signals(self, before: CraftState, after: CraftState) -> Mapping[str, float]:
        progress = {"subgoal": PROGRESS["subgoal"] * (before.nearest - after.nearest)}
        return sum_signals(progress, {after.fault: ERRORS[after.fault]} if after.fault else {})


def _to_make(ahead: Plan) -> dict[str, int]:
    """item -> how many will be crafted, in a feasible order"""
    made: dict[str, int] = {}
    for making in ahead.crafts:
        made[making.recipe.makes] = made.get(making.recipe.makes, 0) + making.recipe.count
    return made


def _phase(ahead: Plan) -> str:
    return "gather" if ahead.gets else "craft"


def _readable(action: str, book: Book) -> bool:
    try:
        parse_command(action, book)
    except Refused:
        return False
    return True
