"""MiniHack (Samvelyan et al., 2021) as Complementary RL presents it: the part of the map that was seen, a legend, words for
actions.

    actions   north … northwest; pick_up and apply where there is a key
    success   the stairs down, reached
    died      killed, or drowned
    timeout   out of the level's turns (levels.py)

A move into a wall, and whatever else costs the game no time, is refused: the map stays as it is and the observation says what
the game said. So is what is no word of the level.
"""

from __future__ import annotations

from dataclasses import replace

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition
from tacit.environments.minihack.engine import Engine, borrow, hand_back
from tacit.environments.minihack.levels import LEVELS, Level
from tacit.environments.minihack.observed import Scene

DIED, TIMEOUT = "died", "timeout"
NO_ACTION = "That is no action here."


class MiniHackWorld:
    """One level at a time, in an engine of its own."""

    def __init__(self) -> None:
        self._level: Level | None = None
        self._engine: Engine | None = None
        self._scene = Scene((), {})
        self._turns = 0

    def reset(self, task: Task) -> Observation:
        family, seed = str(task.data.get("level")), task.data.get("seed")
        if family not in LEVELS or not isinstance(seed, int):
            raise TacitError(
                f"task {task.id!r} is no MiniHack level: its data needs a level of {', '.join(LEVELS)} and a seed."
            )
        self.close()
        self._level, self._turns = LEVELS[family], 0
        self._engine = borrow(self._level)
        self._scene = self._engine.reset(seed)
        return self._observe()

    def step(self, action: str) -> Transition:
        if self._engine is None or self._level is None:
            raise TacitError("this world has no level yet: call reset(task) first.")
        self._turns += 1
        late = self._turns >= self._level.turns
        word = parse_action(action, self._level)
        if not word:
            self._scene = replace(self._scene, said=NO_ACTION)
            return Transition(self._observe(), done=late, effective=False, label=TIMEOUT if late else "")
        try:
            answer = self._engine.step(word)
        except Exception:
            self._engine = None  # nobody knows what it would answer next
            raise
        self._scene = answer.scene
        return Transition(
            self._observe(),
            done=answer.done or late,
            success=answer.success,
            score=float(answer.success),
            effective=answer.moved,
            label="" if answer.success else DIED if answer.done else TIMEOUT if late else "",
        )

    def close(self) -> None:
        if self._engine is not None:
            hand_back(self._engine)
        self._engine = None

    def _observe(self) -> Observation:
        assert self._level is not None
        return Observation(self._scene.text, self._level.actions)


def parse_action(action: str, level: Level) -> str:
    """A word of the level; empty where it is none."""
    word = "_".join(action[:40].lower().split()).replace("-", "_")
    word = {"pickup": "pick_up", "apply_key": "apply"}.get(word, word.removeprefix("go_").removeprefix("move_"))
    return word if word in level.actions else ""
