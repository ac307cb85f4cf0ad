"""The household's state block in other forms: how much of it there is, and what its tracker looks at.

    full        tracker.py: also the list of actions, which the agent does not read
    text        the same fields from the texts of the answers and the actions alone
    paper       exactly the six fields of §7.5 (Xie et al., 2026), from the text alone
    no_places   full, without the list of places left to search

What the text leaves open is what one can reach: several receptacles may share a place, and arriving at one shows that one
alone. A receptacle is known to be here when something was done with it, when `look` names it, or when going there is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from tacit.core.types import Observation, Transition
from tacit.core.world import Tracker
from tacit.environments.alfworld.household import APPLIANCES
from tacit.environments.alfworld.observed import command_of, kind_of
from tacit.environments.alfworld.progress import DONE, Progress, with_observation
from tacit.environments.alfworld.text import NOTHING_HAPPENS
from tacit.environments.alfworld.tracker import AlfworldTracker, places_line

_FACING = re.compile(r"^You are facing the (.*)\. Next to it, you see")
_NAME = re.compile(r"[a-z]+ \d+")
_LAST_NAME = re.compile(r"(?:to|from|with|open) ([a-z]+ \d+)$")


class TextTracker(AlfworldTracker):
    """Looks at texts and actions, and at nothing else: neither lists of actions, nor what the world says of success."""

    version = "alfworld-text-1"

    def read(self, observation: Observation) -> Observation:
        return Observation(observation.text)

    def seen(self, state: Progress, action: str, transition: Transition) -> tuple[Progress, bool]:
        text = transition.observation.text
        refused = text == NOTHING_HAPPENS
        after = with_observation(state, self.read(transition.observation))
        after = _with_neighbours(after, action.strip(), text, refused)
        over = _is_over(state, after, command_of(text))
        return replace(after, subgoal=DONE if over else after.current_subgoal()), refused


class PaperTracker(TextTracker):
    """The fields of §7.5, in its order and under its names; subgoals it does not list are ours."""

    version = "alfworld-paper-1"

    def render(self, state: Progress) -> str:
        visited = state.visited[::-1]
        fields = {
            "target_object": state.goal.kind,
            "destination": state.destination or state.goal.target,
            "holding": state.holding or "None",
            "checked_locations": places_line(visited).replace("none", "None"),
            "searched_containers": places_line([r for r in visited if r in state.opened]).replace("none", "None"),
            "current_subgoal": _SHORT.get(state.subgoal, state.subgoal),
        }
        return "\n".join(f"{name}: {value}" for name, value in fields.items())


class WithoutPlaces(AlfworldTracker):
    """What is left to search has to be known by heart, or found again."""

    version = "alfworld-no_places-1"

    def render(self, state: Progress) -> str:
        return "\n".join(line for line in super().render(state).split("\n") if not line.startswith("unchecked: "))


_SHORT = {"reach_destination": "reach_dest"}
"""subgoals that the paper calls otherwise"""
FORMS: Mapping[str, Tracker] = {"paper": PaperTracker(), "text": TextTracker(), "no_places": WithoutPlaces()}
"""beside `full`"""


def _with_neighbours(after: Progress, action: str, text: str, refused: bool) -> Progress:
    """With what else is here besides the receptacle one went to, as far as the text tells."""
    facing, visited = after.facing, after.visited
    named = _FACING.match(text)
    if named:
        facing = tuple(_NAME.findall(named[1]))
    used = _LAST_NAME.search(command_of(text))
    if used and used[1] not in facing:
        facing = (*facing, used[1])
    there = action.removeprefix("go to ")
    # One is sent everywhere but to where one stands.
    if refused and facing and there != action and there in after.receptacles:
        facing = facing if there in facing else (*facing, there)
        visited = visited if there in visited else (*visited, there)
    known = tuple(dict.fromkeys((*after.receptacles, *facing)))
    return replace(after, facing=facing, visited=visited, receptacles=known)


def _is_over(before: Progress, after: Progress, command: str) -> bool:
    """Whether this was the last thing to do: the object is put, treated, where it belongs, or lit by the lamp."""
    goal, (verb, _, rest) = before.goal, command.partition(" ")
    if goal.family == "look":
        return verb == "use" and kind_of(rest) == goal.target and before.carries_wanted
    thing, _, place = rest.partition(" to ")
    if verb != "move" or kind_of(thing) != goal.kind or kind_of(place) != goal.target:
        return False
    if goal.family == "pick2":
        return sum(where == place and kind_of(t) == goal.kind for t, where in after.seen.items()) > 1
    return goal.family not in APPLIANCES or thing in before.treated
