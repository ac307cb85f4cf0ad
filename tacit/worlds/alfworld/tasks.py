"""Splits of the household and where their tasks come from.

A source is a function (count, seed, families) -> tasks. Generated houses (`houses.py`) need nothing; published splits need
data on disk (`published.py`). Whoever adds a generator adds its splits to SOURCES and nothing else changes.
"""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, islice
from random import Random

from tacit.core.errors import TacitError, unknown
from tacit.core.tasks import parse_panels
from tacit.core.types import Task
from tacit.worlds.alfworld.house_tables import (
    CAPACITY,
    FITS,
    LAMP,
    NEEDED,
    OPENABLE,
    ROOMS,
    ROOMS_OF_FAMILY,
    SENTENCES,
    SIDE_BY_SIDE,
    SMALL,
    TARGETS,
    Amount,
    Room,
    fits,
    traits,
)
from tacit.worlds.alfworld.published import FOLDERS, NAME, published_tasks
from tacit.worlds.alfworld.world import FAMILIES, Game, Goal, Receptacle, Thing, numbered

PANELS = parse_panels("""
train            16:4c49786f8c448fb5 128:c3ea4c2a87d010ce 256:f1302c4d4e46b73c 512:7407b294eb0ba311
seen             16:0ee8995080643594 128:178b5783b55455b3 256:f2923eda962cdb2d 512:2ff30e7fab31391f
unseen           16:9971628ae8bc11bb 128:1f5d84b8cb0a8941 256:bc6558bae9aab813 512:4b7ddf16575af08e
published_train  16:8dba921207b86c4c 128:74133d37179e0cb2 256:16771f08e60b2f65 512:7b6bedd268b55e6a
valid_seen       16:98d1887b768a725e 128:76f52842355f1432 140:3975d5a97cdb5737
""")
"""split -> number of tasks -> panel hash"""


# Floor plans: 80 of each room, none with the same furniture as another, every fourth kept from training.
#
# A plan is a room before anybody lives in it: which receptacles, which of them have doors, where one stands to face them.
# Its *layout* is what an agent reads first: how many receptacles of each kind. Layouts are unique among all plans of a room,
# and rooms differ in kinds, so a plan kept from training is a layout that training never has.

PLANS = 80
KEPT_BACK = 4
"""one plan in so many is for the unseen split"""
SHARED_PLACE = 0.2
"""the chance that neighbours of a kind in SIDE_BY_SIDE are faced from one place"""

Layout = tuple[tuple[str, int], ...]


@dataclass(frozen=True, eq=False)
class FloorPlan:
    room: str
    number: int
    receptacles: tuple[Receptacle, ...]
    start: int
    """the location in the middle of the room, which no receptacle shares"""
    of_kind: Mapping[str, tuple[int, ...]]
    """receptacle kind -> indices"""

    @property
    def unseen(self) -> bool:
        return self.number % KEPT_BACK == KEPT_BACK - 1


@cache
def floor_plans(room: str) -> tuple[FloorPlan, ...]:
    """All plans of a room, the same on every machine."""
    rng = Random(f"alfworld/floor plans/{room}")
    layouts: dict[Layout, None] = {}
    while len(layouts) < PLANS:
        layouts.setdefault(_draw_layout(rng, ROOMS[room]))
    return tuple(_furnish(rng, room, number, layout) for number, layout in enumerate(layouts))


def draw_count(rng: Random, amount: Amount) -> int:
    """How many there are: none with 1 − chance, otherwise fewest to most, small numbers being likelier."""
    if rng.random() >= amount.chance:
        return 0
    return amount.fewest + int((amount.most - amount.fewest + 1) * rng.random() ** 1.5)


def _draw_layout(rng: Random, room: Room) -> Layout:
    counts = {kind: draw_count(rng, amount) for kind, amount in sorted(room.furniture.items())}
    return tuple((kind, count) for kind, count in counts.items() if count)


def _furnish(rng: Random, room: str, number: int, layout: Layout) -> FloorPlan:
    kinds = [kind for kind, count in layout for _ in range(count)]
    locations: list[int] = []
    for i, kind in enumerate(kinds):
        beside = i > 0 and kinds[i - 1] == kind and kind in SIDE_BY_SIDE and rng.random() < SHARED_PLACE
        locations.append(locations[-1] if beside else i)
    receptacles = tuple(
        Receptacle(name, kind, location, openable=rng.random() < OPENABLE.get(kind, 0.0))
        for name, kind, location in zip(numbered(kinds), kinds, locations, strict=True)
    )
    of_kind = {kind: tuple(i for i, k in enumerate(kinds) if k == kind) for kind in Counter(kinds)}
    return FloorPlan(room, number, receptacles, start=len(kinds), of_kind=of_kind)


# Houses of our own: any number of solvable games of the six types, from a seed, with nothing to download.
#
# A game is a floor plan (`floor_plans.py`), a goal, and the belongings of the room (`house_tables.py`) left about in their
# usual places. What a split may have is decided before anything is drawn, so splits are disjoint by construction:
#
#     train    known plans, familiar pairs
#     seen     known plans, familiar pairs, but a plan and a goal that training never has together
#     unseen   plans that training never has; goals over pairs that training never has; and whatever the goal asks for lies
#              where training never has it
#
# A *pair* is a kind of object and a kind of receptacle (or the lamp it is looked at under). For every kind a digest picks
# about a third of the receptacles it fits: training never asks to put it there and never starts with it lying there.
# The rest of an unseen house is as in any other.
#
# Every game can be solved: what is asked for lies in a reachable receptacle (all of them are; a closed one opens), fits its
# target, and the sink, microwave, fridge or lamp it needs is in the room. No game is won at the start.

HOUSE_SPLITS = ("train", "seen", "unseen")

SEEN_SHARE = 8
"""one (known plan, goal) in so many is for `seen`"""
MOST_SOUGHT = 4
COOL_IN_FRIDGE = 0.1
"""the chance that what starts in the fridge starts cool"""
IN_VESSEL = 0.05
"""the chance that a dish shows a small thing that lies beside it"""

_NOTHING: frozenset[str] = frozenset()
_Spots = tuple[tuple[str, ...], tuple[float, ...]]
"""receptacle kinds, and their cumulative weights"""


def house_tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> tuple[Task, ...]:
    """`count` games of the split, the families in turn; a larger count begins with the same ones."""
    if count < 0:
        raise TacitError(f"cannot make {count} tasks; ask for zero or more.")
    return tuple(islice(every_task(split, seed, families), count))


def every_task(split: str, seed: int, families: Sequence[str] = FAMILIES) -> Iterator[Task]:
    """Games of the split without end. Each depends on (split, seed, its number) alone: leaving out families moves no other."""
    if split not in HOUSE_SPLITS:
        raise unknown("split of generated houses", split, HOUSE_SPLITS)
    number = 0
    while True:
        turn = list(FAMILIES)
        Random(f"{NAME}/{split}/{seed}/turn {number}").shuffle(turn)
        for family in turn:
            if family in families:
                yield make_task(split, family, seed, number)
            number += 1


def make_task(split: str, family: str, seed: int, number: int) -> Task:
    """One game as a task, e.g. `train/heat-mug-fridge-kitchen7/0-17`: its goal, its plan, its seed and its number."""
    plan, game = build(Random(f"{NAME}/{split}/{seed}/{number}"), split, family)
    goal = game.goal
    return Task(
        world=NAME,
        id=f"{split}/{family}-{goal.kind}-{goal.target}-{plan.room}{plan.number}/{seed}-{number}",
        family=family,
        split=split,
        seed=seed,
        goal=game.sentence,
        data={"game": game.to_data()},
    )


def build(rng: Random, split: str, family: str) -> tuple[FloorPlan, Game]:
    """A game of a family, and the plan it is built on."""
    plan, goal = _draw_goal(rng, split, family)
    things = _populate(rng, plan, goal, split)
    kinds = {thing.kind for thing in things}
    game = Game(
        receptacles=plan.receptacles,
        things=tuple(things),
        fits=frozenset((place, kind) for place in plan.of_kind for kind in FITS.get(place, _NOTHING) & kinds),
        start=plan.start,
        goal=goal,
        sentence=rng.choice(SENTENCES[family]).format(kind=goal.kind, target=goal.target),
    )
    return plan, game


@cache
def unfamiliar(kind: str) -> frozenset[str]:
    """The receptacle kinds (and `desklamp`) that training never pairs with this kind of object.

    About a third of those it fits, never a room's most usual place for it: of two or three one, of four at least two (so
    that it can lie in one and be wanted in the other), of one none. And the lamp, for a quarter of what is looked at.
    """
    rooms = [room for room in ROOMS.values() if kind in room.belongings]
    options = {place for room in rooms for place in room.furniture if fits(place, kind)}
    usual = {room.belongings[kind].usual for room in rooms}
    share = max(2, round(len(options) / 3)) if len(options) > 3 else len(options) // 2
    return frozenset(_by_digest(kind, options - usual)[:share]) | ({LAMP} if kind in _never_lit() else set())


@cache
def _never_lit() -> frozenset[str]:
    kinds = {kind for room in ROOMS_OF_FAMILY["look"][0] for kind in ROOMS[room].belongings if "pickupable" in traits(kind)}
    return frozenset(_by_digest(LAMP, kinds)[: len(kinds) // 4])


def _by_digest(key: str, names: set[str]) -> list[str]:
    """An order that is arbitrary but the same everywhere."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{key} {name}".encode()).digest())


def _in_seen(plan: FloorPlan, goal: Goal) -> bool:
    """Whether a known plan with this goal belongs to `seen` rather than `train`."""
    text = f"{plan.room} {plan.number} {goal.family} {goal.kind} {goal.target}"
    return hashlib.sha256(text.encode()).digest()[0] % SEEN_SHARE == 0


def _draw_goal(rng: Random, split: str, family: str) -> tuple[FloorPlan, Goal]:
    rooms, weights = ROOMS_OF_FAMILY[family]
    (room,) = rng.choices(rooms, weights)
    while True:
        plan = rng.choice(floor_plans(room))
        goals = _goals(plan, split, family)
        if goals:
            kind = rng.choice(tuple(goals))
            return plan, rng.choice(goals[kind])


@cache
def _goals(plan: FloorPlan, split: str, family: str) -> Mapping[str, tuple[Goal, ...]]:
    """What a split may ask for in a plan: kind -> goals. Nothing where the plan is another split's."""
    goals: dict[str, list[Goal]] = {}
    if plan.unseen != (split == "unseen"):
        return {}
    if family == "look" and not _spots(plan, LAMP, "any", "")[0]:
        return {}
    for kind in sorted(ROOMS[plan.room].belongings):
        able = traits(kind)
        if "pickupable" not in able or (family in NEEDED and NEEDED[family] not in able):
            continue
        for target in sorted(TARGETS[family] if family == "look" else TARGETS[family] & set(plan.of_kind)):
            goal = Goal(family, kind, target)
            if family != "look" and not fits(target, kind):
                continue
            if (target in unfamiliar(kind)) != (split == "unseen") or not _room_for(plan, goal, split):
                continue
            if split == "unseen" or _in_seen(plan, goal) == (split == "seen"):
                goals.setdefault(kind, []).append(goal)
    return {kind: tuple(found) for kind, found in goals.items()}


def _room_for(plan: FloorPlan, goal: Goal, split: str) -> bool:
    """There are places for as many as the goal asks for."""
    places, _ = _sought_spots(plan, goal, split)
    return sum(CAPACITY[place] * len(plan.of_kind[place]) for place in places) >= _fewest(goal)


def _fewest(goal: Goal) -> int:
    return 2 if goal.family == "pick2" else 1


def _sought_spots(plan: FloorPlan, goal: Goal, split: str) -> _Spots:
    """Where what is asked for may lie: not where a goal that asks for nothing else wants it."""
    avoid = goal.target if goal.family in ("pick", "pick2") else ""
    return _spots(plan, goal.kind, "unfamiliar" if split == "unseen" else "familiar", avoid)


@cache
def _spots(plan: FloorPlan, kind: str, which: str, avoid: str) -> _Spots:
    """Where a kind may lie in a plan: `familiar` places, `unfamiliar` ones or `any`; lamps and plants stand anywhere."""
    odd = unfamiliar(kind)
    places = {
        place: weight
        for place, weight in ROOMS[plan.room].belongings[kind].places.items()
        if place in plan.of_kind and place != avoid and (which == "any" or (place in odd) == (which == "unfamiliar"))
    }
    return tuple(places), tuple(accumulate(places.values()))


def _populate(rng: Random, plan: FloorPlan, goal: Goal, split: str) -> list[Thing]:
    """The belongings of the room, in listing order: what the goal asks for first gets its place, then the others."""
    left = [CAPACITY[receptacle.kind] for receptacle in plan.receptacles]
    where: dict[str, list[int]] = {}

    def leave(kind: str, copies: int, spots: _Spots) -> None:
        for _ in range(copies):
            index = _free_place(rng, plan, spots, left)
            if index is not None:
                left[index] -= 1
                where.setdefault(kind, []).append(index)

    sought = Amount(1.0, _fewest(goal), MOST_SOUGHT)
    leave(goal.kind, draw_count(rng, sought), _sought_spots(plan, goal, split))
    others = "any" if split == "unseen" else "familiar"
    if goal.family == "look":
        leave(LAMP, 1, _spots(plan, LAMP, others, ""))
    for kind, belonging in ROOMS[plan.room].belongings.items():
        if kind not in where:
            leave(kind, draw_count(rng, belonging), _spots(plan, kind, others, ""))
    return _as_things(rng, plan, where)


def _free_place(rng: Random, plan: FloorPlan, spots: _Spots, left: list[int]) -> int | None:
    """A receptacle with room in it: by the weights of kinds, then any of that kind. None where all are full."""
    kinds, weights = spots
    if not kinds:
        return None
    for _ in range(3):
        kind = kinds[bisect(weights, rng.random() * weights[-1])]
        index = rng.choice(plan.of_kind[kind])
        if left[index]:
            return index
    free = [index for kind in kinds for index in plan.of_kind[kind] if left[index]]
    return rng.choice(free) if free else None


def _as_things(rng: Random, plan: FloorPlan, where: Mapping[str, list[int]]) -> list[Thing]:
    placed = [(kind, index) for kind in sorted(where) for index in where[kind]]
    small: dict[int, list[int]] = {}
    for number, (kind, index) in enumerate(placed):
        if kind in SMALL:
            small.setdefault(index, []).append(number)
    things = []
    for name, (kind, index) in zip(numbered(kind for kind, _ in placed), placed, strict=True):
        receptacle = plan.receptacles[index]
        able = _traits(kind)
        holds: tuple[int, ...] = ()
        if receptacle.kind == "fridge" and "coolable" in able and rng.random() < COOL_IN_FRIDGE:
            able |= {"cool"}
        if "vessel" in able and index in small and rng.random() < IN_VESSEL:
            holds = (rng.choice(small[index]),)
        assert receptacle.location is not None
        things.append(Thing(name, kind, able, (index,), (receptacle.location,), holds))
    return things


_traits = cache(traits)


Source = Callable[[int, int, Sequence[str]], Sequence[Task]]

SOURCES: Mapping[str, Source] = {
    **{split: partial(house_tasks, split) for split in HOUSE_SPLITS},
    **{split: partial(published_tasks, split) for split in FOLDERS},
}
SPLITS = tuple(SOURCES)


def tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> Sequence[Task]:
    """`count` tasks of a split, the same on every machine; of some families only, in the order they have among all."""
    if split not in SOURCES:
        raise unknown("split of world 'alfworld'", split, SOURCES)
    return SOURCES[split](count, seed, families)
