"""Ten atomic skills: by the command, and by what it names. How deep an item lies tells a beginning from an end, whatever it
is called.

    GET-RAW, GET-MADE, GET-UNKNOWN            what is only to be got; what has to be crafted, so cannot; what is nothing
    CRAFT-1 … CRAFT-4                         an item that deep (or deeper), which is not the goal
    CRAFT-GOAL, CRAFT-UNKNOWN                 the goal; what no recipe makes
    INVENTORY

Every command that was executed is projected, refused ones included; what is no command has no skill.
"""

from __future__ import annotations

from collections import Counter

from tacit.core.hindsight import Skills, critical_steps, measured, transitions
from tacit.core.types import StopReason, Trajectory
from tacit.core.world import Alphabet
from tacit.worlds.textcraft.expert import Crafter
from tacit.worlds.textcraft.recipes import Book, Get, Refused, amounts, parse, read
from tacit.worlds.textcraft.tracker import CraftTracker
from tacit.worlds.textcraft.world import set_up

DEEPEST = 4
SKILLS = (
    *("GET-RAW", "GET-MADE", "GET-UNKNOWN"),
    *(f"CRAFT-{depth}" for depth in range(1, DEEPEST + 1)),
    *("CRAFT-GOAL", "CRAFT-UNKNOWN", "INVENTORY"),
)


def skill(action: str, book: Book, goal: str) -> str | None:
    try:
        command = parse(action, book)
    except Refused:
        return None
    if isinstance(command, str):
        return "INVENTORY"
    if isinstance(command, Get):
        return "GET-MADE" if book.making(command.item) else "GET-RAW" if book.can_be_got(command.item) else "GET-UNKNOWN"
    if command.makes == goal:
        return "CRAFT-GOAL"
    depth = min(book.depth(command.makes), DEEPEST) if command.makes in book.recipes else 0
    return f"CRAFT-{depth}" if depth else "CRAFT-UNKNOWN"


def project(trajectory: Trajectory) -> tuple[str, ...]:
    book, goal, _ = set_up(trajectory.task)
    skills = (skill(step.action, book, goal) for step in trajectory.steps)
    return tuple(s for s in skills if s is not None)


ALPHABET = Alphabet(SKILLS, project, operators=("GET", "CRAFT"))


# Skills of TextCraft by hand, for methods that retrieve one.

HANDBOOK = {
    "": (
        "work back from the goal through the recipes and count what each takes; get everything that no recipe makes, in the "
        "number that is needed in all; then craft from the bottom up, with exactly the ingredients of the recipe"
    ),
    "depth_4": "what is made on the way is an ingredient again: craft it as often as the recipes above it take it",
}


# What a failed episode is called: by what was refused, where more than half of its commands were; else `timeout`.
#
# unreadable        no command of the world
# missing_items     ingredients that were not held
# wrong_recipe      ingredients that make nothing of that name
# not_to_be_got     a `get` of what has to be crafted, or is nothing

_KINDS = {
    "Could not find enough items": "missing_items",
    "Could not find a valid recipe": "wrong_recipe",
    "Could not find ": "not_to_be_got",
    "Could not execute ": "unreadable",
    "Wrong item format: ": "unreadable",
}


def failure(trajectory: Trajectory) -> str:
    if trajectory.stop is not StopReason.STEP_LIMIT:
        return str(trajectory.stop)
    seen = [*(step.observation for step in trajectory.steps[1:]), trajectory.final]
    answers = [read(observation.text).answer for observation in seen]
    kinds = Counter(kind for answer in answers if (kind := _kind(answer)))
    if 2 * kinds.total() <= len(answers):
        return "timeout"
    return max(kinds, key=lambda kind: (kinds[kind], kind))


def _kind(answer: str) -> str:
    return next((kind for beginning, kind in _KINDS.items() if answer.startswith(beginning)), "")


# What a crafting episode teaches, by rule: the commands that brought the goal nearer, or what was still to be got and made.

_TRACKER = CraftTracker()


def hindsight(trajectory: Trajectory) -> Skills:
    steps = critical_steps(trajectory, Crafter(trajectory.task), _TRACKER)
    if trajectory.success:
        return Skills(workflow(trajectory), steps, f"{trajectory.task.goal}: done in {len(trajectory)} commands.")
    label, missing = failure(trajectory), still_missing(trajectory)
    if label == "unreadable":
        missing = f"write get N ITEM or craft N ITEM using N ITEM, nothing else; {missing}"
    return Skills(missing, steps, f"{trajectory.task.goal}: failed, {label}.")


def workflow(trajectory: Trajectory) -> str:
    """`get 1 ash log; craft 4 ash boards using 1 ash log`: each command that left fewer to do than ever."""
    signals = measured(trajectory, _TRACKER)
    nearer = [found.get("progress.subgoal", 0.0) > 0 for found in signals]
    return "; ".join(step.action for step, counted in zip(trajectory.steps, nearer, strict=True) if counted)


def still_missing(trajectory: Trajectory) -> str:
    """`still to get: 2 fleece; then craft 8 thread, 2 cloth`, when the episode was over."""
    state = _TRACKER.start(trajectory.task, trajectory.steps[0].observation)
    for action, transition in transitions(trajectory):
        state = _TRACKER.update(state, action, transition)
    get, make = amounts(state.to_get), f"craft {amounts(state.to_make)}"
    return f"still to get: {get}; then {make}" if get else f"everything was there: {make}"
