"""The house as far as it has been seen: each room as it last was, and which way leads where. For the expert and the tracker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tacit.environments.cooking.observed import Scene
from tacit.environments.cooking.things import DIRECTIONS


@dataclass(frozen=True)
class Explored:
    here: str = ""
    """the room one is in"""
    scenes: Mapping[str, Scene] = field(default_factory=dict)
    """each room as last seen, in order of the first visit"""
    ways: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """room -> direction -> room, as far as walked"""

    @property
    def scene(self) -> Scene:
        return self.scenes[self.here]

    def after(self, scene: Scene) -> Explored:
        """With what is seen now. A way is known by what the world says was done, not by what was meant."""
        ways = {**self.ways, scene.room: self.ways.get(scene.room, {})}
        before = self.scenes.get(self.here)
        if before is not None and scene.went in before.exits and self.here != scene.room:
            ways[self.here] = {**ways[self.here], scene.went: scene.room}
            ways[scene.room] = {**ways[scene.room], DIRECTIONS[scene.went]: self.here}
        return Explored(scene.room, {**self.scenes, scene.room: scene}, ways)

    def holds(self, room: str, thing: str) -> bool:
        """Whether a thing, or a piece of furniture, was seen in a room."""
        seen = self.scenes[room]
        return thing in seen.places or seen.place_of(thing) is not None

    def untried(self, room: str) -> list[str]:
        """Exits of a room that have not been taken."""
        return [way for way in self.scenes[room].exits if way not in self.ways[room]]

    def unexplored(self, room: str) -> bool:
        """Whether something there is still closed or untried."""
        return bool(self.scenes[room].closed_containers) or bool(self.untried(room))

    def first_step(self, reached: Callable[[str], bool]) -> str | None:
        """The direction in which the nearest room with the property lies, "" where it is this one, None for nowhere."""
        queue, met = deque([(self.here, "")]), {self.here}
        while queue:
            room, first = queue.popleft()
            if reached(room):
                return first
            for way, other in self.ways[room].items():
                if other not in met:
                    met.add(other)
                    queue.append((other, first or way))
        return None
