"""TextCraft (Prasad et al., 2024): get what grows or lies about, craft the rest of it, and craft the goal. The rules and the
words are those of the package textcraft 0.0.3, freshly started for each episode.

    get N ITEM                            any number of an item that no recipe makes
    craft N ITEM using N ITEM, N ITEM     one recipe, once: the ingredients must be held, in exactly the recipe's numbers
    inventory                             what is held
    success                               the goal is crafted

What one would not expect, and is so in the package:
- The number before the crafted item is not compared with the recipe's; what the recipe makes is made.
- Every recipe of the book works, also one that the prompt does not list.
- Under the name of an item on the way to the goal, the ingredients of anything below it are accepted too, and make that: the
  package lengthens its own lists while it reads them. What makes the goal is still the goal's recipe alone.

Where the package raises an error or comes to hold less than nothing (numbers beyond what it can print, an item given twice
and held once), the command is refused. The package lists recipes in an order, and with distractors, that depend on Python's
hash seed; here the task says which and in which order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition
from tacit.worlds.textcraft.recipes import (
    WORKSHOP,
    Amount,
    Book,
    Craft,
    Get,
    Recipe,
    Refused,
    echo,
    inventory,
    open_book,
    opening,
    parse,
    show,
    spoken,
)

# What the recipes that are told make possible, as commands. The benchmark lists none: it is for whoever acts at random.

INVENTORY = "inventory"


class Possible:
    """Every raw ingredient in the numbers the recipes want, every recipe for which enough is held, and `inventory`. For a
    generic ingredient the first item is named that will do."""

    def __init__(self, book: Book, recipes: Sequence[Recipe]) -> None:
        parts = [part for recipe in recipes for part in recipe.of]
        raw = (f"get {part.count} {spoken(part.name)}" for part in parts if book.can_be_got(part.name))
        self._gets = tuple(dict.fromkeys(raw))
        self._crafts = [
            (f"craft {recipe.count} {spoken(recipe.makes)} using ", [(book.fitting(part), part.count) for part in recipe.of])
            for recipe in recipes
        ]

    def __call__(self, held: Mapping[str, int]) -> tuple[str, ...]:
        crafts = []
        for beginning, parts in self._crafts:
            chosen = []
            for items, count in parts:
                for item in items:
                    if item in held and held[item] >= count:
                        chosen.append(f"{count} {spoken(item)}")
                        break
                else:
                    break
            else:
                crafts.append(beginning + ", ".join(chosen))
        return (*self._gets, *crafts, INVENTORY)


MAX_STEPS = 50
"""the longest of the published goals takes 48 commands"""


class TextCraftWorld:
    """One goal at a time; see the module for the rules."""

    def __init__(self) -> None:
        self._book: Book = open_book(WORKSHOP)
        self._goal = ""
        self._held: dict[str, int] = {}
        self._on_the_way: frozenset[str] = frozenset()
        """items under whose name whatever leads to them is accepted"""
        self._possible = Possible(self._book, ())

    def reset(self, task: Task) -> Observation:
        book, goal, commands = set_up(task)
        self._book, self._goal, self._held = book, goal, {}
        self._on_the_way = book.on_the_way_to(goal)
        self._possible = Possible(book, [book.by_text[command] for command in commands])
        return self._observe(opening(commands, goal))

    def step(self, action: str) -> Transition:
        try:
            command = parse(action, self._book)
            if isinstance(command, Get):
                return Transition(self._observe(self._get(command)))
            if isinstance(command, Craft):
                recipe = self._craft(command)
                done = recipe.makes == self._goal
                told = self._observe(f"Crafted {recipe.count} {recipe.makes}")
                return Transition(told, done=done, success=done, score=float(done))
            return Transition(self._observe(inventory(self._held)))
        except Refused as why:
            return Transition(self._observe(str(why)), effective=False)

    def close(self) -> None:
        pass

    def _get(self, command: Get) -> str:
        if not self._book.can_be_got(command.item):
            raise Refused(f"Could not find {echo(command.said)}")
        self._held[command.item] = self._held.get(command.item, 0) + command.number
        return f"Got {command.number} {command.said}"

    def _craft(self, command: Craft) -> Recipe:
        name = None if command.is_kind else echo(command.makes)
        held = self._held
        if any(not item or item not in held or held[item] < count for item, count in command.of):
            raise Refused(f"Could not find enough items to craft {name}")
        recipe = next((r for r in self._accepted(command) if made_of(self._book, r, command.of)), None)
        if recipe is None:
            tag, item = (echo(command.makes), None) if command.is_kind else (None, echo(command.makes))
            whole = f"ItemTagWithCount(item_tag=ItemTag(tag={tag!r}, item_id={item!r}), count={command.count})"
            raise Refused(f"Could not find a valid recipe for {whole}")
        left = dict(held)
        for item, count in command.of:
            left[item] = left.get(item, 0) - count
            if left[item] < 0:
                raise Refused(f"Could not find enough items to craft {name}")
            if left[item] == 0:
                del left[item]
        left[recipe.makes] = left.get(recipe.makes, 0) + recipe.count
        self._held = left
        return recipe

    def _accepted(self, command: Craft) -> tuple[Recipe, ...]:
        if command.is_kind:
            return ()
        if command.makes in self._on_the_way:
            return self._book.leading_to(command.makes)
        return self._book.recipes.get(command.makes, ())

    def _observe(self, answer: str) -> Observation:
        return Observation(show(answer, self._held), self._possible(self._held))


def set_up(task: Task) -> tuple[Book, str, list[str]]:
    """(the book, the goal, the commands that are told) of a task; every recipe that leads to the goal where it tells none."""
    try:
        name, goal = str(task.data["book"]), str(task.data["goal"])
    except KeyError as missing:
        raise TacitError(f"task {task.id!r} is no TextCraft goal: its data has no {missing}.") from None
    book = open_book(name)
    digest = str(task.data.get("digest", book.digest))
    if digest != book.digest:
        raise TacitError(
            f"task {task.id!r} was made with other recipes: its book {name!r} has the digest {digest}, the one here "
            f"{book.digest}."
        )
    if goal not in book.recipes or book.price(goal) == inf:
        raise TacitError(f"task {task.id!r}: {goal!r} cannot be made with the recipes of the book {name!r}.")
    commands = list(task.data.get("commands") or (recipe.text for recipe in book.leading_to(goal)))
    for command in commands:
        if command not in book.by_text:
            raise TacitError(f"task {task.id!r} tells a command that no recipe of the book {name!r} is: {command!r}.")
    return book, goal, commands


def made_of(book: Book, recipe: Recipe, given: tuple[Amount, ...]) -> bool:
    """Every ingredient takes the first item given that fits it; each must be there in exactly its number, and none be left."""
    left = list(given)
    for part in recipe.of:
        match = next((amount for amount in left if book.fits(part, amount.item)), None)
        if match is None or match.number != part.count:
            return False
        left.remove(match)
    return not left
