"""The world: a `Household` behind `reset` and `step`."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition

# A household game as frozen data: what is where at the start, what fits where, and what is to be done.
#
# This is what the simulator plays (`household.py`), what published problems are read into (`pddl.py`) and what a
# generator of houses has to build. Three rules make a hand-built `Game` behave like a published one:
#
# 1. **Order is listing order.** The text of the world lists receptacles and objects in the order of these tuples, and
#    refers between them by index into them.
# 2. **Names are `kind number`**, unique over receptacles and objects, counted *down* within a kind (`numbered`): a table
#    with three forks lists `a fork 3, a fork 2, a fork 1`.
# 3. **A location is a place to stand**: an integer that several receptacles may share (one faces them all at once). No
#    receptacle is at the start location in a published game.
#
# Objects may start in several receptacles at once (the published games' sensors overlap), and may be at locations
# without being in any receptacle: then nobody sees them, but a knife reaches them.

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


# Fixed texts of the household and how it strings names together.

NOTHING_HAPPENS = "Nothing happens."

HELP = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""


def listed(names: Sequence[str]) -> str:
    """`nothing`, `a`, `a, and b`, `a, b, and c`"""
    if len(names) < 2:
        return names[0] if names else "nothing"
    return f"{', '.join(names[:-1])}, and {names[-1]}"


# The household itself: one game's state, what can be done in it, and what it says.
#
# It answers word for word what alfworld's text engine answers, and so keeps that engine's habits:
#
# * Commands are matched exactly, after trimming white space at both ends; anything else is `Nothing happens.`
# * One cannot go to a receptacle one already faces, whichever of several one faces.
# * Only what is held can be examined as an object. (The domain means to allow visible objects too, but a misplaced comma
#   there declares a type `location,` that nothing has.)
# * A lamp never turns off: `use` toggles it, and once toggled counts as on. It works inside a closed receptacle, and so
#   does a knife on food.
# * `look` on arrival in the middle of the room lists the receptacles, later `nothing`: its list is of *this* location.
# * `Next to it` lists an object once for each receptacle here that it was once taken out of and has not been put back in.
# * An object that starts in two receptacles stays in the second when taken out of the first, even while it is carried.
# * Winning ends nothing by itself: `won` is computed afresh after every command, and a game can be un-won.

KNIVES = ("knife", "butterknife")
APPLIANCES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "clean": ("cleanable", ("sink", "sinkbasin")),
    "heat": ("heatable", ("microwave",)),
    "cool": ("coolable", ("fridge",)),
}
"""verb -> the ability a held thing needs, and the kinds of receptacle that do it"""


class Household:
    """One game being played. Receptacles and things are indices into the game's tuples, which are in listing order."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.location = game.start
        self.held: int | None = None
        self.opened = [r.opened for r in game.receptacles]
        self.contents: list[list[int]] = [[] for _ in game.receptacles]
        """things in each receptacle, in listing order"""
        self.reachable = [set(thing.locations) for thing in game.things]
        """the locations at which a knife reaches each thing"""
        self.taken_out: set[tuple[int, int]] = set()
        """(thing, receptacle): taken out of it and not put back"""
        self.clean, self.hot, self.cool, self.sliced, self.toggled = (
            {i for i, thing in enumerate(game.things) if state in thing.traits}
            for state in ("clean", "hot", "cool", "sliced", "toggled")
        )
        for i, thing in enumerate(game.things):
            for r in thing.receptacles:
                self.contents[r].append(i)

        self._receptacle_names = [r.name for r in game.receptacles]
        self._thing_names = [t.name for t in game.things]
        self._receptacle = {name: i for i, name in enumerate(self._receptacle_names)}
        self._thing = {name: i for i, name in enumerate(self._thing_names)}
        self._here: dict[int, list[int]] = {}
        for i, receptacle in enumerate(game.receptacles):
            if receptacle.location is not None:
                self._here.setdefault(receptacle.location, []).append(i)
        self._going: dict[int, list[str]] = {}
        self._portable = {i for i, t in enumerate(game.things) if "pickupable" in t.traits}
        self._sliceable = [i for i, t in enumerate(game.things) if "sliceable" in t.traits]
        self._lamps = [i for i, t in enumerate(game.things) if "toggleable" in t.traits]
        self._goal_things = {i for i, t in enumerate(game.things) if t.kind == game.goal.kind and _eligible(game, t)}
        self._goal_targets = [i for i, r in enumerate(game.receptacles) if r.kind == game.goal.target]
        self._goal_lamps = [i for i in self._lamps if game.things[i].kind == game.goal.target]
        self._do: dict[str, Callable[[str], str]] = {
            "go": self._go,
            "open": self._open,
            "close": self._close,
            "take": self._take,
            "move": self._move,
            "examine": self._examine,
            "clean": self._clean,
            "heat": self._heat,
            "cool": self._cool,
            "use": self._use,
            "slice": self._slice,
            "look": lambda _: self._look(),
            "inventory": lambda _: self._inventory(),
            "help": lambda _: HELP,
        }
        self.commands = self._list_commands()
        """what can be done now, sorted"""
        self.won = self._is_won()

    @property
    def facing(self) -> Sequence[int]:
        """the receptacles at this location"""
        return self._here.get(self.location, ())

    def accessible(self, receptacle: int) -> bool:
        """Not closed."""
        return self.opened[receptacle] or not self.game.receptacles[receptacle].openable

    def intro(self) -> str:
        """What is said before the first command."""
        if self.facing:
            view = self._look()
        else:
            names = [f"a {r.name}" for r in self.game.receptacles if r.location is not None]
            view = f"You are in the middle of a room. Looking quickly around you, you see {listed(names)}."
        return f"-= Welcome to TextWorld, ALFRED! =-\n\n{view}\n\nYour task is to: {self.game.sentence}"

    def answer(self, command: str) -> str:
        """Carries out a command and says what happened; `commands` and `won` are up to date afterwards."""
        command = command.strip()
        if command not in self.commands:
            return NOTHING_HAPPENS
        verb, _, rest = command.partition(" ")
        return self._do[verb](rest)

    def _changed(self) -> None:
        self.commands = self._list_commands()
        self.won = self._is_won()

    def _list_commands(self) -> tuple[str, ...]:
        game, held = self.game, self.held
        commands = ["help", "inventory", "look", *self._list_going()]
        for r in self.facing:
            receptacle = game.receptacles[r]
            name = receptacle.name
            commands.append(f"examine {name}")
            if receptacle.openable:
                commands.append(f"close {name}" if self.opened[r] else f"open {name}")
            if held is None:
                if self.accessible(r):
                    commands += [f"take {self._thing_names[i]} from {name}" for i in self.contents[r] if i in self._portable]
            else:
                thing = game.things[held]
                if (receptacle.kind, thing.kind) in game.fits and self.accessible(r):
                    commands.append(f"move {thing.name} to {name}")
                for verb, (ability, kinds) in APPLIANCES.items():
                    if receptacle.kind in kinds and ability in thing.traits:
                        commands.append(f"{verb} {thing.name} with {name}")
        commands += [f"use {self._thing_names[i]}" for i in self._lamps if self._faces(i)]
        if held is not None:
            knife = game.things[held]
            commands.append(f"examine {knife.name}")
            if knife.kind in KNIVES:
                foods = [i for i in self._sliceable if self.location in self.reachable[i]]
                commands += [f"slice {self._thing_names[i]} with {knife.name}" for i in foods]
        return tuple(sorted(commands))

    def _list_going(self) -> list[str]:
        """Always the same at one location, so listed once for each: most of every list is this."""
        going = self._going.get(self.location)
        if going is None:
            there = [r.name for r in self.game.receptacles if r.location not in (None, self.location)]
            going = self._going[self.location] = sorted(f"go to {name}" for name in there)
        return going

    def _faces(self, thing: int) -> bool:
        """The thing is in a receptacle here, closed or not."""
        return any(thing in self.contents[r] for r in self.facing)

    def _go(self, rest: str) -> str:
        r = self._receptacle[rest.removeprefix("to ")]
        location = self.game.receptacles[r].location
        assert location is not None
        self.location = location
        self._changed()
        return f"You arrive at {self._receptacle_names[r]}. {self._show(r)}"

    def _open(self, rest: str) -> str:
        r = self._receptacle[rest]
        self.opened[r] = True
        self._changed()
        return f"You open the {rest}. {self._show(r)}"

    def _close(self, rest: str) -> str:
        self.opened[self._receptacle[rest]] = False
        self._changed()
        return f"You close the {rest}."

    def _take(self, rest: str) -> str:
        thing_name, receptacle_name = rest.split(" from ")
        thing, r = self._thing[thing_name], self._receptacle[receptacle_name]
        contents = self.contents[r]
        del contents[bisect_left(contents, thing)]
        self.taken_out.add((thing, r))
        self.reachable[thing].discard(self.location)
        self.held = thing
        self._changed()
        return f"You pick up the {thing_name} from the {receptacle_name}."

    def _move(self, rest: str) -> str:
        thing_name, receptacle_name = rest.split(" to ")
        thing, r = self._thing[thing_name], self._receptacle[receptacle_name]
        if thing not in self.contents[r]:
            insort(self.contents[r], thing)
            self.taken_out.discard((thing, r))
        self.reachable[thing].add(self.location)
        self.held = None
        self._changed()
        return f"You move the {thing_name} to the {receptacle_name}."

    def _clean(self, rest: str) -> str:
        thing_name, receptacle_name = rest.split(" with ")
        self.clean.add(self._thing[thing_name])
        self.won = self._is_won()
        return f"You clean the {thing_name} using the {receptacle_name}."

    def _heat(self, rest: str) -> str:
        thing_name, receptacle_name = rest.split(" with ")
        self.hot.add(self._thing[thing_name])
        self.cool.discard(self._thing[thing_name])
        self.won = self._is_won()
        return f"You heat the {thing_name} using the {receptacle_name}."

    def _cool(self, rest: str) -> str:
        thing_name, receptacle_name = rest.split(" with ")
        self.cool.add(self._thing[thing_name])
        self.hot.discard(self._thing[thing_name])
        self.won = self._is_won()
        return f"You cool the {thing_name} using the {receptacle_name}."

    def _use(self, rest: str) -> str:
        self.toggled.add(self._thing[rest])
        self.won = self._is_won()
        return f"You turn on the {rest}."

    def _slice(self, rest: str) -> str:
        food, knife = rest.split(" with ")
        self.sliced.add(self._thing[food])
        return f"You sliced the {food} with the {knife}."

    def _examine(self, rest: str) -> str:
        r = self._receptacle.get(rest)
        return self._show(r) if r is not None else self._describe(self._thing[rest])

    def _show(self, r: int) -> str:
        """What a receptacle lets one see."""
        name = self._receptacle_names[r]
        if not self.accessible(r):
            return f"The {name} is closed."
        seen = listed([f"a {self._thing_names[i]}" for i in self.contents[r]])
        if self.game.receptacles[r].openable:
            return f"The {name} is open. In it, you see {seen}."
        return f"On the {name}, you see {seen}."

    def _describe(self, i: int) -> str:
        """What an object looks like. A vessel only ever shows what it holds; `cold` is only ever said alone."""
        thing = self.game.things[i]
        if "vessel" in thing.traits:
            held = listed([f"a {self._thing_names[inner]}" for inner in thing.holds])
            return f"This is a normal {thing.name}. In it, you see {held}."
        clean, sliced = i in self.clean, i in self.sliced
        warmth = "hot" if i in self.hot else "cool" if i in self.cool else ""
        if clean or warmth:
            if warmth == "cool" and not clean and not sliced:
                warmth = "cold"
            words = " and ".join(filter(None, (warmth, "clean" if clean else "")))
            return f"This is a {words} {'sliced ' if sliced else ''}{thing.name}."
        if i in self.toggled and "toggleable" in thing.traits:
            return f"This {thing.name} is on."
        if sliced and "sliceable" in thing.traits:
            return f"This is a sliced {thing.name}."
        return f"There's nothing special about {thing.name}."

    def _look(self) -> str:
        facing = self.facing
        if not facing:
            return "You are in the middle of a room. Looking quickly around you, you see nothing."
        strays = [
            f"a {self._thing_names[i]}" for i, r in sorted(self.taken_out) if r in facing and self.location in self.reachable[i]
        ]
        return (
            f"You are facing the {listed([self._receptacle_names[r] for r in facing])}. Next to it, you see {listed(strays)}."
        )

    def _inventory(self) -> str:
        if self.held is None:
            return "You are not carrying anything."
        return f"You are carrying: a {self._thing_names[self.held]}."

    @property
    def delivered(self) -> int:
        """How many things that the goal asks for are together where it wants them (0 for `look`, which wants none)."""
        state = {"clean": self.clean, "heat": self.hot, "cool": self.cool}.get(self.game.goal.family)
        wanted = self._goal_things if state is None else self._goal_things & state
        return max((sum(i in wanted for i in self.contents[r]) for r in self._goal_targets), default=0)

    def _is_won(self) -> bool:
        if self.game.goal.family == "look":
            lit = any(i in self.toggled and self._faces(i) for i in self._goal_lamps)
            return lit and self.held in self._goal_things
        return self.delivered >= (2 if self.game.goal.family == "pick2" else 1)


def _eligible(game: Game, thing: Thing) -> bool:
    """A goal that asks for a state also asks for the ability: what starts cool but cannot be cooled does not count."""
    family = game.goal.family
    return family not in APPLIANCES or APPLIANCES[family][0] in thing.traits


class AlfWorld:
    """Plays one household game at a time: observations carry the engine's text and its admissible commands, sorted."""

    def __init__(self) -> None:
        self._household: Household | None = None

    @property
    def household(self) -> Household:
        """The game being played, with its whole state: for experts that may see it and for debugging."""
        if self._household is None:
            raise TacitError("this world has no game yet: call reset(task) first.")
        return self._household

    def reset(self, task: Task) -> Observation:
        if "game" not in task.data:
            raise TacitError(f"task {task.id!r} is not a household: its data has no 'game'.")
        self._household = household = Household(Game.from_data(task.data["game"]))
        return Observation(household.intro(), household.commands)

    def step(self, action: str) -> Transition:
        household = self.household
        feedback = household.answer(action)
        won = household.won
        return Transition(
            observation=Observation(feedback, household.commands),
            done=won,
            success=won,
            score=float(won),
            effective=feedback != NOTHING_HAPPENS,
        )

    def close(self) -> None:
        self._household = None
