"""The household itself: one game's state, what can be done in it, and what it says.

It answers word for word what alfworld's text engine answers, and so keeps that engine's habits:

* Commands are matched exactly, after trimming white space at both ends; anything else is `Nothing happens.`
* One cannot go to a receptacle one already faces, whichever of several one faces.
* Only what is held can be examined as an object. (The domain means to allow visible objects too, but a misplaced comma
  there declares a type `location,` that nothing has.)
* A lamp never turns off: `use` toggles it, and once toggled counts as on. It works inside a closed receptacle, and so
  does a knife on food.
* `look` on arrival in the middle of the room lists the receptacles, later `nothing`: its list is of *this* location.
* `Next to it` lists an object once for each receptacle here that it was once taken out of and has not been put back in.
* An object that starts in two receptacles stays in the second when taken out of the first, even while it is carried.
* Winning ends nothing by itself: `won` is computed afresh after every command, and a game can be un-won.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

from tacit.environments.alfworld.game import Game, Thing

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

_KNIVES = ("knife", "butterknife")
_CLEANERS = ("sink", "sinkbasin")
_HEATERS = ("microwave",)
_COOLERS = ("fridge",)


def listed(names: Sequence[str]) -> str:
    """`nothing`, `a`, `a, and b`, `a, b, and c`"""
    if len(names) < 2:
        return names[0] if names else "nothing"
    return f"{', '.join(names[:-1])}, and {names[-1]}"


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
        self._going: dict[int, tuple[str, ...]] = {}
        self._takes: list[list[str] | None] = [None] * len(game.receptacles)
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
        """Sorted as strings. Verbs come in alphabetical blocks, so that only blocks are sorted."""
        game, held, facing = self.game, self.held, self.facing
        names = self._receptacle_names
        appliances: list[str] = []
        closing: list[str] = []
        examining = [f"examine {names[r]}" for r in facing]
        moving: list[str] = []
        opening: list[str] = []
        slicing: list[str] = []
        taking: list[str] = []
        for r in facing:
            if game.receptacles[r].openable:
                if self.opened[r]:
                    closing.append(f"close {names[r]}")
                else:
                    opening.append(f"open {names[r]}")
        if held is None:
            for r in facing:
                if self.accessible(r):
                    takes = self._takes[r]
                    taking += self._list_takes(r) if takes is None else takes
        else:
            thing = game.things[held]
            examining.append(f"examine {thing.name}")
            for r in facing:
                kind = game.receptacles[r].kind
                if (kind, thing.kind) in game.fits and self.accessible(r):
                    moving.append(f"move {thing.name} to {names[r]}")
                appliance = _appliance(kind, thing)
                if appliance:
                    appliances.append(f"{appliance} {thing.name} with {names[r]}")
            if thing.kind in _KNIVES:
                here = self.location
                slicing = [
                    f"slice {game.things[i].name} with {thing.name}"
                    for i in self._sliceable
                    if here in self.reachable[i]
                ]
        using = [f"use {game.things[i].name}" for i in self._lamps if any(i in self.contents[r] for r in facing)]
        # clean < close < cool, so the two that appliances offer around `close` need sorting with it; the rest are in order
        head = sorted([*appliances, *closing])
        heating = [command for command in head if command.startswith("heat")]
        if heating:
            head = [command for command in head if not command.startswith("heat")]
        return (
            *head,
            *sorted(examining),
            *self._list_going(),
            *heating,
            "help",
            "inventory",
            "look",
            *sorted(moving),
            *sorted(opening),
            *sorted(slicing),
            *sorted(taking),
            *sorted(using),
        )

    def _list_going(self) -> tuple[str, ...]:
        going = self._going.get(self.location)
        if going is None:
            going = tuple(
                sorted(
                    f"go to {r.name}"
                    for r in self.game.receptacles
                    if r.location is not None and r.location != self.location
                )
            )
            self._going[self.location] = going
        return going

    def _list_takes(self, receptacle: int) -> list[str]:
        name, things = self._receptacle_names[receptacle], self.game.things
        takes = [
            f"take {things[i].name} from {name}" for i in self.contents[receptacle] if "pickupable" in things[i].traits
        ]
        self._takes[receptacle] = takes
        return takes

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
        self._takes[r] = None
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
            self._takes[r] = None
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
            f"a {self._thing_names[i]}"
            for i, r in sorted(self.taken_out)
            if r in facing and self.location in self.reachable[i]
        ]
        return f"You are facing the {listed([self._receptacle_names[r] for r in facing])}. Next to it, you see {listed(strays)}."

    def _inventory(self) -> str:
        if self.held is None:
            return "You are not carrying anything."
        return f"You are carrying: a {self._thing_names[self.held]}."

    def _is_won(self) -> bool:
        family, wanted = self.game.goal.family, self._goal_things
        if family == "look":
            return self.held in wanted and any(
                i in self.toggled and any(i in self.contents[r] for r in self.facing) for i in self._goal_lamps
            )
        needed = 2 if family == "pick2" else 1
        state = {"clean": self.clean, "heat": self.hot, "cool": self.cool}.get(family)
        if state is not None:
            wanted = wanted & state
        if len(wanted) < needed:
            return False
        return any(sum(i in wanted for i in self.contents[r]) >= needed for r in self._goal_targets)


def _appliance(receptacle_kind: str, thing: Thing) -> str:
    """What can be done to a held thing with a receptacle of this kind, beside putting it there."""
    if receptacle_kind in _CLEANERS and "cleanable" in thing.traits:
        return "clean"
    if receptacle_kind in _HEATERS and "heatable" in thing.traits:
        return "heat"
    if receptacle_kind in _COOLERS and "coolable" in thing.traits:
        return "cool"
    return ""


def _eligible(game: Game, thing: Thing) -> bool:
    """A goal that asks for a state also asks for the ability: what starts cool but cannot be cooled does not count."""
    ability = {"clean": "cleanable", "heat": "heatable", "cool": "coolable"}.get(game.goal.family)
    return ability is None or ability in thing.traits
