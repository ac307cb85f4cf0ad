"""A run's dictionary with the episodes it is read by: those of one iteration, and how they and the last evaluation behave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tacit.assembly.checks import open_world
from tacit.assembly.recipe import Recipe
from tacit.core.errors import TacitError
from tacit.core.types import Task, Trajectory
from tacit.evaluation.behaviour import Behaviour, behaviour
from tacit.inspection.story import Story, open_story
from tacit.rewards.segmentation import world_alphabet
from tacit.runs.directory import read_settings
from tacit.runs.replay import recorded_steps, replay
from tacit.training.practice import Course


@dataclass(frozen=True)
class Inspected:
    title: str
    story: Story
    file: str
    """where the episodes are recorded; empty where none is"""
    episodes: Sequence[Trajectory]
    """of one iteration, successes first"""
    behaviours: dict[str, Behaviour]
    """of that iteration, and of the last evaluation of practice, where they are recorded"""

    def to_json(self) -> dict[str, Any]:
        story = self.story
        told = {name: found.to_json() for name, found in self.behaviours.items()}
        cut = [{"task": t.task.id, "success": t.success, "segments": story.cut(t)} for t in self.episodes]
        return {"source": story.source, "phrases": story.phrases(), "steps": story.steps, "behaviour": told, "episodes": cut}


def inspect_dictionary(
    run: Path, checkpoint: str = "", iteration: int | None = None, shown: int | None = None, where: str = ""
) -> Inspected:
    """The dictionary of a checkpoint, and up to `shown` episodes of an iteration: of the newest where none is named. Each world
    of a run has its own: `where` says which is meant."""
    whole = replace(Recipe.from_json(read_settings(run)), out=run)
    recipe = whole.alone(where)
    world = open_world(recipe.world)
    world_alphabet(world, "a skill dictionary")
    courses = {place.world: Course.of(open_world(place.world), place.train) for place in whole.places}
    own = {task.id for task in (*courses[recipe.world].tasks, *courses[recipe.world].panel.tasks)}

    def played(file: Path, tasks: Iterable[Task]) -> list[Trajectory]:
        return [trajectory for trajectory in replay(file, tasks) if trajectory.task.id in own]

    practised = [task for course in courses.values() for task in course.tasks]
    name = world.name if len(courses) > 1 else ""
    story = open_story(run, recipe, world, lambda file: played(file, practised), checkpoint, name)
    step, file = _recorded(run, iteration)
    behaviours, episodes = {}, []
    if file is not None:
        episodes = _in_order(played(file, practised))
        behaviours[f"training, iteration {step}"] = behaviour(episodes, world.alphabet, world.failure, world.place)
    if evaluations := recorded_steps(run, "eval-rl"):
        last = max(evaluations)
        measured = played(evaluations[last], [task for course in courses.values() for task in course.panel.tasks])
        behaviours[f"evaluation after rl {last}"] = behaviour(measured, world.alphabet, world.failure, world.place)
    title = f"{world.name}, {recipe.method}"
    return Inspected(title, story, file.name if file else "", episodes[:shown], behaviours)


def _recorded(run: Path, iteration: int | None) -> tuple[int, Path | None]:
    files = recorded_steps(run)
    if iteration is not None and iteration not in files:
        there = f"there are {min(files)} to {max(files)}" if files else "there are none"
        raise TacitError(f"iteration {iteration} is not recorded in {run}; {there}.")
    step = max(files, default=0) if iteration is None else iteration
    return step, files.get(step)


def _in_order(played: Sequence[Trajectory]) -> list[Trajectory]:
    """Successes first, and one of each task before a second."""
    before: Counter[tuple[str, bool]] = Counter()
    places = []
    for trajectory in played:
        kind = (trajectory.task.id, trajectory.success)
        places.append((not trajectory.success, before[kind]))
        before[kind] += 1
    return [played[i] for i in sorted(range(len(played)), key=places.__getitem__)]
