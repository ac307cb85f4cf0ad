"""What an observation says, as data: for the expert, the tracker and the terse wording, which see no more than its text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from tacit.environments.cooking.things import BURNED, COOKED, COOKING_VERBS, CUTS, HEAT, RAW, UNCUT

_ADJECTIVES = (RAW, BURNED, *COOKED, *CUTS.values())
_ROOM = re.compile(r"^-= (\w+) =-$", re.M)
_ANY_ROOM = re.compile(r"^-= (.+) =-$", re.M)
"""TextWorld's own games may name a room in several words"""
_FURNITURE = re.compile(r"You see an? (?:(open|closed) )?([\w ]+?)\.(?: (?:In|On) the [\w ]+ you see (.+)\.)?(?: The .+)?")
_EXIT = re.compile(r"There is an? (?:(open|closed) )?([\w -]+) to the (\w+)\.")
_WENT = re.compile(r"You go (\w+)\.")
_DONE = re.compile(
    r"You (take|pick up|put|drop|open|close|go|look|check|chop|slice|dice|fried|roasted|grilled|eat)\b|Adding the meal"
)


class Item(NamedTuple):
    name: str
    cooking: str = RAW
    cutting: str = UNCUT

    @property
    def text(self) -> str:
        words = [w for w in (self.cutting, self.cooking) if w not in (UNCUT, RAW)]
        return " ".join([*words, self.name])


class Direction(NamedTuple):
    """One line of the recipe: what is to be done to which food, and what it will be then."""

    verb: str
    food: str

    @property
    def result(self) -> str:
        return CUTS.get(self.verb) or next(done for done, verb in COOKING_VERBS.items() if verb == self.verb)

    @property
    def cuts(self) -> bool:
        return self.verb in CUTS

    @property
    def heat(self) -> str:
        """the source of heat a cooking direction needs"""
        return next(heat for heat, done in HEAT.items() if done == self.result)

    def done_to(self, item: Item) -> bool:
        return (item.cutting if self.cuts else item.cooking) == self.result


@dataclass(frozen=True)
class Recipe:
    ingredients: tuple[str, ...]
    directions: tuple[Direction, ...]

    @property
    def text(self) -> str:
        plain = [food for food in self.ingredients if all(food != d.food for d in self.directions)]
        return ", ".join([*(f"{d.verb} {d.food}" for d in self.directions), *plain])


@dataclass
class Scene:
    """A room as it was described, and what was carried then."""

    answer: str
    """what the world said to the last command"""
    room: str
    places: dict[str, list[Item]] = field(default_factory=dict)
    """furniture and `floor`, with what is seen there"""
    closed: set[str] = field(default_factory=set)
    """closed containers and doors"""
    opened: set[str] = field(default_factory=set)
    exits: dict[str, str] = field(default_factory=dict)
    """direction -> door, or nothing"""
    carried: dict[str, Item] = field(default_factory=dict)

    def place_of(self, name: str) -> str | None:
        return next((place for place, items in self.places.items() if any(i.name == name for i in items)), None)

    @property
    def closed_containers(self) -> list[str]:
        """The fridge before the oven, in which food is rarely kept."""
        return sorted((name for name in self.closed if name in self.places), key=lambda name: (name == "oven", name))

    @property
    def went(self) -> str:
        """the direction of the last step, where the last command was one and was followed"""
        match = _WENT.match(self.answer)
        return match[1] if match else ""

    @property
    def refused(self) -> bool:
        """the last command changed nothing"""
        return bool(self.answer) and not _DONE.match(self.answer) and not self.answer.startswith("You burned")


def read_scene(text: str) -> Scene:
    """A native cooking observation taken apart. ValueError where the text is none."""
    header = _ROOM.search(text)
    if header is None:
        raise ValueError(f"not a cooking observation: {text!r}")
    scene = Scene(text[: header.start()].strip(), header[1].lower())
    for line in text[header.end() :].strip().split("\n")[1:]:
        if line.startswith("There is"):
            match = _EXIT.fullmatch(line)
            if match:
                state, door, way = match.groups()
                scene.exits[way] = "" if door == "exit" else door
                if state:
                    (scene.closed if state == "closed" else scene.opened).add(door)
        elif line.startswith("You see"):
            match = _FURNITURE.fullmatch(line)
            if match:
                state, name, items = match.groups()
                scene.places[name] = _items(items)
                if state:
                    (scene.closed if state == "closed" else scene.opened).add(name)
        elif line.startswith("On the floor you see "):
            scene.places["floor"] = _items(line.removeprefix("On the floor you see ").rstrip("."))
        elif line.startswith("You are carrying: "):
            items = _items(line.removeprefix("You are carrying: ").rstrip("."))
            scene.carried = {item.name: item for item in items}
    return scene


def room_of(text: str) -> str:
    """The room that an observation shows (ours or TextWorld's), empty where it shows none."""
    header = _ANY_ROOM.search(text)
    return header[1].lower() if header else ""


def read_recipe(text: str) -> Recipe | None:
    """The recipe, where the text shows the opened cookbook (ours or TextWorld's)."""
    start, middle = text.find("Ingredients:"), text.find("Directions:")
    if start < 0 or middle < start:
        return None
    ingredients = tuple(line.strip() for line in text[start:middle].split("\n")[1:] if line.strip())
    lines = text[middle:].split("\n")[1:]
    steps = []
    for line in lines:
        verb, the, food = line.strip().partition(" the ")
        if not the:
            break
        steps.append(Direction(verb, food))
    return Recipe(ingredients, tuple(steps))


def _items(listed: str | None) -> list[Item]:
    """`a knife, some salt and a sliced raw egg` -> three items"""
    return [_item(words) for words in re.split(r", | and ", listed)] if listed else []


def _item(words: str) -> Item:
    rest = words.split()[1:]
    cooking, cutting = RAW, UNCUT
    while rest and rest[0] in _ADJECTIVES:
        if rest[0] in CUTS.values():
            cutting = rest[0]
        else:
            cooking = rest[0]
        rest = rest[1:]
    return Item(" ".join(rest), cooking, cutting)
