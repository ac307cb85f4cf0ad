"""ALFWorld in plain Python: `Game` (initial state), `Household` (one game being played), `AlfWorld` (the world), and the
wordings: `full` for language models, `terse` for models of about a million parameters."""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.types import ActionStyle, Observation, Task, Transition
from tacit.core.world import Brief, StepCountWording, World

# The initial state of a game. `published.py` and `tasks.py` both build a `Game`. Tuple order is listing order. Names are `kind
# number`, unique, and count down within a kind: `a fork 3, a fork 2, a fork 1`. Several receptacles may share a location: the
# agent then faces all of them. In published games, no receptacle is at the start location. An object may start in several
# receptacles at once, or at a location outside of receptacles: then it is invisible, but can be sliced.

PUBLISHED_TYPES: Mapping[str, str] = {
    "pick": "pick_and_place_simple",
    "look": "look_at_obj_in_light",
    "clean": "pick_clean_then_place_in_recep",
    "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep",
    "pick2": "pick_two_obj_and_place",
}  # family -> its name in published data
FAMILIES = tuple(PUBLISHED_TYPES)
ABILITIES = ("pickupable", "cleanable", "heatable", "coolable", "sliceable", "toggleable")
STATES = ("clean", "hot", "cool", "sliced", "toggled")
TRAITS = frozenset((*ABILITIES, "vessel", *STATES))
"""Properties of objects: six abilities, `vessel` (may hold other objects), and five initial states."""


@dataclass(frozen=True, slots=True)
class Receptacle:
    """Furniture or an appliance: a place to go to, open, and put objects in."""

    name: str  # `cabinet 3`
    kind: str  # `cabinet`
    location: int | None  # where the agent stands to face it; None if unreachable
    openable: bool = False
    opened: bool = False


@dataclass(frozen=True, slots=True)
class Thing:
    name: str  # `apple 2`
    kind: str  # `apple`
    traits: frozenset[str] = frozenset()  # words of TRAITS
    receptacles: tuple[int, ...] = ()  # indices of the receptacles it is in
    locations: tuple[int, ...] = ()  # where it can be reached with a knife: the locations of those receptacles
    holds: tuple[int, ...] = ()  # for a vessel: indices of the things shown inside it; no action changes them


@dataclass(frozen=True, slots=True)
class Goal:
    """The winning condition: some `kind` (two, for pick2), treated as the family asks, is in one `target`; look: a `kind` is
    held, facing a receptacle with a toggled lamp of kind `target`."""

    family: str
    kind: str
    target: str


@dataclass(frozen=True, slots=True)
class Game:
    receptacles: tuple[Receptacle, ...]
    things: tuple[Thing, ...]
    fits: frozenset[tuple[str, str]]  # (receptacle kind, object kind) pairs that may be put together
    start: int  # the location the agent starts at
    goal: Goal
    sentence: str  # the goal in words: `put a hot tomato in fridge.`

    def __post_init__(self) -> None:
        names = Counter([*(r.name for r in self.receptacles), *(t.name for t in self.things)])
        problem = ""
        if names and names.most_common(1)[0][1] > 1:
            problem = f"two entities are called {names.most_common(1)[0][0]!r}"
        elif self.goal.family not in FAMILIES:
            problem = f"goal family {self.goal.family!r} is none of {', '.join(FAMILIES)}"
        for thing in self.things:
            inside, holds = thing.receptacles, thing.holds
            if not thing.traits <= TRAITS:
                problem = problem or f"{thing.name} has unknown traits {sorted(thing.traits - TRAITS)}"
            elif inside and not 0 <= min(inside) <= max(inside) < len(self.receptacles):
                problem = problem or f"{thing.name} is in receptacles {inside}, of which there are {len(self.receptacles)}"
            elif holds and not 0 <= min(holds) <= max(holds) < len(self.things):
                problem = problem or f"{thing.name} holds things {holds}, of which there are {len(self.things)}"
        if problem:
            raise TacitError(f"not a household: {problem}.")

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
            receptacles = tuple(Receptacle(*row) for row in data["receptacles"])
            things = tuple(
                Thing(name, kind, frozenset(traits.split()), tuple(inside), tuple(places), tuple(holds))
                for name, kind, traits, inside, places, holds in data["things"]
            )
            fits = frozenset((receptacle, thing) for receptacle, thing in data["fits"])
            return cls(receptacles, things, fits, data["start"], Goal(*data["goal"]), data["sentence"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TacitError(f"not a household: malformed game data ({type(error).__name__}: {error}).") from error


def number_names(kinds: Iterable[str]) -> list[str]:
    """Names for entities of these kinds, counting down within each kind: fork 2, fork 1, mug 1."""
    names, seen = list[str](), Counter[str]()
    for kind in reversed(list(kinds)):
        seen[kind] += 1
        names.append(f"{kind} {seen[kind]}")
    return names[::-1]


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
KNIVES = ("knife", "butterknife")
APPLIANCES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "clean": ("cleanable", ("sink", "sinkbasin")),
    "heat": ("heatable", ("microwave",)),
    "cool": ("coolable", ("fridge",)),
}  # verb -> the ability a held thing needs, and the kinds of receptacle that do it
OPPOSITE_TREATMENT = {"heat": "cool", "cool": "heat"}
_QUIET = ("look", "inventory", "help", "examine", "slice")
"""verbs that change neither the admissible commands nor whether the goal is reached"""


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
        self.contents: list[list[int]] = [[] for _ in game.receptacles]  # receptacle -> its things, in listing order
        for i, thing in enumerate(game.things):
            for r in thing.receptacles:
                self.contents[r].append(i)
        self.reachable = [set(thing.locations) for thing in game.things]  # the locations at which a knife reaches each thing
        self.taken_out: set[tuple[int, int]] = set()  # (thing, receptacle): taken out of it and not put back
        self.clean, self.hot, self.cool, self.sliced, self.toggled = map(self._with_trait, STATES)
        self.treated = {"clean": self.clean, "heat": self.hot, "cool": self.cool}  # verb -> the things it was done to

        self._receptacle = {r.name: i for i, r in enumerate(game.receptacles)}
        self._thing = {t.name: i for i, t in enumerate(game.things)}
        self._names = [t.name for t in game.things]
        self._here: dict[int | None, list[int]] = {}
        for i, receptacle in enumerate(game.receptacles):
            self._here.setdefault(receptacle.location, []).append(i)
        self._going: dict[int, list[str]] = {}  # the `go to` commands by location, as they are most of every list
        self._portable, self._lamps = self._with_trait("pickupable"), self._with_trait("toggleable")
        # A goal that asks for a state also asks for the ability: an object that starts cool but is not coolable does not count.
        goal = game.goal
        able = self._with_trait(APPLIANCES[goal.family][0]) if goal.family in APPLIANCES else set(range(len(game.things)))
        self._goal_things = {i for i in able if game.things[i].kind == goal.kind}
        self._goal_targets = [i for i, r in enumerate(game.receptacles) if r.kind == goal.target]
        self._goal_lamps = [i for i in self._lamps if game.things[i].kind == goal.target]
        self._refresh()

    def _with_trait(self, trait: str) -> set[int]:
        return {i for i, thing in enumerate(self.game.things) if trait in thing.traits}

    @property
    def facing(self) -> Sequence[int]:
        """the receptacles at this location"""
        return self._here.get(self.location, ())

    def is_accessible(self, receptacle: int) -> bool:
        return self.opened[receptacle] or not self.game.receptacles[receptacle].openable

    def intro(self) -> str:
        names = [f"a {r.name}" for r in self.game.receptacles if r.location is not None]
        room = f"You are in the middle of a room. Looking quickly around you, you see {_join(names)}."
        view = self._look() if self.facing else room
        return f"-= Welcome to TextWorld, ALFRED! =-\n\n{view}\n\nYour task is to: {self.game.sentence}"

    def execute(self, command: str) -> str:
        """Execute a command, update `commands` and `won`, and return the feedback."""
        command = command.strip()
        if command not in self.commands:
            return NOTHING_HAPPENS
        verb, _, rest = command.partition(" ")
        feedback = self._do(verb, rest)
        if verb not in _QUIET:
            self._refresh()
        return feedback

    def _refresh(self) -> None:
        self.commands = self._list_commands()  # the admissible commands, sorted
        family = self.game.goal.family
        if family == "look":
            lit = any(i in self.toggled and self._faces(i) for i in self._goal_lamps)
            self.won = lit and self.held in self._goal_things
        else:
            self.won = self.delivered >= (2 if family == "pick2" else 1)

    def _list_commands(self) -> tuple[str, ...]:
        game, held = self.game, self.held
        if self.location not in self._going:
            names = (r.name for r in game.receptacles if r.location not in (None, self.location))
            self._going[self.location] = sorted(f"go to {name}" for name in names)
        commands = ["help", "inventory", "look", *self._going[self.location]]
        for r in self.facing:
            receptacle = game.receptacles[r]
            name = receptacle.name
            commands.append(f"examine {name}")
            if receptacle.openable:
                commands.append(f"close {name}" if self.opened[r] else f"open {name}")
            if held is None:
                if self.is_accessible(r):
                    commands += [f"take {self._names[i]} from {name}" for i in self.contents[r] if i in self._portable]
                continue
            thing = game.things[held]
            if (receptacle.kind, thing.kind) in game.fits and self.is_accessible(r):
                commands.append(f"move {thing.name} to {name}")
            for verb, (ability, kinds) in APPLIANCES.items():
                if receptacle.kind in kinds and ability in thing.traits:
                    commands.append(f"{verb} {thing.name} with {name}")
        commands += [f"use {self._names[i]}" for i in self._lamps if self._faces(i)]
        if held is not None:
            knife = game.things[held]
            commands.append(f"examine {knife.name}")
            if knife.kind in KNIVES:
                foods = [i for i in self._with_trait("sliceable") if self.location in self.reachable[i]]
                commands += [f"slice {self._names[i]} with {knife.name}" for i in foods]
        return tuple(sorted(commands))

    def _faces(self, thing: int) -> bool:
        """The thing is in a receptacle here, closed or not."""
        return any(thing in self.contents[r] for r in self.facing)

    def _do(self, verb: str, rest: str) -> str:
        """Execute an admissible command."""
        first, _, second = rest.partition({"take": " from ", "move": " to "}.get(verb, " with "))
        thing, r = self._thing.get(first, -1), self._receptacle.get(second or first, -1)
        match verb:
            case "go":
                name = rest.removeprefix("to ")
                r = self._receptacle[name]
                location = self.game.receptacles[r].location
                assert location is not None
                self.location = location
                return f"You arrive at {name}. {self._show(r)}"
            case "open":
                self.opened[r] = True
                return f"You open the {rest}. {self._show(r)}"
            case "close":
                self.opened[r] = False
                return f"You close the {rest}."
            case "take":
                del self.contents[r][bisect_left(self.contents[r], thing)]
                self.taken_out.add((thing, r))
                self.reachable[thing].discard(self.location)
                self.held = thing
                return f"You pick up the {first} from the {second}."
            case "move":
                if thing not in self.contents[r]:
                    insort(self.contents[r], thing)
                    self.taken_out.discard((thing, r))
                self.reachable[thing].add(self.location)
                self.held = None
                return f"You move the {first} to the {second}."
            case "clean" | "heat" | "cool":
                self.treated[verb].add(thing)
                self.treated.get(OPPOSITE_TREATMENT.get(verb, ""), set()).discard(thing)
                return f"You {verb} the {first} using the {second}."
            case "use":
                self.toggled.add(thing)
                return f"You turn on the {rest}."
            case "slice":
                self.sliced.add(thing)
                return f"You sliced the {first} with the {second}."
            case "examine":
                return self._show(r) if r >= 0 else self._describe(thing)
            case "inventory":
                held = self.held
                return "You are not carrying anything." if held is None else f"You are carrying: a {self._names[held]}."
        return self._look() if verb == "look" else HELP

    def _show(self, r: int) -> str:
        """The visible contents of a receptacle."""
        receptacle = self.game.receptacles[r]
        if not self.is_accessible(r):
            return f"The {receptacle.name} is closed."
        where = f"The {receptacle.name} is open. In it" if receptacle.openable else f"On the {receptacle.name}"
        return f"{where}, you see {self._list(self.contents[r])}."

    def _describe(self, i: int) -> str:
        """The appearance of an object. A vessel shows only its contents; `cold` is used only by itself."""
        thing = self.game.things[i]
        if "vessel" in thing.traits:
            return f"This is a normal {thing.name}. In it, you see {self._list(thing.holds)}."
        clean, sliced = i in self.clean, i in self.sliced
        cool = "cool" if clean or sliced else "cold"
        words = ["hot"] * (i in self.hot) or [cool] * (i in self.cool)
        if words := [*words, *["clean"] * clean]:
            return f"This is a {' and '.join(words)} {'sliced ' if sliced else ''}{thing.name}."
        if i in self.toggled and "toggleable" in thing.traits:
            return f"This {thing.name} is on."
        if sliced and "sliceable" in thing.traits:
            return f"This is a sliced {thing.name}."
        return f"There's nothing special about {thing.name}."

    def _look(self) -> str:
        facing = self.facing
        if not facing:
            return "You are in the middle of a room. Looking quickly around you, you see nothing."
        near = [i for i, r in sorted(self.taken_out) if r in facing and self.location in self.reachable[i]]
        names = _join([self.game.receptacles[r].name for r in facing])
        return f"You are facing the {names}. Next to it, you see {self._list(near)}."

    def _list(self, things: Iterable[int]) -> str:
        return _join([f"a {self._names[i]}" for i in things])

    @property
    def delivered(self) -> int:
        """The largest number of goal objects in one goal receptacle (0 for `look`)."""
        state = self.treated.get(self.game.goal.family)
        wanted = self._goal_things if state is None else self._goal_things & state
        return max((sum(i in wanted for i in self.contents[r]) for r in self._goal_targets), default=0)


def _join(names: Sequence[str]) -> str:
    """`nothing`, `a`, `a, and b`, `a, b, and c`"""
    if len(names) < 2:
        return names[0] if names else "nothing"
    return f"{', '.join(names[:-1])}, and {names[-1]}"


class AlfWorld(World):
    """Plays one game at a time. Observations have the engine's text and its admissible commands, sorted."""

    _household: Household | None = None

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
        observation, won = Observation(feedback, household.commands), household.won
        return Transition(observation, won, won, float(won), effective=feedback != NOTHING_HAPPENS)


_INTRO = re.compile(r"^-= Welcome to TextWorld, ALFRED! =-\n\n(.*)\n\nYour task is to: .*$", re.DOTALL)


class FullWording(StepCountWording):
    """The template that GiGPO, HGPO and BiPACE train with (BiPACE appendix J)."""

    version = "2"  # 1 mentioned turns "shown above" even if none were shown

    def task(self, task: Task) -> str:
        return f"You are an expert agent operating in the ALFRED Embodied Environment. Your task is to: {task.goal}"

    def describe(self, observation: Observation) -> str:
        """Without the greeting and the task, which the prompt states itself."""
        intro = _INTRO.match(observation.text)
        return intro.group(1) if intro else observation.text

    def list_actions(self, observation: Observation) -> str:
        actions = "\n ".join(f"'{action}'" for action in _without_help(observation))
        return f"\nYour admissible actions of the current situation are: [{actions}]."

    def message(self, number: int, observation: Observation, admissible: bool) -> str:
        listed = self.list_actions(observation) if admissible and observation.actions else ""
        return self.describe(observation) + listed

    def request(self, style: ActionStyle) -> str:
        if style == "bare":
            return "Now it's your turn to take an action. Answer with one admissible action alone."
        return (
            "Now it's your turn to take an action.\n"
            "You should first reason step-by-step about the current situation. This reasoning process MUST be enclosed "
            "within <think> </think> tags.\n"
            "Once you've finished your reasoning, you should choose an admissible action for current step and present it "
            "within <action> </action> tags."
        )


class TerseWording(Brief):
    """`shelf 2: book 1, pen 3 > take pen 3 from shelf 2`, one line per turn."""

    ends, list_start = " >", "\n["

    def task(self, task: Task) -> str:
        return task.goal

    def brief(self, observation: Observation) -> str:
        return brief(observation.text)

    def offered(self, observation: Observation) -> list[str]:
        return _without_help(observation)


_NAME = r"([\w ]{1,80})"  # limited: a pattern must read any text in linear time
FEEDBACK: Sequence[tuple[re.Pattern[str], str, str]] = [
    (re.compile(pattern.replace("NAME", _NAME)), short, command)
    for pattern, short, command in (
        (r"^You arrive at NAME\. (?=The|On)", "", r"go to \1"),
        (r"^You open the NAME\. (?=The|On)", "", r"open \1"),
        (r"^The NAME is closed\.$", r"\1 closed", ""),
        (r"^The NAME is open\. In it, you see (.*)\.$", r"\1 open: \2", ""),
        (r"^On the NAME, you see (.*)\.$", r"\1: \2", ""),
        (r"^You are facing the ([^.]*)\. Next to it, you see (.*)\.$", r"at \1: \2", ""),
        (r"^You are in the middle of a room\. Looking quickly around you, you see (.*)\.$", r"room: \1", ""),
        (r"^You close the NAME\.$", r"\1 closed", r"close \1"),
        (r"^You pick up the NAME from the NAME\.$", r"have \1", r"take \1 from \2"),
        (r"^You move the NAME to the NAME\.$", r"\2: + \1", r"move \1 to \2"),
        (r"^You are carrying: a NAME\.$", r"have \1", ""),
        (r"^You are not carrying anything\.$", "have nothing", ""),
        (r"^You clean the NAME using the NAME\.$", r"\1 clean", r"clean \1 with \2"),
        (r"^You heat the NAME using the NAME\.$", r"\1 hot", r"heat \1 with \2"),
        (r"^You cool the NAME using the NAME\.$", r"\1 cool", r"cool \1 with \2"),
        (r"^You turn on the NAME\.$", r"\1 on", r"use \1"),
        (r"^You sliced the NAME with the NAME\.$", r"\1 sliced", r"slice \1 with \2"),
        (r"^Nothing happens\.$", "nothing happens", ""),
        (r"^Available commands:.*$", "help", ""),
    )
]  # feedback -> how `brief` shortens it, and the command that it answers if that changed the state
_ITEM = re.compile(r"(?:^|(?<=, )|(?<=: ))(?:and )?a (?=[a-z]+ \d)")


@lru_cache(maxsize=1024)  # each observation is rendered twice: as the current one, then as a past turn
def brief(text: str) -> str:
    """An observation, shortened to what an agent can act on. The first one lists receptacles as ranges:
    `room: cabinet 1-4, fridge 1`."""
    intro = _INTRO.match(text)
    text = (intro.group(1) if intro else text).partition("\n")[0]
    for pattern, short, _ in FEEDBACK:
        text = pattern.sub(short, text)
    text = _ITEM.sub("", text).replace(", and ", ", ")
    if not intro:
        return text
    head, _, rest = text.partition(": ")
    parts = []
    for kind, names in groupby(rest.split(", "), key=lambda name: name.rsplit(" ", 1)[0]):
        numbers = sorted(int(name.rsplit(" ", 1)[1]) for name in names if " " in name)
        span = f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else "".join(map(str, numbers))
        parts.append(f"{kind} {span}".strip())
    return f"{head}: {', '.join(parts)}"


def command_of(feedback: str) -> str:
    """The command that this feedback answers; empty if it changed nothing (look, examine, help, a refusal, the start)."""
    commands = (match.expand(command) for pattern, _, command in FEEDBACK if command and (match := pattern.match(feedback)))
    return next(commands, "")


def _without_help(observation: Observation) -> list[str]:
    return [action for action in observation.actions if action != "help"]
