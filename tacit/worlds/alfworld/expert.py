"""Three agents that need no model: `Oracle` (sees the state), `Explorer` (acts on what it has read), and `act_on_prompt` (the
rule agent, which acts on one prompt)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task
from tacit.core.world import ByReading
from tacit.worlds.alfworld.house_tables import OPENED_KINDS, PLACES, likelihood
from tacit.worlds.alfworld.prompt import brief
from tacit.worlds.alfworld.tracker import SEARCHES, command_of, kind_of, read_goal, read_view, sort_by_number
from tacit.worlds.alfworld.world import APPLIANCES, OPPOSITE_TREATMENT, Game, Goal, Household


class Oracle(ByReading):
    """Plays a shortest plan. It mirrors the game in its own household: feedback says which command was executed, so anyone may
    choose the commands."""

    def __init__(self, task: Task) -> None:
        if "game" not in task.data:
            raise TacitError(f"the oracle cannot plan task {task.id!r}: its data has no 'game'; use the explorer.")
        self._id = task.id
        self._household = Household(Game.from_data(task.data["game"]))
        self._plan: list[str] = []

    def act(self, observation: Observation) -> str:
        """The next command of the plan; `look` if the game is won or cannot be won anymore."""
        happened = command_of(observation.text)
        self._household.execute(happened)
        if self._household.commands != observation.actions:
            raise TacitError(f"the oracle of {self._id!r} missed an observation: it must read every one of a single episode.")
        if happened:
            self._plan = self._plan[1:] if self._plan[:1] == [happened] else []
        self._plan = self._plan or plan(self._household)
        return self._plan[0] if self._plan else "look"


def plan(household: Household) -> list[str]:
    """A shortest list of commands that wins from here; empty if the game is won or cannot be.

    Plans consist of legs of known cost (walk, open, take, treat, put), and walking anywhere is one command. So all reasonable
    plans are listed and the shortest is taken; there is no search.
    """
    if household.won:
        return []
    planner = _Planner(household)
    drafts = list(planner.iterate_plans())
    if not drafts and household.held is not None:
        drafts = planner.free_hand(())  # the held object may itself be needed elsewhere: put it down and plan again
    return list(min(drafts, key=len).commands) if drafts else []


@dataclass(frozen=True, slots=True)
class _Draft:
    """A partial plan: its commands, the agent's location after them, and the receptacles they opened."""

    commands: tuple[str, ...]
    location: int
    opened: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.commands)

    def then(self, command: str) -> _Draft:
        return replace(self, commands=(*self.commands, command))


class _Planner:
    def __init__(self, household: Household) -> None:
        self.household, self.game = household, household.game
        self.goal = goal = household.game.goal
        self.start = _Draft((), household.location)
        ability = APPLIANCES[goal.family][0] if goal.family in APPLIANCES else ""
        self.things = [
            i for i, t in enumerate(self.game.things) if t.kind == goal.kind and (not ability or ability in t.traits)
        ]
        self.reachable = [i for i, r in enumerate(self.game.receptacles) if r.location is not None]
        self.targets = [i for i in self.reachable if self.game.receptacles[i].kind == goal.target]

    def iterate_plans(self) -> Iterator[_Draft]:
        if self.goal.family == "look":
            return self._light()
        return self._gather() if self.goal.family == "pick2" else self._deliver_one()

    def _deliver_one(self) -> Iterator[_Draft]:
        """Take, treat if the goal asks for it, put."""
        treated = self.household.treated.get(self.goal.family)
        for thing in self.things:
            for draft, source in self._hold(thing):
                ready = [draft] if treated is None or thing in treated else list(self._treat(draft, thing))
                # an object that starts in two receptacles stays in the second: it may already be at the target
                there = any(thing in self.household.contents[t] for t in self.targets if t != source)
                for draft in ready:
                    puts = [draft] if there else [self._put(draft, thing, t) for t in self.targets if self._fits(t, thing)]
                    yield from sorted(puts, key=len)[:1]

    def _gather(self) -> Iterator[_Draft]:
        """Put the missing one or two objects into one target."""
        for target in self._distinct_targets():
            missing = [t for t in self.things if t not in self.household.contents[target] and self._fits(target, t)]
            alone = any(thing in self.household.contents[target] for thing in self.things)
            firsts = [self.household.held] if self.household.held in missing else missing
            for first in firsts:
                for draft, _ in self._hold(first):
                    draft = self._put(draft, first, target)
                    if alone:
                        yield draft
                    else:
                        yield from self._second(draft, target, [thing for thing in missing if thing != first])

    def _second(self, draft: _Draft, target: int, things: list[int]) -> Iterator[_Draft]:
        for thing in things:
            for source in self._sources(thing):
                yield self._put(self._take(draft, thing, source), thing, target)

    def _distinct_targets(self) -> list[int]:
        """One target per equivalence class: twenty closed, empty cabinets away from everything else count as one."""
        places = {self.game.receptacles[s].location for thing in self.things for s in self._sources(thing)}
        places.add(self.household.location)
        sorts: dict[tuple, int] = {}
        for target in self.targets:
            location = self.game.receptacles[target].location
            inside = tuple(thing for thing in self.household.contents[target] if thing in self.things)
            sort = (location if location in places else None, self.household.is_accessible(target), inside)
            sorts.setdefault(sort, target)
        return list(sorts.values())

    def _light(self) -> Iterator[_Draft]:
        """Take, walk to a lamp, turn it on."""
        lamps = [i for i, t in enumerate(self.game.things) if t.kind == self.goal.target and "toggleable" in t.traits]
        for thing in self.things:
            for draft, _ in self._hold(thing):
                for lamp in lamps:
                    for receptacle in self._sources(lamp):
                        there = self._go(draft, receptacle)
                        on = lamp in self.household.toggled
                        yield there if on else there.then(f"use {self.game.things[lamp].name}")

    def _hold(self, thing: int) -> Iterator[tuple[_Draft, int | None]]:
        """Plans that end with the thing in hand, and the receptacle it comes from."""
        if self.household.held == thing:
            yield self.start, None
        elif "pickupable" in self.game.things[thing].traits:
            sources = self._sources(thing)
            for draft in self.free_hand(sources):
                for source in sources:
                    yield self._take(draft, thing, source), source

    def free_hand(self, next_stops: list[int] | tuple[int, ...]) -> list[_Draft]:
        """Plans that end with an empty hand: put the object down here, at a next stop, or wherever it is cheapest."""
        held = self.household.held
        if held is None:
            return [self.start]
        cheapest: dict[int, _Draft] = {}
        for receptacle in self.reachable:
            if self._fits(receptacle, held):
                draft = self._put(self.start, held, receptacle)
                if draft.location not in cheapest or len(draft) < len(cheapest[draft.location]):
                    cheapest[draft.location] = draft
        worthwhile = {self.household.location, *(self.game.receptacles[r].location for r in next_stops)}
        drafts = sorted(cheapest.values(), key=len)
        return drafts[:1] + [draft for draft in drafts[1:] if draft.location in worthwhile]

    def _sources(self, thing: int) -> list[int]:
        return [r for r in self.reachable if thing in self.household.contents[r]]

    def _fits(self, receptacle: int, thing: int) -> bool:
        return (self.game.receptacles[receptacle].kind, self.game.things[thing].kind) in self.game.fits

    def _go(self, draft: _Draft, receptacle: int) -> _Draft:
        place = self.game.receptacles[receptacle]
        if draft.location == place.location or place.location is None:
            return draft
        return replace(draft.then(f"go to {place.name}"), location=place.location)

    def _open(self, draft: _Draft, receptacle: int) -> _Draft:
        draft = self._go(draft, receptacle)
        if self.household.is_accessible(receptacle) or receptacle in draft.opened:
            return draft
        return replace(draft.then(f"open {self.game.receptacles[receptacle].name}"), opened=draft.opened | {receptacle})

    def _take(self, draft: _Draft, thing: int, receptacle: int) -> _Draft:
        names = self.game.things[thing].name, self.game.receptacles[receptacle].name
        return self._open(draft, receptacle).then(f"take {names[0]} from {names[1]}")

    def _put(self, draft: _Draft, thing: int, receptacle: int) -> _Draft:
        names = self.game.things[thing].name, self.game.receptacles[receptacle].name
        return self._open(draft, receptacle).then(f"move {names[0]} to {names[1]}")

    def _treat(self, draft: _Draft, thing: int) -> Iterator[_Draft]:
        verb, kinds = self.goal.family, APPLIANCES[self.goal.family][1]
        for receptacle in self.reachable:
            place = self.game.receptacles[receptacle]
            if place.kind in kinds:
                yield self._go(draft, receptacle).then(f"{verb} {self.game.things[thing].name} with {place.name}")


class Memory:
    """Everything read so far. Feedback names the executed command, so actions need not be recorded."""

    def __init__(self) -> None:
        self.receptacles: set[str] = set()
        """all known receptacles"""
        self.contents: dict[str, set[str]] = {}
        """receptacle -> its contents when last seen; missing if never looked into"""
        self.closed: dict[str, bool] = {}
        """for receptacles the agent has faced"""
        self.lamps: dict[str, str] = {}
        """lamp -> a receptacle from which it can be used"""
        self.treated: dict[str, set[str]] = {"clean": set(), "heat": set(), "cool": set()}
        """verb -> the things it was done to"""
        self.origin: dict[str, str] = {}
        """thing -> the receptacle it was last taken from"""
        self.held = ""
        self.facing: list[str] = []
        self.actions: tuple[str, ...] = ()
        """the admissible actions"""

    def read_observation(self, observation: Observation) -> None:
        first, self.actions = not self.receptacles, observation.actions
        command = command_of(observation.text)
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
            self.treated.get(OPPOSITE_TREATMENT.get(verb, ""), set()).discard(thing)
        self._read_actions(first)
        view = read_view(observation.text)
        if view:
            self.contents[view[0]] = set(view[1])

    def where(self, thing: str) -> list[str]:
        """The receptacles it was last seen in."""
        return [receptacle for receptacle, inside in self.contents.items() if thing in inside]

    def is_closed(self, receptacle: str, by_default: bool = False) -> bool:
        return self.closed.get(receptacle, by_default)

    def _read_actions(self, first: bool) -> None:
        """The admissible actions show what is held, what is here, what is closed, and with an empty hand what can be taken."""
        by_verb: dict[str, list[str]] = {}
        for action in self.actions:
            verb, _, rest = action.partition(" ")
            by_verb.setdefault(verb, []).append(rest)
        self.receptacles.update(rest.removeprefix("to ") for rest in by_verb.get("go", ()))
        examined = by_verb.get("examine", [])
        if first:  # nothing is held yet, so everything that can be examined is a receptacle here
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


class Explorer(ByReading):
    """Searches the object's usual places, takes it, treats it as the goal asks, and delivers it.

    It reads observations and the goal's sentence, never the game. It searches the place with the highest likelihood per step
    first, and remembers what it has seen. Each turn it plans from the current facts, so it recovers from refused commands and
    from other agents' moves. It is deterministic.
    """

    def __init__(self, task: Task) -> None:
        self._goal = read_goal(task.goal)
        self._memory = Memory()
        self._useless: set[str] = set()
        """objects of the goal's kind that proved unusable"""
        self._refusing: set[tuple[str, str]] = set()
        """(receptacle kind, object kind) pairs that do not fit"""

    def act(self, observation: Observation) -> str:
        self._memory.read_observation(observation)
        held = self._memory.held
        if not held:
            return self._fetch()
        return self._use(held) if held in self._wanted([held]) else self._put_down(held)

    def _wanted(self, things: Iterable[str]) -> list[str]:
        """Objects that are still needed: of the goal's kind, usable, and not delivered (pick2)."""
        delivered = self._memory.contents.get(self._target(), ()) if self._goal.family == "pick2" else ()
        return [t for t in things if kind_of(t) == self._goal.kind and t not in self._useless and t not in delivered]

    def _fetch(self) -> str:
        """One step towards holding a wanted object."""
        memory = self._memory
        treated = memory.treated.get(self._goal.family, set())
        options = [
            (thing not in treated, self._steps_to(receptacle), receptacle, thing)
            for receptacle in sort_by_number(memory.contents)
            for thing in sort_by_number(self._wanted(memory.contents[receptacle]))
        ]
        if not options:
            return self._search(self._goal.kind)
        _, _, receptacle, thing = min(options, key=lambda option: option[:2])
        return self._do(f"take {thing} from {receptacle}", receptacle)

    def _use(self, held: str) -> str:
        """One step towards the goal while holding a wanted object."""
        memory, goal = self._memory, self._goal
        if goal.family == "look":
            lamps = sort_by_number(lamp for lamp in memory.lamps if kind_of(lamp) == goal.target)
            if not lamps:
                return self._search(goal.target)
            lamp = min(lamps, key=lambda lamp: f"use {lamp}" not in memory.actions)
            return self._do(f"use {lamp}", memory.lamps[lamp])
        if goal.family in APPLIANCES and held not in memory.treated[goal.family]:
            kinds = APPLIANCES[goal.family][1]
            appliances = sort_by_number(r for r in memory.receptacles if kind_of(r) in kinds)
            if not appliances:
                return self._give_up(held)
            place = min(appliances, key=lambda r: r not in memory.facing)
            action = f"{goal.family} {held} with {place}"
            if place in memory.facing and action not in memory.actions:
                return self._give_up(held)
            return self._do(action, place)
        target = self._target()
        if not target or self._refuses(target, held):
            return self._give_up(held)
        return self._do(f"move {held} to {target}", target)

    def _target(self) -> str:
        """Where to deliver: the receptacle with most goal objects (pick2), then the nearest, then by number."""
        memory, goal = self._memory, self._goal
        targets = sort_by_number(r for r in memory.receptacles if kind_of(r) == goal.target)

        def rank(receptacle: str) -> tuple[int, int]:
            there = sum(kind_of(thing) == goal.kind for thing in memory.contents.get(receptacle, ()))
            return (-there if goal.family == "pick2" else 0, self._steps_to(receptacle))

        return min(targets, key=rank, default="")

    def _give_up(self, held: str) -> str:
        self._useless.add(held)
        return self._put_down(held)

    def _put_down(self, held: str) -> str:
        """Put down an unwanted object: here if possible, else where it came from, else where it fits."""
        memory = self._memory
        here = [action for action in memory.actions if action.startswith(f"move {held} to ")]
        if here:
            return here[0]
        origin = memory.origin.get(held, "")
        places = [r for r in sort_by_number(memory.receptacles) if not self._refuses(r, held)]
        if not places:
            return "look"
        place = min(places, key=lambda r: (r != origin, -likelihood(kind_of(held), kind_of(r)) / self._steps_to(r)))
        return self._do(f"move {held} to {place}", place)

    def _refuses(self, receptacle: str, held: str) -> bool:
        """True if an open receptacle of this kind did not accept an object of this kind."""
        memory, pair = self._memory, (kind_of(receptacle), kind_of(held))
        ready = receptacle in memory.facing and not memory.is_closed(receptacle)
        if ready and f"move {held} to {receptacle}" not in memory.actions:
            self._refusing.add(pair)
        return pair in self._refusing

    def _search(self, kind: str) -> str:
        """One step towards the most likely place not yet looked into. If none is left, objects were moved unseen: forget all
        places without relevant objects and look again."""
        memory = self._memory
        unseen = [r for r in sort_by_number(memory.receptacles) if r not in memory.contents]
        if not unseen:
            kinds = self._goal.kind, self._goal.target
            memory.contents = {r: inside for r, inside in memory.contents.items() if {kind_of(t) for t in inside} & set(kinds)}
            return "look"
        place = max(unseen, key=lambda r: likelihood(kind, kind_of(r)) / self._steps_to(r))
        return self._do(f"examine {place}", place)

    def _do(self, action: str, place: str) -> str:
        """The action if it is possible now, else a step towards it: go there, open it."""
        memory = self._memory
        if place not in memory.facing:
            return f"go to {place}"
        if memory.is_closed(place) and not action.startswith(("use", "clean", "heat", "cool")):
            return f"open {place}"
        return action

    def _steps_to(self, receptacle: str) -> int:
        """Commands needed to see its contents."""
        memory = self._memory
        walk = receptacle not in memory.facing
        closed = memory.is_closed(receptacle, by_default=kind_of(receptacle) in OPENED_KINDS)
        return max(1, walk + closed)


# The rule agent: a baseline for what the state block is worth without learning. It reads one prompt (any form of the block,
# either wording), has no memory, and needs no list of actions. It goes to the likeliest place left if the block lists them.
# Otherwise it walks through the usual places in a fixed order: the last action in the prompt shows how far it got, and a
# refusal that the place does not exist.

_FIELD = re.compile(
    r"^(subgoal|holding|destination|at|unchecked|checked|seen|where|"
    r"current_subgoal|checked_locations|searched_containers): (.*)$",
    re.M,
)
_GOAL = re.compile(r"(?:Your task is to: )?([^:\n]+)$", re.M)
_NOW = re.compile(r"[Yy]our current observation is: (.*)\nNow it's your turn", re.S)
_TURN = re.compile(r"^\[Observation \d+: '(?:.*)', Action \d+: '(.*)'\]$", re.M | re.S)
_GROUP = re.compile(r"([a-z]+) (\d+(?:-\d+)?(?: \d+(?:-\d+)?)*)")
_PLACE = re.compile(r"(?:go to|open|examine|close) (\w+ \d+)$|(?:to|from|with) (\w+ \d+)$")
_SHOWN = re.compile(r"^(\w+ \d+)(?: open)?: (?!\+)(.*)$")
_KINDS = tuple(dict.fromkeys(kind for places in PLACES.values() for kind in places))


@dataclass(frozen=True)
class ParsedPrompt:
    goal: Goal
    fields: dict[str, str]
    """of the state block"""
    now: str
    """the current observation in the terse wording"""
    last: str
    """the previous action"""

    @property
    def subgoal(self) -> str:
        return self.fields.get("subgoal") or self.fields["current_subgoal"].replace("reach_dest", "reach_destination")

    @property
    def refused(self) -> bool:
        return self.now == "nothing happens"

    @property
    def closed(self) -> str:
        """the receptacle that the observation shows to be closed"""
        return self.now.removesuffix(" closed") if self.now.endswith(" closed") else ""

    @property
    def last_place(self) -> str:
        """the place named by the last action"""
        match = _PLACE.search(self.last)
        return (match[1] or match[2]) if match else ""

    @property
    def shown(self) -> tuple[str, list[str]]:
        """the visible receptacle and its contents"""
        match = _SHOWN.match(self.now)
        return (match[1], match[2].split(", ")) if match else ("", [])

    def names(self, field: str) -> list[str]:
        return expand(self.fields.get(field, ""))


def parse_prompt(prompt: str) -> ParsedPrompt:
    fields = dict(_FIELD.findall(prompt))
    if not fields.keys() & {"subgoal", "current_subgoal"}:
        raise TacitError("the rule agent of alfworld needs a prompt with a state block: --state-block --history 1.")
    goal = _GOAL.search(prompt.partition("\n")[0])
    full = _NOW.search(prompt)
    if full:
        turn = _TURN.search(prompt)
        now, last = brief(full[1]), turn[1] if turn else ""
    else:
        lines = prompt.rstrip().split("\n")
        before = lines[1].rpartition(" > ") if " > " in lines[1] else ("", "", "")
        now, last = lines[-1].removesuffix(">").rstrip(), before[2]
    return ParsedPrompt(read_goal(goal[1] if goal else ""), fields, now, last)


def expand(listed: str) -> list[str]:
    """`drawer 1-3 5, bed 1` -> drawer 1, drawer 2, drawer 3, drawer 5, bed 1"""
    found = []
    for kind, spans in _GROUP.findall(listed):
        for span in spans.split():
            first, _, last = span.partition("-")
            found += [f"{kind} {number}" for number in range(int(first), int(last or first) + 1)]
    return found


def act_on_prompt(prompt: str) -> str:
    """The action that this prompt calls for."""
    page = parse_prompt(prompt)
    subgoal = page.subgoal
    if subgoal in SEARCHES:
        return _search(page)
    if subgoal == "take_object":
        return _take(page)
    if subgoal == "use_light":
        return _use(page)
    if subgoal == "reach_light" and "where" not in page.fields:
        return _walk(page, page.goal.target, ())
    place = _place(page)
    if subgoal.startswith("reach"):
        return f"go to {place}"
    if subgoal == "transform_object":
        return f"{page.goal.family} {page.fields['holding']} with {place}"
    if subgoal == "place_object":
        shut = page.closed == place or (page.refused and page.last.startswith("move "))
        return f"open {place}" if shut else f"move {page.fields['holding']} to {place}"
    return "look"


def _search(page: ParsedPrompt) -> str:
    sought = page.goal.target if page.subgoal == "find_light" else page.goal.kind
    if page.closed and page.closed not in page.names("searched_containers"):
        return f"open {page.closed}"
    if "unchecked" not in page.fields:
        return _walk(page, sought, page.names("checked") + page.names("checked_locations"))
    left = sorted(page.names("unchecked"), key=lambda place: -likelihood(sought, kind_of(place)))
    here = next((place for place in left if place in page.names("at")), "")
    if here:
        return _look_at(page, here)
    return f"go to {left[0]}" if left else "look"


def _look_at(page: ParsedPrompt, place: str) -> str:
    """Look into a receptacle that shares this location."""
    shut = kind_of(place) in OPENED_KINDS and not (page.refused and page.last == f"open {place}")
    return f"open {place}" if shut else f"examine {place}"


def _walk(page: ParsedPrompt, sought: str, checked: Sequence[str]) -> str:
    """Go to the next usual place after the one that the last action named."""
    came, listed = page.last_place, expand(page.now.removeprefix("room: ")) if page.now.startswith("room: ") else None
    if page.refused and page.last == f"go to {came}" and came in (*page.names("checked_locations"), *page.names("at")):
        return _look_at(page, came)
    if page.closed and page.last == f"go to {page.closed}":
        return f"open {page.closed}"
    kinds = sorted(_KINDS, key=lambda kind: -likelihood(sought, kind))
    for place in _onwards(kinds, came, page.refused and page.last.startswith("go to ")):
        if place not in checked and (listed is None or place in listed):
            return f"go to {place}"
    return "look"


def _onwards(kinds: Sequence[str], came: str, missing: bool) -> Iterator[str]:
    """Places in walking order, starting after `came`, or with the next kind if `came` does not exist (`missing`)."""
    start = kinds.index(kind_of(came)) if kind_of(came) in kinds else -1
    if start >= 0 and not missing:
        number = int(came.rpartition(" ")[2])
        yield from (f"{kinds[start]} {n}" for n in range(number + 1, _MOST + 1))
    yield from (f"{kind} {n}" for kind in (*kinds[start + 1 :], *kinds[: start + 1]) for n in range(1, _MOST + 1))


_MOST = 40
"""the most receptacles of one kind in a house"""


def _take(page: ParsedPrompt) -> str:
    if "seen" in page.fields:
        thing, _, place = page.fields["seen"].partition(", ")[0].partition(" at ")
        if place not in page.names("at"):
            return f"go to {place}"
    else:
        place, there = page.shown
        thing = next((thing for thing in there if kind_of(thing) == page.goal.kind), "")
        if not thing or place == page.fields["destination"]:
            return _walk(page, page.goal.kind, ())
    return f"open {place}" if page.closed == place else f"take {thing} from {place}"


def _use(page: ParsedPrompt) -> str:
    kind = page.goal.target
    shown = next((thing for thing in page.shown[1] if kind_of(thing) == kind), f"{kind} 1")
    if page.refused and page.last.startswith(f"use {kind} "):
        return f"use {kind} {int(page.last.rpartition(' ')[2]) + 1}"
    return f"use {shown}"


def _place(page: ParsedPrompt) -> str:
    """Where the subgoal is achieved: as the block says, else the one that is here, else the first of its kind."""
    if "where" in page.fields:
        return page.names("where")[0]
    treating = page.subgoal in ("reach_appliance", "transform_object")
    target = page.fields["destination"]
    kinds = APPLIANCES[page.goal.family][1] if treating else (kind_of(target) or target,)
    if kind_of(target) and not treating:
        return target
    here = next((place for place in (page.shown[0], page.closed, page.last_place) if kind_of(place) in kinds), "")
    if page.subgoal.startswith("reach"):
        tried = kinds.index(kind_of(here)) + 1 if here and page.refused else 0
        return f"{kinds[tried % len(kinds)]} 1"
    return here or f"{kinds[0]} 1"
