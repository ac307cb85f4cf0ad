"""The planner and its expert, tracker, skill alphabet, handbook, failure reasons and hindsight.

Progress: +1.0 for each command by which the plan becomes shorter than ever before. Amounts follow Table 6 of the
constant-context paper; errors are positive. Ten atomic skills, by the command and the depth of its item; every readable command
has a skill, even if refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from random import Random

from tacit.core.hindsight import RuleTracker, critical_steps, tracker_signals, tracker_states
from tacit.core.types import Observation, Skills, StopReason, Task, Trajectory, Transition
from tacit.core.world import Alphabet, ByReading
from tacit.worlds.textcraft.recipes import Book, Recipe, display_name
from tacit.worlds.textcraft.world import Craft, Get, Refused, format_amounts, open_task, parse_command, parse_observation


@dataclass
class Plan:
    book: Book
    stock: dict[str, int]  # item -> count after the commands planned so far
    gets: dict[str, int] = field(default_factory=dict)
    crafts: list[tuple[Recipe, tuple[str, ...]]] = field(default_factory=list)
    """(recipe, item for each ingredient), in a feasible order"""

    def __len__(self) -> int:
        return len(self.gets) + len(self.crafts)

    @property
    def commands(self) -> list[str]:
        lines = [f"get {n} {display_name(item)}" for item, n in self.gets.items()]
        for recipe, items in self.crafts:
            parts = zip(recipe.ingredients, items, strict=True)
            listed = ", ".join(f"{part.count} {display_name(item)}" for part, item in parts)
            lines.append(f"craft {recipe.count} {display_name(recipe.makes)} using {listed}")
        return lines

    def craft(self, item: str, missing: int) -> None:
        """Use the recipe that adds the fewest commands."""
        ways = [
            recipe
            for recipe in self.book.recipes[item]
            if all(min(map(self.book.price, self.book.matching_items(part))) < inf for part in recipe.ingredients)
        ]
        if len(ways) == 1:
            self._follow(ways[0], missing)
            return
        tried = [replace(self, stock=dict(self.stock), gets=dict(self.gets), crafts=list(self.crafts)) for _ in ways]
        for way, longer in zip(ways, tried, strict=True):
            longer._follow(way, missing)
        best = min(tried, key=len)
        self.stock, self.gets, self.crafts = best.stock, best.gets, best.crafts

    def _follow(self, recipe: Recipe, missing: int) -> None:
        times, items = -(-missing // recipe.count), []
        for part in recipe.ingredients:
            item, count = part.name, part.count * times
            if part.generic:
                kind = self.book.members[part.name]
                held = [item for item in kind if self.stock.get(item, 0) >= count]
                item = held[0] if held else min(kind, key=lambda item: (self.book.price(item), item))
            short = count - self.stock.get(item, 0)
            if short > 0 and self.book.recipes.get(item):
                self.craft(item, short)
            elif short > 0:
                self.gets[item] = self.gets.get(item, 0) + short
                self.stock[item] = count
            self.stock[item] -= count
            items.append(item)
        self.crafts += [(recipe, tuple(items))] * times
        self.stock[recipe.makes] = self.stock.get(recipe.makes, 0) + recipe.count * times


def plan(book: Book, goal: str, held: Mapping[str, int]) -> Plan:
    """Plan the remaining commands by backward search.

    Among alternative recipes, the plan uses the one that adds the fewest commands. Surplus items are used first. One `get` per
    raw item fetches the total count. A generic ingredient is a single item: one held in sufficient number, else the cheapest.
    The goal is crafted even if one is held, since crafting it ends the episode.
    """
    crafting = Plan(book, {item: count for item, count in held.items() if item != goal})
    crafting.craft(goal, 1)
    return crafting


class Crafter(ByReading):
    """Plans from the current inventory at each step, so it can advise in any episode."""

    def __init__(self, task: Task) -> None:
        self._book, self._goal, _ = open_task(task)

    def act(self, observation: Observation) -> str:
        return plan(self._book, self._goal, parse_observation(observation.text).held).commands[0]


@dataclass(frozen=True)
class CraftState:
    book: Book
    goal: str
    to_get: Mapping[str, int]
    to_make: Mapping[str, int]  # item -> how many will be crafted, in a feasible order
    left: int  # length of the current plan
    nearest: int  # length of the shortest plan so far
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
    crafts: dict[str, int] = {}
    for recipe, _ in ahead.crafts:
        crafts[recipe.makes] = crafts.get(recipe.makes, 0) + recipe.count
    return CraftState(book, goal, ahead.gets, crafts, len(ahead), len(ahead), "gather" if ahead.gets else "craft")


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
}  # how a refusal begins -> its label


def failure(trajectory: Trajectory) -> str:
    """The most frequent refusal if more than half of the commands were refused, else `timeout` or the stop reason."""
    if trajectory.stop is not StopReason.STEP_LIMIT:
        return str(trajectory.stop)
    answers = [parse_observation(observation.text).answer for observation in trajectory.observations[1:]]
    reasons = (next((kind for start, kind in _KINDS.items() if answer.startswith(start)), "") for answer in answers)
    kinds = Counter(filter(None, reasons))
    return "timeout" if 2 * kinds.total() <= len(answers) else max(kinds, key=lambda kind: (kinds[kind], kind))


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success, the commands that made progress; after a failure, the remaining items to get and craft:
    `still to get: 2 fleece; then craft 8 thread, 2 cloth`."""
    tracker = CraftTracker()
    steps = critical_steps(trajectory, Crafter(trajectory.task), tracker)
    if trajectory.success:
        scored_steps = zip(trajectory.steps, tracker_signals(trajectory, tracker), strict=True)
        done = "; ".join(step.action for step, signals in scored_steps if signals.get("progress.subgoal", 0.0) > 0)
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
