"""Errands: fetch a thing from behind one of eight doors, in a town where nothing ever moves.

    actions   open DOOR     shows the three things behind it and closes the previous door
              take THING    takes a visible thing; the observation remarks on the wanted one
    success   the wanted thing is taken
    limit     three steps, so two doors can be tried

An agent new to the town succeeds in one of four errands; one that remembers always does, in two steps. The map
is the same in all episodes, and one episode shows an eighth or a quarter of it. Town 0 is used by `train` and `test`;
each errand elsewhere has its own town, which teaches nothing about town 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from random import Random

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Brief, Numbered, World

DOORS = ("red", "green", "black", "white", "yellow", "purple", "orange", "wooden")
THINGS = (
    *("apple", "bread", "carrot", "cheese", "egg", "lettuce", "milk", "tuna", "mug", "plate", "fork", "knife"),
    *("kettle", "ladle", "box", "book", "candle", "vase", "statue", "watch", "pillow", "cloth", "laptop", "bell"),
)
"""words that the packaged pretrained model knows from other worlds"""
PLACES = (
    *("kitchen", "bathroom", "bedroom", "livingroom", "corridor", "pantry", "backyard", "patio"),
    *("pool", "desk", "sofa", "bed", "table", "shelf", "dresser", "armchair"),
)
"""where things are wanted"""
HOME = 0  # the town of `train` and `test`


@lru_cache(maxsize=4096)
def town_map(number: int) -> Mapping[str, tuple[str, ...]]:
    """door -> the things behind it"""
    things = list(THINGS)
    Random(f"errands/town/{number}").shuffle(things)
    each = len(THINGS) // len(DOORS)
    return {door: tuple(things[i * each : (i + 1) * each]) for i, door in enumerate(DOORS)}


def door_of(thing: str, number: int) -> str:
    return next(door for door, things in town_map(number).items() if thing in things)


def is_true(text: str, number: int = HOME) -> bool:
    """Whether the text is a single fact that is true in the town: `mug behind red`."""
    return any(text.strip() == f"{thing} behind {door}" for door, things in town_map(number).items() for thing in things)


MAX_STEPS = 3
HERE = "here it is"


class ErrandsWorld(World):
    """One errand at a time; see the module for the rules."""

    def reset(self, task: Task) -> Observation:
        try:
            self._wanted, self._town = str(task.data["thing"]), int(task.data["town"])
        except (KeyError, ValueError, TypeError) as error:
            raise TacitError(f"task {task.id!r} is not an errand: its data needs a `thing` and a `town` (a number).") from error
        if self._wanted not in THINGS:
            raise TacitError(f"task {task.id!r} asks for {self._wanted!r}, which no town has.")
        return self._observe("")

    def step(self, action: str) -> Transition:
        verb, _, name = action.strip().partition(" ")
        if verb == "open" and name in DOORS:
            return Transition(self._observe(name))
        if verb == "take" and name in self._shown:
            if name == self._wanted:
                seen = Observation(f"taken: {name}", self._observe(self._open).actions)
                return Transition(seen, done=True, success=True, score=1.0)
            return Transition(self._observe(self._open, "that is not wanted"), effective=False)
        refused = "that is not here" if verb == "take" else "not an action"
        return Transition(self._observe(self._open, refused), effective=False)

    def _observe(self, door: str, refused: str = "") -> Observation:
        """Open a door (none: the street). `behind red: mug, bell, egg | here it is`"""
        self._open, self._shown = door, town_map(self._town)[door] if door else ()
        remark = refused or (HERE if self._wanted in self._shown else "")
        text = (f"behind {door}: {', '.join(self._shown)}" if door else "street") + (f" | {remark}" if remark else "")
        return Observation(text, (*(f"open {d}" for d in DOORS if d != door), *(f"take {t}" for t in self._shown)))


def parse_observation(text: str) -> tuple[str, tuple[str, ...], str]:
    """(open door, visible things, refusal) of an observation; empty if there is none."""
    shown, _, remark = text.partition(" | ")
    refused = "" if remark == HERE else remark
    if not shown.startswith("behind "):
        return "", (), refused
    door, _, things = shown.removeprefix("behind ").partition(": ")
    return door, tuple(things.split(", ")), refused


RULES = f"""You run errands in a town. Everything is kept behind one of eight doors, three things behind each.
Nothing is ever moved.
Each turn, do one of these:
open DOOR: see what is behind it. The doors: {", ".join(DOORS)}
take THING: take one of the things you see
You have {MAX_STEPS} turns to take what is wanted."""


class FullWording(Numbered):
    rules, asked, between = RULES, "Your errand: ", " "

    def seen(self, observation: Observation) -> str:
        door, things, refused = parse_observation(observation.text)
        why = f"Your last action was refused: {refused}. " if refused else ""
        here = " Here it is." if observation.text.endswith(HERE) else ""
        return why + (f"Behind the {door} door you see: {', '.join(things)}.{here}" if door else "You stand in the street.")


class TerseWording(Brief):
    """`wanted in the kitchen: mug`, then the observations."""

    then = " : "

    def task(self, task: Task) -> str:
        return task.goal
