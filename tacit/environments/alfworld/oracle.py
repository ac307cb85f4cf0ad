"""An oracle: sees the whole game and plays a shortest plan.

Plans are made of legs whose cost is known at once (walk, open, take, treat, put), so all sensible ways to win can be
listed and the shortest taken; nothing is searched. Walking between any two places is one command.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task
from tacit.core.world import ByReading
from tacit.environments.alfworld.game import Game
from tacit.environments.alfworld.household import APPLIANCES, Household
from tacit.environments.alfworld.observed import command_of


class Oracle(ByReading):
    """Plays along in a household of its own: feedback tells it which command was carried out, whoever chose it."""

    def __init__(self, task: Task) -> None:
        if "game" not in task.data:
            raise TacitError(f"the oracle cannot plan task {task.id!r}: its data has no 'game'; use the explorer.")
        self._id = task.id
        self._household = Household(Game.from_data(task.data["game"]))
        self._plan: list[str] = []

    def act(self, observation: Observation) -> str:
        """The next command of the plan; `look` where the game is won, or cannot be won any more."""
        happened = command_of(observation.text)
        self._household.answer(happened)
        if self._household.commands != observation.actions:
            raise TacitError(f"the oracle of {self._id!r} has lost track: it must read every observation of that one episode.")
        if happened:
            self._plan = self._plan[1:] if self._plan[:1] == [happened] else []
        self._plan = self._plan or plan(self._household)
        return self._plan[0] if self._plan else "look"


def plan(household: Household) -> list[str]:
    """Commands that win from here, as few as can be; none where it is won or cannot be."""
    if household.won:
        return []
    planner = _Planner(household)
    drafts = list(planner.winning())
    if not drafts and household.held is not None:
        drafts = planner.free_hand(())  # what is held may itself be missing somewhere: put it down and think again
    return list(min(drafts, key=len).commands) if drafts else []


@dataclass(frozen=True, slots=True)
class _Draft:
    """A plan so far, and where it leaves one."""

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

    def winning(self) -> Iterator[_Draft]:
        if self.goal.family == "look":
            return self._light()
        return self._gather() if self.goal.family == "pick2" else self._deliver_one()

    def _deliver_one(self) -> Iterator[_Draft]:
        """Take, treat where the goal asks for it, put."""
        treated = {"clean": self.household.clean, "heat": self.household.hot, "cool": self.household.cool}.get(self.goal.family)
        for thing in self.things:
            for draft, source in self._hold(thing):
                ready = [draft] if treated is None or thing in treated else list(self._treat(draft, thing))
                # what starts in two receptacles stays in the second: treated in hand, it may be where it should be already
                there = any(thing in self.household.contents[t] for t in self.targets if t != source)
                for draft in ready:
                    puts = [draft] if there else [self._put(draft, thing, t) for t in self.targets if self._fits(t, thing)]
                    yield from sorted(puts, key=len)[:1]

    def _gather(self) -> Iterator[_Draft]:
        """As many as are missing of two, into one target."""
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
        """One of each sort: twenty closed, empty cabinets, none near anything that matters, are as good as one."""
        places = {self.game.receptacles[s].location for thing in self.things for s in self._sources(thing)}
        places.add(self.household.location)
        sorts: dict[tuple, int] = {}
        for target in self.targets:
            location = self.game.receptacles[target].location
            inside = tuple(thing for thing in self.household.contents[target] if thing in self.things)
            sort = (location if location in places else None, self.household.accessible(target), inside)
            sorts.setdefault(sort, target)
        return list(sorts.values())

    def _light(self) -> Iterator[_Draft]:
        """Take, walk to a lamp, light it."""
        lamps = [i for i, t in enumerate(self.game.things) if t.kind == self.goal.target and "toggleable" in t.traits]
        for thing in self.things:
            for draft, _ in self._hold(thing):
                for lamp in lamps:
                    for receptacle in self._sources(lamp):
                        there = self._go(draft, receptacle)
                        on = lamp in self.household.toggled
                        yield there if on else there.then(f"use {self.game.things[lamp].name}")

    def _hold(self, thing: int) -> Iterator[tuple[_Draft, int | None]]:
        """Ways to have it in hand, and the receptacle it comes from."""
        if self.household.held == thing:
            yield self.start, None
        elif "pickupable" in self.game.things[thing].traits:
            sources = self._sources(thing)
            for draft in self.free_hand(sources):
                for source in sources:
                    yield self._take(draft, thing, source), source

    def free_hand(self, next_stops: list[int] | tuple[int, ...]) -> list[_Draft]:
        """Ways to have nothing in hand: worth a thought are putting it down here, at the next stop, or most cheaply."""
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
        if self.household.accessible(receptacle) or receptacle in draft.opened:
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
