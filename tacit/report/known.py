"""What is known of a run beyond its own directory. All of it can be absent: the page says so and does without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tacit.assembly.checks import EXPERT, open_world
from tacit.assembly.recipe import Recipe
from tacit.core.errors import TacitError
from tacit.core.method import Context
from tacit.core.types import Task
from tacit.core.world import Environment
from tacit.training.practice import Course
from tacit.training.settings import TrainSettings


@dataclass(frozen=True)
class Scene:
    """Where an episode was played."""

    task: Task
    world: Environment
    """names failures, counts skills, and is played again for the prompts"""
    context: Context | None
    """what the agent read; an expert reads no prompt"""


@dataclass(frozen=True)
class Known:
    scenes: Mapping[str, Scene] = field(default_factory=dict)
    """by the task's id: those measured on and those trained on"""
    defaults: Mapping[str, Any] | None = None
    """settings of the same method, world and model where nothing else is said"""
    notices: tuple[str, ...] = ()
    """why something is absent"""


def known_of(settings: Any) -> Known:
    """As far as it can be had here: the settings may be another version's, and the world may need data that is elsewhere."""
    try:
        recipe = Recipe.from_json(dict(settings))
        usual = Recipe.from_json({"world": recipe.world, "model": recipe.model, "method": recipe.method}).to_json()
    except (TacitError, TypeError, ValueError, KeyError, AttributeError) as error:
        return Known(notices=(f"These settings are not this version's ({error}): the run is shown without its world's help.",))
    try:
        scenes: dict[str, Scene] = {}
        for place in recipe.places:
            world = open_world(place.world)
            context = None if recipe.model == EXPERT else place.settings.context(world)
            scenes |= {task.id: Scene(task, world, context) for task in _tasks(place.world, place.train)}
        return Known(scenes, usual)
    except Exception as error:  # a world of the user's own may fail in any way
        return Known(defaults=usual, notices=(f"The world is not here ({error}): no labels of failures, no prompts.",))


@cache
def _tasks(world: str, settings: TrainSettings) -> tuple[Task, ...]:
    """What a run trains on and is measured on. Kept: the runs of a comparison have the same."""
    course = Course.of(open_world(world), settings)
    return *course.tasks, *course.panel.tasks
