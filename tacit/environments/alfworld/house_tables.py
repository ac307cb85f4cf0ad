"""Our own tables of households: which furniture a room has, what people keep in it, and where they usually leave it.

Everything that `floor_plans.py` and `houses.py` build comes from here. Rows are text, for people to read and edit:

    furniture    kind  chance  fewest-most
    belongings   kind  chance  fewest-most  place weight, place weight, …     the first place is the most usual
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tacit.environments.alfworld.house_rules import fits, traits

SELDOM = 0.5
"""weight of a place that a thing fits but that its row does not name"""


@dataclass(frozen=True)
class Amount:
    """How often a room has a kind, and how many of it then."""

    chance: float
    fewest: int
    most: int


@dataclass(frozen=True)
class Belonging(Amount):
    """A kind of object and where it lies: receptacle kind -> weight."""

    places: Mapping[str, float] = field(default_factory=dict)

    @property
    def usual(self) -> str:
        return next(iter(self.places))


@dataclass(frozen=True)
class Room:
    furniture: Mapping[str, Amount]
    belongings: Mapping[str, Belonging]


def _room(furniture: str, belongings: str) -> Room:
    amounts: dict[str, Amount] = {}
    for row in furniture.strip().splitlines():
        kind, chance, number = row.split()
        amounts[kind] = Amount(float(chance), *_span(number))
    things: dict[str, Belonging] = {}
    for row in belongings.strip().splitlines():
        kind, chance, number, listed = row.split(maxsplit=3)
        places = {place: float(weight) for place, weight in (part.split() for part in listed.split(","))}
        if "pickupable" in traits(kind):
            places |= {place: SELDOM for place in sorted(amounts) if fits(place, kind) and place not in places}
        things[kind] = Belonging(float(chance), *_span(number), places)
    return Room(amounts, things)


def _span(text: str) -> tuple[int, int]:
    fewest, _, most = text.partition("-")
    return int(fewest), int(most or fewest)


ROOMS: Mapping[str, Room] = {
    "kitchen": _room(
        """
        cabinet        1.00  4-22
        coffeemachine  1.00  1
        countertop     1.00  1-3
        diningtable    0.55  1-2
        drawer         1.00  2-14
        fridge         1.00  1
        garbagecan     1.00  1
        microwave      1.00  1
        shelf          0.25  1-3
        sidetable      0.20  1
        sinkbasin      1.00  1
        stoveburner    1.00  4
        toaster        1.00  1
        """,
        """
        apple          0.90  1-3  fridge 5, countertop 4, diningtable 3, sinkbasin 1
        bowl           0.95  1-3  cabinet 5, countertop 3, diningtable 2, fridge 2
        bread          0.85  1-2  countertop 6, diningtable 4, fridge 2
        butterknife    0.85  1-3  drawer 4, countertop 4, diningtable 3, sinkbasin 1
        cellphone      0.12  1-2  countertop 4, drawer 3, diningtable 2
        creditcard     0.10  1-2  countertop 4, drawer 3, shelf 2
        book           0.12  1-2  countertop 4, diningtable 2, shelf 2
        cup            0.95  1-3  cabinet 5, countertop 3, sinkbasin 2, diningtable 2
        dishsponge     0.90  1-3  sinkbasin 4, countertop 3, drawer 2, cabinet 2
        egg            0.90  1-3  fridge 6, countertop 3, diningtable 1, sinkbasin 1
        fork           0.95  1-3  drawer 4, countertop 3, diningtable 3, sinkbasin 2
        glassbottle    0.30  1-3  cabinet 4, countertop 3, fridge 2, diningtable 2
        houseplant     0.35  1    countertop 3, diningtable 1, shelf 1
        kettle         0.55  1-2  stoveburner 5, countertop 3, cabinet 2
        knife          0.95  1-3  countertop 5, drawer 4, diningtable 2, sinkbasin 1
        ladle          0.40  1-2  drawer 4, countertop 4, cabinet 2, diningtable 1
        lettuce        0.90  1-2  fridge 5, countertop 4, diningtable 3, sinkbasin 1
        mug            0.95  1-3  cabinet 4, countertop 4, coffeemachine 3, sinkbasin 1
        pan            0.95  1-2  stoveburner 6, countertop 3, cabinet 2
        pen            0.08  1-2  drawer 4, countertop 3, diningtable 2
        pencil         0.08  1-2  drawer 4, countertop 3, diningtable 2
        peppershaker   0.95  1-3  countertop 4, cabinet 3, drawer 2, diningtable 2
        plate          0.95  1-3  cabinet 6, countertop 3, diningtable 3, sinkbasin 1
        pot            0.95  1-2  stoveburner 7, countertop 2, cabinet 2
        potato         0.90  1-3  countertop 4, fridge 4, sinkbasin 2, diningtable 2
        saltshaker     0.95  1-3  countertop 4, cabinet 3, drawer 2, diningtable 2
        soapbottle     0.90  1-2  countertop 4, cabinet 4, garbagecan 1, diningtable 1
        spatula        0.95  1-3  drawer 4, countertop 4, diningtable 2, sinkbasin 1
        spoon          0.95  1-3  drawer 5, countertop 3, diningtable 2, sinkbasin 2
        spraybottle    0.10  1-2  cabinet 4, countertop 3, garbagecan 1
        statue         0.15  1-2  shelf 4, countertop 4, diningtable 1
        tomato         0.90  1-3  fridge 5, countertop 4, diningtable 3, sinkbasin 1
        vase           0.18  1-2  shelf 4, countertop 3, cabinet 3
        winebottle     0.40  1-2  cabinet 4, countertop 3, diningtable 3, fridge 2
        """,
    ),
    "bedroom": _room(
        """
        armchair       0.20  1-2
        bed            1.00  1-2
        cabinet        0.15  1-4
        desk           0.75  1-2
        diningtable    0.10  1
        drawer         0.95  2-12
        dresser        0.50  1
        garbagecan     1.00  1
        laundryhamper  0.30  1
        safe           0.20  1
        shelf          0.65  1-8
        sidetable      0.70  1-2
        """,
        """
        alarmclock     0.95  1-3  sidetable 5, desk 4, dresser 3, shelf 3
        baseballbat    0.10  1    bed 3
        basketball     0.10  1    desk 2, dresser 2
        book           0.95  1-3  bed 5, desk 4, shelf 3, drawer 2
        bowl           0.45  1-2  desk 4, shelf 3, dresser 2
        box            0.35  1    desk 4, shelf 4, dresser 2
        cd             0.95  1-3  drawer 4, desk 4, dresser 2, sidetable 2, shelf 2
        cellphone      0.95  1-3  bed 4, desk 3, sidetable 3, drawer 2, dresser 2
        cloth          0.25  1-2  laundryhamper 3, dresser 3, desk 2, cabinet 2
        creditcard     0.95  1-3  drawer 4, desk 3, shelf 3, sidetable 2, dresser 2
        desklamp       0.70  1    desk 4, sidetable 4, dresser 3, shelf 2
        houseplant     0.25  1    shelf 3, desk 2, dresser 2
        keychain       0.95  1-3  drawer 4, sidetable 3, desk 3, safe 2, dresser 2, shelf 2
        laptop         0.95  1-2  bed 6, desk 5, dresser 1
        mug            0.50  1-2  desk 5, sidetable 3, shelf 2, dresser 2
        pen            0.95  1-3  desk 5, drawer 3, shelf 2, dresser 2, sidetable 2
        pencil         0.95  1-3  desk 5, drawer 3, sidetable 3, shelf 2, dresser 2
        pillow         0.95  1-2  bed 9, armchair 2
        remotecontrol  0.15  1-2  drawer 3, desk 3, sidetable 2, armchair 1
        statue         0.20  1-2  shelf 4, dresser 3, desk 2
        teddybear      0.30  1    bed 5
        television     0.12  1    dresser 3
        tennisracket   0.10  1    bed 2, desk 2
        tissuebox      0.20  1-2  desk 4, sidetable 3, drawer 2, dresser 2
        vase           0.12  1-2  shelf 4, dresser 3, desk 1
        watch          0.15  1-2  drawer 4, shelf 2, desk 2, dresser 2
        """,
    ),
    "bathroom": _room(
        """
        bathtubbasin       0.65  1
        cabinet            0.55  1-8
        cart               0.12  1
        countertop         0.85  1-2
        drawer             0.55  1-8
        dresser            0.08  1
        garbagecan         1.00  1
        handtowelholder    1.00  1-3
        shelf              0.35  1-4
        sidetable          0.15  1
        sinkbasin          1.00  1-2
        toilet             1.00  1
        toiletpaperhanger  1.00  1
        towelholder        1.00  1-2
        """,
        """
        candle         0.95  1-3  toilet 4, countertop 4, shelf 2, cabinet 2, drawer 2
        cloth          0.95  1-3  cabinet 4, bathtubbasin 4, countertop 3, drawer 3, sinkbasin 1
        dishsponge     0.25  1-2  sinkbasin 4, bathtubbasin 3, countertop 3, drawer 2
        handtowel      0.95  1-2  handtowelholder 9, countertop 1
        houseplant     0.05  1    countertop 2, sidetable 2
        soapbar        0.95  1-3  sinkbasin 4, countertop 4, toilet 3, bathtubbasin 3, cabinet 2, drawer 2
        soapbottle     0.95  1-3  countertop 5, toilet 3, cabinet 3, shelf 2
        spraybottle    0.95  1-3  countertop 4, toilet 4, cabinet 3, shelf 2
        tissuebox      0.30  1-2  countertop 4, shelf 3, drawer 2, toilet 1
        toiletpaper    0.95  1-3  toiletpaperhanger 4, toilet 4, countertop 3, cabinet 2, drawer 2
        towel          0.95  1-2  towelholder 5
        """,
    ),
    "livingroom": _room(
        """
        armchair       0.90  1-3
        cabinet        0.20  1-6
        coffeetable    0.85  1-2
        desk           0.10  1
        diningtable    0.45  1
        drawer         0.75  1-10
        dresser        0.40  1
        garbagecan     1.00  1
        ottoman        0.15  1
        safe           0.06  1
        shelf          0.40  1-8
        sidetable      0.80  1-3
        sofa           1.00  1-2
        tvstand        0.40  1
        """,
        """
        book           0.35  1-3  coffeetable 4, sofa 3, dresser 3, armchair 2, sidetable 2
        bowl           0.15  1-2  diningtable 4, coffeetable 3, sidetable 1
        box            0.90  1-2  sofa 3, coffeetable 3, diningtable 3, sidetable 2
        candle         0.12  1-2  sidetable 4, coffeetable 3, diningtable 2
        cellphone      0.30  1-3  coffeetable 3, sofa 3, sidetable 3, dresser 2, drawer 2
        creditcard     0.95  1-3  sofa 3, coffeetable 3, drawer 3, armchair 2, sidetable 2
        desklamp       0.30  1    sidetable 6, desk 3, coffeetable 1
        houseplant     0.90  1    sidetable 4, coffeetable 3, dresser 2, diningtable 1
        keychain       0.95  1-3  coffeetable 4, sidetable 3, drawer 3, sofa 2, armchair 2
        laptop         0.95  1-2  sofa 4, coffeetable 4, diningtable 3, armchair 1
        newspaper      0.65  1-3  sofa 4, coffeetable 4, diningtable 3, sidetable 2, shelf 2
        pen            0.25  1-2  coffeetable 4, sidetable 3, dresser 2, drawer 2
        pencil         0.20  1-2  sidetable 4, coffeetable 3, drawer 2, dresser 1
        pillow         0.95  1-2  sofa 6, armchair 4, ottoman 1
        plate          0.30  1-2  diningtable 5, coffeetable 3, sidetable 2
        remotecontrol  0.95  1-3  coffeetable 4, sofa 4, sidetable 2, armchair 2, dresser 1
        statue         0.90  1-3  coffeetable 3, shelf 3, sidetable 3, diningtable 2, dresser 2
        television     0.90  1    tvstand 6, dresser 4, coffeetable 1, sidetable 1
        tissuebox      0.40  1-2  coffeetable 4, sidetable 3, diningtable 2, tvstand 1
        vase           0.60  1-3  shelf 4, coffeetable 3, diningtable 2, sidetable 2, dresser 1
        watch          0.55  1-3  coffeetable 4, drawer 3, sidetable 3, dresser 2
        wateringcan    0.50  1    coffeetable 4, shelf 3, sidetable 2
        """,
    ),
}
