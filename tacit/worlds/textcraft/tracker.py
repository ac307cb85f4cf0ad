"""TextCraft's progress state for constant-context agents: what is still to be got and to be made, given what is held.

    phase      gather -> craft -> done
    progress   +1.0 for each command that is left less than ever, by the planner's count; the last is the crafting of the goal
    error      0.3 for a command the world cannot read, 0.2 for one it refuses, 0.1 for one that brings the goal no nearer

Values as in the constant-context paper's Table 6 for events of the same kind; errors are positive amounts, to be subtracted.
The block names things and numbers, never the command: which recipe makes a thing, and of what, is in the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tacit.core.hindsight import component_names, summed
from tacit.core.types import Observation, Task, Transition
from tacit.worlds.textcraft.expert import Plan, plan
from tacit.worlds.textcraft.recipes import Book, Refused, amounts, parse, read
from tacit.worlds.textcraft.world import set_up

PROGRESS: Mapping[str, float] = {"subgoal": 1.0}
ERRORS: Mapping[str, float] = {"unreadable": 0.3, "refused": 0.2, "needless": 0.1}
BOUND = 600
"""the most characters a state block has, with the published recipes and with ours"""


@dataclass(frozen=True)
class CraftState:
    book: Book
    goal: str
    to_get: Mapping[str, int]
    to_make: Mapping[str, int]
    left: int
    """commands of the shortest plan found"""
    nearest: int
    """the least there ever were"""
    phase: str = "gather"
    fault: str = ""
    """what was wrong with the last command, one of ERRORS"""


class CraftTracker:
    version = "textcraft-1"
    components = component_names(PROGRESS, ERRORS)

    def start(self, task: Task, observation: Observation) -> CraftState:
        book, goal, _ = set_up(task)
        ahead = plan(book, goal, read(observation.text).held)
        return CraftState(book, goal, ahead.gets, _to_make(ahead), len(ahead), len(ahead), _phase(ahead))

    def update(self, state: CraftState, action: str, transition: Transition) -> CraftState:
        if not transition.effective:
            return replace(state, fault="refused" if _readable(action, state.book) else "unreadable")
        if transition.success:
            return replace(state, to_get={}, to_make={}, left=0, nearest=0, phase="done", fault="")
        ahead = plan(state.book, state.goal, read(transition.observation.text).held)
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
            lines.append(f"to get: {amounts(state.to_get)}")
        if state.to_make:
            lines.append(f"to make: {amounts(state.to_make)}")
        return "\n".join(lines)

    def signals(self, before: CraftState, after: CraftState) -> Mapping[str, float]:
        progress = {"subgoal": PROGRESS["subgoal"] * (before.nearest - after.nearest)}
        return summed(progress, {after.fault: ERRORS[after.fault]} if after.fault else {})


def _to_make(ahead: Plan) -> dict[str, int]:
    """item -> how many will be made of it, in the order in which they can be"""
    made: dict[str, int] = {}
    for making in ahead.crafts:
        made[making.recipe.makes] = made.get(making.recipe.makes, 0) + making.recipe.count
    return made


def _phase(ahead: Plan) -> str:
    return "gather" if ahead.gets else "craft"


def _readable(action: str, book: Book) -> bool:
    try:
        parse(action, book)
    except Refused:
        return False
    return True
