"""The practice ground of whoever was opened: a run's checkpoint, or a model that has not been trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tacit.assembly.players import Target
from tacit.companions.radius import AdaptiveRadius
from tacit.core.errors import TacitError
from tacit.core.moment import Moment
from tacit.core.protocols import Sampling
from tacit.core.types import Group
from tacit.evaluation.credit.estimators import credit_per_step
from tacit.evaluation.ground import Ground
from tacit.methods import get_method
from tacit.runs.checkpoints import COMPANIONS
from tacit.runs.directory import saved_checkpoints
from tacit.training.loop import Loop, total
from tacit.training.playground import Playground
from tacit.training.practice import completion_limit, make_worlds


def ground_of(target: Target, groups: int = 0, group_size: int = 0) -> Ground:
    """As the run's own settings have it; so many groups and episodes of each where a number is given.

    Its next iteration is the very one that training would play from here: seeds are functions of the iteration's number.
    """
    policy: Any = target.policy
    if not hasattr(policy, "hidden_states"):
        raise TacitError(f"{target.label} has no hidden states to look at; name a run, or a model that is loaded here.")
    recipe, world = target.recipe, target.world
    train = recipe.train
    method = recipe.settings.build(world)
    chosen = method.schedule
    schedule = replace(chosen, groups=groups or chosen.groups, group_size=group_size or chosen.group_size)
    tasks = world.tasks_of(train.split, train.tasks, train.seed, train.family_names)
    if not tasks:
        raise TacitError(f"split {train.split!r} of world {world.name!r} has no tasks here.")
    worlds, max_steps = make_worlds(world, train), train.max_steps or world.max_steps
    max_tokens = completion_limit(train, method.context, world)
    # Whoever wants hidden states asks for those of a layer, which need not be the one that this method asks the sampler for.
    method = replace(method, schedule=schedule, hidden_layer=None)
    playground = Playground(method, tasks, worlds, max_tokens, max_steps)

    def collect(number: int) -> Sequence[Group]:
        behind = {playground.name: (number - 1) * schedule.groups}
        return Loop([playground], policy, target.seed, schedule.iterations, behind).collect(number).groups[0]

    practised = target.checkpoint.step if target.checkpoint is not None and target.checkpoint.stage == "rl" else 0
    return Ground(
        world=world,
        worlds=worlds,
        context=method.context,
        policy=policy,
        tasks=tasks,
        sampling=Sampling(temperature=schedule.temperature, top_p=schedule.top_p, max_tokens=max_tokens),
        max_steps=max_steps,
        group_size=schedule.group_size,
        seed=target.seed,
        iteration=practised + 1,
        collect=collect,
        run=target.run,
    )


class LearnedBefore(TacitError):
    """Credit that rests on more than some groups and the policy."""


def credit_as_trained(target: Target, groups: Sequence[Group], name: str = "") -> list[np.ndarray]:
    """[N] for each group: what the run's own method gives these steps, or another method as it is published; rewards are the
    method's. A radius that the run found on its first iteration is in its checkpoints; before that it is found on these groups.
    `LearnedBefore` where something else learns beside the policy."""
    settings = get_method(name)() if name else target.recipe.settings
    method = settings.build(target.world)
    for companion in method.companions:
        if getattr(companion, "remembers", True) and not isinstance(companion, AdaptiveRadius):
            raise LearnedBefore(f"its {companion.name} learns from all that came before, and these groups do not say what.")
    for companion in method.companions:
        if isinstance(companion, AdaptiveRadius) and not name and (kept := _kept(target, companion.name)):
            companion.load(kept)
        companion.observe(groups, target.policy, Moment())
    rewards = total(term(groups, Moment()) for term in method.rewards)
    return credit_per_step(method.credits, groups, target.policy, rewards)


def _kept(target: Target, companion: str) -> Path | None:
    """Where the run last saved a companion; a run in several worlds has one for each."""
    saved = saved_checkpoints(target.run).all() if target.run else []
    names = (companion, f"{target.world.name}/{companion}")
    places = [checkpoint.path / COMPANIONS / name for checkpoint in saved if checkpoint.stage == "rl" for name in names]
    return next((place for place in reversed(places) if place.is_dir()), None)
