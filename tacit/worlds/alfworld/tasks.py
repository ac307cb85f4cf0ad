"""ALFWorld tasks: generated `train`, `seen` and `unseen`, and published splits, which need data on disk (`published.py`).

`seen` has training plans and pairs in (plan, goal) combinations that `train` never has; `unseen` has held-out plans, goals with
held-out pairs, and goal objects that start in held-out places. A pair is an object kind and a receptacle kind (or the lamp);
about a third of each kind's pairs are held out, by a digest. Every game is solvable and not won at the start.
"""

from __future__ import annotations

import hashlib
import tomllib
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, islice
from pathlib import Path
from random import Random

from tacit.core.errors import check_split_and_count
from tacit.core.tasks import parse_panels
from tacit.core.types import Task
from tacit.worlds.alfworld.published import FOLDERS, NAME, published_tasks
from tacit.worlds.alfworld.world import APPLIANCES, FAMILIES, Game, Goal, Receptacle, Thing, number_names

_TABLES = tomllib.loads(Path(__file__).with_name("houses.toml").read_text(encoding="utf-8"))
FITS: Mapping[str, frozenset[str]] = {place: frozenset(kinds.split()) for place, kinds in _TABLES["fits"].items()}
CAPACITY: Mapping[str, int] = _TABLES["capacity"]
OPENABLE: Mapping[str, float] = _TABLES["openable"]
PUBLISHED_KINDS: Sequence[str] = _TABLES["published_kinds"].split()
SIDE_BY_SIDE = ("cabinet", "drawer", "shelf", "stoveburner")  # kinds whose neighbors may share a location
LAMP = "desklamp"
SMALL = frozenset(_TABLES["abilities"]["small"].split())  # objects that a vessel may contain
_PUT = frozenset(FITS) - {"bathtubbasin", "handtowelholder", "laundryhamper", "sinkbasin", "towelholder", "tvstand"}
TARGETS: Mapping[str, frozenset[str]] = {
    "pick": _PUT,
    "pick2": _PUT - {kind for kind, most in CAPACITY.items() if most < 2},
    "clean": _PUT,
    "heat": _PUT - {"microwave"},
    "cool": _PUT - {"fridge"},
    "look": frozenset({LAMP}),
}  # family -> possible target kinds; for `look`, the lamp
SENTENCES: Mapping[str, Sequence[str]] = {name: table["sentences"] for name, table in _TABLES["families"].items()}
ROOMS_OF_FAMILY: Mapping[str, Mapping[str, int]] = {name: table["rooms"] for name, table in _TABLES["families"].items()}


def fits(receptacle: str, kind: str) -> bool:
    return kind in FITS.get(receptacle, ())


@cache
def traits(kind: str) -> frozenset[str]:
    """The traits of an object kind, in the words of `world.TRAITS`."""
    listed = {trait for trait, kinds in _TABLES["abilities"].items() if kind in kinds.split()} - {"small"}
    return frozenset(listed - {"standing"} if "standing" in listed else listed | {"pickupable"})


SELDOM = 0.5  # weight of a fitting place that the table does not list


@dataclass(frozen=True)
class Amount:
    """Probability that a room has a kind, and its minimum and maximum number then."""

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


ROOMS: Mapping[str, Room] = {name: _room(**tables) for name, tables in _TABLES["rooms"].items()}

# Common knowledge of houses, for experts.

PLACES: Mapping[str, Mapping[str, float]] = {thing: _weights(listed) for thing, listed in _TABLES["likelihood"].items()}
OPENED_KINDS = frozenset(OPENABLE)  # often closed: looking inside takes one more step
UNLIKELY = 0.5  # for places that the table does not list
_ANYWHERE: Mapping[str, float] = {
    place: sum(row.get(place, UNLIKELY) for row in PLACES.values()) / len(PLACES)
    for place in sorted({place for row in PLACES.values() for place in row})
}  # for object kinds that are not in the table: the average row


def likelihood(thing: str, receptacle: str) -> float:
    """The probability, in percent, that a receptacle of this kind holds an object of that kind."""
    return PLACES.get(thing, _ANYWHERE).get(receptacle, UNLIKELY)


PANELS = parse_panels("""
train            16:4c49786f8c448fb5 128:c3ea4c2a87d010ce 256:f1302c4d4e46b73c 512:7407b294eb0ba311
seen             16:0ee8995080643594 128:178b5783b55455b3 256:f2923eda962cdb2d 512:2ff30e7fab31391f
unseen           16:9971628ae8bc11bb 128:1f5d84b8cb0a8941 256:bc6558bae9aab813 512:4b7ddf16575af08e
published_train  16:8dba921207b86c4c 128:74133d37179e0cb2 256:16771f08e60b2f65 512:7b6bedd268b55e6a
valid_seen       16:98d1887b768a725e 128:76f52842355f1432 140:3975d5a97cdb5737
""")


PLANS = 80  # floor plans per room
KEPT_BACK = 4  # every fourth plan is held out for the unseen split
SHARED_PLACE = 0.2  # probability that two neighbors of a kind in SIDE_BY_SIDE share a location


@dataclass(frozen=True, eq=False)
class FloorPlan:
    """A room without belongings: its receptacles, with doors and locations."""

    room: str
    number: int
    receptacles: tuple[Receptacle, ...]
    of_kind: Mapping[str, tuple[int, ...]]  # receptacle kind -> indices


@cache
def floor_plans(room: str) -> tuple[FloorPlan, ...]:
    """All plans of a room, the same on every machine. No two have the same number of receptacles of every kind, which is the
    first thing an agent reads."""
    rng, layouts, plans = Random(f"alfworld/floor plans/{room}"), dict[tuple[str, ...], None](), []
    while len(layouts) < PLANS:
        counts = {kind: draw_count(rng, amount) for kind, amount in sorted(ROOMS[room].furniture.items())}
        layouts.setdefault(tuple(kind for kind, count in counts.items() for _ in range(count)))
    for number, kinds in enumerate(layouts):
        locations: list[int] = []
        for i, kind in enumerate(kinds):
            beside = i > 0 and kinds[i - 1] == kind and kind in SIDE_BY_SIDE and rng.random() < SHARED_PLACE
            locations.append(locations[-1] if beside else i)
        receptacles = tuple(
            Receptacle(name, kind, location, openable=rng.random() < OPENABLE.get(kind, 0.0))
            for name, kind, location in zip(number_names(kinds), kinds, locations, strict=True)
        )
        of_kind = {kind: tuple(i for i, k in enumerate(kinds) if k == kind) for kind in dict.fromkeys(kinds)}
        plans.append(FloorPlan(room, number, receptacles, of_kind))
    return tuple(plans)


def draw_count(rng: Random, amount: Amount) -> int:
    """0 with probability 1 − chance, otherwise fewest to most, skewed towards small numbers."""
    if rng.random() >= amount.chance:
        return 0
    return amount.fewest + int((amount.most - amount.fewest + 1) * rng.random() ** 1.5)


HOUSE_SPLITS = ("train", "seen", "unseen")
SPLITS = (*HOUSE_SPLITS, *FOLDERS)
SEEN_SHARE = 8  # one in eight (training plan, goal) combinations belongs to `seen`
MAX_SOUGHT = 4  # maximum copies of the goal object
COOL_IN_FRIDGE = 0.1  # probability that an object in the fridge starts cool
IN_VESSEL = 0.05  # probability that a dish shows a small object next to it as its contents
_WeightedPlaces = tuple[tuple[str, ...], tuple[float, ...]]  # receptacle kinds, and their cumulative weights


def tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> Sequence[Task]:
    """`count` tasks of a split, the same on every machine; a larger count begins with the same games. `families` filters them
    and keeps their order."""
    check_split_and_count(NAME, SPLITS, split, count)
    if split in FOLDERS:
        return published_tasks(split, count, seed, families)
    return tuple(islice(iterate_tasks(split, seed, families), count))


def iterate_tasks(split: str, seed: int, families: Sequence[str] = FAMILIES) -> Iterator[Task]:
    """Infinitely many generated games, cycling through the families. Each depends only on (split, seed, number), so `families`
    does not change the others."""
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
    rng = Random(f"{NAME}/{split}/{seed}/{number}")
    (room,) = rng.choices(tuple(ROOMS_OF_FAMILY[family]), tuple(ROOMS_OF_FAMILY[family].values()))
    goals: Mapping[str, tuple[Goal, ...]] = {}
    while not goals:
        plan = rng.choice(floor_plans(room))
        goals = _goals(plan, split, family)
    goal = rng.choice(goals[rng.choice(tuple(goals))])
    things = _populate(rng, plan, goal, split)
    kinds = {thing.kind for thing in things}
    fits = frozenset((place, kind) for place in plan.of_kind for kind in kinds & FITS.get(place, frozenset()))
    sentence = rng.choice(SENTENCES[family]).format(kind=goal.kind, target=goal.target)
    game = Game(plan.receptacles, tuple(things), fits, len(plan.receptacles), goal, sentence)  # starts in the middle
    name = f"{split}/{family}-{goal.kind}-{goal.target}-{plan.room}{plan.number}/{seed}-{number}"
    return Task(NAME, name, family, split, seed, sentence, {"game": game.to_data()})


@cache
def held_out_places(kind: str) -> frozenset[str]:
    """The receptacle kinds (and `desklamp`) that training never pairs with this object kind.

    These are about a third of the kinds it fits, never its most usual place in a room: none of one, one of two or three, and at
    least two (a start and a target) of four or more. The lamp is held out for a quarter of the object kinds.
    """
    rooms = [room for room in ROOMS.values() if kind in room.belongings]
    options = {place for room in rooms for place in room.furniture if fits(place, kind)}
    usual = {next(iter(room.belongings[kind].places)) for room in rooms}
    share = max(2, round(len(options) / 3)) if len(options) > 3 else len(options) // 2
    return frozenset(_by_digest(kind, options - usual)[:share]) | ({LAMP} if kind in _held_out_from_lamp() else set())


@cache
def _held_out_from_lamp() -> frozenset[str]:
    kinds = {kind for room in ROOMS_OF_FAMILY["look"] for kind in ROOMS[room].belongings if "pickupable" in traits(kind)}
    return frozenset(_by_digest(LAMP, kinds)[: len(kinds) // 4])


def _by_digest(key: str, names: set[str]) -> list[str]:
    """Arbitrary order, the same on every machine."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{key} {name}".encode()).digest())


@cache
def _goals(plan: FloorPlan, split: str, family: str) -> Mapping[str, tuple[Goal, ...]]:
    """The goals of a split in a plan: object kind -> goals. Empty if the plan belongs to another split."""
    goals, unseen = dict[str, tuple[Goal, ...]](), split == "unseen"
    held_back = plan.number % KEPT_BACK == KEPT_BACK - 1
    if held_back != unseen or (family == "look" and not _start_places(plan, LAMP, "any", "")[0]):
        return {}
    targets = TARGETS[family] if family == "look" else TARGETS[family] & set(plan.of_kind)
    for kind in sorted(ROOMS[plan.room].belongings):
        if not {"pickupable", APPLIANCES.get(family, ("pickupable",))[0]} <= traits(kind):
            continue
        for target in sorted(targets):
            goal = Goal(family, kind, target)
            if (family != "look" and not fits(target, kind)) or (target in held_out_places(kind)) != unseen:
                continue
            places, _ = _target_start_places(plan, goal, split)
            room = sum(CAPACITY[place] * len(plan.of_kind[place]) for place in places)
            digest = hashlib.sha256(f"{plan.room} {plan.number} {family} {kind} {target}".encode()).digest()
            in_seen = digest[0] % SEEN_SHARE == 0
            if room >= 1 + (family == "pick2") and (unseen or in_seen == (split == "seen")):
                goals[kind] = (*goals.get(kind, ()), goal)
    return goals


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
        kinds, weights = spots
        for _ in range(copies if kinds else 0):  # in a receptacle with free capacity, its kind drawn by weight
            for _ in range(3):
                index = rng.choice(plan.of_kind[kinds[bisect(weights, rng.random() * weights[-1])]])
                if left[index]:
                    break
            else:
                free = [index for kind in kinds for index in plan.of_kind[kind] if left[index]]
                index = rng.choice(free) if free else -1
            if index >= 0:
                left[index] -= 1
                where.setdefault(kind, []).append(index)

    targets = Amount(1.0, 1 + (goal.family == "pick2"), MAX_SOUGHT)
    place_copies(goal.kind, draw_count(rng, targets), _target_start_places(plan, goal, split))
    others = "any" if split == "unseen" else "familiar"
    if goal.family == "look":
        place_copies(LAMP, 1, _start_places(plan, LAMP, others, ""))
    for kind, belonging in ROOMS[plan.room].belongings.items():
        if kind not in where:
            place_copies(kind, draw_count(rng, belonging), _start_places(plan, kind, others, ""))

    placed = [(kind, index) for kind in sorted(where) for index in where[kind]]
    things = []
    for name, (kind, index) in zip(number_names(kind for kind, _ in placed), placed, strict=True):
        receptacle, able = plan.receptacles[index], traits(kind)
        holds: tuple[int, ...] = ()
        small = [number for number, (other, at) in enumerate(placed) if at == index and other in SMALL]
        if receptacle.kind == "fridge" and "coolable" in able and rng.random() < COOL_IN_FRIDGE:
            able |= {"cool"}
        if "vessel" in able and small and rng.random() < IN_VESSEL:
            holds = (rng.choice(small),)
        assert receptacle.location is not None
        things.append(Thing(name, kind, able, (index,), (receptacle.location,), holds))
    return things
