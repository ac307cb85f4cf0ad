"""Tracker, skill alphabet, handbook, failure reasons and hindsight.

    phase      gather -> craft -> done
    progress   +1.0 whenever the planner's number of remaining commands reaches a new minimum, per command
    error      0.3 for an unreadable command, 0.2 for a refused one, 0.1 for one that makes no progress

Values follow Table 6 of the constant-context paper; errors are positive. The state block names items and counts, not commands.

Ten atomic skills, by the command and the depth of its item. Every readable command is projected, even if refused.

    GET-RAW, GET-MADE, GET-UNKNOWN            a raw item; an item that must be crafted; no item
    CRAFT-1 … CRAFT-4                         an item of that depth (4: or deeper) other than the goal
    CRAFT-GOAL, CRAFT-UNKNOWN                 the goal; an item without a recipe
    INVENTORY
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random

from tacit.core.hindsight import RuleTracker, Skills, critical_steps, tracker_signals, tracker_states
from tacit.core.types import Observation, StopReason, Task, Trajectory, Transition
from tacit.core.world import Alphabet
from tacit.worlds.textcraft.expert import Crafter, plan
from tacit.worlds.textcraft.recipes import Book, display_name
from tacit.worlds.textcraft.world import Craft, Get, Refused, format_amounts, open_task, parse_command, parse_observation


@dataclass(frozen=True)
class CraftState:
    book: Book
    goal: str
    to_get: Mapping[str, int]
    to_make: Mapping[str, int]  # item -> how many will be crafted, in a feasible order
    left: int  # commands of the current plan
    nearest: int  # the fewest of any plan so far
    phase: str = "gather"
    fault: str = ""


class CraftTracker(RuleTracker):
    version = "textcraft-1"
    progress = {"subgoal": 1.0}
    errors = {"unreadable": 0.3, "refused": 0.2, "needless": 0.1}

    def start(self, task: Task, observation: Observation) -> CraftState:
        book, goal, _ = open_task(task)
        return _plan_from(book, goal, observation)

    def update(self, state: CraftState, action: str, transition: Transition) -> CraftState:
        if not transition.effective:
            return replace(state, fault="unreadable" if _parse(action, state.book) is None else "refused")
        if transition.success:
            return replace(state, to_get={}, to_make={}, left=0, nearest=0, phase="done", fault="")
        now = _plan_from(state.book, state.goal, transition.observation)
        return replace(now, nearest=min(state.nearest, now.left), fault="needless" if now.left >= state.left else "")

    def render(self, state: CraftState) -> str:
        lines = [f"phase: {state.phase}"]
        if state.to_get:
            lines.append(f"to get: {format_amounts(state.to_get)}")
        if state.to_make:
            lines.append(f"to make: {format_amounts(state.to_make)}")
        return "\n".join(lines)

    def count(self, before: CraftState, after: CraftState) -> Mapping[str, float]:
        return {"subgoal": before.nearest - after.nearest}


def _plan_from(book: Book, goal: str, observation: Observation) -> CraftState:
    ahead = plan(book, goal, parse_observation(observation.text).held)
    made: dict[str, int] = {}
    for recipe, _ in ahead.crafts:
        made[recipe.makes] = made.get(recipe.makes, 0) + recipe.count
    return CraftState(book, goal, ahead.gets, made, len(ahead), len(ahead), "gather" if ahead.gets else "craft")


def _parse(action: str, book: Book) -> Craft | Get | str | None:
    try:
        return parse_command(action, book)
    except Refused:
        return None


DEEPEST = 4
SKILLS = (
    *("GET-RAW", "GET-MADE", "GET-UNKNOWN"),
    *(f"CRAFT-{depth}" for depth in range(1, DEEPEST + 1)),
    *("CRAFT-GOAL", "CRAFT-UNKNOWN", "INVENTORY"),
)


def project(trajectory: Trajectory) -> Iterator[str]:
    book, goal, _ = open_task(trajectory.task)
    for command in (_parse(step.action, book) for step in trajectory.steps):
        if isinstance(command, str):
            yield "INVENTORY"
        elif isinstance(command, Get):
            yield "GET-MADE" if book.recipes_for(command.item) else "GET-RAW" if book.is_raw(command.item) else "GET-UNKNOWN"
        elif command is not None:
            depth = min(book.depth(command.makes), DEEPEST) if command.makes in book.recipes else 0
            yield "CRAFT-GOAL" if command.makes == goal else f"CRAFT-{depth or 'UNKNOWN'}"


ALPHABET = Alphabet(SKILLS, project, operators=("GET", "CRAFT"))
HANDBOOK = {
    "": (
        "work back from the goal through the recipes and count what each takes; get everything that no recipe makes, in the "
        "number that is needed in all; then craft from the bottom up, with exactly the ingredients of the recipe"
    ),
    "depth_4": "what is made on the way is an ingredient again: craft it as often as the recipes above it take it",
}
_KINDS = {
    "Could not find enough items": "missing_items",
    "Could not find a valid recipe": "wrong_recipe",
    "Could not find ": "not_to_be_got",
    "Could not execute ": "unreadable",
    "Wrong item format: ": "unreadable",
}
"""how a refusal begins -> its label"""


def failure(trajectory: Trajectory) -> str:
    """The most frequent refusal if more than half of the commands were refused, else `timeout`.

    unreadable        not a command
    missing_items     ingredients that were not held
    wrong_recipe      no such recipe for the item
    not_to_be_got     `get` of something that is not a raw item
    """
    if trajectory.stop is not StopReason.STEP_LIMIT:
        return str(trajectory.stop)
    answers = [parse_observation(observation.text).answer for observation in trajectory.observations[1:]]
    found = (next((kind for start, kind in _KINDS.items() if answer.startswith(start)), "") for answer in answers)
    kinds = Counter(filter(None, found))
    return "timeout" if 2 * kinds.total() <= len(answers) else max(kinds, key=lambda kind: (kinds[kind], kind))


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success the commands that made progress; after a failure what was left to get and craft:
    `still to get: 2 fleece; then craft 8 thread, 2 cloth`."""
    tracker = CraftTracker()
    steps = critical_steps(trajectory, Crafter(trajectory.task), tracker)
    if trajectory.success:
        told = zip(trajectory.steps, tracker_signals(trajectory, tracker), strict=True)
        done = "; ".join(step.action for step, signals in told if signals.get("progress.subgoal", 0.0) > 0)
        return Skills(done, steps, f"{trajectory.task.goal}: done in {len(trajectory)} commands.")
    label, state = failure(trajectory), tracker_states(trajectory, tracker)[-1]
    get, make = format_amounts(state.to_get), f"craft {format_amounts(state.to_make)}"
    missing = f"still to get: {get}; then {make}" if get else f"everything was there: {make}"
    if label == "unreadable":
        missing = f"write get N ITEM or craft N ITEM using N ITEM, nothing else; {missing}"
    return Skills(missing, steps, f"{trajectory.task.goal}: failed, {label}.")


def questions(rng: Random, observation: Observation) -> list[tuple[str, str]]:
    """Pretraining questions about the inventory: `how many ash boards? 4`."""
    held = parse_observation(observation.text).held
    chosen = [rng.choice(list(held))] if held else []
    return [(f"how many {display_name(item)}", str(held[item])) for item in chosen]
