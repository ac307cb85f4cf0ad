"""Three agents that need no model: `Oracle` (sees the state), `Explorer` (acts on what it has read), and `act_on_prompt` (the
rule agent, which acts on one prompt)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tacit.core.errors import TacitError
from tacit.core.hindsight import critical_steps, most_repeated, stop_label
from tacit.core.types import Observation, Skills, Task, Trajectory
from tacit.core.world import Alphabet, ByReading
from tacit.worlds.alfworld.tasks import OPENED_KINDS, PLACES, likelihood
from tacit.worlds.alfworld.tracker import SEARCHES, AlfworldTracker, kind_of, read_goal, read_view, sort_by_number
from tacit.worlds.alfworld.world import APPLIANCES, OPPOSITE_TREATMENT, Game, Household, brief, command_of


class Oracle(ByReading):
    """Plays a shortest plan. Feedback names each executed command, which it repeats in a copy of the game; so it can advise
    any agent."""

    def __init__(self, task: Task) -> None:
        if "game" not in task.data:
            raise TacitError(f"the oracle cannot plan task {task.id!r}: its data has no 'game'; use the explorer.")
        self._id = task.id
        self._household = Household(Game.from_data(task.data["game"]))
        self._plan: list[str] = []

    def act(self, observation: Observation) -> str:
        """The next command of the plan; `look` if the game is won or cannot be won anymore."""
        executed = command_of(observation.text)
        self._household.execute(executed)
        if self._household.commands != observation.actions:
            raise TacitError(f"the oracle of {self._id!r} missed an observation: it must read every one of a single episode.")
        if executed:
            self._plan = self._plan[1:] if self._plan[:1] == [executed] else []
        self._plan = self._plan or plan(self._household)
        return self._plan[0] if self._plan else "look"


def plan(household: Household) -> list[str]:
    """A shortest list of commands that wins from here; empty if the game is won or cannot be.

    Plans consist of legs of known cost (walk, open, take, treat, put), and walking anywhere is one command. So all reasonable
    plans are listed and the shortest is taken; there is no search.
    """
    if household.won:
        return []
    planner, family = _Planner(household), household.game.goal.family
    plans = {"look": planner.light, "pick2": planner.gather}.get(family, planner.deliver_one)
    drafts = list(plans())
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
        able = [i for i, thing in enumerate(self.game.things) if not ability or ability in thing.traits]
        self.things = [i for i in able if self.game.things[i].kind == goal.kind]
        self.reachable = [i for i, r in enumerate(self.game.receptacles) if r.location is not None]
        self.targets = [i for i in self.reachable if self.game.receptacles[i].kind == goal.target]

    def deliver_one(self) -> Iterator[_Draft]:
        treated = self.household.treated.get(self.goal.family)
        for thing in self.things:
            for draft, source in self._hold(thing):
                ready = [draft]
                if treated is not None and thing not in treated:
                    verb, name = self.goal.family, self.game.things[thing].name
                    appliances = [i for i in self.reachable if self.game.receptacles[i].kind in APPLIANCES[verb][1]]
                    does = [(i, f"{verb} {name} with {self.game.receptacles[i].name}") for i in appliances]
                    ready = [self._go(draft, i).then(command) for i, command in does]
                # an object that starts in two receptacles stays in the second, which may be a target
                there = any(thing in self.household.contents[t] for t in self.targets if t != source)
                for draft in ready:
                    puts = [draft] if there else [self._put(draft, thing, t) for t in self.targets if self._fits(t, thing)]
                    yield from sorted(puts, key=len)[:1]

    def gather(self) -> Iterator[_Draft]:
        # One target per equivalence class: twenty closed, empty cabinets away from everything else count as one.
        places = {self.game.receptacles[s].location for thing in self.things for s in self._sources(thing)}
        places.add(self.household.location)
        sorts: dict[tuple, int] = {}
        for target in self.targets:
            location = self.game.receptacles[target].location
            inside = tuple(thing for thing in self.household.contents[target] if thing in self.things)
            sort = (location if location in places else None, self.household.is_accessible(target), inside)
            sorts.setdefault(sort, target)
        for target in sorts.values():
            there = self.household.contents[target]
            missing = [t for t in self.things if t not in there and self._fits(target, t)]
            alone = any(thing in there for thing in self.things)
            for first in [self.household.held] if self.household.held in missing else missing:
                for draft, _ in self._hold(first):
                    draft = self._put(draft, first, target)
                    if alone:
                        yield draft
                        continue
                    for second in (thing for thing in missing if thing != first):
                        for source in self._sources(second):
                            yield self._put(self._take(draft, second, source), second, target)

    def light(self) -> Iterator[_Draft]:
        lamps = [i for i, t in enumerate(self.game.things) if t.kind == self.goal.target and "toggleable" in t.traits]
        for thing in self.things:
            for draft, _ in self._hold(thing):
                for lamp in lamps:
                    use = () if lamp in self.household.toggled else (f"use {self.game.things[lamp].name}",)
                    for there in (self._go(draft, receptacle) for receptacle in self._sources(lamp)):
                        yield replace(there, commands=there.commands + use)

    def _hold(self, thing: int) -> Iterator[tuple[_Draft, int | None]]:
        """Plans that end with the thing in hand, and the receptacle it comes from."""
        if self.household.held == thing:
            yield self.start, None
        elif "pickupable" in self.game.things[thing].traits:
            sources = self._sources(thing)
            for draft in self.free_hand(sources):
                for source in sources:
                    yield self._take(draft, thing, source), source

    def free_hand(self, next_stops: Sequence[int]) -> list[_Draft]:
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

    def _take(self, draft: _Draft, thing: int, receptacle: int, command: str = "take {} from {}") -> _Draft:
        draft, name = self._go(draft, receptacle), self.game.receptacles[receptacle].name
        if not self.household.is_accessible(receptacle) and receptacle not in draft.opened:
            draft = replace(draft.then(f"open {name}"), opened=draft.opened | {receptacle})
        return draft.then(command.format(self.game.things[thing].name, name))

    def _put(self, draft: _Draft, thing: int, receptacle: int) -> _Draft:
        return self._take(draft, thing, receptacle, "move {} to {}")


class Explorer(ByReading):
    """Searches the object's usual places, takes it, treats it as the goal asks, and delivers it. Deterministic.

    It reads observations and the goal's sentence, never the game, and searches the place with the highest likelihood per step
    first. Each turn it plans from the current facts, so it recovers from refused commands and from other agents' moves.
    """

    def __init__(self, task: Task) -> None:
        self._goal = read_goal(task.goal)
        self._useless: set[str] = set()  # objects of the goal's kind that proved unusable
        self._refusing: set[tuple[str, str]] = set()  # (receptacle kind, object kind) pairs that do not fit
        self._receptacles: set[str] = set()  # all known receptacles
        self._contents: dict[str, set[str]] = {}  # receptacle -> its contents when last seen; missing if never looked into
        self._closed: dict[str, bool] = {}  # for receptacles the agent has faced
        self._lamps: dict[str, str] = {}  # lamp -> a receptacle from which it can be used
        self._treated: dict[str, set[str]] = {verb: set() for verb in APPLIANCES}  # verb -> the things it was done to
        self._origin: dict[str, str] = {}  # thing -> the receptacle it was last taken from
        self._held = ""
        self._facing: list[str] = []
        self._actions: tuple[str, ...] = ()

    def act(self, observation: Observation) -> str:
        self._read(observation)
        held = self._held
        if not held:
            return self._fetch()
        return self._use(held) if held in self._wanted([held]) else self._put_down(held)

    def _read(self, observation: Observation) -> None:
        first, self._actions = not self._receptacles, observation.actions
        verb, _, rest = command_of(observation.text).partition(" ")
        if verb == "take":
            thing, _, receptacle = rest.partition(" from ")
            self._contents.get(receptacle, set()).discard(thing)
            self._origin[thing] = receptacle
        elif verb == "move":
            thing, _, receptacle = rest.partition(" to ")
            self._contents.setdefault(receptacle, set()).add(thing)
        elif verb in self._treated:
            thing = rest.partition(" with ")[0]
            self._treated[verb].add(thing)
            self._treated.get(OPPOSITE_TREATMENT.get(verb, ""), set()).discard(thing)
        # The admissible actions show what is held, what is here, what is closed, and with an empty hand what can be taken.
        by_verb: dict[str, list[str]] = {}
        for action in self._actions:
            verb, _, rest = action.partition(" ")
            by_verb.setdefault(verb, []).append(rest)
        self._receptacles.update(rest.removeprefix("to ") for rest in by_verb.get("go", ()))
        examined, closed = by_verb.get("examine", []), by_verb.get("open", [])
        if first:  # nothing is held yet, so everything that can be examined is a receptacle here
            self._receptacles.update(examined)
        self._facing = [name for name in examined if name in self._receptacles]
        self._held = next((name for name in examined if name not in self._receptacles), "")
        for receptacle in self._facing:
            self._closed[receptacle] = receptacle in closed
            if not self._held and receptacle not in closed:
                self._contents[receptacle] = set()
        for taking in by_verb.get("take", ()):
            thing, _, receptacle = taking.partition(" from ")
            self._contents[receptacle].add(thing)
        if self._facing:
            self._lamps.update(dict.fromkeys(by_verb.get("use", ()), self._facing[0]))
        view = read_view(observation.text)
        if view:
            self._contents[view[0]] = set(view[1])

    def _wanted(self, things: Iterable[str]) -> list[str]:
        """Objects that are still needed: of the goal's kind, usable, and not delivered (pick2)."""
        delivered = self._contents.get(self._target(), ()) if self._goal.family == "pick2" else ()
        return [t for t in things if kind_of(t) == self._goal.kind and t not in self._useless and t not in delivered]

    def _fetch(self) -> str:
        treated = self._treated.get(self._goal.family, set())
        options = [
            (thing not in treated, self._steps_to(receptacle), receptacle, thing)
            for receptacle in sort_by_number(self._contents)
            for thing in sort_by_number(self._wanted(self._contents[receptacle]))
        ]
        if not options:
            return self._search(self._goal.kind)
        _, _, receptacle, thing = min(options, key=lambda option: option[:2])
        return self._do(f"take {thing} from {receptacle}", receptacle)

    def _use(self, held: str) -> str:
        goal, family = self._goal, self._goal.family
        if family == "look":
            lamps = sort_by_number(lamp for lamp in self._lamps if kind_of(lamp) == goal.target)
            if not lamps:
                return self._search(goal.target)
            lamp = min(lamps, key=lambda lamp: f"use {lamp}" not in self._actions)
            return self._do(f"use {lamp}", self._lamps[lamp])
        if family in APPLIANCES and held not in self._treated[family]:
            appliances = sort_by_number(r for r in self._receptacles if kind_of(r) in APPLIANCES[family][1])
            place = min(appliances, key=lambda r: r not in self._facing, default="")
            action = f"{family} {held} with {place}"
            refused = not place or (place in self._facing and action not in self._actions)
        else:
            place = self._target()
            action = f"move {held} to {place}"
            refused = not place or self._refuses(place, held)
        if refused:
            self._useless.add(held)
            return self._put_down(held)
        return self._do(action, place)

    def _target(self) -> str:
        """Where to deliver: the receptacle with most goal objects (pick2), then the nearest, then by number."""
        targets = sort_by_number(r for r in self._receptacles if kind_of(r) == self._goal.target)

        def rank(receptacle: str) -> tuple[int, int]:
            there = sum(kind_of(thing) == self._goal.kind for thing in self._contents.get(receptacle, ()))
            return (-there if self._goal.family == "pick2" else 0, self._steps_to(receptacle))

        return min(targets, key=rank, default="")

    def _put_down(self, held: str) -> str:
        """Put down an unwanted object: here if possible, else where it came from, else where it fits."""
        here = [action for action in self._actions if action.startswith(f"move {held} to ")]
        places = [] if here else [r for r in sort_by_number(self._receptacles) if not self._refuses(r, held)]
        if not places:
            return here[0] if here else "look"
        origin, kind = self._origin.get(held, ""), kind_of(held)
        place = min(places, key=lambda r: (r != origin, -likelihood(kind, kind_of(r)) / self._steps_to(r)))
        return self._do(f"move {held} to {place}", place)

    def _refuses(self, receptacle: str, held: str) -> bool:
        """True if an open receptacle of this kind did not accept an object of this kind."""
        pair = (kind_of(receptacle), kind_of(held))
        ready = receptacle in self._facing and not self._closed.get(receptacle)
        if ready and f"move {held} to {receptacle}" not in self._actions:
            self._refusing.add(pair)
        return pair in self._refusing

    def _search(self, kind: str) -> str:
        """One step towards the most likely place not yet looked into. If none is left, objects were moved unseen: forget all
        places without relevant objects and look again."""
        unseen = [r for r in sort_by_number(self._receptacles) if r not in self._contents]
        if not unseen:
            kinds = {self._goal.kind, self._goal.target}
            self._contents = {r: inside for r, inside in self._contents.items() if {kind_of(t) for t in inside} & kinds}
            return "look"
        place = max(unseen, key=lambda r: likelihood(kind, kind_of(r)) / self._steps_to(r))
        return self._do(f"examine {place}", place)

    def _do(self, action: str, place: str) -> str:
        """The action if it is possible now, else a step towards it: go there, open it."""
        if place not in self._facing:
            return f"go to {place}"
        if self._closed.get(place) and not action.startswith(("use", "clean", "heat", "cool")):
            return f"open {place}"
        return action

    def _steps_to(self, receptacle: str) -> int:
        """Commands needed to see its contents."""
        closed = self._closed.get(receptacle, kind_of(receptacle) in OPENED_KINDS)
        return max(1, (receptacle not in self._facing) + closed)


# The rule agent: a baseline without learning for prompts with a state block. It reads one prompt (any form of the block, either
# wording), has no memory, and needs no list of actions. It goes to the likeliest unchecked place if the block lists them.
# Otherwise it visits the usual places in a fixed order: the last action shows its position in that order, and a refusal shows
# that the place does not exist.

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
_MOST = 40  # maximum receptacles of one kind in a house


def expand(listed: str) -> list[str]:
    """`drawer 1-3 5, bed 1` -> drawer 1, drawer 2, drawer 3, drawer 5, bed 1"""
    names = []
    for kind, spans in _GROUP.findall(listed):
        for span in spans.split():
            first, _, last = span.partition("-")
            names += [f"{kind} {number}" for number in range(int(first), int(last or first) + 1)]
    return names


class _Page:
    """A prompt: its goal, the fields of its state block, the current observation in the terse wording, the last action."""

    def __init__(self, prompt: str) -> None:
        self.fields = fields = dict(_FIELD.findall(prompt))
        if not fields.keys() & {"subgoal", "current_subgoal"}:
            raise TacitError("the rule agent of alfworld needs a prompt with a state block: --state-block --history 1.")
        goal, full, turn = _GOAL.search(prompt.partition("\n")[0]), _NOW.search(prompt), _TURN.search(prompt)
        if full:
            self.now, self.last = brief(full[1]), turn[1] if turn else ""
        else:
            lines = prompt.rstrip().split("\n")
            self.now = lines[-1].removesuffix(">").rstrip()
            self.last = lines[1].rpartition(" > ")[2] if " > " in lines[1] else ""
        self.goal = read_goal(goal[1] if goal else "")
        self.subgoal = fields.get("subgoal") or fields["current_subgoal"].replace("reach_dest", "reach_destination")
        self.refused = self.now == "nothing happens"
        self.closed = self.now.removesuffix(" closed") if self.now.endswith(" closed") else ""
        """the receptacle that the observation shows to be closed"""
        named = _PLACE.search(self.last)
        self.last_place = (named[1] or named[2]) if named else ""  # the place named by the last action
        match = _SHOWN.match(self.now)
        self.open_place = match[1] if match else ""  # the visible receptacle
        self.things = match[2].split(", ") if match else []

    def names(self, *fields: str) -> list[str]:
        return [name for field in fields for name in expand(self.fields.get(field, ""))]

    def choose(self) -> str:
        subgoal = self.subgoal
        if subgoal in SEARCHES:
            return self._search()
        if subgoal == "take_object":
            return self._take()
        if subgoal == "use_light":
            kind = self.goal.target
            if self.refused and self.last.startswith(f"use {kind} "):
                return f"use {kind} {int(self.last.rpartition(' ')[2]) + 1}"
            return f"use {next((thing for thing in self.things if kind_of(thing) == kind), f'{kind} 1')}"
        if subgoal == "reach_light" and "where" not in self.fields:
            return self._walk(self.goal.target, ())
        place = self._place()
        if subgoal.startswith("reach"):
            return f"go to {place}"
        if subgoal == "transform_object":
            return f"{self.goal.family} {self.fields['holding']} with {place}"
        if subgoal == "place_object":
            closed = self.closed == place or (self.refused and self.last.startswith("move "))
            return f"open {place}" if closed else f"move {self.fields['holding']} to {place}"
        return "look"

    def _search(self) -> str:
        target_kind = self.goal.target if self.subgoal == "find_light" else self.goal.kind
        if self.closed and self.closed not in self.names("searched_containers"):
            return f"open {self.closed}"
        if "unchecked" not in self.fields:
            return self._walk(target_kind, self.names("checked", "checked_locations"))
        left = sorted(self.names("unchecked"), key=lambda place: -likelihood(target_kind, kind_of(place)))
        here = next((place for place in left if place in self.names("at")), "")
        return self._look_at(here) if here else f"go to {left[0]}" if left else "look"

    def _look_at(self, place: str) -> str:
        closed = kind_of(place) in OPENED_KINDS and not (self.refused and self.last == f"open {place}")
        return f"open {place}" if closed else f"examine {place}"

    def _walk(self, target_kind: str, checked: Sequence[str]) -> str:
        """Go to the usual place after the one that the last action named; to the next kind if that place does not exist."""
        came, kind = self.last_place, kind_of(self.last_place)
        if self.refused and self.last == f"go to {came}" and came in self.names("checked_locations", "at"):
            return self._look_at(came)
        if self.closed and self.last == f"go to {self.closed}":
            return f"open {self.closed}"
        kinds = sorted(_KINDS, key=lambda kind: -likelihood(target_kind, kind))
        start = kinds.index(kind) if kind in kinds else -1
        places = [f"{k} {n}" for k in (*kinds[start + 1 :], *kinds[: start + 1]) for n in range(1, _MOST + 1)]
        if start >= 0 and not (self.refused and self.last.startswith("go to ")):
            places[:0] = [f"{kind} {n}" for n in range(int(came.rpartition(" ")[2]) + 1, _MOST + 1)]
        listed = expand(self.now.removeprefix("room: ")) if self.now.startswith("room: ") else places
        return next((f"go to {place}" for place in places if place not in checked and place in listed), "look")

    def _take(self) -> str:
        if "seen" in self.fields:
            thing, _, place = self.fields["seen"].partition(", ")[0].partition(" at ")
            if place not in self.names("at"):
                return f"go to {place}"
        else:
            place, thing = self.open_place, next((thing for thing in self.things if kind_of(thing) == self.goal.kind), "")
            if not thing or place == self.fields["destination"]:
                return self._walk(self.goal.kind, ())
        return f"open {place}" if self.closed == place else f"take {thing} from {place}"

    def _place(self) -> str:
        """Where the subgoal can be achieved: the place in the block, else one that is here, else the first of its kind."""
        if "where" in self.fields:
            return self.names("where")[0]
        treating, target = self.subgoal in ("reach_appliance", "transform_object"), self.fields["destination"]
        if kind_of(target) and not treating:
            return target
        kinds = APPLIANCES[self.goal.family][1] if treating else (target,)
        here = next((place for place in (self.open_place, self.closed, self.last_place) if kind_of(place) in kinds), "")
        if self.subgoal.startswith("reach"):
            tried = kinds.index(kind_of(here)) + 1 if here and self.refused else 0
            return f"{kinds[tried % len(kinds)]} 1"
        return here or f"{kinds[0]} 1"


def act_on_prompt(prompt: str) -> str:
    return _Page(prompt).choose()


# Skill alphabet (five atomic skills and a carry flag, ReuseRL Table 3), handbook, failure reasons and hindsight. An effective
# take sets the flag, an effective move or put clears it. Every command has a skill, even if malformed or refused: otherwise a
# win with invalid actions would have the shorter skill sequence.

SKILLS = ("EXPLORE", "TRANSPORT", "TAKE", "DELIVER", "TRANSFORM")
_SKILL_OF_VERB = {
    "take": "TAKE",
    **dict.fromkeys(("move", "put"), "DELIVER"),
    **dict.fromkeys(("heat", "cool", "clean", "use", "light", "slice"), "TRANSFORM"),
}


def project(trajectory: Trajectory) -> Iterator[str]:
    carrying = False
    for step in trajectory.steps:
        verb = step.action.split(maxsplit=1)[0] if step.action.strip() else ""
        skill = _SKILL_OF_VERB.get(verb, "EXPLORE")
        yield "TRANSPORT" if carrying and verb in ("go", "open", "close") else skill
        if step.effective and skill in ("TAKE", "DELIVER"):
            carrying = skill == "TAKE"


ALPHABET = Alphabet(SKILLS, project)
_APPLIANCE = "find the object, take it, go to the {appliance}, {verb} it there, then go to the destination and move it there"
HANDBOOK = {
    "": (
        "look in the likeliest places first and in each only once; open what is closed before looking inside; "
        "do not repeat what had no effect"
    ),
    "pick": "find the object, take it, go to the destination, open it if it is closed, and move it there",
    "pick2": "bring one object to the destination, then find a second one of the same kind and bring it to the same place",
    "look": "find the object and take it, then go to the lamp and use it with the object in hand",
    **{verb: _APPLIANCE.format(appliance=kinds[-1], verb=verb) for verb, (_, kinds) in APPLIANCES.items()},
}
NEVER_PICKED, PARTIAL_DELIVERY, NOT_TRANSFORMED = "never_picked_target", "two_partial_deliver", "picked_no_transform"
_DOING = ("take", "clean", "heat", "cool", "use", "move")


def _replay(trajectory: Trajectory) -> Household:
    household = Household(Game.from_data(trajectory.task.data["game"]))
    for step in trajectory.steps:
        if step.effective:
            household.execute(step.action)
    return household


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed (ReuseRL Table 7), found by replaying it."""
    household = _replay(trajectory)
    goal = household.game.goal
    done = (step.action.strip().partition(" ") for step in trajectory.steps if step.effective)
    verbs = [verb for verb, _, rest in done if rest.startswith(f"{goal.kind} ")]
    if "take" not in verbs:
        return NEVER_PICKED
    if goal.family == "pick2" and household.delivered == 1:
        return PARTIAL_DELIVERY
    if goal.family in APPLIANCES and goal.family not in verbs[verbs.index("take") :]:
        return NOT_TRANSFORMED
    return stop_label(trajectory)


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success, its workflow (`take apple from fridge, clean apple with sinkbasin, move apple to countertop`); after a
    failure, what was missing. Uses the full game state, so the advice may name the object's place."""
    goal = Game.from_data(trajectory.task.data["game"]).goal
    steps = critical_steps(trajectory, Explorer(trajectory.task), AlfworldTracker())
    if trajectory.success:
        done = [step.action for step in trajectory.steps if step.effective and step.action.split(" ")[0] in _DOING]
        plain = [" ".join(word for word in action.split() if not word.isdigit()) for action in done]
        return Skills(", ".join(dict.fromkeys(plain)), steps, f"{trajectory.task.goal} Done in {len(trajectory)} steps.")
    label, where, repeated = failure(trajectory), find_object(trajectory, goal.kind), most_repeated(trajectory)
    if label == NEVER_PICKED:
        missing = f"the {goal.kind} was in {where}: go to {where} and take it"
    elif label == PARTIAL_DELIVERY:
        missing = f"one {goal.kind} is not enough: bring a second one to {goal.target}"
    elif label == NOT_TRANSFORMED:
        appliance = APPLIANCES[goal.family][1][0]
        missing = f"{goal.family} the {goal.kind} with {appliance} before moving it to {goal.target}"
    else:
        missing = f"do not {repeated} again and again" if repeated else f"with the {goal.kind} in hand, go to {goal.target}"
    return Skills(missing, steps, f"{trajectory.task.goal} Failed: {label}.")


def find_object(trajectory: Trajectory, kind: str) -> str:
    """Where an object of this kind was at the end of the episode."""
    household = _replay(trajectory)
    game = household.game
    for receptacle, inside in zip(game.receptacles, household.contents, strict=True):
        if receptacle.location is not None and any(kind_of(game.things[i].name) == kind for i in inside):
            return receptacle.name
    return "the agent's hand"
