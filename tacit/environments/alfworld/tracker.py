"""The household's progress state for constant-context agents (Xie et al., 2026, §3.1, §7.5), and what it is worth (Table 6).

    progress   +1.0 for each subgoal achieved; +0.02 for a new hinted kind of place and +0.05 for a new hinted container, in a
               search; +0.2 for reaching the destination, +0.2 for opening it, +0.5 for putting the object there
    error      0.3 invalid, 0.2 no effect (where the world lists no actions), 0.2 the same again without progress,
               0.3 late-stage regression, 0.2 looking during placement, 0.3 wrong destination instance,
               0.1 revisiting and 0.1 reopening in a search, 0.15 wandering after it

Errors are positive amounts; the reward term subtracts them. Nothing good is paid twice (for each object, in pick2), so going
back and forth earns nothing, and the subgoals of a won episode add up to `progress.total_subgoals`, whatever detours it took.
A subgoal that is skipped, because one already stands where the next is achieved, is paid with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from tacit.core.signals import component_names, counted, summed
from tacit.core.types import Observation, Task, Transition
from tacit.environments.alfworld.observed import command_of, kind_of, read_goal
from tacit.environments.alfworld.progress import DONE, SEARCHES, SUBGOALS, Progress, with_observation

PROGRESS: Mapping[str, float] = {
    "subgoal": 1.0,
    "hinted_place": 0.02,
    "hinted_container": 0.05,
    "reached_destination": 0.2,
    "opened_destination": 0.2,
    "placed": 0.5,
}
ERRORS: Mapping[str, float] = {
    "invalid": 0.3,
    "no_effect": 0.2,
    "repeated": 0.2,
    "regression": 0.3,
    "looked_while_placing": 0.2,
    "wrong_destination": 0.3,
    "revisited": 0.1,
    "reopened": 0.1,
    "wandered": 0.15,
}
BOUND = 800
"""the most characters a state block has"""
_REMEMBERED_ACTIONS = 2
_FIELD, _LIST = 70, 160
"""the most characters of a field, and of a list of places"""
_RECEPTACLE = re.compile(r"\ba (\w+ \d+)")


class AlfworldTracker:
    version = "alfworld-1"
    components = component_names(PROGRESS, ERRORS)

    def start(self, task: Task, observation: Observation) -> Progress:
        listed = _RECEPTACLE.findall(observation.text.partition("you see")[2]) if "in the middle of" in observation.text else []
        state = with_observation(Progress(read_goal(task.goal), tuple(listed)), self.read(observation))
        state = replace(state, subgoal=state.current_subgoal())
        return replace(state, best=state.achieved)

    def update(self, state: Progress, action: str, transition: Transition) -> Progress:
        observation = self.read(transition.observation)
        after, refused = self.seen(state, action, transition)
        command = command_of(observation.text)
        good, once = _progress(state, after, command)
        errors = _errors(state, after, command)
        if refused:
            errors.append("invalid" if observation.actions else "no_effect")
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
        """As much of it as this tracker looks at: all, also the list of actions."""
        return observation

    def seen(self, state: Progress, action: str, transition: Transition) -> tuple[Progress, bool]:
        """The facts after one more answer with the subgoal that follows from them, and whether the action was refused."""
        after = with_observation(state, transition.observation)
        return replace(after, subgoal=DONE if transition.success else after.current_subgoal()), not transition.effective

    def signals(self, before: Progress, after: Progress) -> Mapping[str, float]:
        return summed(counted(after.progress, PROGRESS), counted(after.errors, ERRORS))

    def render(self, state: Progress) -> str:
        """One field a line, and only those that matter to the subgoal."""
        goal = state.goal
        lines = [
            f"subgoal: {state.subgoal}",
            _line("object", [goal.kind]),
            _line("holding", [state.holding or "nothing"]),
            _line("light" if goal.family == "look" else "destination", [state.destination or goal.target]),
            _line("at", [compact(state.facing) or "middle of the room"]),
        ]
        if state.subgoal in SEARCHES:
            hints = state.hints()
            left = [r for r in state.receptacles if r not in state.checked]
            lines.append(_line("likely", hints))
            lines.append(f"unchecked: {places_line(sorted(left, key=lambda r: _rank(hints, kind_of(r))))}")
            lines.append(f"checked: {places_line(state.checked[::-1])}")
        elif state.subgoal == "take_object":
            lines.append(_line("seen", [f"{thing} at {state.seen[thing]}" for thing in state.candidates()]))
        elif state.subgoal != DONE:
            places = state.places()
            lines.append(f"where: {places_line([r for r in places if r in state.facing] or places)}")
        return "\n".join(lines)


def _progress(before: Progress, after: Progress, command: str) -> tuple[list[str], frozenset[str]]:
    """What was achieved, and what of it will not be rewarded again."""
    events = ["subgoal"] * max(0, after.achieved - before.best)
    verb, _, rest = command.partition(" ")
    if before.subgoal in SEARCHES:
        name = rest.removeprefix("to ")
        hinted = kind_of(name) in before.hints()
        if verb == "go" and hinted and kind_of(name) not in map(kind_of, before.visited):
            events.append("hinted_place")
        if verb == "open" and hinted and name not in before.opened:
            events.append("hinted_container")
    once = []
    delivering = before.subgoal in ("reach_destination", "place_object")
    put = verb == "move" and delivering and rest.partition(" to ")[2] in before.destinations()
    if after.subgoal == "place_object":
        once.append(f"reached_destination {after.delivered}")
    elif put:  # by the text alone it may turn out only now that one stands there
        once.append(f"reached_destination {before.delivered}")
    if before.subgoal == "place_object" and verb == "open" and rest in before.destinations():
        once.append(f"opened_destination {before.delivered}")
    if put or (verb == "move" and after.subgoal == DONE):
        once.append(f"placed {before.delivered}")
    new = frozenset(once) - before.rewarded
    return events + [event.partition(" ")[0] for event in once if event in new], new


def _errors(before: Progress, after: Progress, command: str) -> list[str]:
    """What was wrong with a command that was carried out."""
    verb, _, rest = command.partition(" ")
    place = rest.removeprefix("to ")
    if before.subgoal in SEARCHES:
        if verb == "go" and place in before.visited:
            return ["revisited"]
        if verb == "open" and place in before.opened:
            return ["reopened"]
    delivering = before.subgoal in ("reach_destination", "place_object")
    right = before.destinations() if before.subgoal == "reach_destination" else ()
    if verb == "go" and delivering and kind_of(place) == before.goal.target and place not in right:
        return ["wrong_destination"]
    if after.achieved < before.achieved and (_is_late(before) or after.delivered < before.delivered):
        return ["regression"]
    # With something else in hand one has to find a place for it first.
    free = before.carries_wanted or not before.holding
    if verb == "go" and free and before.subgoal not in SEARCHES and not set(before.places()) & set(after.facing):
        return ["wandered"]
    return []


def _is_late(state: Progress) -> bool:
    """The object is in hand: from here, what is lost was won by searching."""
    return state.subgoal not in SUBGOALS[state.goal.family][:2]


def _line(label: str, words: Sequence[str]) -> str:
    """`label: a, b, c`, without the last ones where it would get too long."""
    kept = list(words)
    while len(kept) > 1 and len(", ".join(kept)) > _FIELD:
        kept.pop()
    return f"{label}: {', '.join(kept)[:_FIELD] or 'none'}"


def places_line(names: Sequence[str]) -> str:
    """The first of the names, as many as there is room for."""
    for count in range(len(names), 0, -1):
        if len(told := compact(names[:count])) <= _LIST:
            return told
    return "none"


def compact(names: Iterable[str]) -> str:
    """`drawer 1`, `drawer 2`, `drawer 3`, `drawer 5`, `bed 1` -> `drawer 1-3 5, bed 1`; kinds in the order they come."""
    by_kind: dict[str, list[int]] = {}
    for name in names:
        kind, _, number = name.rpartition(" ")
        by_kind.setdefault(kind, []).append(int(number))
    return ", ".join(f"{kind} {_spans(sorted(numbers))}" for kind, numbers in by_kind.items())


def _spans(numbers: Sequence[int]) -> str:
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _rank(hints: Sequence[str], kind: str) -> int:
    return hints.index(kind) if kind in hints else len(hints)
