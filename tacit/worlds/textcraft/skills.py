"""Skill alphabet, handbook, failure reasons and hindsight.

Ten atomic skills, by the command and the depth of its item:

    GET-RAW, GET-MADE, GET-UNKNOWN            a raw item; an item that must be crafted; no item
    CRAFT-1 … CRAFT-4                         an item of that depth (4: or deeper) other than the goal
    CRAFT-GOAL, CRAFT-UNKNOWN                 the goal; an item without a recipe
    INVENTORY

Every readable command is projected, even if refused.
"""

from __future__ import annotations

from collections import Counter

from tacit.core.hindsight import Skills, critical_steps, tracker_signals, tracker_states
from tacit.core.types import StopReason, Trajectory
from tacit.core.world import Alphabet
from tacit.worlds.textcraft.expert import Crafter
from tacit.worlds.textcraft.recipes import Book, Get, Refused, format_amounts, parse_command, parse_observation
from tacit.worlds.textcraft.tracker import CraftTracker
from tacit.worlds.textcraft.world import open_task

DEEPEST = 4
SKILLS = (
    *("GET-RAW", "GET-MADE", "GET-UNKNOWN"),
    *(f"CRAFT-{depth}" for depth in range(1, DEEPEST + 1)),
    *("CRAFT-GOAL", "CRAFT-UNKNOWN", "INVENTORY"),
)


def skill(action: str, book: Book, goal: str) -> str | None:
    try:
        command = parse_command(action, book)
    except Refused:
        return None
    if isinstance(command, str):
        return "INVENTORY"
    if isinstance(command, Get):
        return "GET-MADE" if book.recipes_for(command.item) else "GET-RAW" if book.is_raw(command.item) else "GET-UNKNOWN"
    if command.makes == goal:
        return "CRAFT-GOAL"
    depth = min(book.depth(command.makes), DEEPEST) if command.makes in book.recipes else 0
    return f"CRAFT-{depth}" if depth else "CRAFT-UNKNOWN"


def project(trajectory: Trajectory) -> tuple[str, ...]:
    book, goal, _ = open_task(trajectory.task)
    skills = (skill(step.action, book, goal) for step in trajectory.steps)
    return tuple(s for s in skills if s is not None)


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
    kinds = Counter(kind for answer in answers if (kind := _refusal_kind(answer)))
    if 2 * kinds.total() <= len(answers):
        return "timeout"
    return max(kinds, key=lambda kind: (kinds[kind], kind))


def _refusal_kind(answer: str) -> str:
    return next((kind for beginning, kind in _KINDS.items() if answer.startswith(beginning)), "")


_TRACKER = CraftTracker()


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success the commands that made progress; after a failure what was left to get and craft."""
    steps = critical_steps(trajectory, Crafter(trajectory.task), _TRACKER)
    if trajectory.success:
        return Skills(workflow(trajectory), steps, f"{trajectory.task.goal}: done in {len(trajectory)} commands.")
    label, missing = failure(trajectory), remaining_work(trajectory)
    if label == "unreadable":
        missing = f"write get N ITEM or craft N ITEM using N ITEM, nothing else; {missing}"
    return Skills(missing, steps, f"{trajectory.task.goal}: failed, {label}.")


def workflow(trajectory: Trajectory) -> str:
    """The commands that made progress: `get 1 ash log; craft 4 ash boards using 1 ash log`."""
    signals = tracker_signals(trajectory, _TRACKER)
    nearer = [found.get("progress.subgoal", 0.0) > 0 for found in signals]
    return "; ".join(step.action for step, counted in zip(trajectory.steps, nearer, strict=True) if counted)


def remaining_work(trajectory: Trajectory) -> str:
    """What was left at the end of the episode: `still to get: 2 fleece; then craft 8 thread, 2 cloth`."""
    state = tracker_states(trajectory, _TRACKER)[-1]
    get, make = format_amounts(state.to_get), f"craft {format_amounts(state.to_make)}"
    return f"still to get: {get}; then {make}" if get else f"everything was there: {make}"
