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
from collections.abc import Callable, Mapping, Sequence

from tacit.environments.alfworld.game import Game, Thing
from tacit.environments.alfworld.text import HELP, NOTHING_HAPPENS, listed

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
