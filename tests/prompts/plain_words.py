"""A wording in which every part of a prompt is recognizable."""

from __future__ import annotations

from tacit.core.types import Task
from tacit.core.world import Wording

TASK = Task("w", "w/1", "f", "train", 0, "win")


class Plain(Wording):
    separator = "\n"

    def task(self, task):
        return f"task: {task.goal}"

    def turn(self, number, observation, action):
        return f"{number}: saw {observation.text}, did {action}"

    def now(self, number, observation, admissible):
        return f"{number}: see {observation.text}" + (f" {list(observation.actions)}" if admissible else "")

    def request(self, style):
        return f"answer {style}"


class Recalling(Plain):
    """Mentions past turns only if they are shown."""

    def now(self, number, observation, admissible):
        return f"after what stands above, {super().now(number, observation, admissible)}"

    def alone(self, number, observation, admissible):
        return super().now(number, observation, admissible)
