"""`Explorer` (an expert that acts on what it has read), `act_on_prompt` (the rule agent), alphabets, handbook and hindsight.

In the native game, commands with an unknown verb have no skill. Real TextWorld games also accept the synonyms of Inform's
grammar (`get`, `n`, `x cookbook`): a synonym has the skill of its verb, and any other command is INSPECT, so that synonyms do
not shorten the skill sequence.
"""

from __future__ import annotations

import re

from tacit.core.errors import TacitError
from tacit.core.hindsight import critical_steps, most_repeated, stop_label, tracker_states
from tacit.core.types import Observation, Skills, Task, Trajectory
from tacit.core.world import Alphabet, ByReading
from tacit.worlds.cooking.tracker import NOT_SEEN, CookingTracker, Explored, Recipe, Scene, read_recipe, read_scene
from tacit.worlds.cooking.world import BURNED_LABEL, COOKED, CUTS, HEAT_FOR, UNCUT, WRONG_LABEL, skill


class Explorer(ByReading):
    """Finds the kitchen, reads the cookbook, gathers, cuts, cooks raw ingredients, prepares and eats.

    It walks to needed items it has seen, and searches for others in the nearest closed container or behind the nearest untried
    exit. It never cooks a cooked ingredient again, whatever the cookbook says.
    """

    def __init__(self, task: Task | None = None) -> None:
        self.house = Explored()
        self._recipe: Recipe | None = None
        self._prepared = False  # whether the meal exists; then nothing else is needed

    def act(self, observation: Observation) -> str:
        scene = read_scene(observation.text)
        self.house = self.house.after(scene)
        self._recipe = recipe = read_recipe(scene.answer) or self._recipe
        self._prepared = self._prepared or "meal" in scene.carried or scene.place_of("meal") is not None
        if "meal" in scene.carried:
            return "eat meal"
        if self._prepared:
            return _take("meal", scene.place_of("meal")) if scene.place_of("meal") else self._approach(scene, {"meal"})
        if recipe is None:
            has_cookbook = scene.place_of("cookbook") or "cookbook" in scene.carried
            return "examine cookbook" if has_cookbook else self._approach(scene, {"cookbook"})
        if work := self._work_here(scene, recipe):
            return work
        missing, pending = {food for food in recipe.ingredients if food not in scene.carried}, recipe.pending(scene.carried)
        if any(d.cuts for d in pending) and "knife" not in scene.carried:
            missing.add("knife")
        return self._approach(scene, missing or {d.heat for d in pending if not d.cuts} or {"stove"})

    def _work_here(self, scene: Scene, recipe: Recipe) -> str | None:
        """A useful action in this room; None if there is none."""
        for food in recipe.ingredients:
            if food not in scene.carried and scene.place_of(food):
                return _take(food, scene.place_of(food))
        pending = recipe.pending(scene.carried)
        for direction in pending:
            item = scene.carried[direction.food]
            if direction.cuts and item.cutting == UNCUT:
                if "knife" in scene.carried:
                    return f"{direction.verb} {item.name} with knife"
                if scene.place_of("knife"):
                    return _take("knife", scene.place_of("knife"))
            if not direction.cuts and item.cooking not in COOKED and direction.heat in scene.places:
                return f"cook {item.name} with {direction.heat}"
        if scene.room == "kitchen" and not pending and all(food in scene.carried for food in recipe.ingredients):
            return "prepare meal"
        return None

    def _approach(self, scene: Scene, wanted: set[str]) -> str:
        """One step towards a room where a wanted item was seen, else towards an unexplored one."""
        house = self.house
        way = house.first_step(lambda room: room != house.here and any(house.has(thing, room) for thing in wanted))
        way = way or house.first_step(house.unexplored)
        if way is None:
            return "look"
        closed = scene.closed_containers
        if not way and closed:
            return f"open {closed[0]}"
        way = way or house.untried(scene.room)[0]
        door = scene.exits[way]
        return f"open {door}" if door in scene.closed else f"go {way}"


def _take(name: str, place: str | None) -> str:
    return f"take {name}" if place == "floor" else f"take {name} from {place}"


# The rule agent: it executes the remaining steps listed in the state block, and has no memory.

_FIELD = re.compile(r"^(phase|still to do|needs|to search): (.*)$", re.M)
_NEED = re.compile(r"([^,()]+) \(([^()]*)\)")


def act_on_prompt(prompt: str) -> str:
    fields = dict(_FIELD.findall(prompt))
    if "phase" not in fields:
        raise TacitError("the rule agent of cooking needs a prompt with a state block: --state-block --history 1.")
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
    goal = way or fields.get("to search", "").partition(", ")[0]
    if not goal.startswith("way "):  # a container
        return f"open {goal}" if goal and goal != "nothing" else "look"
    way = goal.removeprefix("way ")
    door = re.search(rf"\b{way} ([\w -]+)\?|a closed ([\w -]+) to the {way}\.", prompt)
    return f"open {door[1] or door[2]}" if door else f"go {way}"


def _work(left: str, needs: dict[str, str], here: dict[str, str]) -> str:
    """A useful action in this room; empty if there is none."""
    carried = []
    for step in left.split(", "):
        verb, _, food = step.partition(" ")
        if verb == "take" and food in here:
            return _take(food, here[food])
        if verb != "take" and food not in needs:
            carried.append((verb, food))
    for thing in ("knife", "meal"):
        if thing in here:
            return _take(thing, here[thing])
    for verb, food in carried:
        if verb in CUTS and "knife" not in needs:
            return f"{verb} {food} with knife"
        if HEAT_FOR.get(verb) in here:
            return f"cook {food} with {HEAT_FOR[verb]}"
    return ""


_DOING = ("take", "examine", "cook", "slice", "dice", "chop", "prepare", "eat")


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success, its steps in order; after a failure, what was missing."""
    tracker = CookingTracker()
    steps = critical_steps(trajectory, Explorer(trajectory.task), tracker)
    if trajectory.success:
        done = [step.action for step in trajectory.steps if step.effective and step.action.split(" ")[0] in _DOING]
        return Skills(", ".join(dict.fromkeys(done)), steps, f"Eaten after {len(trajectory)} steps.")
    state, repeated = tracker_states(trajectory, tracker)[-1], most_repeated(trajectory)
    if "burned" in trajectory.detail:
        advice = "look whether it is cooked before cooking it: what is cooked twice burns"
    elif state.recipe is None:
        advice = "find the kitchen and examine the cookbook first"
    elif state.left:
        advice = f"still to do: {', '.join(state.left)}"
    else:
        advice = f"do not {repeated} again" if repeated else "eat meal"
    return Skills(advice, steps, f"Failed: {trajectory.detail or trajectory.stop}.")


SKILLS = ("READ_RECIPE", "INSPECT", "EXPLORE", "OPEN", "TAKE", "DELIVER", "CUT", "COOK", "PREPARE_MEAL", "EAT_MEAL")
ALPHABET = Alphabet(SKILLS, lambda trajectory: (skill(step.action) for step in trajectory.steps))
HANDBOOK = {
    "": (
        "find the kitchen and examine the cookbook first; gather every ingredient; cut before cooking; look whether something "
        "is cooked already, since what is cooked twice burns; then prepare meal in the kitchen and eat meal"
    )
}


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed: `burned`, `wrong_processing` or `timeout` (ReuseRL Table 8), else the stop reason."""
    if trajectory.end_label in (BURNED_LABEL, WRONG_LABEL):
        return trajectory.end_label
    return stop_label(trajectory)
