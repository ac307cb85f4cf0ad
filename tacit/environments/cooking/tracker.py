"""The cooking game's progress state for constant-context agents: the recipe once read, what is left of it, and where what it
takes was seen, or might be.

    phase      find_recipe -> gather -> process -> prepare -> eat -> done
    progress   +1.0 for each subgoal: recipe read, an ingredient in hand, a direction done, meal prepared, meal eaten;
               +0.02 for a new room, +0.05 for a container opened for the first time
    error      0.3 for an unreadable command and for losing the game, 0.2 for a refused command,
               0.1 for stepping into a known room and straight back, and for opening again what was opened before

Values as in the constant-context paper's Table 6 for events of the same kind; errors are positive amounts, to be
subtracted. A subgoal counts once: dropping and taking again earns nothing.

The block says what somebody would know who remembered every turn. It names things and ways, never the action to take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tacit.core.signals import component_names, summed
from tacit.core.types import Observation, Task, Transition
from tacit.environments.cooking.alphabet import skill
from tacit.environments.cooking.explored import Explored
from tacit.environments.cooking.observed import Recipe, Scene, read_recipe, read_scene

PROGRESS: Mapping[str, float] = {"subgoal": 1.0, "new_room": 0.02, "new_container": 0.05}
ERRORS: Mapping[str, float] = {"unreadable": 0.3, "lost": 0.3, "refused": 0.2, "back": 0.1, "reopened": 0.1}
NOT_SEEN = "not seen"
BOUND = 600
"""the most characters a state block has, in the largest of our houses with the longest of our recipes"""


@dataclass(frozen=True)
class CookingState:
    house: Explored
    opened: frozenset[str] = frozenset()
    recipe: Recipe | None = None
    achieved: frozenset[str] = frozenset()
    """subgoals reached so far"""
    left: tuple[str, ...] = ()
    """what the recipe still asks for, given what is carried now"""
    phase: str = "find_recipe"
    came_from: str = ""
    """the room one stood in before, where the last thing done was to step into a room known already"""
    fault: str = ""
    """what was wrong with the last action, one of ERRORS"""


class Verdict(NamedTuple):
    """What became of an action."""

    refused: bool
    won: bool
    lost: bool


class CookingTracker:
    version = "cooking-2"
    components = component_names(PROGRESS, ERRORS)

    def start(self, task: Task, observation: Observation) -> CookingState:
        scene = read_scene(observation.text)
        return CookingState(Explored().after(scene), frozenset(scene.opened))

    def update(self, state: CookingState, action: str, transition: Transition) -> CookingState:
        scene = read_scene(transition.observation.text)
        verdict = self.judge(transition, scene)
        if verdict.refused:
            return replace(state, fault="refused" if skill(action) else "unreadable")
        recipe = state.recipe or read_recipe(scene.answer)
        prepared = "meal" in scene.carried or "prepare" in state.achieved
        achieved, left = set(state.achieved), _left(recipe, scene)
        if recipe is not None:
            achieved.add("read")
            achieved.update(step for step in _steps(recipe) if step not in left)
        if prepared:
            achieved.add("prepare")
        if verdict.won:
            achieved.add("eat")
        target = action.lower().removeprefix("open ") if action.lower().startswith("open ") else ""
        fault = "reopened" if target and target in state.opened else ""
        before, rooms = state.house.here, state.house.scenes
        if scene.room != before and scene.room == state.came_from:
            fault = "back"
        if verdict.lost:
            fault = "lost"
        return CookingState(
            house=state.house.after(scene),
            opened=state.opened | scene.opened,
            recipe=recipe,
            achieved=frozenset(achieved),
            left=() if prepared else left,
            phase=_phase(recipe, left, prepared, verdict.won),
            came_from=before if scene.room != before and scene.room in rooms else "",
            fault=fault,
        )

    def judge(self, transition: Transition, scene: Scene) -> Verdict:
        return Verdict(not transition.effective, transition.success, transition.done and not transition.success)

    def render(self, state: CookingState) -> str:
        lines = [f"phase: {state.phase}", f"rooms visited: {', '.join(state.house.scenes)}"]
        if state.recipe is not None:
            lines.append(f"recipe: {state.recipe.text}")
            lines.append(f"still to do: {', '.join(state.left) or 'nothing'}")
        places = {thing: _where(state.house, thing) for thing in _needs(state)}
        if places:
            lines.append("needs: " + ", ".join(f"{thing} ({place})" for thing, place in places.items()))
        if NOT_SEEN in places.values():
            lines.append(f"to search: {', '.join(_to_search(state.house)) or 'nothing'}")
        return "\n".join(lines)

    def signals(self, before: CookingState, after: CookingState) -> Mapping[str, float]:
        progress = {
            "subgoal": PROGRESS["subgoal"] * len(after.achieved - before.achieved),
            "new_room": PROGRESS["new_room"] * (len(after.house.scenes) - len(before.house.scenes)),
            "new_container": PROGRESS["new_container"] * len(after.opened - before.opened),
        }
        return summed(progress, {after.fault: ERRORS[after.fault]} if after.fault else {})


def _steps(recipe: Recipe) -> list[str]:
    return [f"take {food}" for food in recipe.ingredients] + [f"{d.verb} {d.food}" for d in recipe.directions]


def _left(recipe: Recipe | None, scene: Scene) -> tuple[str, ...]:
    if recipe is None:
        return ()
    has = scene.carried
    done = {f"take {food}" for food in has}
    done |= {f"{d.verb} {d.food}" for d in recipe.directions if d.food in has and d.done_to(has[d.food])}
    return tuple(step for step in _steps(recipe) if step not in done)


def _needs(state: CookingState) -> list[str]:
    """What the next steps take: things, sources of heat for what is in hand, and the kitchen at last."""
    has = state.house.scene.carried
    if state.phase in ("eat", "done"):
        return [] if "meal" in has or state.phase == "done" else ["meal"]
    if state.recipe is None:
        return [] if "cookbook" in has else ["cookbook"]
    missing = [food for food in state.recipe.ingredients if food not in has]
    pending = [d for d in state.recipe.directions if d.food in has and f"{d.verb} {d.food}" in state.left]
    knife = ["knife"] if any(d.cuts for d in pending) and "knife" not in has else []
    heat = dict.fromkeys(d.heat for d in pending if not d.cuts)
    return [*missing, *knife, *heat] or ([] if pending else ["kitchen"])


def _where(house: Explored, thing: str) -> str:
    """Furniture it was seen on, `here` for furniture and rooms, or the way to the nearest room that has it."""
    way = house.first_step(lambda room: room == thing or house.holds(room, thing))
    if way is None:
        return NOT_SEEN
    return f"way {way}" if way else house.scene.place_of(thing) or "here"


def _to_search(house: Explored) -> list[str]:
    """What is closed here and the exits not taken; else the way to the nearest room that has any."""
    here = [*house.scene.closed_containers, *(f"way {way}" for way in house.untried(house.here))]
    way = house.first_step(house.unexplored)
    return here or ([f"way {way}"] if way else [])


def _phase(recipe: Recipe | None, left: tuple[str, ...], prepared: bool, success: bool) -> str:
    if success:
        return "done"
    if prepared:
        return "eat"
    if recipe is None:
        return "find_recipe"
    if any(step.startswith("take ") for step in left):
        return "gather"
    return "process" if left else "prepare"
