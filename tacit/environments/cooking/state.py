"""The state of one cooking game, and how it is put into words. What commands do to it is in `world.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from tacit.environments.cooking.things import (
    BURNED,
    COOKING_VERBS,
    CUTS,
    CUTTING_VERBS,
    FOODS,
    FURNITURE,
    HEAT,
    MEAL,
    RAW,
    TOOLS,
    UNCUT,
    Food,
    with_article,
)

FLOOR, CARRIED, GONE = "floor", "carried", "gone"
_ENTRANCES = (
    "You are in the {room}.",
    "You've entered a {room}.",
    "You arrive in a {room}. An ordinary one.",
    "Well, here we are in the {room}.",
    "You find yourself in a {room}.",
)


class Game:
    """Where everything is. A place is a piece of furniture, `carried`, `floor <room>` or `gone`."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        house = data["house"]
        self.room: str = data["start"]
        self.exits: dict[str, dict[str, tuple[str, str]]] = {
            room: {way: (to, door) for way, (to, door) in spec["exits"].items()} for room, spec in house.items()
        }
        self.furniture: dict[str, tuple[str, ...]] = {room: tuple(spec["furniture"]) for room, spec in house.items()}
        self.recipe: list[tuple[str, str, str]] = [(food, cook, cut) for food, cook, cut in data["recipe"]]
        self.opened: set[str] = set()
        """containers and doors"""
        self.where: dict[str, str] = {"meal": GONE}
        self.content: dict[str, list[str]] = {CARRIED: []}
        self.cooking: dict[str, str] = {"meal": RAW}
        self.cutting: dict[str, str] = {"meal": UNCUT}
        for name, place, cooking, cutting in data["items"]:
            self.where[name] = place
            self.content.setdefault(place, []).append(name)
            if cooking:
                self.cooking[name], self.cutting[name] = cooking, cutting
        self._entrance = {
            room: _ENTRANCES[(data["flavour"] + i) % len(_ENTRANCES)].format(room=room) for i, room in enumerate(house)
        }
        self.reached: set[tuple[str, str]] = set()
        """subgoals, as (what was done, to what)"""
        self.max_points = 2 + len(self.recipe) * (1 + bool(data["cook"])) + self._cuts_wanted()

    def _cuts_wanted(self) -> int:
        return sum(self.cutting[food] != cutting for food, _, cutting in self.recipe)

    @property
    def ingredients(self) -> list[str]:
        return [food for food, _, _ in self.recipe]

    @property
    def carried(self) -> list[str]:
        return self.content[CARRIED]

    def doors(self) -> dict[str, str]:
        """Doors of this room, with their directions."""
        return {door: way for way, (_, door) in self.exits[self.room].items() if door}

    def food(self, name: str) -> Food | None:
        return MEAL if name == "meal" else FOODS.get(name)

    def edible(self, name: str) -> bool:
        food = self.food(name)
        if food is None or not food.edible or self.cooking[name] == BURNED:
            return False
        return not (food.needs_cooking and self.cooking[name] == RAW)

    def move(self, name: str, place: str) -> None:
        old = self.content.get(self.where[name])
        if old is not None and name in old:
            old.remove(name)
        self.where[name] = place
        if place != GONE:
            self.content.setdefault(place, []).append(name)

    def places_here(self) -> Iterator[str]:
        """Where things within reach can lie in this room."""
        for name in self.furniture[self.room]:
            thing = FURNITURE[name]
            if thing.holds and (not thing.container or name in self.opened):
                yield name
        yield f"{FLOOR} {self.room}"

    def within_reach(self, name: str) -> bool:
        place = self.where.get(name, GONE)
        return place == CARRIED or place in self.places_here()

    def named(self, name: str) -> str:
        """`a sliced fried pork chop`"""
        return _named(name, self.cooking.get(name, RAW), self.cutting.get(name, UNCUT))

    def listed(self, names: Sequence[str]) -> str:
        """`a knife, an egg and a lettuce`"""
        *first, last = [self.named(name) for name in names]
        return f"{', '.join(first)} and {last}" if first else last

    def describe(self) -> str:
        """The room as it is now, and what is carried."""
        lines = [f"-= {self.room.capitalize()} =-", self._entrance[self.room]]
        for name in self.furniture[self.room]:
            thing, inside = FURNITURE[name], self.content.get(name)
            if not thing.container:
                seen = f"You see {with_article(name)}."
            elif name in self.opened:
                seen = f"You see an open {name}."
            else:
                lines.append(f"You see a closed {name}.")
                continue
            if inside:
                seen += f" {'In' if thing.container else 'On'} the {name} you see {self.listed(inside)}."
            elif thing.holds:
                seen += f" The {name} is empty."
            lines.append(seen)
        on_floor = self.content.get(f"{FLOOR} {self.room}")
        if on_floor:
            lines.append(f"On the floor you see {self.listed(on_floor)}.")
        for way, (_, door) in self.exits[self.room].items():
            if door:
                state = "an open" if door in self.opened else "a closed"
                lines.append(f"There is {state} {door} to the {way}.")
            else:
                lines.append(f"There is an exit to the {way}.")
        lines.append(f"You are carrying: {self.listed(self.carried)}." if self.carried else "You are carrying nothing.")
        return "\n".join(lines)

    def cookbook(self) -> str:
        directions = []
        for food, cooking, cutting in self.recipe:
            if cutting != UNCUT:
                directions.append(f"  {CUTTING_VERBS[cutting]} the {food}")
            if cooking != RAW:
                directions.append(f"  {COOKING_VERBS[cooking]} the {food}")
        ingredients = [f"  {food}" for food in self.ingredients]
        return "\n".join(
            [
                "You open the cookbook and start reading:",
                "Recipe #1",
                "Gather all following ingredients and follow the directions to prepare this tasty meal.",
                "Ingredients:",
                *ingredients,
                "Directions:",
                *directions,
                "  prepare meal",
            ]
        )

    def admissible(self) -> tuple[str, ...]:
        """Every command that would do something now, sorted. As in TextWorld, `prepare meal` is listed once all ingredients
        are carried, and refused while one of them is not as the recipe wants it."""
        here, carried = self.furniture[self.room], self.carried
        commands = ["inventory", "look"]
        for name in here:
            commands.append(f"examine {name}")
            if FURNITURE[name].container:
                commands.append(f"close {name}" if name in self.opened else f"open {name}")
        for way, (_, door) in self.exits[self.room].items():
            if door:
                commands.append(f"close {door}" if door in self.opened else f"open {door}")
            if not door or door in self.opened:
                commands.append(f"go {way}")
        stores = list(self.places_here())[:-1]
        for name in stores:
            for item in self.content.get(name, ()):
                commands += (f"examine {item}", f"take {item} from {name}")
        for item in self.content.get(f"{FLOOR} {self.room}", ()):
            commands += (f"examine {item}", f"take {item}")
        heats = [name for name in here if name in HEAT]
        for item in carried:
            commands += (f"drop {item}", f"examine {item}")
            commands += [
                f"insert {item} into {store}" if FURNITURE[store].container else f"put {item} on {store}" for store in stores
            ]
            food = self.food(item)
            if food is None:
                continue
            if self.edible(item):
                commands.append(f"eat {item}")
            if food.cookable and self.cooking[item] != BURNED:
                commands += [f"cook {item} with {heat}" for heat in heats]
            if food.cuttable and item != "meal" and self.cutting[item] == UNCUT and "knife" in carried:
                commands += [f"{verb} {item} with knife" for verb in CUTS]
        if self.room == "kitchen" and all(self.where[food] == CARRIED for food in self.ingredients):
            commands.append("prepare meal")
        return tuple(sorted(commands))


@lru_cache(maxsize=4096)
def _named(name: str, cooking: str, cutting: str) -> str:
    words = [cutting] if cutting != UNCUT else []
    food = FOODS.get(name)
    if cooking != RAW or (food is not None and food.needs_cooking):
        words.append(cooking)
    described = " ".join([*words, name])
    return f"some {described}" if food is not None and food.uncountable else with_article(described)


def is_thing(name: str) -> bool:
    return name in FOODS or name in FURNITURE or name in TOOLS or name == "meal"
