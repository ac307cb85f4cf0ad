"""How far a household task has come: the facts a tracker keeps, and the subgoal that follows from them.

    pick               find_object -> take_object -> reach_destination -> place_object -> done
    clean, heat, cool  … take_object -> reach_appliance -> transform_object -> reach_destination -> place_object -> done
    look               … take_object -> find_light -> reach_light -> use_light -> done
    pick2              pick, twice: after the first object is placed, the subgoals begin again

Facts come from the text of the answers, and, where several receptacles share a place, from the list of actions: the text shows
one of them, but one stands before all, cannot go to any of them, and can take what is there. Without a list the text has to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tacit.core.types import Observation
from tacit.environments.alfworld.game import Goal
from tacit.environments.alfworld.household import APPLIANCES
from tacit.environments.alfworld.observed import by_number, command_of, kind_of, read_view
from tacit.environments.alfworld.places import UNLIKELY, chance

DONE = "done"
_TREATED = ("reach_appliance", "transform_object")
_SEARCHED, _PLACED = ("find_object", "take_object"), ("reach_destination", "place_object")
SUBGOALS: Mapping[str, tuple[str, ...]] = {
    "pick": (*_SEARCHED, *_PLACED),
    "pick2": (*_SEARCHED, *_PLACED),
    "look": (*_SEARCHED, "find_light", "reach_light", "use_light"),
    **dict.fromkeys(APPLIANCES, (*_SEARCHED, *_TREATED, *_PLACED)),
}
"""family -> what is to be achieved before `done`, in order"""
SEARCHES = ("find_object", "find_light")
HINTS = 4
"""how many kinds of receptacle are hinted at in a search"""
_OPPOSITE = {"heat": "cool", "cool": "heat"}


@dataclass(frozen=True)
class Progress:
    goal: Goal
    receptacles: tuple[str, ...]
    """all that are known, in the order the room lists them"""
    facing: tuple[str, ...] = ()
    holding: str = ""
    seen: Mapping[str, str] = field(default_factory=dict)
    """objects of the goal's kind, and lamps of its target kind -> the receptacle each was last seen in"""
    treated: frozenset[str] = frozenset()
    """what was cleaned, heated or cooled as the goal asks"""
    visited: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    """receptacles whose inside or top was seen, the latest last"""
    opened: frozenset[str] = frozenset()
    destination: str = ""
    """pick2: where the first object is, and the second has to go"""
    subgoal: str = "find_object"
    best: int = 0
    """the most subgoals ever achieved: each is rewarded once"""
    recent: tuple[str, ...] = ()
    """the latest actions since progress was made"""
    rewarded: frozenset[str] = frozenset()
    """what else is rewarded once for each object"""
    progress: tuple[str, ...] = ()
    """what was good about the last action, in the words of `tracker.PROGRESS`"""
    errors: tuple[str, ...] = ()
    """what was wrong with it, in the words of `tracker.ERRORS`"""

    @property
    def achieved(self) -> int:
        """subgoals achieved so far, those of a first delivered object included"""
        subgoals = SUBGOALS[self.goal.family]
        if self.subgoal == DONE:
            return total_subgoals(self.goal.family)
        return subgoals.index(self.subgoal) + len(subgoals) * self.delivered

    @property
    def delivered(self) -> int:
        """pick2: 1 where the first object is in its place"""
        return int(bool(self.destination))

    @property
    def sought(self) -> str:
        """the kind of thing one is looking for"""
        return self.goal.target if self.subgoal == "find_light" else self.goal.kind

    @property
    def carries_wanted(self) -> bool:
        return bool(self.holding) and kind_of(self.holding) == self.goal.kind

    def candidates(self) -> list[str]:
        """Objects of the goal's kind whose place is known, without one that is delivered already."""
        return [t for t, where in self.seen.items() if kind_of(t) == self.goal.kind and where != self.destination]

    def destinations(self) -> list[str]:
        """Where the object may go."""
        return [self.destination] if self.destination else self.of_kinds((self.goal.target,))

    def places(self) -> list[str]:
        """The receptacles at which the present subgoal can be achieved; none in a search."""
        if self.subgoal == "take_object":
            return [self.seen[thing] for thing in self.candidates()]
        if self.subgoal in _TREATED:
            return self.of_kinds(APPLIANCES[self.goal.family][1])
        if self.subgoal in _PLACED:
            return self.destinations()
        return self._lights() if self.subgoal in ("reach_light", "use_light") else []

    def hints(self) -> list[str]:
        """Kinds of receptacle of this house that most often hold what is sought, the likeliest first."""
        kinds = dict.fromkeys(kind_of(r) for r in self.receptacles)
        likely = [kind for kind in kinds if chance(self.sought, kind) > UNLIKELY]
        return sorted(likely, key=lambda kind: -chance(self.sought, kind))[:HINTS]

    def of_kinds(self, kinds: tuple[str, ...]) -> list[str]:
        return by_number(r for r in self.receptacles if kind_of(r) in kinds)

    def _lights(self) -> list[str]:
        return [where for thing, where in self.seen.items() if kind_of(thing) == self.goal.target]

    def current_subgoal(self) -> str:
        """What the facts leave to be done next. `done` is not among it: only the world says so."""
        if not self.carries_wanted:
            return "take_object" if self.candidates() else "find_object"
        if self.goal.family == "look":
            lights = self._lights()
            return ("use_light" if self._faces(lights) else "reach_light") if lights else "find_light"
        if self.goal.family in APPLIANCES and self.holding not in self.treated:
            return _TREATED[self._faces(self.of_kinds(APPLIANCES[self.goal.family][1]))]
        return _PLACED[self._faces(self.destinations())]

    def _faces(self, receptacles: list[str]) -> bool:
        return any(r in self.facing for r in receptacles)


def total_subgoals(family: str) -> int:
    """How many are achieved on the way to `done`."""
    return len(SUBGOALS[family]) * (2 if family == "pick2" else 1)


def with_observation(before: Progress, observation: Observation) -> Progress:
    """The facts after one more answer of the world; the subgoal is left as it was."""
    goal, seen, treated, holding = before.goal, dict(before.seen), before.treated, before.holding
    visited, opened, facing = before.visited, before.opened, before.facing
    verb, _, rest = command_of(observation.text).partition(" ")
    if verb == "go":
        arrived = rest.removeprefix("to ")
        visited, facing = _latest(visited, arrived), (arrived,)
    elif verb == "open":
        opened |= {rest}
    elif verb == "take":
        holding = rest.partition(" from ")[0]
        seen.pop(holding, None)
    elif verb == "move":
        thing, _, receptacle = rest.partition(" to ")
        holding = ""
        if kind_of(thing) == goal.kind:
            seen[thing] = receptacle
    elif verb in APPLIANCES:
        thing = rest.partition(" with ")[0]
        if verb == goal.family:
            treated |= {thing}
        elif verb == _OPPOSITE.get(goal.family):
            treated -= {thing}
    checked, view = before.checked, read_view(observation.text)
    if observation.actions:
        facing = tuple(name for name in _offered(observation, "examine") if name != holding)
        takes = [take.partition(" from ") for take in _offered(observation, "take")]
        for place in facing if not holding else ():
            if place not in _offered(observation, "open"):
                checked = _latest(checked, place)
                there = {thing: place for thing, _, where in takes if where == place and kind_of(thing) == goal.kind}
                seen = {t: where for t, where in seen.items() if where != place or kind_of(t) != goal.kind} | there
    if view:
        place, things = view
        checked = _latest(checked, place)
        seen = {thing: where for thing, where in seen.items() if where != place}
        seen.update({thing: place for thing in things if kind_of(thing) in (goal.kind, goal.target) and thing != holding})
    # A lamp can be used from here without being shown, on or in what shares this place.
    for lamp in _offered(observation, "use") if facing else ():
        if kind_of(lamp) == goal.target and seen.get(lamp) not in facing:
            seen[lamp] = facing[0]
    known = tuple(dict.fromkeys((*before.receptacles, *facing)))
    after = replace(
        before,
        receptacles=known,
        facing=facing,
        holding=holding,
        seen=seen,
        treated=treated,
        visited=visited,
        checked=checked,
        opened=opened,
    )
    return replace(after, destination=_destination(after)) if goal.family == "pick2" else after


def _offered(observation: Observation, verb: str) -> list[str]:
    """What can be done that to now: `examine` -> the receptacles here and the thing in hand."""
    return [action.removeprefix(f"{verb} ") for action in observation.actions if action.startswith(f"{verb} ")]


def _destination(state: Progress) -> str:
    """Where objects of the kind are delivered already: the place chosen first while any is there, else the fullest."""
    there = [where for thing, where in state.seen.items() if kind_of(thing) == state.goal.kind]
    places = [r for r in by_number(set(there)) if kind_of(r) == state.goal.target]
    if state.destination in places:
        return state.destination
    return max(places, key=there.count, default="")


def _latest(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return (*(n for n in names if n != name), name)
