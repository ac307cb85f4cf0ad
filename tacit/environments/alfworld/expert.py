"""An explorer: acts only on what it has read so far, as the agent it teaches must."""

from __future__ import annotations

from collections.abc import Iterable

from tacit.core.types import Observation, Task
from tacit.core.world import ByReading
from tacit.environments.alfworld.household import APPLIANCES
from tacit.environments.alfworld.memory import Memory
from tacit.environments.alfworld.observed import by_number, kind_of, read_goal
from tacit.environments.alfworld.places import OPENED_KINDS, chance


class Explorer(ByReading):
    """Looks for the object where such objects usually are, takes it, does to it what the goal asks, and delivers it.

    It sees observations and the goal's sentence, never the game: what it has not seen it searches for, the place with the
    best chance per step first; what it has seen, it remembers. Each turn it starts from what is true now, so it goes on
    sensibly after a refused command or after somebody else's move. It makes no random choice.
    """

    def __init__(self, task: Task) -> None:
        self._goal = read_goal(task.goal)
        self._memory = Memory()
        self._useless: set[str] = set()
        """things of the right kind with which what the goal asks proved impossible"""
        self._refusing: set[tuple[str, str]] = set()
        """(receptacle kind, object kind) pairs that do not go together"""

    def act(self, observation: Observation) -> str:
        self._memory.see(observation)
        held = self._memory.held
        if not held:
            return self._fetch()
        return self._use(held) if held in self._wanted([held]) else self._put_down(held)

    def _wanted(self, things: Iterable[str]) -> list[str]:
        """Those that still have a part to play: of the goal's kind, and not where two should come together already."""
        delivered = self._memory.contents.get(self._target(), ()) if self._goal.family == "pick2" else ()
        return [t for t in things if kind_of(t) == self._goal.kind and t not in self._useless and t not in delivered]

    def _fetch(self) -> str:
        """One step towards having a wanted thing in hand."""
        memory = self._memory
        treated = memory.treated.get(self._goal.family, set())
        options = [
            (thing not in treated, self._steps_to(receptacle), receptacle, thing)
            for receptacle in by_number(memory.contents)
            for thing in by_number(self._wanted(memory.contents[receptacle]))
        ]
        if not options:
            return self._search(self._goal.kind)
        _, _, receptacle, thing = min(options, key=lambda option: option[:2])
        return self._do(f"take {thing} from {receptacle}", receptacle)

    def _use(self, held: str) -> str:
        """One step towards the goal with a wanted thing in hand."""
        memory, goal = self._memory, self._goal
        if goal.family == "look":
            lamps = by_number(lamp for lamp in memory.lamps if kind_of(lamp) == goal.target)
            if not lamps:
                return self._search(goal.target)
            lamp = min(lamps, key=lambda lamp: f"use {lamp}" not in memory.actions)
            return self._do(f"use {lamp}", memory.lamps[lamp])
        if goal.family in APPLIANCES and held not in memory.treated[goal.family]:
            kinds = APPLIANCES[goal.family][1]
            appliances = by_number(r for r in memory.receptacles if kind_of(r) in kinds)
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
        """Where to deliver: where most are already, then the fewest steps away, then by number."""
        memory, goal = self._memory, self._goal
        targets = by_number(r for r in memory.receptacles if kind_of(r) == goal.target)

        def rank(receptacle: str) -> tuple[int, int]:
            there = sum(kind_of(thing) == goal.kind for thing in memory.contents.get(receptacle, ()))
            return (-there if goal.family == "pick2" else 0, self._steps_to(receptacle))

        return min(targets, key=rank, default="")

    def _give_up(self, held: str) -> str:
        self._useless.add(held)
        return self._put_down(held)

    def _put_down(self, held: str) -> str:
        """Out of the hand with what is not wanted: here where possible, else back where it came from, else where it may go."""
        memory = self._memory
        here = [action for action in memory.actions if action.startswith(f"move {held} to ")]
        if here:
            return here[0]
        origin = memory.origin.get(held, "")
        places = [r for r in by_number(memory.receptacles) if not self._refuses(r, held)]
        if not places:
            return "look"
        place = min(places, key=lambda r: (r != origin, -chance(kind_of(held), kind_of(r)) / self._steps_to(r)))
        return self._do(f"move {held} to {place}", place)

    def _refuses(self, receptacle: str, held: str) -> bool:
        """It stands open before us, and still we cannot put it there: then no other of its kind takes it either."""
        memory, pair = self._memory, (kind_of(receptacle), kind_of(held))
        ready = receptacle in memory.facing and not memory.is_closed(receptacle)
        if ready and f"move {held} to {receptacle}" not in memory.actions:
            self._refusing.add(pair)
        return pair in self._refusing

    def _search(self, kind: str) -> str:
        """One step towards the most promising place not looked into yet; with none left, somebody moved things
        unseen, and all places where nothing of interest was are looked into again."""
        memory = self._memory
        unseen = [r for r in by_number(memory.receptacles) if r not in memory.contents]
        if not unseen:
            kinds = self._goal.kind, self._goal.target
            memory.contents = {r: inside for r, inside in memory.contents.items() if {kind_of(t) for t in inside} & set(kinds)}
            return "look"
        place = max(unseen, key=lambda r: chance(kind, kind_of(r)) / self._steps_to(r))
        return self._do(f"examine {place}", place)

    def _do(self, action: str, place: str) -> str:
        """The action where it can be done now, else a step towards it: go there, open it."""
        memory = self._memory
        if place not in memory.facing:
            return f"go to {place}"
        if memory.is_closed(place) and not action.startswith(("use", "clean", "heat", "cool")):
            return f"open {place}"
        return action

    def _steps_to(self, receptacle: str) -> int:
        """How many commands until one sees what is in it."""
        memory = self._memory
        walk = receptacle not in memory.facing
        closed = memory.is_closed(receptacle, by_default=kind_of(receptacle) in OPENED_KINDS)
        return max(1, walk + closed)
