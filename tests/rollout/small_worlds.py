"""A corridor world in which every kind of world failure can be triggered."""

from __future__ import annotations

import os
import sys
import time

from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Wording


def corridor(length: int, trouble: str = "", at: int = 0, name: str = "") -> Task:
    """`trouble` happens when leaving place `at`: raise, hang, exit, quit, interrupt or slow. `reset` and `hang_in_reset`
    happen in reset."""
    data = {"length": length, "trouble": trouble, "at": at}
    return Task("corridor", name or f"corridor/{length}{trouble}{at}", "only", "train", 0, f"walk {length}", data)


class Corridor:
    """`forward` moves on; any other action is refused. The end of the corridor is success; `jump` ends the episode as a
    failure."""

    closed = 0

    def reset(self, task: Task) -> Observation:
        self._data, self._place = task.data, 0
        if task.data["trouble"] == "reset":
            raise RuntimeError("the door is jammed")
        if task.data["trouble"] == "hang_in_reset":
            hang()
        return self._observe()

    def step(self, action: str) -> Transition:
        if self._place == self._data["at"]:
            self._trouble()
        if action == "jump":
            return Transition(self._observe(), done=True, label="fell")
        if action != "forward":
            return Transition(self._observe(), effective=False, label="refused")
        self._place += 1
        arrived = self._place == self._data["length"]
        return Transition(self._observe(), done=arrived, success=arrived, score=self._place / self._data["length"])

    def close(self) -> None:
        type(self).closed += 1

    def _observe(self) -> Observation:
        return Observation(f"place {self._place} of {self._data['length']}", ("forward", "jump"))

    def _trouble(self) -> None:
        match self._data["trouble"]:
            case "raise":
                raise RuntimeError("the floor gave way")
            case "hang":
                hang()
            case "exit":
                os._exit(7)
            case "quit":
                sys.exit("no more today")
            case "interrupt":
                raise KeyboardInterrupt
            case "slow":
                time.sleep(1.0)


def hang() -> None:
    """Wait forever, like a world that swallows every exception."""
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            continue


class Signs(Wording):
    """The wording of a corridor."""

    separator = "\n"

    def task(self, task):
        return task.goal

    def turn(self, number, observation, action):
        return f"{number} {observation.text} then {action}"

    def now(self, number, observation, admissible):
        return observation.text

    def request(self, style):
        return "?"
