"""Recorded gold paths of scienceworld 1.2.3, one for nearly every task, so tests need no JVM."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path

from tacit.core.types import Observation, Task, Transition
from tacit.worlds.scienceworld.world import REFUSED, TASKS, goals


@cache
def traces() -> list[tuple[Task, list[tuple[str, str, float]]]]:
    """(task, turns) pairs. A turn is (action, observation, score); the first turn is the reset, without an action."""
    with lzma.open(Path(__file__).parent / "scienceworld_traces.json.xz", "rt", encoding="utf-8") as file:
        rows = json.load(file)
    return [(task(row["task"], row["variation"]), [tuple(turn) for turn in row["turns"]]) for row in rows]


def task(name: str, variation: int, **data: int) -> Task:
    about = {"task": name, "variation": variation, **data}
    return Task("scienceworld", f"{name}/{variation}", TASKS[name].family, "train", 0, goals()[name][variation], about)


def transition(text: str, before: float, score: float, label: str = "") -> Transition:
    done = not 0 <= score < 1
    return Transition(Observation(text), done, score >= 1, max(0.0, score), not REFUSED.match(text), label, score - before)
