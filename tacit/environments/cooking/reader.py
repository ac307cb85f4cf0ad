"""A rule that plays the cooking game by its prompt alone: it does what the state block says is still to do, where it says it
can be done. It has learned nothing and remembers nothing."""

from __future__ import annotations

import re

from tacit.core.errors import TacitError
from tacit.environments.cooking.things import COOKING_VERBS, CUTS, HEAT
from tacit.environments.cooking.tracker import NOT_SEEN

_FIELD = re.compile(r"^(phase|still to do|needs|to search): (.*)$", re.M)
_NEED = re.compile(r"([^,()]+) \(([^()]*)\)")
_HEAT_FOR = {COOKING_VERBS[done]: heat for heat, done in HEAT.items()}


def act(prompt: str) -> str:
    """The action for what this prompt says."""
    fields = dict(_FIELD.findall(prompt))
    if "phase" not in fields:
        raise TacitError("the cooking game's reader reads a state block, and this prompt has none: --state-block --history 1.")
    needs = {thing.strip(): place for thing, place in _NEED.findall(fields.get("needs", ""))}
    here = {thing: place for thing, place in needs.items() if place != NOT_SEEN and not place.startswith("way ")}
    if fields["phase"] == "find_recipe" and (not needs or "cookbook" in here):
        return "examine cookbook"
    if fields["phase"] == "eat" and not needs:
        return "eat meal"
    if fields["phase"] == "prepare" and "kitchen" in here:
        return "prepare meal"
    work = _work(fields.get("still to do", ""), needs, here)
    if work:
        return work
    way = next((place for place in needs.values() if place.startswith("way ")), "")
    return _towards(prompt, way or fields.get("to search", "").partition(", ")[0])


def _work(left: str, needs: dict[str, str], here: dict[str, str]) -> str:
    """Something that can be done in this room; empty where there is nothing."""
    carried = []
    for step in left.split(", "):
        verb, _, food = step.partition(" ")
        if verb == "take" and food in here:
            return _take(food, here[food])
        if verb != "take" and food not in needs:
            carried.append((verb, food))
    if "knife" in here:
        return _take("knife", here["knife"])
    if "meal" in here:
        return _take("meal", here["meal"])
    for verb, food in carried:
        if verb in CUTS and "knife" not in needs:
            return f"{verb} {food} with knife"
        if _HEAT_FOR.get(verb) in here:
            return f"cook {food} with {_HEAT_FOR[verb]}"
    return ""


def _take(thing: str, place: str) -> str:
    return f"take {thing}" if place == "floor" else f"take {thing} from {place}"


def _towards(prompt: str, goal: str) -> str:
    """Through a door, which may have to be opened, or into a closed container."""
    if not goal.startswith("way "):
        return f"open {goal}" if goal and goal != "nothing" else "look"
    way = goal.removeprefix("way ")
    door = re.search(rf"\b{way} ([\w -]+)\?|a closed ([\w -]+) to the {way}\.", prompt)
    return f"open {door[1] or door[2]}" if door else f"go {way}"
