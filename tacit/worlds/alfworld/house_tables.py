"""Tables for generated houses: what fits where, the goals of each family, and, from houses.toml, the furniture and belongings
of each room."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

# Abilities and fits follow the published domain, so that skills learned in generated houses transfer to published games.

_FOOD = "apple bread egg lettuce potato tomato"
_CROCKERY = "bowl cup mug plate"
_COOKWARE = "kettle pan pot"
_CUTLERY = "butterknife fork knife spatula spoon"
_SHAKERS = "peppershaker saltshaker"
_BOTTLES = "glassbottle winebottle"
_WASHING = "cloth dishsponge handtowel soapbar"
_TOILETRIES = f"{_WASHING} candle soapbottle spraybottle tissuebox toiletpaper"
_POCKET = "cellphone creditcard keychain"
_WRITING = "book pen pencil"
_ORNAMENTS = "statue vase"
_SEAT = f"{_POCKET} book box laptop newspaper pillow remotecontrol"
_SPORTS = "baseballbat basketball tennisracket"
_DESKTOP = f"{_POCKET} {_WRITING} {_ORNAMENTS} alarmclock bowl box cd laptop mug remotecontrol tissuebox watch wateringcan"
_KITCHENWARE = f"{_FOOD} {_CROCKERY} {_COOKWARE} {_CUTLERY} {_SHAKERS} winebottle"

FITS: Mapping[str, frozenset[str]] = {
    receptacle: frozenset(kinds.split())
    for receptacle, kinds in {
        "armchair": f"{_SEAT} cloth",
        "bathtubbasin": _WASHING,
        "bed": f"{_SPORTS} book cellphone laptop pillow",
        "cabinet": f"{_CROCKERY} {_COOKWARE} {_SHAKERS} {_BOTTLES} {_TOILETRIES} book box cd ladle newspaper plunger vase "
        "wateringcan",
        "cart": f"{_TOILETRIES} plunger",
        "coffeemachine": "mug",
        "coffeetable": f"{_POCKET} {_WRITING} {_ORNAMENTS} bowl box candle laptop newspaper plate remotecontrol tissuebox "
        "watch wateringcan",
        "countertop": f"{_KITCHENWARE} {_POCKET} {_WRITING} {_ORNAMENTS} {_TOILETRIES} alarmclock cd glassbottle ladle "
        "laptop remotecontrol",
        "desk": f"{_DESKTOP} basketball cloth tennisracket",
        "diningtable": f"{_KITCHENWARE} {_DESKTOP} {_SPORTS} candle cloth dishsponge glassbottle ladle newspaper "
        "soapbottle spraybottle",
        "drawer": f"{_CUTLERY} {_SHAKERS} {_POCKET} {_WRITING} {_TOILETRIES} cd ladle newspaper remotecontrol watch "
        "wateringcan",
        "dresser": f"{_DESKTOP} basketball candle cloth newspaper plate spraybottle tennisracket toiletpaper",
        "fridge": f"{_FOOD} {_CROCKERY} {_BOTTLES} pan pot",
        "garbagecan": f"{_FOOD} {_WASHING} cd newspaper pen pencil soapbottle spraybottle tissuebox toiletpaper winebottle",
        "handtowelholder": "handtowel",
        "laundryhamper": "cloth",
        "microwave": f"{_CROCKERY} apple bread egg glassbottle potato tomato",
        "ottoman": _SEAT,
        "safe": f"{_POCKET} {_ORNAMENTS} cd",
        "shelf": f"{_CROCKERY} {_SHAKERS} {_BOTTLES} {_TOILETRIES} {_POCKET} {_WRITING} {_ORNAMENTS} alarmclock box cd kettle "
        "newspaper pot remotecontrol watch wateringcan",
        "sidetable": f"{_KITCHENWARE} {_DESKTOP} {_SPORTS} {_TOILETRIES} newspaper",
        "sinkbasin": f"{_CROCKERY} {_COOKWARE} {_CUTLERY} {_WASHING} apple egg glassbottle ladle lettuce potato tomato",
        "sofa": _SEAT,
        "stoveburner": _COOKWARE,
        "toilet": _TOILETRIES,
        "toiletpaperhanger": "toiletpaper",
        "towelholder": "towel",
        "tvstand": "tissuebox",
    }.items()
}
"""receptacle kind -> the kinds of object that may be put there"""

_ABLE = {
    "cleanable": f"{_CROCKERY} {_COOKWARE} {_CUTLERY} apple cloth dishsponge egg ladle lettuce potato soapbar tomato",
    "heatable": "apple bread cup egg mug plate potato tomato",
    "coolable": f"{_FOOD} {_CROCKERY} pan pot winebottle",
    "sliceable": _FOOD,
    "toggleable": "desklamp",
    "vessel": f"{_CROCKERY} box pan pot",
}
_STANDING = "desklamp houseplant television"  # objects that cannot be taken

CAPACITY: Mapping[str, int] = {
    **dict.fromkeys(["coffeemachine", "handtowelholder", "stoveburner", "toiletpaperhanger", "towelholder"], 1),
    **dict.fromkeys(["laundryhamper", "microwave", "safe"], 2),
    **dict.fromkeys(["armchair", "bathtubbasin", "drawer", "garbagecan", "ottoman"], 3),
    **dict.fromkeys(["cabinet", "cart", "shelf", "sinkbasin", "toilet", "tvstand"], 4),
    **dict.fromkeys(["bed", "sidetable", "sofa"], 6),
    **dict.fromkeys(["coffeetable", "desk", "dresser", "fridge"], 8),
    **dict.fromkeys(["countertop", "diningtable"], 12),
    "toaster": 0,
}
"""how many things a receptacle starts with at most; an agent may put more"""
OPENABLE: Mapping[str, float] = {"cabinet": 0.85, "drawer": 0.85, "fridge": 1.0, "microwave": 1.0, "safe": 0.85}
"""the chance that one of these has a door (all start closed); the others stand open"""
SIDE_BY_SIDE = ("cabinet", "drawer", "shelf", "stoveburner")  # kinds of which two neighbours may be faced at once
LAMP = "desklamp"
SMALL = frozenset(f"{_CUTLERY} ladle pen pencil creditcard keychain".split())  # what may be seen lying in a vessel
_PUT = frozenset(FITS) - {"bathtubbasin", "handtowelholder", "laundryhamper", "sinkbasin", "towelholder", "tvstand"}
TARGETS: Mapping[str, frozenset[str]] = {
    "pick": _PUT,
    "pick2": _PUT - {kind for kind, most in CAPACITY.items() if most < 2},
    "clean": _PUT,
    "heat": _PUT - {"microwave"},
    "cool": _PUT - {"fridge"},
    "look": frozenset({LAMP}),
}
"""family -> where its goals may want things put; for `look`, what to look under"""
ROOMS_OF_FAMILY: Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    **dict.fromkeys(("pick", "pick2"), (("kitchen", "bedroom", "bathroom", "livingroom"), (1, 1, 1, 1))),
    "look": (("bedroom", "livingroom"), (3, 1)),
    "clean": (("kitchen", "bathroom"), (3, 1)),
    **dict.fromkeys(("heat", "cool"), (("kitchen",), (1,))),
}
"""family -> rooms it is played in, and their weights"""
SENTENCES: Mapping[str, tuple[str, str]] = {
    "pick": ("put a {kind} in {target}.", "put some {kind} on {target}."),
    "look": ("look at {kind} under the {target}.", "examine the {kind} with the {target}."),
    "clean": ("put a clean {kind} in {target}.", "clean some {kind} and put it in {target}."),
    "heat": ("put a hot {kind} in {target}.", "heat some {kind} and put it in {target}."),
    "cool": ("put a cool {kind} in {target}.", "cool some {kind} and put it in {target}."),
    "pick2": ("put two {kind} in {target}.", "find two {kind} and put them in {target}."),
}
"""family -> its two goal templates in published games"""


def fits(receptacle: str, kind: str) -> bool:
    return kind in FITS.get(receptacle, ())


@cache
def traits(kind: str) -> frozenset[str]:
    """What a kind of object can be or have done to it."""
    found = {trait for trait, kinds in _ABLE.items() if kind in kinds.split()}
    return frozenset(found if kind in _STANDING.split() else found | {"pickupable"})


SELDOM = 0.5  # weight of a place that a thing fits but that its row does not name


@dataclass(frozen=True)
class Amount:
    """How often a room has a kind, and how many of it then."""

    chance: float
    fewest: int
    most: int
    places: Mapping[str, float] = field(default_factory=dict)  # of an object: receptacle kind -> weight


@dataclass(frozen=True)
class Room:
    furniture: Mapping[str, Amount]
    belongings: Mapping[str, Amount]


def _weights(listed: str) -> dict[str, float]:
    return {place: float(weight) for place, weight in (part.split() for part in listed.split(","))}


def _room(furniture: Mapping[str, list], belongings: Mapping[str, list]) -> Room:
    things: dict[str, Amount] = {}
    for kind, (chance, fewest, most, listed) in belongings.items():
        places = _weights(listed)
        if "pickupable" in traits(kind):
            places |= {place: SELDOM for place in sorted(furniture) if fits(place, kind) and place not in places}
        things[kind] = Amount(chance, fewest, most, places)
    return Room({kind: Amount(*row) for kind, row in furniture.items()}, things)


_TABLES = tomllib.loads(Path(__file__).with_name("houses.toml").read_text(encoding="utf-8"))
ROOMS: Mapping[str, Room] = {name: _room(**tables) for name, tables in _TABLES["rooms"].items()}

# Common knowledge of houses, for experts.

PLACES: Mapping[str, Mapping[str, float]] = {thing: _weights(listed) for thing, listed in _TABLES["likelihood"].items()}
OPENED_KINDS = frozenset(OPENABLE)  # usually closed, so that looking inside takes one more step
UNLIKELY = 0.5  # for places that the table does not list
_ANYWHERE: Mapping[str, float] = {
    place: sum(row.get(place, UNLIKELY) for row in PLACES.values()) / len(PLACES)
    for place in sorted({place for row in PLACES.values() for place in row})
}
"""for object kinds that are not in the table: the average row"""


def likelihood(thing: str, receptacle: str) -> float:
    """The probability, in percent, that a receptacle of this kind holds an object of that kind."""
    return PLACES.get(thing, _ANYWHERE).get(receptacle, UNLIKELY)
