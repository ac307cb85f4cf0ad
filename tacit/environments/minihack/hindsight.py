"""What an episode of MiniHack teaches, by rule: the way that was walked, or what was still missing.

At a step it is told what the explorer would have done there, who has seen no more than the agent.
"""

from __future__ import annotations

from itertools import groupby

from tacit.core.hindsight import critical_steps, most_repeated
from tacit.core.skills import Skills
from tacit.core.types import Observation, Trajectory
from tacit.environments.minihack.expert import Explorer
from tacit.environments.minihack.failures import failure
from tacit.environments.minihack.levels import LEVELS
from tacit.environments.minihack.observed import STAIRS, read
from tacit.environments.minihack.tracker import MiniHackTracker
from tacit.environments.minihack.world import DIED, parse_action

_TRACKER = MiniHackTracker()
_MISSING = {
    "no_key": "look for the key ( before anything else: stand on it and pick_up",
    "no_door": "with the key in hand stand straight beside the door + and apply",
    "no_bridge": "push two boulders ` into the river } before trying to cross it",
}


class _Companion(Explorer):
    """An explorer who walks along: it says what it would do, and remembers what was done."""

    def __init__(self, trajectory: Trajectory) -> None:
        super().__init__(trajectory.task)
        self._done = iter(_words(trajectory))

    def act(self, observation: Observation) -> str:
        advised = super().act(observation)
        done = next(self._done)
        if done != advised:
            self._plan = []
        self._before = read(observation.text), done
        return advised


def hindsight(trajectory: Trajectory) -> Skills:
    steps = critical_steps(trajectory, _Companion(trajectory), _TRACKER)
    if trajectory.success:
        return Skills(workflow(trajectory), steps, f"At the stairs after {len(trajectory)} turns.")
    label = failure(trajectory)
    return Skills(_MISSING.get(label) or _avoid(trajectory, label), steps, f"Failed: {label}.")


def workflow(trajectory: Trajectory) -> str:
    """`east 3, south, pick_up`: what took effect, in its order."""
    done = [word for word, step in zip(_words(trajectory), trajectory.steps, strict=True) if step.effective]
    runs = [(word, len(list(same))) for word, same in groupby(done)]
    return ", ".join(f"{word} {times}" if times > 1 else word for word, times in runs)


def _words(trajectory: Trajectory) -> list[str]:
    """The level's word for what was done at each step; empty where it was none."""
    level = LEVELS[str(trajectory.task.data["level"])]
    return [parse_action(step.action, level) for step in trajectory.steps]


def _avoid(trajectory: Trajectory, label: str) -> str:
    if label == DIED:
        return f"do not go {_words(trajectory)[-1]} there: it was the end"
    scenes = [read(step.observation.text) for step in trajectory.steps]
    found = next((scene.find(STAIRS)[0] for scene in scenes if scene.find(STAIRS)), None)
    if found is not None:
        return f"the stairs were in row {found[0] + 1}, column {found[1] + 1}: walk there as soon as they are seen"
    repeated = " ".join(most_repeated(trajectory).split())
    again = f"do not {repeated} again and again: " if repeated else ""
    return f"{again}go where nothing has been seen yet"
