"""What a player knows of the house: everything it has read so far, and nothing else."""

from __future__ import annotations

from tacit.core.types import Observation
from tacit.environments.alfworld.observed import command_of, read_view

_OPPOSITE = {"heat": "cool", "cool": "heat"}


class Memory:
    """A fold over observations. It never asks which action was meant: feedback says which one was carried out."""

    def __init__(self) -> None:
        self.receptacles: set[str] = set()
        """all that one can go to"""
        self.contents: dict[str, set[str]] = {}
        """what was in each receptacle when last seen; not there, not looked into yet"""
        self.closed: dict[str, bool] = {}
        """of the receptacles one has faced"""
        self.lamps: dict[str, str] = {}
        """lamp -> a receptacle from which it can be used"""
        self.treated: dict[str, set[str]] = {"clean": set(), "heat": set(), "cool": set()}
        """verb -> the things that had it done to them last"""
        self.origin: dict[str, str] = {}
        """thing -> the receptacle it was last taken from"""
        self.held = ""
        self.facing: list[str] = []
        self.actions: tuple[str, ...] = ()
        """what can be done now"""

    def see(self, observation: Observation) -> None:
        first, self.actions = not self.receptacles, observation.actions
        self._happened(command_of(observation.text))
        self._look_at_actions(first)
        view = read_view(observation.text)
        if view:
            self.contents[view[0]] = set(view[1])

    def where(self, thing: str) -> list[str]:
        """The receptacles it was last seen in."""
        return [receptacle for receptacle, inside in self.contents.items() if thing in inside]

    def is_closed(self, receptacle: str, by_default: bool = False) -> bool:
        return self.closed.get(receptacle, by_default)

    def _happened(self, command: str) -> None:
        verb, _, rest = command.partition(" ")
        if verb == "take":
            thing, _, receptacle = rest.partition(" from ")
            self.contents.get(receptacle, set()).discard(thing)
            self.origin[thing] = receptacle
        elif verb == "move":
            thing, _, receptacle = rest.partition(" to ")
            self.contents.setdefault(receptacle, set()).add(thing)
        elif verb in self.treated:
            thing = rest.partition(" with ")[0]
            self.treated[verb].add(thing)
            self.treated.get(_OPPOSITE.get(verb, ""), set()).discard(thing)

    def _look_at_actions(self, first: bool) -> None:
        """The list of actions tells what is held, what stands here, what is closed, and, to an empty hand, what is in it."""
        by_verb: dict[str, list[str]] = {}
        for action in self.actions:
            verb, _, rest = action.partition(" ")
            by_verb.setdefault(verb, []).append(rest)
        self.receptacles.update(rest.removeprefix("to ") for rest in by_verb.get("go", ()))
        examined = by_verb.get("examine", [])
        if first:  # nothing is held yet, so whatever can be examined is what one faces
            self.receptacles.update(examined)
        self.facing = [name for name in examined if name in self.receptacles]
        self.held = next((name for name in examined if name not in self.receptacles), "")
        closed = by_verb.get("open", [])
        for receptacle in self.facing:
            self.closed[receptacle] = receptacle in closed
            if not self.held and receptacle not in closed:
                self.contents[receptacle] = set()
        for taking in by_verb.get("take", ()):
            thing, _, receptacle = taking.partition(" from ")
            self.contents[receptacle].add(thing)
        if self.facing:
            self.lamps.update(dict.fromkeys(by_verb.get("use", ()), self.facing[0]))
