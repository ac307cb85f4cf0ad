"""A household game as frozen data: what is where at the start, what fits where, and what is to be done.

This is what the simulator plays (`household.py`), what published problems are read into (`pddl.py`) and what a
generator of houses has to build. Three rules make a hand-built `Game` behave like a published one:

1. **Order is listing order.** The text of the world lists receptacles and objects in the order of these tuples, and
   refers between them by index into them.
2. **Names are `kind number`**, unique over receptacles and objects, counted *down* within a kind (`numbered`): a table
   with three forks lists `a fork 3, a fork 2, a fork 1`.
3. **A location is a place to stand**: an integer that several receptacles may share (one faces them all at once). No
   receptacle is at the start location in a published game.

Objects may start in several receptacles at once (the published games' sensors overlap), and may be at locations
without being in any receptacle: then nobody sees them, but a knife reaches them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tacit.core.errors import TacitError

FAMILIES = ("pick", "look", "clean", "heat", "cool", "pick2")
"""the six published task types, by their short names"""

PUBLISHED_TYPES: Mapping[str, str] = {
    "pick": "pick_and_place_simple",
    "look": "look_at_obj_in_light",
    "clean": "pick_clean_then_place_in_recep",
    "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep",
    "pick2": "pick_two_obj_and_place",
}
"""short name -> the type's name in published data"""

_ABILITIES = ("pickupable", "cleanable", "heatable", "coolable", "sliceable", "toggleable")
_STATES = ("clean", "hot", "cool", "sliced", "toggled")
TRAITS = frozenset((*_ABILITIES, "vessel", *_STATES))
"""What an object can be: six abilities, `vessel` (a dish or box that may hold others), and five initial states."""


@dataclass(frozen=True, slots=True)
class Receptacle:
    """Furniture and appliances: what one goes to, opens, and puts things in."""

    name: str
    """`cabinet 3`"""
    kind: str
    """`cabinet`"""
    location: int | None
    """where one stands to face it; None where it cannot be reached"""
    openable: bool = False
    opened: bool = False


@dataclass(frozen=True, slots=True)
class Thing:
    """An object."""

    name: str
    """`apple 2`"""
    kind: str
    """`apple`"""
    traits: frozenset[str] = frozenset()
    """words of TRAITS"""
    receptacles: tuple[int, ...] = ()
    """indices of the receptacles it is in"""
    locations: tuple[int, ...] = ()
    """where it can be reached with a knife: the locations of those receptacles"""
    holds: tuple[int, ...] = ()
    """indices of the things shown inside it, for a vessel; nothing an agent does changes that"""


@dataclass(frozen=True, slots=True)
class Goal:
    """What wins.

    pick         some `kind` is in some `target`
    pick2        two of `kind` are in the same `target`
    clean, heat, cool  some `kind` that is clean, hot, cool is in some `target`
    look         a `kind` is held, facing a receptacle with a toggled lamp of kind `target`
    """

    family: str
    kind: str
    target: str


@dataclass(frozen=True, slots=True)
class Game:
    """One game, as it starts."""

    receptacles: tuple[Receptacle, ...]
    things: tuple[Thing, ...]
    fits: frozenset[tuple[str, str]]
    """(receptacle kind, object kind) pairs that may be put together"""
    start: int
    """the location the agent starts at"""
    goal: Goal
    sentence: str
    """the goal as it is told: `put a hot tomato in fridge.`"""

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise TacitError(f"not a household: {problem}.")

    def _problem(self) -> str:
        names = Counter([r.name for r in self.receptacles])
        names.update([t.name for t in self.things])
        if names and names.most_common(1)[0][1] > 1:
            return f"two entities are called {names.most_common(1)[0][0]!r}"
        if self.goal.family not in FAMILIES:
            return f"goal family {self.goal.family!r} is none of {', '.join(FAMILIES)}"
        for thing in self.things:
            if not thing.traits <= TRAITS:
                return f"{thing.name} has unknown traits {sorted(thing.traits - TRAITS)}"
            if thing.receptacles and not 0 <= min(thing.receptacles) <= max(thing.receptacles) < len(self.receptacles):
                return f"{thing.name} is in receptacles {thing.receptacles}, of which there are {len(self.receptacles)}"
            if thing.holds and not 0 <= min(thing.holds) <= max(thing.holds) < len(self.things):
                return f"{thing.name} holds things {thing.holds}, of which there are {len(self.things)}"
        return ""

    def to_data(self) -> dict[str, Any]:
        """JSON-able and compact (a few kilobytes): what `Task.data["game"]` carries."""
        return {
            "receptacles": [[r.name, r.kind, r.location, r.openable, r.opened] for r in self.receptacles],
            "things": [
                [t.name, t.kind, " ".join(sorted(t.traits)), list(t.receptacles), list(t.locations), list(t.holds)]
                for t in self.things
            ],
            "fits": [list(pair) for pair in sorted(self.fits)],
            "start": self.start,
            "goal": [self.goal.family, self.goal.kind, self.goal.target],
            "sentence": self.sentence,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Game:
        """The inverse of `to_data`."""
        try:
            return cls(
                receptacles=tuple(Receptacle(*row) for row in data["receptacles"]),
                things=tuple(
                    Thing(name, kind, frozenset(traits.split()), tuple(inside), tuple(places), tuple(holds))
                    for name, kind, traits, inside, places, holds in data["things"]
                ),
                fits=frozenset((receptacle, thing) for receptacle, thing in data["fits"]),
                start=data["start"],
                goal=Goal(*data["goal"]),
                sentence=data["sentence"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TacitError(f"not a household: malformed game data ({type(error).__name__}: {error}).") from error


def numbered(kinds: Iterable[str]) -> list[str]:
    """Names for entities of these kinds in listing order, counted down within each kind.

    >>> numbered(["fork", "fork", "mug"])
    ['fork 2', 'fork 1', 'mug 1']
    """
    kinds = list(kinds)
    left = Counter(kinds)
    names = []
    for kind in kinds:
        names.append(f"{kind} {left[kind]}")
        left[kind] -= 1
    return names
