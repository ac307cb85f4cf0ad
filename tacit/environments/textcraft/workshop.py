"""The workshop: a recipe book of our own, so that nothing has to be downloaded. Wood, metal, stone, wool, glass and paint,
made into nearly five hundred things that lie two to four recipes deep.

A line reads `4 ash_boards [boards] = 1 ash_log`: how many of what, of which kind, of which ingredients; `#boards` is
anything of that kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from tacit.environments.textcraft.book import NAMESPACE, Book, Ingredient, Recipe, bind

WOODS = ("ash", "beech", "elm", "larch", "pine", "walnut")
METALS = ("brass", "copper", "iron", "tin")
STONES = ("basalt", "granite", "marble", "slate")
COLOURS = {"black": "charcoal", "blue": "woad", "green": "nettle", "red": "madder", "white": "chalk", "yellow": "saffron"}
"""colour -> what its dye is made of"""

ANYWAY = """
3 peg = 1 twig
4 thread = 1 fleece
2 rope = 3 thread
1 cloth = 4 thread
2 wax = 1 honeycomb
4 candle = 1 wax, 1 thread
1 glass = 2 sand, 1 coal
3 bottle = 2 glass
1 lens = 1 glass, 1 sand
2 glue = 1 hide, 1 water
2 glue = 1 resin, 1 water
2 ink = 1 #dye, 1 water
4 torch = 1 #boards, 1 wax
1 easel = 2 #boards, 3 peg
1 palette = 1 #boards, 1 red_paint, 1 white_paint
1 letter = 1 parchment, 1 ink
1 parchment = 1 hide, 1 chalk
1 spyglass = 2 lens, 1 #sheet
1 rope_ladder = 2 rope, 3 peg
1 kite = 1 cloth, 2 peg, 1 rope
1 sail = 3 cloth, 1 rope
1 oil_lamp = 1 bottle, 1 oil, 1 thread
"""
OF_WOOD = """
4 {w}_boards [boards] = 1 {w}_log
2 {w}_leg = 1 {w}_boards
2 {w}_frame = 4 {w}_boards
1 {w}_shelf = 3 {w}_boards
1 {w}_handle [handle] = 1 {w}_boards, 1 sandpaper
1 {w}_barrel = 5 {w}_boards, 2 #ring
1 {w}_stool = 1 {w}_boards, 3 {w}_leg
1 {w}_table = 2 {w}_boards, 4 {w}_leg
1 {w}_chair = 2 {w}_boards, 4 {w}_leg, 2 peg
1 {w}_box = 4 {w}_boards, 2 glue
1 {w}_cabinet = 1 {w}_box, 2 {w}_shelf
1 {w}_crate = 1 {w}_frame, 4 #nail
1 {w}_desk = 1 {w}_table, 1 {w}_box
1 {w}_ladder = 2 {w}_frame, 6 peg
"""
OF_METAL = """
1 {m}_bar = 2 {m}_ore, 1 coal
2 {m}_rod = 1 {m}_bar
4 {m}_nail [nail] = 1 {m}_bar
1 {m}_sheet [sheet] = 2 {m}_bar
3 {m}_ring [ring] = 1 {m}_bar
1 {m}_chain = 4 {m}_ring
2 {m}_hinge = 1 {m}_sheet, 2 {m}_nail
1 {m}_bucket = 2 {m}_sheet, 1 {m}_rod
1 {m}_bell = 1 {m}_sheet, 1 {m}_ring
1 {m}_hammer = 2 {m}_bar, 1 #handle
1 {m}_shovel = 1 {m}_sheet, 1 #handle
1 {m}_lantern = 1 {m}_chain, 1 {m}_sheet, 1 candle
1 {m}_gate = 4 {m}_rod, 2 {m}_hinge
1 {m}_alarm = 1 {m}_bell, 1 {m}_chain
"""
OF_STONE = """
2 {s}_brick = 1 {s}_rock
3 {s}_tile = 2 {s}_brick
1 {s}_wall = 4 {s}_brick
2 {s}_pillar = 3 {s}_brick, 1 mortar
1 {s}_arch = 2 {s}_pillar, 1 {s}_wall
1 {s}_hearth = 1 {s}_wall, 1 #sheet
1 {s}_floor = 6 {s}_tile, 1 mortar
1 {s}_temple = 1 {s}_arch, 1 {s}_floor
1 {s}_oven = 1 {s}_hearth, 2 {s}_tile
"""
OF_COLOUR = """
2 {c}_dye [dye] = 1 {d}
2 {c}_paint = 1 {c}_dye, 1 oil
1 {c}_cloth = 1 cloth, 1 {c}_dye
4 {c}_candle = 1 wax, 1 {c}_dye, 1 thread
1 {c}_glass = 1 glass, 1 {c}_dye
1 {c}_flag = 1 {c}_cloth, 1 rope
1 {c}_cushion = 2 {c}_cloth, 3 feather
1 {c}_tent = 3 {c}_cloth, 2 rope, 4 peg
3 {c}_pane = 1 {c}_glass, 1 sandpaper
1 {c}_vase = 2 {c}_glass, 1 {c}_paint
"""
OF_WOOD_AND_COLOUR = """
1 {c}_{w}_box = 1 {w}_box, 1 {c}_paint
1 {c}_{w}_stool = 1 {w}_stool, 1 {c}_paint
1 {c}_{w}_chair = 1 {w}_chair, 1 {c}_cloth
1 {c}_{w}_window = 1 {w}_frame, 2 {c}_pane
"""
OF_WOOD_AND_METAL = """
1 {m}_{w}_door = 3 {w}_boards, 2 {m}_hinge
1 {m}_{w}_chest = 1 {w}_box, 1 {m}_hinge
1 {m}_{w}_cart = 1 {w}_crate, 2 {m}_rod
"""

_LINE = re.compile(r"(\d+) (\w+)(?: \[(\w+)\])? = (.+)")


@lru_cache(maxsize=1)
def workshop() -> Book:
    return bind(sorted(map(_recipe, _lines()), key=lambda recipe: recipe.text))


def _lines() -> Iterator[str]:
    yield from _filled(ANYWAY)
    for wood in WOODS:
        yield from _filled(OF_WOOD, w=wood)
        for metal in METALS:
            yield from _filled(OF_WOOD_AND_METAL, w=wood, m=metal)
        for colour in COLOURS:
            yield from _filled(OF_WOOD_AND_COLOUR, w=wood, c=colour)
    for metal in METALS:
        yield from _filled(OF_METAL, m=metal)
    for stone in STONES:
        yield from _filled(OF_STONE, s=stone)
    for colour, source in COLOURS.items():
        yield from _filled(OF_COLOUR, c=colour, d=source)


def _filled(lines: str, **names: str) -> list[str]:
    return lines.format(**names).strip().split("\n")


def _recipe(line: str) -> Recipe:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"not a line of the workshop: {line!r}")
    count, item, kind, listed = match.groups()
    parts = (part.split(" ") for part in listed.split(", "))
    of = tuple(Ingredient(NAMESPACE + name.removeprefix("#"), int(number), name.startswith("#")) for number, name in parts)
    return Recipe(NAMESPACE + item, int(count), of, NAMESPACE + kind if kind else "")
