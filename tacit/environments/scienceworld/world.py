"""The world: an episode in ScienceWorld's simulator, by its raw calls.

An episode begins as the package's does, with a `look around` that costs a move of simulated time. A score below zero ends it:
the wrong thing was focused on. The package calls that -100; here the score stays in [0, 1], and the label says it.
"""

from __future__ import annotations

import weakref
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition
from tacit.environments.scienceworld.laboratory import Laboratory
from tacit.environments.scienceworld.observed import is_refused

WRONG_FOCUS = "wrong_focus"
OUT_OF_STEPS = "out_of_steps"
LONGEST = 300
"""characters of an action that are read; the longest that is any use has a hundred"""


class ScienceWorld:
    """Plays one variation of one task at a time, beside others in the same simulator."""

    def __init__(self, laboratory: Laboratory) -> None:
        self._laboratory = laboratory
        self._seat = laboratory.lend()
        self._hand_back = weakref.finalize(self, laboratory.take_back, self._seat)
        """done once: by `close`, or when a world that nobody closed is forgotten"""
        self._steps = self._limit = 0
        self._score = 0.0
        self._playing = False

    def reset(self, task: Task) -> Observation:
        if not {"task", "variation"} <= set(task.data):
            raise TacitError(f"task {task.id!r} is none of ScienceWorld: its data has no 'task' and 'variation'.")
        name, variation = str(task.data["task"]), int(task.data["variation"])
        said = self._ask("load", name, variation, "", False)
        text = self._ask("step", "look around")
        if said or text.startswith("ERROR"):
            self._playing = False
            raise TacitError(f"ScienceWorld has no variation {variation} of {name!r}: {said or text}")
        self._steps, self._limit, self._playing = 0, int(task.data.get("limit", 0)), True
        self._score = self._ask("getScore")
        return Observation(text)

    def step(self, action: str) -> Transition:
        if not self._playing:
            raise TacitError("this ScienceWorld episode is over or has not begun: call reset(task) first.")
        text = self._ask("step", _command(action))
        score = self._ask("getScore")
        earned, self._score = score - self._score, score
        self._steps += 1
        late = 0 < self._limit <= self._steps and 0.0 <= score < 1.0
        done = late or not 0.0 <= score < 1.0
        self._playing = not done
        return Transition(
            Observation(text),
            done=done,
            success=score >= 1.0,
            score=min(max(score, 0.0), 1.0),
            effective=not is_refused(text),
            label=WRONG_FOCUS if score < 0 else OUT_OF_STEPS if late else "",
            reward=earned,
        )

    def close(self) -> None:
        self._playing = False
        self._hand_back()

    def _ask(self, function: str, *arguments: Any) -> Any:
        return self._laboratory.ask(self._seat, function, *arguments)


def _command(action: str) -> str:
    """On one line, without what no parser reads: half characters and control characters."""
    printable = "".join(c if c.isprintable() else " " for c in action[:LONGEST])
    return " ".join(printable.encode("utf-8", "ignore").decode("utf-8").split())
