"""An explorer: acts only on what it has read so far, as the agent it teaches must."""

from __future__ import annotations

from tacit.core.types import Observation, Task
from tacit.core.world import ByReading
from tacit.environments.cooking.explored import Explored
from tacit.environments.cooking.observed import Direction, Recipe, Scene, read_recipe, read_scene
from tacit.environments.cooking.things import COOKED, UNCUT


class Explorer(ByReading):
    """Finds the kitchen, reads the cookbook, gathers, cuts, cooks what is still raw, prepares and eats.

    What it needs and has seen, it walks to; what it has not seen, it looks for in the nearest closed container or behind
    the nearest exit it has not taken. An ingredient that is cooked already is left alone, whatever the cookbook says.
    """

    def __init__(self, task: Task | None = None) -> None:
        self._house = Explored()
        self._recipe: Recipe | None = None
        self._prepared = False
        """there is a meal: wherever it is now, nothing else is needed"""

    def act(self, observation: Observation) -> str:
        scene = read_scene(observation.text)
        self._house = self._house.after(scene)
        self._recipe = read_recipe(scene.answer) or self._recipe
        self._prepared = self._prepared or "meal" in scene.carried or scene.place_of("meal") is not None
        return self._choose(scene)

    def _choose(self, scene: Scene) -> str:
        if "meal" in scene.carried:
            return "eat meal"
        if self._prepared:
            return _take(scene, "meal") if scene.place_of("meal") else self._approach(scene, {"meal"})
        if self._recipe is None:
            if scene.place_of("cookbook") or "cookbook" in scene.carried:
                return "examine cookbook"
            return self._approach(scene, {"cookbook"})
        return self._work_here(scene, self._recipe) or self._approach(scene, self._wanted(scene, self._recipe))

    def _work_here(self, scene: Scene, recipe: Recipe) -> str | None:
        """Something useful that can be done in this room, None where there is nothing."""
        for food in recipe.ingredients:
            if food not in scene.carried and scene.place_of(food):
                return _take(scene, food)
        pending = _pending(scene, recipe)
        for direction in pending:
            item = scene.carried[direction.food]
            if direction.cuts and item.cutting == UNCUT:
                if "knife" in scene.carried:
                    return f"{direction.verb} {item.name} with knife"
                if scene.place_of("knife"):
                    return _take(scene, "knife")
            if not direction.cuts and item.cooking not in COOKED and direction.heat in scene.places:
                return f"cook {item.name} with {direction.heat}"
        if scene.room == "kitchen" and not pending and all(food in scene.carried for food in recipe.ingredients):
            return "prepare meal"
        return None

    def _wanted(self, scene: Scene, recipe: Recipe) -> set[str]:
        """What to go to next: missing things first, then sources of heat, and the kitchen at last."""
        missing = {food for food in recipe.ingredients if food not in scene.carried}
        pending = _pending(scene, recipe)
        if any(d.cuts for d in pending) and "knife" not in scene.carried:
            missing.add("knife")
        return missing or {d.heat for d in pending if not d.cuts} or {"stove"}

    def _approach(self, scene: Scene, wanted: set[str]) -> str:
        """One step towards a place where something wanted was seen, else where it might be."""

        house = self._house

        def promising(room: str) -> bool:
            return room != house.here and any(house.holds(room, thing) for thing in wanted)

        for reached in (promising, house.unexplored):
            first = house.first_step(reached)
            if first:
                return self._walk(scene, first)
            if first is not None:
                return self._explore(scene)
        return "look"

    def _explore(self, scene: Scene) -> str:
        closed = scene.closed_containers
        return f"open {closed[0]}" if closed else self._walk(scene, self._house.untried(scene.room)[0])

    def _walk(self, scene: Scene, direction: str) -> str:
        door = scene.exits[direction]
        return f"open {door}" if door in scene.closed else f"go {direction}"


def _pending(scene: Scene, recipe: Recipe) -> list[Direction]:
    """Directions that what is carried has still to undergo; what is not in hand yet may turn out to be done."""
    return [d for d in recipe.directions if d.food in scene.carried and not d.done_to(scene.carried[d.food])]


def _take(scene: Scene, name: str) -> str:
    place = scene.place_of(name)
    return f"take {name}" if place == "floor" else f"take {name} from {place}"
