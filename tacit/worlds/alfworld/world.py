"""ALFWorld in plain Python: `Game` (initial state), `Household` (one game being played), `AlfWorld` (the world)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition

# The initial state of a game. `published.py` and `tasks.py` both build a `Game`; three rules make them behave alike:
#
# 1. Tuple order is listing order: observations list receptacles and objects in this order, and indices refer to it.
# 2. Names are `kind number`, unique, and count down within a kind (`number_names`): `a fork 3, a fork 2, a fork 1`.
# 3. A location is an integer that several receptacles may share: the agent then faces all of them.
#    In published games, no receptacle is at the start location.
#
# An object may start in several receptacles at once. It may also be at a location without being in a receptacle: it is then
# invisible, but a knife reaches it.

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
"""Properties of objects: six abilities, `vessel` (may hold other objects), and five initial states."""


@dataclass(frozen=True, slots=True)
class Receptacle:
    """Furniture or an appliance: a place to go to, open, and put objects in."""

    name: str
    """`cabinet 3`"""
    kind: str
    """`cabinet`"""
    location: int | None
    """where the agent stands to face it; None if unreachable"""
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
    """for a vessel: indices of the things shown inside it; no action changes them"""


@dataclass(frozen=True, slots=True)
class Goal:
    """The winning condition.

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
    """the goal in words: `put a hot tomato in fridge.`"""

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
        """The JSON form stored in `Task.data["game"]`, a few kilobytes."""
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


def number_names(kinds: Iterable[str]) -> list[str]:
    """Names for entities of these kinds, counting down within each kind.

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


def join_names(names: Sequence[str]) -> str:
    """`nothing`, `a`, `a, and b`, `a, b, and c`"""
    if len(names) < 2:
        return names[0] if names else "nothing"
    return f"{', '.join(names[:-1])}, and {names[-1]}"


KNIVES = ("knife", "butterknife")
APPLIANCES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "clean": ("cleanable", ("sink", "sinkbasin")),
    "heat": ("heatable", ("microwave",)),
    "cool": ("coolable", ("fridge",)),
}
"""verb -> the ability a held thing needs, and the kinds of receptacle that do it"""
OPPOSITE_TREATMENT = {"heat": "cool", "cool": "heat"}


class Household:
    """One game being played. Receptacles and things are indices into the game's tuples.

    It reproduces alfworld's text engine word for word, including these behaviors:

    * Commands match exactly, apart from surrounding white space; anything else is `Nothing happens.`
    * The agent cannot go to a receptacle that it already faces.
    * Only the held object can be examined as an object.
    * A lamp never turns off. It works inside a closed receptacle, and so does a knife on food.
    * `look` in the middle of the room lists nothing: its list is of the current location.
    * `Next to it` lists an object once for each receptacle here that it was taken out of and not put back in.
    * An object that starts in two receptacles stays in the second when taken out of the first, even while carried.
    * Winning does not end the game by itself: `won` is recomputed after every command and can become False again.
    """

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
        self.treated = {"clean": self.clean, "heat": self.hot, "cool": self.cool}
        """verb -> the things it was done to"""
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
        self._handlers: dict[str, Callable[[str], str]] = {
            "go": self._go,
            "open": self._open,
            "close": self._close,
            "take": self._take,
            "move": self._move,
            "examine": self._examine,
            **{verb: partial(self._treat, verb) for verb in APPLIANCES},
            "use": self._use,
            "slice": self._slice,
            "look": lambda _: self._look(),
            "inventory": lambda _: self._inventory(),
            "help": lambda _: HELP,
        }
        self.commands = self._list_commands()
        """the admissible commands, sorted"""
        self.won = self._is_won()

    @property
    def facing(self) -> Sequence[int]:
        """the receptacles at this location"""
        return self._here.get(self.location, ())

    def is_accessible(self, receptacle: int) -> bool:
        """True unless it is closed."""
        return self.opened[receptacle] or not self.game.receptacles[receptacle].openable

    def intro(self) -> str:
        """The first observation."""
        if self.facing:
            view = self._look()
        else:
            names = [f"a {r.name}" for r in self.game.receptacles if r.location is not None]
            view = f"You are in the middle of a room. Looking quickly around you, you see {join_names(names)}."
        return f"-= Welcome to TextWorld, ALFRED! =-\n\n{view}\n\nYour task is to: {self.game.sentence}"

    def execute(self, command: str) -> str:
        """Execute a command, update `commands` and `won`, and return the feedback."""
        command = command.strip()
        if command not in self.commands:
            return NOTHING_HAPPENS
        verb, _, rest = command.partition(" ")
        return self._handlers[verb](rest)

    def _refresh(self) -> None:
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
                if self.is_accessible(r):
                    commands += [f"take {self._thing_names[i]} from {name}" for i in self.contents[r] if i in self._portable]
            else:
                thing = game.things[held]
                if (receptacle.kind, thing.kind) in game.fits and self.is_accessible(r):
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
        """The `go to` commands, cached per location: they are most of every list."""
        if self.location not in self._going:
            names = (r.name for r in self.game.receptacles if r.location not in (None, self.location))
            self._going[self.location] = sorted(f"go to {name}" for name in names)
        return self._going[self.location]

    def _faces(self, thing: int) -> bool:
        """The thing is in a receptacle here, closed or not."""
        return any(thing in self.contents[r] for r in self.facing)

    def _go(self, rest: str) -> str:
        r = self._receptacle[rest.removeprefix("to ")]
        location = self.game.receptacles[r].location
        assert location is not None
        self.location = location
        self._refresh()
        return f"You arrive at {self._receptacle_names[r]}. {self._show(r)}"

    def _open(self, rest: str) -> str:
        r = self._receptacle[rest]
        self.opened[r] = True
        self._refresh()
        return f"You open the {rest}. {self._show(r)}"

    def _close(self, rest: str) -> str:
        self.opened[self._receptacle[rest]] = False
        self._refresh()
        return f"You close the {rest}."

    def _take(self, rest: str) -> str:
        thing_name, receptacle_name = rest.split(" from ")
        thing, r = self._thing[thing_name], self._receptacle[receptacle_name]
        contents = self.contents[r]
        del contents[bisect_left(contents, thing)]
        self.taken_out.add((thing, r))
        self.reachable[thing].discard(self.location)
        self.held = thing
        self._refresh()
        return f"You pick up the {thing_name} from the {receptacle_name}."

    def _move(self, rest: str) -> str:
        thing_name, receptacle_name = rest.split(" to ")
        thing, r = self._thing[thing_name], self._receptacle[receptacle_name]
        if thing not in self.contents[r]:
            insort(self.contents[r], thing)
            self.taken_out.discard((thing, r))
        self.reachable[thing].add(self.location)
        self.held = None
        self._refresh()
        return f"You move the {thing_name} to the {receptacle_name}."

    def _treat(self, verb: str, rest: str) -> str:
        thing_name, receptacle_name = rest.split(" with ")
        self.treated[verb].add(self._thing[thing_name])
        if verb in OPPOSITE_TREATMENT:
            self.treated[OPPOSITE_TREATMENT[verb]].discard(self._thing[thing_name])
        self.won = self._is_won()
        return f"You {verb} the {thing_name} using the {receptacle_name}."

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
        """The visible contents of a receptacle."""
        name = self._receptacle_names[r]
        if not self.is_accessible(r):
            return f"The {name} is closed."
        seen = join_names([f"a {self._thing_names[i]}" for i in self.contents[r]])
        if self.game.receptacles[r].openable:
            return f"The {name} is open. In it, you see {seen}."
        return f"On the {name}, you see {seen}."

    def _describe(self, i: int) -> str:
        """The appearance of an object. A vessel shows only its contents; `cold` is used only by itself."""
        thing = self.game.things[i]
        if "vessel" in thing.traits:
            held = join_names([f"a {self._thing_names[inner]}" for inner in thing.holds])
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
        names = join_names([self._receptacle_names[r] for r in facing])
        return f"You are facing the {names}. Next to it, you see {join_names(strays)}."

    def _inventory(self) -> str:
        if self.held is None:
            return "You are not carrying anything."
        return f"You are carrying: a {self._thing_names[self.held]}."

    @property
    def delivered(self) -> int:
        """The largest number of goal objects in one goal receptacle (0 for `look`)."""
        state = self.treated.get(self.game.goal.family)
        wanted = self._goal_things if state is None else self._goal_things & state
        return max((sum(i in wanted for i in self.contents[r]) for r in self._goal_targets), default=0)

    def _is_won(self) -> bool:
        if self.game.goal.family == "look":
            lit = any(i in self.toggled and self._faces(i) for i in self._goal_lamps)
            return lit and self.held in self._goal_things
        return self.delivered >= (2 if self.game.goal.family == "pick2" else 1)


def _eligible(game: Game, thing: Thing) -> bool:
    """A goal that asks for a state also asks for the ability: an object that starts cool but is not coolable does not count."""
    family = game.goal.family
    return family not in APPLIANCES or APPLIANCES[family][0] in thing.traits


class AlfWorld:
    """Plays one game at a time. Observations have the engine's text and its admissible commands, sorted."""

    def __init__(self) -> None:
        self._household: Household | None = None

    @property
    def household(self) -> Household:
        """The full state of the current game, for oracles and debugging."""
        if self._household is None:
            raise TacitError("no game has been started: call reset(task) first.")
        return self._household

    def reset(self, task: Task) -> Observation:
        if "game" not in task.data:
            raise TacitError(f"task {task.id!r} is not an ALFWorld game: its data has no 'game'.")
        self._household = household = Household(Game.from_data(task.data["game"]))
        return Observation(household.intro(), household.commands)

    def step(self, action: str) -> Transition:
        household = self.household
        feedback = household.execute(action)
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
