"""Progress tracker for constant-context agents (Xie et al., 2026, §3.1 and §7.5); amounts from its Table 6 (PROGRESS, ERRORS).

Errors are positive; the reward term subtracts them. Each achievement is rewarded once (per object, in pick2), so the subgoals
of a won episode add up to `total_subgoals`. A subgoal that is skipped is rewarded together with the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from tacit.core.errors import TacitError
from tacit.core.hindsight import component_names, score_events, sum_signals
from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Tracker
from tacit.worlds.alfworld.tasks import UNLIKELY, likelihood
from tacit.worlds.alfworld.world import APPLIANCES, NOTHING_HAPPENS, OPPOSITE_TREATMENT, Goal, command_of

# Parsing of goals and feedback. Feedback names every command that changes the state, so the feedback of an episode determines
# the state of the game, whoever acted.

_TARGET = r"(?P<kind>\w+) (?:{}) (?P<target>\w+)\.?\s*"
_GOALS = (
    re.compile(r"(?:look at|examine the) " + _TARGET.format("under the|with the")),
    re.compile(r"(?:put|find) (?P<family>two) " + _TARGET.format("in|on|and put them in|and put them on")),
    re.compile(r"put (?:a|an|some) (?P<family>clean|hot|cool) " + _TARGET.format("in|on")),
    re.compile(r"(?P<family>clean|heat|cool) (?:a|an|some) " + _TARGET.format("and put it in|and put it on")),
    re.compile(r"(?P<family>put) (?:a|an|some) " + _TARGET.format("in|on")),
)
_FAMILIES = {"": "look", "two": "pick2", "hot": "heat", "put": "pick"}
"""word of the goal -> family, where that is not the word itself"""
_VIEW = re.compile(r"(?:On the ([\w ]{1,80})|The ([\w ]{1,80}) is open\. In it), you see ([^.]{0,4000})\.")
_NAME = re.compile(r"\ba (\w+ \d+)")


def read_goal(sentence: str) -> Goal:
    """`put a hot tomato in fridge.` -> Goal(heat, tomato, fridge)"""
    for pattern in _GOALS:
        match = pattern.fullmatch(sentence.strip().lower())
        if match:
            word = match.groupdict().get("family", "")
            return Goal(_FAMILIES.get(word, word), match["kind"], match["target"])
    raise TacitError(f"the goal {sentence!r} is not an ALFWorld goal; an example of one is 'put a clean plate in fridge.'")


def read_view(feedback: str) -> tuple[str, list[str]] | None:
    """The receptacle that the feedback shows and its contents; None if it shows none."""
    match = _VIEW.search(feedback)
    return (match[1] or match[2], _NAME.findall(match[3])) if match else None


def kind_of(name: str) -> str:
    """`sinkbasin 1` -> `sinkbasin`"""
    return name.rpartition(" ")[0]


def sort_by_number(names: Iterable[str]) -> list[str]:
    """`cabinet 2` before `cabinet 10`"""
    return sorted(names, key=lambda name: (kind_of(name), int(name.rpartition(" ")[2])))


DONE = "done"
_SEARCHED, _TREATED = ("find_object", "take_object"), ("reach_appliance", "transform_object")
_PLACED, SEARCHES = ("reach_destination", "place_object"), ("find_object", "find_light")
SUBGOALS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("pick", "pick2"), (*_SEARCHED, *_PLACED)),
    "look": (*_SEARCHED, "find_light", "reach_light", "use_light"),
    **dict.fromkeys(APPLIANCES, (*_SEARCHED, *_TREATED, *_PLACED)),
}  # family -> its subgoals before `done`, in order; pick2 goes through them twice
HINTS = 4  # how many receptacle kinds are hinted at in a search


@dataclass(frozen=True)
class Progress:
    """The facts of an episode so far and the subgoal that follows from them.

    Facts come from the feedback. If several receptacles share a location, the feedback shows only one of them; the admissible
    actions, if listed, show the others.
    """

    goal: Goal
    receptacles: tuple[str, ...]  # all known receptacles, in the order the room lists them
    facing: tuple[str, ...] = ()
    holding: str = ""
    seen: Mapping[str, str] = field(default_factory=dict)
    """goal objects (and lamps of the target kind) -> the receptacle each was last seen in"""
    treated: frozenset[str] = frozenset()  # objects that were cleaned, heated or cooled as the goal asks
    visited: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()  # receptacles whose contents were seen, the latest last
    opened: frozenset[str] = frozenset()
    destination: str = ""  # pick2: where the first object was placed, and the second must go
    subgoal: str = "find_object"
    best: int = 0  # the most subgoals achieved at any time: each is rewarded once
    recent: tuple[str, ...] = ()  # the latest actions since the last progress
    rewarded: frozenset[str] = frozenset()  # other events that were rewarded, once per object
    progress: tuple[str, ...] = ()  # events of PROGRESS in the last step
    errors: tuple[str, ...] = ()  # events of ERRORS in the last step

    @property
    def achieved(self) -> int:
        """subgoals achieved so far, including those of a first delivered object"""
        subgoals = SUBGOALS[self.goal.family]
        if self.subgoal == DONE:
            return total_subgoals(self.goal.family)
        return subgoals.index(self.subgoal) + len(subgoals) * self.delivered

    @property
    def delivered(self) -> int:
        """pick2: 1 if the first object was placed"""
        return int(bool(self.destination))

    @property
    def carries_wanted(self) -> bool:
        return bool(self.holding) and kind_of(self.holding) == self.goal.kind

    def candidates(self) -> list[str]:
        """Goal objects with a known place, except a delivered one."""
        return [t for t, where in self.seen.items() if kind_of(t) == self.goal.kind and where != self.destination]

    def destinations(self) -> list[str]:
        return [self.destination] if self.destination else self._of_kinds(self.goal.target)

    def places(self) -> list[str]:
        """The receptacles where the current subgoal can be achieved; none in a search."""
        if self.subgoal == "take_object":
            return [self.seen[thing] for thing in self.candidates()]
        if self.subgoal in _TREATED:
            return self._of_kinds(*APPLIANCES[self.goal.family][1])
        if self.subgoal in _PLACED:
            return self.destinations()
        return self._lights() if self.subgoal in ("reach_light", "use_light") else []

    def hints(self) -> list[str]:
        """The receptacle kinds of this house that most likely hold the searched kind, the likeliest first."""
        target_kind = self.goal.target if self.subgoal == "find_light" else self.goal.kind
        kinds = dict.fromkeys(kind_of(r) for r in self.receptacles)
        likely = [kind for kind in kinds if likelihood(target_kind, kind) > UNLIKELY]
        return sorted(likely, key=lambda kind: -likelihood(target_kind, kind))[:HINTS]

    def _of_kinds(self, *kinds: str) -> list[str]:
        return sort_by_number(r for r in self.receptacles if kind_of(r) in kinds)

    def _lights(self) -> list[str]:
        return [where for thing, where in self.seen.items() if kind_of(thing) == self.goal.target]

    def current_subgoal(self) -> str:
        """The subgoal that follows from the facts; never `done`, which only the world reports."""
        if not self.carries_wanted:
            return "take_object" if self.candidates() else "find_object"
        if self.goal.family == "look":
            places, names = self._lights(), ("reach_light", "use_light")
            if not places:
                return "find_light"
        elif self.goal.family in APPLIANCES and self.holding not in self.treated:
            places, names = self._of_kinds(*APPLIANCES[self.goal.family][1]), _TREATED
        else:
            places, names = self.destinations(), _PLACED
        return names[any(place in self.facing for place in places)]


def total_subgoals(family: str) -> int:
    return len(SUBGOALS[family]) * (2 if family == "pick2" else 1)


def update_facts(before: Progress, observation: Observation) -> Progress:
    """The facts after one more observation; the subgoal is left unchanged."""
    goal, seen, treated, holding = before.goal, dict(before.seen), before.treated, before.holding
    visited, opened, facing = before.visited, before.opened, before.facing
    verb, _, rest = command_of(observation.text).partition(" ")
    if verb == "go":
        arrived = rest.removeprefix("to ")
        visited, facing = _move_to_end(visited, arrived), (arrived,)
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
        elif verb == OPPOSITE_TREATMENT.get(goal.family):
            treated -= {thing}
    checked, view = before.checked, read_view(observation.text)
    if observation.actions:
        facing = tuple(name for name in _arguments_of(observation, "examine") if name != holding)
        takes = [take.partition(" from ") for take in _arguments_of(observation, "take")]
        for place in facing if not holding else ():
            if place not in _arguments_of(observation, "open"):
                checked = _move_to_end(checked, place)
                there = {thing: place for thing, _, where in takes if where == place and kind_of(thing) == goal.kind}
                seen = {t: where for t, where in seen.items() if where != place or kind_of(t) != goal.kind} | there
    if view:
        place, things = view
        checked = _move_to_end(checked, place)
        seen = {thing: where for thing, where in seen.items() if where != place}
        seen.update({thing: place for thing in things if kind_of(thing) in (goal.kind, goal.target) and thing != holding})
    # A lamp can be usable from here without being visible, in a receptacle that shares this location.
    for lamp in _arguments_of(observation, "use") if facing else ():
        if kind_of(lamp) == goal.target and seen.get(lamp) not in facing:
            seen[lamp] = facing[0]
    destination = before.destination
    if goal.family == "pick2":  # the earlier choice while it holds any goal object, else the receptacle with most of them
        filled = [where for thing, where in seen.items() if kind_of(thing) == goal.kind]
        places = [r for r in sort_by_number(set(filled)) if kind_of(r) == goal.target]
        destination = destination if destination in places else max(places, key=filled.count, default="")
    receptacles = tuple(dict.fromkeys((*before.receptacles, *facing)))
    return replace(
        before, receptacles=receptacles, facing=facing, holding=holding, seen=seen, treated=treated, visited=visited,
        checked=checked, opened=opened, destination=destination,
    )  # fmt: skip


def _arguments_of(observation: Observation, verb: str) -> list[str]:
    """The arguments of the admissible actions with this verb: `examine` -> the receptacles here and the held object."""
    return [action.removeprefix(f"{verb} ") for action in observation.actions if action.startswith(f"{verb} ")]


def _move_to_end(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return (*(n for n in names if n != name), name)


PROGRESS: Mapping[str, float] = {
    "subgoal": 1.0, "hinted_place": 0.02, "hinted_container": 0.05,
    "reached_destination": 0.2, "opened_destination": 0.2, "placed": 0.5,
}  # fmt: skip
ERRORS: Mapping[str, float] = {
    "invalid": 0.3, "no_effect": 0.2, "repeated": 0.2, "regression": 0.3, "looked_while_placing": 0.2,
    "wrong_destination": 0.3, "revisited": 0.1, "reopened": 0.1, "wandered": 0.15,
}  # fmt: skip
_REMEMBERED_ACTIONS = 2
_FIELD, _LIST = 70, 160  # maximum characters of a field and of a list of places


class AlfworldTracker:
    version = "alfworld-1"
    components = component_names(PROGRESS, ERRORS)

    def start(self, task: Task, observation: Observation) -> Progress:
        listed = _NAME.findall(observation.text.partition("you see")[2]) if "in the middle of" in observation.text else []
        state = update_facts(Progress(read_goal(task.goal), tuple(listed)), self.read(observation))
        state = replace(state, subgoal=state.current_subgoal())
        return replace(state, best=state.achieved)

    def update(self, state: Progress, action: str, transition: Transition) -> Progress:
        observation = self.read(transition.observation)
        after, refused = self.observe(state, action, transition)
        command = command_of(observation.text)
        good, once = _progress(state, after, command)
        errors = _errors(state, after, command)
        if refused:
            # The reward uses the admissible actions if there are any (Table 6), even if the state block does not.
            errors.append("invalid" if transition.observation.actions else "no_effect")
        elif state.subgoal == "place_object" and action.split()[:1] in (["look"], ["examine"], ["inventory"]):
            errors.append("looked_while_placing")
        if action in state.recent and not good:
            errors.append("repeated")
        return replace(
            after,
            best=max(state.best, after.achieved),
            recent=(action,) if good else (*state.recent, action)[-_REMEMBERED_ACTIONS:],
            rewarded=state.rewarded | once,
            progress=tuple(good),
            errors=tuple(errors),
        )

    def read(self, observation: Observation) -> Observation:
        """The part of the observation that this tracker uses: all of it."""
        return observation

    def observe(self, state: Progress, action: str, transition: Transition) -> tuple[Progress, bool]:
        """The facts and subgoal after one more transition, and whether the action was refused."""
        after = update_facts(state, transition.observation)
        return replace(after, subgoal=DONE if transition.success else after.current_subgoal()), not transition.effective

    def signals(self, before: Progress, after: Progress) -> Mapping[str, float]:
        return sum_signals(score_events(after.progress, PROGRESS), score_events(after.errors, ERRORS))

    def render(self, state: Progress) -> str:
        """One field per line, and only those relevant to the subgoal."""
        goal = state.goal
        lines = [
            f"subgoal: {state.subgoal}",
            _line("object", [goal.kind]),
            _line("holding", [state.holding or "nothing"]),
            _line("light" if goal.family == "look" else "destination", [state.destination or goal.target]),
            _line("at", [format_ranges(state.facing) or "middle of the room"]),
        ]
        if state.subgoal in SEARCHES:
            hints = state.hints()
            left = [r for r in state.receptacles if r not in state.checked]
            left.sort(key=lambda r: hints.index(kind_of(r)) if kind_of(r) in hints else len(hints))
            lines.append(_line("likely", hints))
            lines.append(f"unchecked: {places_line(left)}")
            lines.append(f"checked: {places_line(state.checked[::-1])}")
        elif state.subgoal == "take_object":
            lines.append(_line("seen", [f"{thing} at {state.seen[thing]}" for thing in state.candidates()]))
        elif state.subgoal != DONE:
            places = state.places()
            lines.append(f"where: {places_line([r for r in places if r in state.facing] or places)}")
        return "\n".join(lines)


def _progress(before: Progress, after: Progress, command: str) -> tuple[list[str], frozenset[str]]:
    """The events achieved, and those of them that are rewarded only once."""
    events = ["subgoal"] * max(0, after.achieved - before.best)
    verb, _, rest = command.partition(" ")
    name = rest.removeprefix("to ")
    if before.subgoal in SEARCHES and kind_of(name) in before.hints():
        if verb == "go" and kind_of(name) not in map(kind_of, before.visited):
            events.append("hinted_place")
        if verb == "open" and name not in before.opened:
            events.append("hinted_container")
    once = []
    put = verb == "move" and before.subgoal in _PLACED and rest.partition(" to ")[2] in before.destinations()
    if after.subgoal == "place_object":
        once.append(f"reached_destination {after.delivered}")
    elif put:  # with text alone, only this command may reveal the agent's location
        once.append(f"reached_destination {before.delivered}")
    if before.subgoal == "place_object" and verb == "open" and rest in before.destinations():
        once.append(f"opened_destination {before.delivered}")
    if put or (verb == "move" and after.subgoal == DONE):
        once.append(f"placed {before.delivered}")
    new = frozenset(once) - before.rewarded
    return events + [event.partition(" ")[0] for event in once if event in new], new


def _errors(before: Progress, after: Progress, command: str) -> list[str]:
    """The errors of an executed command; at most one."""
    verb, _, rest = command.partition(" ")
    place, subgoal, searching = rest.removeprefix("to "), before.subgoal, before.subgoal in SEARCHES
    if searching and verb == "go" and place in before.visited:
        return ["revisited"]
    if searching and verb == "open" and place in before.opened:
        return ["reopened"]
    right = before.destinations() if subgoal == "reach_destination" else ()
    if verb == "go" and subgoal in _PLACED and kind_of(place) == before.goal.target and place not in right:
        return ["wrong_destination"]
    # The object is held: losing it now loses the result of the search.
    if after.achieved < before.achieved and (subgoal not in _SEARCHED or after.delivered < before.delivered):
        return ["regression"]
    # An agent that holds another object has to put it down first.
    free = before.carries_wanted or not before.holding
    return ["wandered"] if verb == "go" and free and not searching and not set(before.places()) & set(after.facing) else []


def _line(label: str, words: Sequence[str]) -> str:
    """`label: a, b, c`, dropping the last words if it would get too long."""
    kept = list(words)
    while len(kept) > 1 and len(", ".join(kept)) > _FIELD:
        kept.pop()
    return f"{label}: {', '.join(kept)[:_FIELD] or 'none'}"


def places_line(names: Sequence[str]) -> str:
    """As many of the names as fit."""
    for count in range(len(names), 0, -1):
        if len(text := format_ranges(names[:count])) <= _LIST:
            return text
    return "none"


def format_ranges(names: Iterable[str]) -> str:
    """`drawer 1`, `drawer 2`, `drawer 3`, `drawer 5`, `bed 1` -> `drawer 1-3 5, bed 1`; kinds in the order they come."""
    by_kind: dict[str, list[int]] = {}
    for name in names:
        kind, _, number = name.rpartition(" ")
        by_kind.setdefault(kind, []).append(int(number))
    parts = []
    for kind, numbers in by_kind.items():
        runs = [[n for _, n in run] for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])]
        parts.append(" ".join((kind, *(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs))))
    return ", ".join(parts)


_FACING = re.compile(r"^You are facing the ([^.]*)\. Next to it, you see")
_LAST_NAME = re.compile(r"(?:to|from|with|open) ([a-z]+ \d+)$")


class TextTracker(AlfworldTracker):
    """Uses only observations and actions: neither the admissible actions nor the world's success flag."""

    version = "alfworld-text-1"

    def read(self, observation: Observation) -> Observation:
        return Observation(observation.text)

    def observe(self, state: Progress, action: str, transition: Transition) -> tuple[Progress, bool]:
        text = transition.observation.text
        refused, command = text == NOTHING_HAPPENS, command_of(text)
        after = update_facts(state, self.read(transition.observation))
        # Receptacles at this location that the text reveals: `look` names them, a command used one, or going there failed,
        # as it does only for the receptacles at the current location.
        facing, visited = after.facing, after.visited
        if named := _FACING.match(text):
            facing = tuple(re.findall(r"[a-z]+ \d+", named[1]))
        used = _LAST_NAME.search(command)
        if used and used[1] not in facing:
            facing = (*facing, used[1])
        there = action.strip().removeprefix("go to ")
        if refused and facing and there != action.strip() and there in after.receptacles:
            facing = facing if there in facing else (*facing, there)
            visited = visited if there in visited else (*visited, there)
        known = tuple(dict.fromkeys((*after.receptacles, *facing)))
        after = replace(after, facing=facing, visited=visited, receptacles=known)
        # The task is finished once the (treated) object was put where it belongs, or its lamp turned on.
        goal, (verb, _, rest) = state.goal, command.partition(" ")
        thing, _, place = rest.partition(" to ")
        if goal.family == "look":
            finished = verb == "use" and kind_of(rest) == goal.target and state.carries_wanted
        else:
            finished = verb == "move" and kind_of(thing) == goal.kind and kind_of(place) == goal.target
            if goal.family == "pick2":
                finished &= sum(where == place and kind_of(t) == goal.kind for t, where in after.seen.items()) > 1
            finished &= goal.family not in APPLIANCES or thing in state.treated
        return replace(after, subgoal=DONE if finished else after.current_subgoal()), refused


class PaperTracker(TextTracker):
    """The fields of §7.5, with its order and names; subgoals that it does not list are ours."""

    version = "alfworld-paper-1"

    def render(self, state: Progress) -> str:
        visited = state.visited[::-1]
        searched = places_line([r for r in visited if r in state.opened])
        return f"""target_object: {state.goal.kind}
destination: {state.destination or state.goal.target}
holding: {state.holding or "None"}
checked_locations: {places_line(visited).replace("none", "None")}
searched_containers: {searched.replace("none", "None")}
current_subgoal: {state.subgoal.replace("reach_destination", "reach_dest")}"""


class NoPlacesTracker(AlfworldTracker):
    """Omits the places left to search: the agent has to remember them."""

    version = "alfworld-no_places-1"

    def render(self, state: Progress) -> str:
        return "\n".join(line for line in super().render(state).split("\n") if not line.startswith("unchecked: "))


FORMS: Mapping[str, Tracker] = {"paper": PaperTracker(), "text": TextTracker(), "no_places": NoPlacesTracker()}
"""form -> tracker, in addition to `full`"""
