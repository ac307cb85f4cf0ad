"""Skill alphabet, handbook, failure reasons and hindsight.

Nine atomic skills by the effect of an action (ours, in the style of ReuseRL):

MOVE-NEW, MOVE-KNOWN   onto an unvisited or visited square
GOAL                   onto the stairs
FIGHT                  into a monster
PUSH, SINK             a boulder forward, or into the water
PICK_UP, UNLOCK        the key, a door
BUMP                   a refused action; unknown actions have no skill
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from tacit.core.hindsight import Skills, critical_steps, most_repeated
from tacit.core.types import Observation, StopReason, Trajectory
from tacit.core.world import Alphabet
from tacit.worlds.minihack.expert import Explorer
from tacit.worlds.minihack.tracker import BOULDERS, MiniHackTracker
from tacit.worlds.minihack.world import (
    APPLY,
    BOULDER,
    DIED,
    LEVELS,
    OPEN_DOOR,
    PICK_UP,
    STAIRS,
    TIMEOUT,
    Place,
    parse_action,
    parse_scene,
    shift,
)

SKILLS = ("MOVE-NEW", "MOVE-KNOWN", "GOAL", "FIGHT", "PUSH", "SINK", "PICK_UP", "UNLOCK", "BUMP")


def project(trajectory: Trajectory) -> Iterator[str]:
    level, visited = LEVELS[str(trajectory.task.data["level"])], set[Place]()
    for step, after in zip(trajectory.steps, trajectory.observations[1:], strict=True):
        word = parse_action(step.action, level)
        if word:
            yield skill(word, step.observation, after, step.effective, visited)


def skill(word: str, before: Observation, after: Observation, effective: bool, visited: set[Place]) -> str:
    """The effect of an action; adds its start square to `visited`."""
    if not effective:
        return "BUMP"
    if word in (PICK_UP, APPLY):
        return "PICK_UP" if word == PICK_UP else "UNLOCK"
    seen, now = parse_scene(before.text), parse_scene(after.text)
    if seen.here is None:
        return "MOVE-KNOWN"
    visited.add(seen.here)
    aim = shift(seen.here, word)
    if aim in seen.monsters:
        return "FIGHT"
    if seen.at(aim) == BOULDER:
        return "SINK" if "into the water" in now.message else "PUSH"
    if seen.at(aim) == STAIRS:
        return "GOAL"
    return "MOVE-KNOWN" if now.here in visited else "MOVE-NEW"


ALPHABET = Alphabet(SKILLS, project)


HANDBOOK = {
    "": (
        "walk straight to the stairs > once they are seen; until then go where nothing has been seen yet, and do not step back "
        "to where you came from; what is refused once is refused again"
    ),
    "room": "it is five by five: cross it towards the far corner, and walk round monsters rather than fight them",
    "maze": "follow one wall; in a dead end go back to the last branching and take the way not taken",
    "keyroom": "find the key ( and stand on it to pick_up; then stand straight beside the door +, never diagonally, and apply",
    "river": "get behind a boulder ` and push it east into the river }; two in one row make a way across, then go over it",
}


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed.

    died         killed or drowned
    no_key       key room: the key was never held
    no_door      key room: the key was held, but no door was opened
    no_bridge    river: fewer than two boulders in the water
    timeout      out of turns otherwise; else the stop reason
    """
    if trajectory.end_label == DIED:
        return DIED
    if trajectory.stop is not StopReason.STEP_LIMIT and trajectory.end_label != TIMEOUT:
        return str(trajectory.stop)
    scenes = [parse_scene(observation.text) for observation in trajectory.observations]
    family = trajectory.task.data["level"]
    if family == "keyroom" and not any(scene.holds for scene in scenes):
        return "no_key"
    if family == "keyroom" and not any(scene.find(OPEN_DOOR) for scene in scenes):
        return "no_door"
    if family == "river" and sum("boulder into the water" in scene.message for scene in scenes) < BOULDERS:
        return "no_bridge"
    return TIMEOUT


_TRACKER = MiniHackTracker()
_MISSING = {
    "no_key": "look for the key ( before anything else: stand on it and pick_up",
    "no_door": "with the key in hand stand straight beside the door + and apply",
    "no_bridge": "push two boulders ` into the river } before trying to cross it",
}


class _Adviser(Explorer):
    """Advises at each step of a recorded episode: it says what it would do, and remembers what was done."""

    def __init__(self, trajectory: Trajectory) -> None:
        super().__init__(trajectory.task)
        self._done = iter(_words(trajectory))

    def act(self, observation: Observation) -> str:
        advised = super().act(observation)
        done = next(self._done)
        if done != advised:
            self._plan = []
        self._before = parse_scene(observation.text), done
        return advised


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success the path; after a failure what was missing. Step advice is the explorer's."""
    steps = critical_steps(trajectory, _Adviser(trajectory), _TRACKER)
    if trajectory.success:
        return Skills(workflow(trajectory), steps, f"At the stairs after {len(trajectory)} turns.")
    label = failure(trajectory)
    return Skills(_MISSING.get(label) or _avoid(trajectory, label), steps, f"Failed: {label}.")


def workflow(trajectory: Trajectory) -> str:
    """The effective actions: `east 3, south, pick_up`."""
    done = [word for word, step in zip(_words(trajectory), trajectory.steps, strict=True) if step.effective]
    runs = [(word, len(list(same))) for word, same in groupby(done)]
    return ", ".join(f"{word} {times}" if times > 1 else word for word, times in runs)


def _words(trajectory: Trajectory) -> list[str]:
    """The level's word for each action; empty if it has none."""
    level = LEVELS[str(trajectory.task.data["level"])]
    return [parse_action(step.action, level) for step in trajectory.steps]


def _avoid(trajectory: Trajectory, label: str) -> str:
    if label == DIED:
        return f"do not go {_words(trajectory)[-1]} there: it was the end"
    scenes = [parse_scene(step.observation.text) for step in trajectory.steps]
    found = next((scene.find(STAIRS)[0] for scene in scenes if scene.find(STAIRS)), None)
    if found is not None:
        return f"the stairs were in row {found[0] + 1}, column {found[1] + 1}: walk there as soon as they are seen"
    repeated = " ".join(most_repeated(trajectory).split())
    again = f"do not {repeated} again and again: " if repeated else ""
    return f"{again}go where nothing has been seen yet"
