"""Errands: fetch a thing from behind one of eight doors in three steps, in a town where nothing ever moves.

A new agent can look behind two doors before it must take the thing, so it succeeds in one of four errands; an agent that
remembers always succeeds. One episode shows one or two eighths of the map. `train` and `test` use town 0; each errand of
`elsewhere` has its own town.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from tacit.core.errors import TacitError, check_split_and_count
from tacit.core.hindsight import RuleTracker, critical_steps
from tacit.core.tasks import parse_panels, take_distinct
from tacit.core.types import Observation, Skills, StopReason, Task, Trajectory, Transition
from tacit.core.world import Alphabet, Brief, ByReading, Numbered, World

DOORS = ("red", "green", "black", "white", "yellow", "purple", "orange", "wooden")
THINGS = (
    *("apple", "bread", "carrot", "cheese", "egg", "lettuce", "milk", "tuna", "mug", "plate", "fork", "knife"),
    *("kettle", "ladle", "box", "book", "candle", "vase", "statue", "watch", "pillow", "cloth", "laptop", "bell"),
)  # words that the packaged pretrained model knows from other worlds
PLACES = (
    *("kitchen", "bathroom", "bedroom", "livingroom", "corridor", "pantry", "backyard", "patio"),
    *("pool", "desk", "sofa", "bed", "table", "shelf", "dresser", "armchair"),
)  # destinations named in goals
HOME = 0  # the town of `train` and `test`


@lru_cache(maxsize=4096)
def town_map(number: int) -> Mapping[str, tuple[str, ...]]:
    things = list(THINGS)
    Random(f"errands/town/{number}").shuffle(things)
    each = len(THINGS) // len(DOORS)
    return {door: tuple(things[i * each : (i + 1) * each]) for i, door in enumerate(DOORS)}


def door_of(thing: str, number: int) -> str:
    return next(door for door, things in town_map(number).items() if thing in things)


MAX_STEPS = 3
HERE = "here it is"


class ErrandsWorld(World):
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
        """Open a door (empty: the street) and describe it: `behind red: mug, bell, egg | here it is`"""
        self._open, self._shown = door, town_map(self._town)[door] if door else ()
        remark = refused or (HERE if self._wanted in self._shown else "")
        text = (f"behind {door}: {', '.join(self._shown)}" if door else "street") + (f" | {remark}" if remark else "")
        return Observation(text, (*(f"open {d}" for d in DOORS if d != door), *(f"take {t}" for t in self._shown)))


def parse_observation(text: str) -> tuple[str, tuple[str, ...], str]:
    """(open door, visible things, refusal) of an observation; empty if there is none."""
    view, _, remark = text.partition(" | ")
    refused = "" if remark == HERE else remark
    if not view.startswith("behind "):
        return "", (), refused
    door, _, things = view.removeprefix("behind ").partition(": ")
    return door, tuple(things.split(", ")), refused


RULES = f"""You run errands in a town. Everything is kept behind one of eight doors, three things behind each.
Nothing is ever moved.
Each turn, do one of these:
open DOOR: see what is behind it. The doors: {", ".join(DOORS)}
take THING: take one of the things you see
You have {MAX_STEPS} turns to take what is wanted."""


class FullWording(Numbered):
    rules, goal_prefix, between = RULES, "Your errand: ", " "

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


NAME = "errands"
SPLITS = ("train", "test", "elsewhere")
FAMILY = "errand"
TOWNS = 2**31


def tasks(split: str, count: int, seed: int) -> list[Task]:
    """`count` different errands of the split, or all if there are fewer; a larger count begins with the same errands."""
    check_split_and_count(NAME, SPLITS, split, count)
    rng = Random(f"{NAME}/{split}/{seed}")
    if split == "elsewhere":
        towns = iter(lambda: rng.randrange(1, TOWNS), 0)
        drawn = (make_task(rng.choice(PLACES), rng.choice(THINGS), town, split, seed) for town in towns)
        return take_distinct(drawn, count, lambda task: task.data["town"])
    pairs = [(place, thing) for place in PLACES for thing in THINGS if split_of(place, thing) == split]
    rng.shuffle(pairs)
    return [make_task(place, thing, HOME, split, seed) for place, thing in pairs[:count]]


def make_task(place: str, thing: str, town: int = HOME, split: str = "own", seed: int = 0) -> Task:
    name = f"{NAME}/{split}/{town}-{place}-{thing}"
    return Task(NAME, name, FAMILY, split, seed, f"wanted in the {place}: {thing}", {"thing": thing, "town": town})


def split_of(place: str, thing: str) -> str:
    """The split of a pair in town 0: each thing is wanted in twelve places of `train` and four of `test`."""
    return "test" if (PLACES.index(place) + THINGS.index(thing)) % 4 == 0 else "train"


PANELS = parse_panels("""
train      16:2c6665be6fe42b0d 128:91918401f98fae5c 256:64b8961df481651e 288:3391c67715e4c7c2
test       16:daff7dd99ac86f68 96:a7f932b2c837fcbd
elsewhere  16:3e5361fd706cf606 128:cdc7ae7f4ae8f6f6 256:8040a5068b6d8a38 512:033cb46daec9d39c 1024:14e4c33b29cbee4c
""")


# Experts, tracker (amounts after Table 6 of the constant-context paper), skill alphabet, handbook, hindsight, failures.


class Resident(ByReading):
    """Knows the door of every thing."""

    def __init__(self, task: Task) -> None:
        self._thing = str(task.data["thing"])
        self._door = door_of(self._thing, int(task.data["town"]))

    def act(self, observation: Observation) -> str:
        return f"take {self._thing}" if self._thing in parse_observation(observation.text)[1] else f"open {self._door}"


class Stranger:
    """Opens each door once in random order; with a hint about the wanted thing (`mug behind red`), that door first."""

    def __init__(self, task: Task, hint: str = "") -> None:
        self._thing = str(task.data["thing"])
        doors = list(DOORS)
        Random(f"stranger/{task.id}/{task.seed}").shuffle(doors)
        thing, _, door = hint.partition(" behind ")
        hinted = [door] if thing == self._thing and door in DOORS else []
        self._left = [*hinted, *(d for d in doors if d not in hinted)]

    def act(self, observation: Observation) -> str:
        if self._thing in parse_observation(observation.text)[1]:
            return f"take {self._thing}"
        return f"open {self._left.pop(0)}" if self._left else f"open {DOORS[0]}"


PHASES = ("search", "found", "done")


@dataclass(frozen=True)
class ErrandState:
    wanted: str
    opened: tuple[str, ...] = ()  # distinct doors, in order of opening
    phase: str = "search"
    fault: str = ""


class ErrandTracker(RuleTracker):
    version = "errands-1"
    progress = {"subgoal": 1.0, "new_door": 0.02}
    errors = {"unreadable": 0.3, "refused": 0.2, "repeated": 0.1}

    def start(self, task: Task, observation: Observation) -> ErrandState:
        return ErrandState(str(task.data["thing"]))

    def update(self, state: ErrandState, action: str, transition: Transition) -> ErrandState:
        if transition.success:
            return replace(state, phase="done", fault="")
        door, things, refused = parse_observation(transition.observation.text)
        if not transition.effective:
            return replace(state, fault="unreadable" if refused == "not an action" else "refused")
        again = door in state.opened
        opened = state.opened if again or not door else (*state.opened, door)
        phase = "found" if state.wanted in things else "search"
        return replace(state, opened=opened, phase=phase, fault="repeated" if again else "")

    def render(self, state: ErrandState) -> str:
        return f"phase: {state.phase}\nopened: {', '.join(state.opened) or 'nothing'}"

    def count(self, before: ErrandState, after: ErrandState) -> Mapping[str, float]:
        phases = max(0, PHASES.index(after.phase) - PHASES.index(before.phase))
        return {"subgoal": phases, "new_door": len(after.opened) - len(before.opened)}


def project(trajectory: Trajectory) -> Iterator[str]:
    opened: set[str] = set()
    for step in trajectory.steps:
        verb, _, name = step.action.strip().partition(" ")
        if verb == "open" and name in DOORS:
            yield "OPEN-AGAIN" if name in opened else "OPEN-NEW"
            opened.add(name)
        elif verb == "take" and name in THINGS:
            yield "TAKE-WANTED" if name == trajectory.task.data["thing"] else "TAKE-OTHER"


ALPHABET = Alphabet(("OPEN-NEW", "OPEN-AGAIN", "TAKE-WANTED", "TAKE-OTHER"), project, operators=("OPEN", "TAKE"))
HANDBOOK = {"": "open the door behind which the thing was seen before; take it as soon as it is in sight"}


def hindsight(trajectory: Trajectory) -> Skills:
    """The door of the wanted thing, if it was seen; else empty advice."""
    wanted = str(trajectory.task.data["thing"])
    parsed = (parse_observation(observation.text) for observation in trajectory.observations)
    seen = {thing: door for door, things, _ in parsed for thing in things if door}
    steps = critical_steps(trajectory, Resident(trajectory.task), ErrandTracker())
    advice = f"{wanted} behind {seen[wanted]}" if wanted in seen else ""
    return Skills(advice, steps, f"{trajectory.task.goal}. {'Done' if trajectory.success else 'Failed'}.")


def failure(trajectory: Trajectory) -> str:
    """`not_taken` if the thing was visible, `unreadable` if no door was opened, else `not_found`; or the stop reason."""
    if trajectory.stop is not StopReason.STEP_LIMIT:
        return str(trajectory.stop)
    things_seen = [parse_observation(observation.text)[1] for observation in trajectory.observations]
    if any(trajectory.task.data["thing"] in things for things in things_seen):
        return "not_taken"
    return "not_found" if any(things_seen) else "unreadable"
