"""ALFWorld tasks. Splits `train`, `seen` and `unseen` are generated here; published splits need data on disk (`published.py`).

A generated game is a floor plan, a goal, and the usual belongings of the room. Splits are disjoint by construction:

    train    training plans, familiar pairs
    seen     training plans, familiar pairs, but (plan, goal) combinations that `train` never has
    unseen   held-out plans, goals over held-out pairs, and goal objects that start in held-out places

A pair is an object kind and a receptacle kind (or the lamp for `look`). For each object kind, a digest holds out about a third
of the receptacles it fits: training goals never put it there, and training games never start with it there.
Every game is solvable: the goal object is reachable and fits its target, and the appliance or lamp is in the room.
No game is won at the start.
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
from tacit.worlds.alfworld.world import FAMILIES, Game, Goal, Receptacle, Thing, number_names

PANELS = parse_panels("""
train            16:4c49786f8c448fb5 128:c3ea4c2a87d010ce 256:f1302c4d4e46b73c 512:7407b294eb0ba311
seen             16:0ee8995080643594 128:178b5783b55455b3 256:f2923eda962cdb2d 512:2ff30e7fab31391f
unseen           16:9971628ae8bc11bb 128:1f5d84b8cb0a8941 256:bc6558bae9aab813 512:4b7ddf16575af08e
published_train  16:8dba921207b86c4c 128:74133d37179e0cb2 256:16771f08e60b2f65 512:7b6bedd268b55e6a
valid_seen       16:98d1887b768a725e 128:76f52842355f1432 140:3975d5a97cdb5737
""")
"""split -> number of tasks -> panel hash"""


PLANS = 80
"""floor plans per room"""
KEPT_BACK = 4
"""one plan in so many is held out for the unseen split"""
SHARED_PLACE = 0.2
"""probability that two neighbors of a kind in SIDE_BY_SIDE share a location"""

Layout = tuple[tuple[str, int], ...]
"""(receptacle kind, count): the first thing an agent reads, unique among all plans of a room"""


@dataclass(frozen=True, eq=False)
class FloorPlan:
    """A room without belongings: its receptacles, which of them have doors, and where the agent stands to face them."""

    room: str
    number: int
    receptacles: tuple[Receptacle, ...]
    start: int
    """the middle of the room, a location without receptacles"""
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
    """0 with probability 1 − chance, otherwise fewest to most, skewed towards small numbers."""
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
        for name, kind, location in zip(number_names(kinds), kinds, locations, strict=True)
    )
    of_kind = {kind: tuple(i for i, k in enumerate(kinds) if k == kind) for kind in Counter(kinds)}
    return FloorPlan(room, number, receptacles, start=len(kinds), of_kind=of_kind)


HOUSE_SPLITS = ("train", "seen", "unseen")

SEEN_SHARE = 8
"""one (training plan, goal) in so many belongs to `seen`"""
MOST_SOUGHT = 4
"""the most copies of the goal object"""
COOL_IN_FRIDGE = 0.1
"""probability that an object in the fridge starts cool"""
IN_VESSEL = 0.05
"""probability that a dish shows a small object next to it as its contents"""

_NOTHING: frozenset[str] = frozenset()
_WeightedPlaces = tuple[tuple[str, ...], tuple[float, ...]]
"""receptacle kinds, and their cumulative weights"""


def house_tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> tuple[Task, ...]:
    """`count` games of the split, cycling through the families; a larger count begins with the same games."""
    if count < 0:
        raise TacitError(f"cannot make {count} tasks; ask for zero or more.")
    return tuple(islice(iterate_tasks(split, seed, families), count))


def iterate_tasks(split: str, seed: int, families: Sequence[str] = FAMILIES) -> Iterator[Task]:
    """Infinitely many games. Each depends only on (split, seed, number), so `families` does not change the others."""
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
    """One game as a task. Its id has the goal, plan, seed and number: `train/heat-mug-fridge-kitchen7/0-17`."""
    plan, game = build_game(Random(f"{NAME}/{split}/{seed}/{number}"), split, family)
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


def build_game(rng: Random, split: str, family: str) -> tuple[FloorPlan, Game]:
    """Draw a game of a family; returns its plan and the game."""
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
def held_out_places(kind: str) -> frozenset[str]:
    """The receptacle kinds (and `desklamp`) that training never pairs with this object kind.

    About a third of those it fits, never its most usual place in a room. Of two or three places one is held out, of four or
    more at least two (a start and a target), of one none. The lamp is held out for a quarter of the kinds.
    """
    rooms = [room for room in ROOMS.values() if kind in room.belongings]
    options = {place for room in rooms for place in room.furniture if fits(place, kind)}
    usual = {room.belongings[kind].usual for room in rooms}
    share = max(2, round(len(options) / 3)) if len(options) > 3 else len(options) // 2
    return frozenset(_by_digest(kind, options - usual)[:share]) | ({LAMP} if kind in _held_out_from_lamp() else set())


@cache
def _held_out_from_lamp() -> frozenset[str]:
    kinds = {kind for room in ROOMS_OF_FAMILY["look"][0] for kind in ROOMS[room].belongings if "pickupable" in traits(kind)}
    return frozenset(_by_digest(LAMP, kinds)[: len(kinds) // 4])


def _by_digest(key: str, names: set[str]) -> list[str]:
    """Arbitrary order, the same on every machine."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{key} {name}".encode()).digest())


def _in_seen(plan: FloorPlan, goal: Goal) -> bool:
    """Whether a training plan with this goal belongs to `seen` rather than `train`."""
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
    """The goals of a split in a plan: object kind -> goals. Empty if the plan belongs to another split."""
    goals: dict[str, list[Goal]] = {}
    if plan.unseen != (split == "unseen"):
        return {}
    if family == "look" and not _start_places(plan, LAMP, "any", "")[0]:
        return {}
    for kind in sorted(ROOMS[plan.room].belongings):
        able = traits(kind)
        if "pickupable" not in able or (family in NEEDED and NEEDED[family] not in able):
            continue
        for target in sorted(TARGETS[family] if family == "look" else TARGETS[family] & set(plan.of_kind)):
            goal = Goal(family, kind, target)
            if family != "look" and not fits(target, kind):
                continue
            if (target in held_out_places(kind)) != (split == "unseen") or not _has_capacity(plan, goal, split):
                continue
            if split == "unseen" or _in_seen(plan, goal) == (split == "seen"):
                goals.setdefault(kind, []).append(goal)
    return {kind: tuple(found) for kind, found in goals.items()}


def _has_capacity(plan: FloorPlan, goal: Goal, split: str) -> bool:
    """Whether the start places hold as many objects as the goal needs."""
    places, _ = _target_start_places(plan, goal, split)
    return sum(CAPACITY[place] * len(plan.of_kind[place]) for place in places) >= _required_count(goal)


def _required_count(goal: Goal) -> int:
    return 2 if goal.family == "pick2" else 1


def _target_start_places(plan: FloorPlan, goal: Goal, split: str) -> _WeightedPlaces:
    """Where the goal object may start: never at the target if moving it there is the whole goal."""
    avoid = goal.target if goal.family in ("pick", "pick2") else ""
    return _start_places(plan, goal.kind, "unfamiliar" if split == "unseen" else "familiar", avoid)


@cache
def _start_places(plan: FloorPlan, kind: str, which: str, avoid: str) -> _WeightedPlaces:
    """Where a kind may start in a plan, with weights: its `familiar` places, its `unfamiliar` (held-out) ones, or `any`."""
    held_out = held_out_places(kind)
    places = {
        place: weight
        for place, weight in ROOMS[plan.room].belongings[kind].places.items()
        if place in plan.of_kind and place != avoid and (which == "any" or (place in held_out) == (which == "unfamiliar"))
    }
    return tuple(places), tuple(accumulate(places.values()))


def _populate(rng: Random, plan: FloorPlan, goal: Goal, split: str) -> list[Thing]:
    """Place the goal objects, then the other belongings of the room; returns them in listing order."""
    left = [CAPACITY[receptacle.kind] for receptacle in plan.receptacles]
    where: dict[str, list[int]] = {}

    def place_copies(kind: str, copies: int, spots: _WeightedPlaces) -> None:
        for _ in range(copies):
            index = _free_place(rng, plan, spots, left)
            if index is not None:
                left[index] -= 1
                where.setdefault(kind, []).append(index)

    sought = Amount(1.0, _required_count(goal), MOST_SOUGHT)
    place_copies(goal.kind, draw_count(rng, sought), _target_start_places(plan, goal, split))
    others = "any" if split == "unseen" else "familiar"
    if goal.family == "look":
        place_copies(LAMP, 1, _start_places(plan, LAMP, others, ""))
    for kind, belonging in ROOMS[plan.room].belongings.items():
        if kind not in where:
            place_copies(kind, draw_count(rng, belonging), _start_places(plan, kind, others, ""))
    return _make_things(rng, plan, where)


def _free_place(rng: Random, plan: FloorPlan, spots: _WeightedPlaces, left: list[int]) -> int | None:
    """A receptacle with free capacity, its kind drawn by weight; None if all are full."""
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


def _make_things(rng: Random, plan: FloorPlan, where: Mapping[str, list[int]]) -> list[Thing]:
    placed = [(kind, index) for kind in sorted(where) for index in where[kind]]
    small: dict[int, list[int]] = {}
    for number, (kind, index) in enumerate(placed):
        if kind in SMALL:
            small.setdefault(index, []).append(number)
    things = []
    for name, (kind, index) in zip(number_names(kind for kind, _ in placed), placed, strict=True):
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
    """`count` tasks of a split, the same on every machine. `families` filters them and keeps their order."""
    if split not in SOURCES:
        raise unknown("split of world 'alfworld'", split, SOURCES)
    return SOURCES[split](count, seed, families)
