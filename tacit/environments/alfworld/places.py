"""Where things usually are: what anyone knows of a house before opening its first drawer.

For each kind of object, the chance in percent that one receptacle of a kind holds one, in a house that has both. The
figures are how often that is so in the published training games, rounded, with a few guesses of our own for what those
never show. So a score on those games is a score on the games the table was made from; others are the fair measure.
"""

from __future__ import annotations

from collections.abc import Mapping

OPENED_KINDS = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
"""usually closed, so that a look inside takes one step more"""

UNLIKELY = 0.5
"""of a place that the table does not name: looked at last"""

_TABLE = """
alarmclock: diningtable 70, desk 55, dresser 50, countertop 45, sidetable 35, shelf 11, tvstand 10, coffeetable 10
apple: fridge 41, diningtable 34, sidetable 31, microwave 24, garbagecan 23, countertop 20, sinkbasin 17
baseballbat: bed 30, sidetable 10, diningtable 10
basketball: bed 20, dresser 20, desk 15, sidetable 10, diningtable 10, armchair 10
book: bed 60, coffeetable 50, desk 40, diningtable 33, countertop 30, sofa 24, dresser 23, armchair 13, tvstand 8,
 sidetable 8, ottoman 8, cabinet 3, drawer 3, shelf 2
bowl: desk 78, coffeetable 43, fridge 33, diningtable 33, dresser 32, tvstand 28, countertop 16, shelf 9, sidetable 7,
 sinkbasin 6, microwave 5, cabinet 5
box: diningtable 58, desk 55, coffeetable 31, sofa 25, dresser 10, ottoman 10, tvstand 9, sidetable 6, cabinet 5,
 shelf 5, armchair 3
bread: diningtable 50, countertop 33, fridge 17, sidetable 9, garbagecan 1, microwave 1
butterknife: diningtable 50, countertop 39, sidetable 27, sinkbasin 10, drawer 3
candle: sidetable 60, countertop 46, toilet 45, coffeetable 39, cart 35, tvstand 33, diningtable 30, dresser 27, shelf 22,
 cabinet 13, drawer 9
cd: diningtable 60, dresser 41, desk 40, sidetable 27, garbagecan 15, armchair 11, drawer 9, cabinet 8, safe 7, shelf 5
cellphone: bed 41, desk 40, diningtable 40, coffeetable 36, ottoman 35, dresser 35, tvstand 30, countertop 27, sofa 25,
 safe 23, sidetable 19, armchair 17, drawer 5, shelf 5, cabinet 1
cloth: bathtubbasin 61, dresser 35, cart 33, countertop 27, cabinet 20, shelf 15, drawer 10, sinkbasin 9, toilet 6,
 sidetable 5, laundryhamper 3
creditcard: desk 39, dresser 36, diningtable 34, tvstand 32, sofa 31, countertop 28, coffeetable 27, sidetable 22,
 armchair 19, ottoman 19, shelf 10, drawer 9, safe 5
cup: fridge 35, diningtable 33, sidetable 28, sinkbasin 17, countertop 17, microwave 14, shelf 6, cabinet 3
desklamp: sidetable 42, desk 40, dresser 36, coffeetable 16, shelf 4, diningtable 3
dishsponge: bathtubbasin 40, cart 30, diningtable 29, countertop 21, toilet 15, sinkbasin 15, sidetable 13, garbagecan 10,
 shelf 10, drawer 7, cabinet 3
egg: fridge 40, diningtable 27, sidetable 26, garbagecan 23, sinkbasin 22, microwave 21, countertop 19
fork: diningtable 47, countertop 32, sidetable 25, sinkbasin 16, drawer 7
glassbottle: diningtable 37, countertop 18, sinkbasin 17, fridge 15, garbagecan 14, shelf 8, cabinet 4
handtowel: handtowelholder 80, countertop 5, sinkbasin 2, cabinet 2
kettle: diningtable 23, stoveburner 17, countertop 16, cabinet 3, sinkbasin 3, shelf 1
keychain: desk 40, safe 38, dresser 36, coffeetable 31, diningtable 30, tvstand 29, sidetable 23, ottoman 20, sofa 16,
 armchair 12, drawer 8, shelf 8, countertop 6, cabinet 2
knife: diningtable 48, countertop 34, sidetable 14, sinkbasin 8, drawer 6
ladle: diningtable 51, countertop 30, sinkbasin 4, drawer 4, cabinet 4
laptop: bed 70, countertop 48, diningtable 40, desk 36, coffeetable 31, sofa 31, tvstand 17, dresser 17, ottoman 14,
 armchair 5, sidetable 3
lettuce: diningtable 50, fridge 35, countertop 27, sidetable 24, sinkbasin 9, garbagecan 2
mug: desk 63, coffeemachine 39, dresser 37, diningtable 29, fridge 26, sidetable 26, countertop 25, microwave 15,
 sinkbasin 13, shelf 7, cabinet 3
newspaper: diningtable 44, dresser 40, coffeetable 28, sofa 28, ottoman 25, sidetable 14, armchair 12, tvstand 12,
 shelf 11, drawer 1, garbagecan 1
pan: countertop 25, stoveburner 22, diningtable 10, fridge 7, cabinet 1
papertowelroll: diningtable 41, toilet 31, cart 26, sidetable 23, countertop 22, garbagecan 15, shelf 11
pen: desk 58, diningtable 57, coffeetable 50, dresser 47, countertop 29, sidetable 28, tvstand 23, shelf 10, drawer 6,
 garbagecan 5
pencil: diningtable 49, desk 49, coffeetable 42, dresser 37, sidetable 34, countertop 25, tvstand 16, shelf 11,
 garbagecan 10, drawer 6
peppershaker: sidetable 36, diningtable 36, countertop 24, shelf 10, drawer 5, cabinet 5
pillow: bed 92, sofa 70, armchair 14, ottoman 2
plate: diningtable 37, coffeetable 27, countertop 21, tvstand 18, fridge 15, dresser 10, sidetable 9, shelf 6, cabinet 5,
 sinkbasin 4, microwave 1
plunger: toilet 10, cabinet 3, cart 3
pot: stoveburner 33, countertop 11, diningtable 10, fridge 7, shelf 1, sinkbasin 1, cabinet 1
potato: fridge 41, diningtable 35, countertop 22, sidetable 21, sinkbasin 20, microwave 19, garbagecan 12
remotecontrol: countertop 52, desk 52, coffeetable 38, dresser 35, tvstand 34, diningtable 32, sofa 26, ottoman 19,
 sidetable 15, armchair 11, drawer 4, shelf 3
saltshaker: diningtable 38, sidetable 36, countertop 24, shelf 9, cabinet 5, drawer 4
soapbar: sidetable 47, countertop 34, bathtubbasin 32, cart 28, toilet 28, sinkbasin 19, shelf 15, garbagecan 13,
 cabinet 12, drawer 8
soapbottle: diningtable 44, dresser 42, toilet 38, countertop 27, sidetable 25, cart 24, garbagecan 18, shelf 15,
 cabinet 5, drawer 1
spatula: diningtable 48, countertop 32, sinkbasin 15, sidetable 10, drawer 7
spoon: diningtable 43, sidetable 30, countertop 28, sinkbasin 20, drawer 9
spraybottle: sidetable 62, cart 54, toilet 43, countertop 40, dresser 34, diningtable 33, shelf 20, garbagecan 20,
 cabinet 8, drawer 1
statue: coffeetable 45, desk 44, diningtable 44, dresser 37, tvstand 37, countertop 28, sidetable 23, shelf 19, safe 3
teddybear: bed 80, sofa 20, armchair 15, dresser 5
tennisracket: bed 20, dresser 15, desk 15, sidetable 10, diningtable 10
tissuebox: coffeetable 57, desk 54, countertop 54, diningtable 39, cart 37, tvstand 29, shelf 22, sidetable 20,
 dresser 17, cabinet 10, drawer 6, toilet 5, garbagecan 1
toiletpaper: toilet 42, sidetable 37, countertop 37, dresser 36, cart 34, toiletpaperhanger 23, shelf 19, garbagecan 18,
 cabinet 11, drawer 8, bathtubbasin 1
tomato: fridge 51, diningtable 41, sidetable 26, countertop 23, garbagecan 18, sinkbasin 12, microwave 5
towel: towelholder 87, bathtubbasin 5, countertop 3, toilet 3
vase: dresser 62, coffeetable 45, desk 40, diningtable 38, tvstand 31, countertop 27, sidetable 25, shelf 22, cabinet 6,
 safe 3
watch: tvstand 45, desk 44, diningtable 42, dresser 38, coffeetable 37, sidetable 22, drawer 9, shelf 5, safe 5
wateringcan: coffeetable 54, shelf 21, sidetable 14, diningtable 10, desk 10, dresser 10, cabinet 3, drawer 1
winebottle: diningtable 48, countertop 32, garbagecan 16, shelf 6, cabinet 3, fridge 3, sidetable 2
"""


def _read(table: str) -> dict[str, dict[str, float]]:
    rows: dict[str, dict[str, float]] = {}
    for line in table.replace("\n ", " ").strip().splitlines():
        thing, _, places = line.partition(": ")
        rows[thing] = {place: float(chance) for place, chance in (entry.split() for entry in places.split(","))}
    return rows


PLACES: Mapping[str, Mapping[str, float]] = _read(_TABLE)

_ANYWHERE: Mapping[str, float] = {
    place: sum(row.get(place, UNLIKELY) for row in PLACES.values()) / len(PLACES)
    for place in sorted({place for row in PLACES.values() for place in row})
}
"""for an object that the table does not know: what is true of the average one"""


def chance(thing: str, receptacle: str) -> float:
    """That a receptacle of this kind holds a thing of that kind, in percent."""
    return PLACES.get(thing, _ANYWHERE).get(receptacle, UNLIKELY)
