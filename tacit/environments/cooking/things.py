"""What there is in the house: foods and what can be done to them, furniture, rooms, doors."""

from __future__ import annotations

from dataclasses import dataclass

RAW, BURNED, UNCUT = "raw", "burned", "uncut"
HEAT = {"stove": "fried", "oven": "roasted", "BBQ": "grilled"}
"""what each source of heat makes of food"""
COOKED = tuple(HEAT.values())
CUTS = {"chop": "chopped", "slice": "sliced", "dice": "diced"}
COOKING_VERBS = {"fried": "fry", "roasted": "roast", "grilled": "grill"}
CUTTING_VERBS = {done: verb for verb, done in CUTS.items()}
DIRECTIONS = {"north": "south", "south": "north", "east": "west", "west": "east"}
"""each with its opposite"""


@dataclass(frozen=True)
class Food:
    name: str
    places: tuple[str, ...]
    """furniture it may be found in or on"""
    cookable: bool = True
    needs_cooking: bool = False
    """inedible while raw, so no recipe wants it raw"""
    cuttable: bool = True
    edible: bool = True
    """once cooked, where it needs cooking"""
    uncountable: bool = False
    """some salt, a carrot"""


@dataclass(frozen=True)
class Furniture:
    room: str
    container: bool = False
    """holds things inside and can be closed; otherwise it carries them on top"""
    holds: bool = True


def _foods() -> dict[str, Food]:
    def several(names: str, places: str, **properties) -> list[Food]:
        listed = (name.strip() for name in names.split(","))
        return [Food(name, tuple(places.split(", ")), **properties) for name in listed]

    plain: dict = {"cookable": False, "cuttable": False, "uncountable": True}
    foods = [
        *several("egg, chicken wing, chicken leg, chicken breast", "fridge", needs_cooking=True, cuttable=False),
        *several("pork chop, red tuna, white tuna", "fridge", needs_cooking=True),
        *several("red potato, yellow potato, purple potato", "counter, shelf", needs_cooking=True),
        *several("carrot, lettuce, red bell pepper, yellow bell pepper", "fridge, counter"),
        *several("green bell pepper, orange bell pepper, block of cheese", "fridge, table"),
        *several("red onion, white onion, yellow onion", "fridge, shelf"),
        *several("red apple, yellow apple, green apple, banana", "counter, table, patio table"),
        *several("tomato, red hot pepper, green hot pepper", "counter, patio table, shelf"),
        *several("cilantro, parsley", "fridge, counter", cookable=False, uncountable=True),
        *several("milk, water", "fridge", edible=False, **plain),
        *several("olive oil, peanut oil, vegetable oil", "shelf, counter", edible=False, **plain),
        *several("salt, sugar, flour, black pepper", "shelf, counter", **plain),
    ]
    return {food.name: food for food in foods}


def with_article(words: str) -> str:
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


FOODS = _foods()
MEAL = Food("meal", ())
TOOLS = ("cookbook", "knife")

FURNITURE = {
    "fridge": Furniture("kitchen", container=True),
    "oven": Furniture("kitchen", container=True),
    "table": Furniture("kitchen"),
    "counter": Furniture("kitchen"),
    "stove": Furniture("kitchen"),
    "shelf": Furniture("pantry"),
    "sofa": Furniture("livingroom"),
    "bed": Furniture("bedroom"),
    "toilet": Furniture("bathroom"),
    "BBQ": Furniture("backyard", holds=False),
    "patio table": Furniture("backyard"),
    "patio chair": Furniture("backyard"),
}

NEIGHBOURS = {
    "kitchen": ("livingroom", "backyard", "corridor", "pantry"),
    "pantry": ("kitchen",),
    "livingroom": ("kitchen", "bedroom", "corridor"),
    "bathroom": ("corridor",),
    "bedroom": ("livingroom", "corridor"),
    "backyard": ("kitchen", "corridor"),
    "corridor": ("livingroom", "kitchen", "bedroom", "bathroom", "backyard"),
}

DOORS = {
    frozenset(("kitchen", "pantry")): ("frosted-glass door", "plain door"),
    frozenset(("kitchen", "backyard")): ("sliding patio door", "screen door"),
    frozenset(("corridor", "backyard")): ("patio door", "wooden door"),
}
