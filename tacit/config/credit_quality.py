"""The measurements behind `tacit inspect credit` and benchmarks/credit_quality.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol, cast, runtime_checkable

import numpy as np

from tacit.companions.hindsight import Analyzer, Hindsight, ModelAnalyzer, RoutedSkills, RuleAnalyzer
from tacit.config.agents import Target
from tacit.config.resources import load_policy
from tacit.core.credit import Rewards, sum_terms
from tacit.core.errors import TacitError
from tacit.core.protocols import Encoder, Policy, Sampling
from tacit.core.types import Group, IterationInfo
from tacit.credit.partitions import AdaptiveRadius, Pooling, late_layer
from tacit.credit.skill_shift import SkillShift
from tacit.evaluation.credit_agreement import Geometry, GroupCredit, credit_groups, credit_per_step, make_estimators, partitions
from tacit.evaluation.evaluate import RolloutSetup
from tacit.methods import get_method
from tacit.runs.directory import COMPANIONS, open_checkpoints
from tacit.training.loop import Collector, Loop
from tacit.training.setup import completion_limit, make_worlds


@runtime_checkable
class ClusterSettings(Protocol):
    """Settings of a method that clusters steps by hidden state: bigpo, bipace, and what they are combined with."""

    layer: int | None
    pooling: Pooling | None
    epsilon: float | None


@runtime_checkable
class HindsightSettings(Protocol):
    """Settings of a method that learns from hindsight skills: opid, and what it is combined with."""

    analyzer: Literal["rule", "policy", "model"]
    critical_steps: int | None
    analyzer_temperature: float
    analyzer_tokens: int


# Rollouts as training collects them, with a checkpoint of a run or an untrained model.


def rollout_setup(target: Target, groups: int = 0, group_size: int = 0) -> RolloutSetup:
    """Rollouts with the run's own settings; `groups` and `group_size` override them.

    Its next iteration is exactly the one training would collect: seeds depend on the iteration's number.
    """
    if not isinstance(target.policy, Encoder):
        raise TacitError(f"{target.label} has no hidden states; name a run, or a model that is loaded on this machine.")
    recipe, world, policy = target.recipe, target.world, cast(Policy, target.policy)
    train = recipe.train
    method = recipe.settings.build(world)
    chosen = method.schedule
    schedule = replace(chosen, groups=groups or chosen.groups, group_size=group_size or chosen.group_size)
    tasks = world.tasks_of(train.split, train.tasks, train.seed, train.family_names)
    if not tasks:
        raise TacitError(f"split {train.split!r} of world {world.name!r} has no tasks here.")
    worlds, max_steps = make_worlds(world, train), train.max_steps or world.max_steps
    max_tokens = completion_limit(train, method.context, world)
    # Hidden states are requested per layer, independently of the method's sampling layer.
    method = replace(method, schedule=schedule, hidden_state=None)
    collector = Collector(method, tasks, worlds, max_tokens, max_steps)

    def collect(number: int) -> Sequence[Group]:
        behind = {collector.name: (number - 1) * schedule.groups}
        return Loop([collector], policy, target.seed, schedule.iterations, behind).collect(number).groups[0]

    trained = target.checkpoint.step if target.checkpoint is not None and target.checkpoint.stage == "rl" else 0
    sampling = Sampling(temperature=schedule.temperature, top_p=schedule.top_p, max_tokens=max_tokens)
    return RolloutSetup(
        world, worlds, method.context, policy, tasks, sampling, max_steps=max_steps, group_size=schedule.group_size,
        seed=target.seed, iteration=trained + 1, collect=collect,
    )  # fmt: skip


class LearnedBefore(TacitError):
    """The credit depends on earlier iterations, not only on these groups and the policy."""


def credit_as_trained(target: Target, groups: Sequence[Group], name: str = "") -> list[np.ndarray]:
    """[N] per group: the credit of the run's method, or of another method with its published settings.

    A radius calibrated in the run's first iteration is read from its checkpoint, else calibrated on these groups. Raises
    `LearnedBefore` if a companion has learned state that is not available.
    """
    settings = get_method(name)() if name else target.recipe.settings
    method = settings.build(target.world)
    for companion in method.companions:
        if companion.has_state and not isinstance(companion, AdaptiveRadius):
            raise LearnedBefore(f"its {companion.name} depends on earlier iterations, which these groups do not contain.")
    for companion in method.companions:
        if isinstance(companion, AdaptiveRadius) and not name and (kept := _kept(target, companion.name)):
            companion.load(kept)
        companion.observe(groups, target.policy, IterationInfo())
    rewards = sum_terms(term(groups, IterationInfo()) for term in method.rewards)
    return credit_per_step(method.credits, groups, target.policy, rewards)


def _kept(target: Target, companion: str) -> Path | None:
    """The newest saved state of a companion; with several worlds, this world's."""
    saved = open_checkpoints(target.run).all() if target.run else []
    names = (companion, f"{target.world.name}/{companion}")
    places = [checkpoint.path / COMPANIONS / name for checkpoint in saved if checkpoint.stage == "rl" for name in names]
    return next((place for place in reversed(places) if place.is_dir()), None)


def geometries_of(target: Target) -> list[Geometry]:
    """The run's own geometry, if it has one, and the same layer with a searched radius; else the last token and the prompt
    mean of a late layer."""
    settings, policy = target.recipe.settings, target.policy
    late = late_layer(policy.engine.model.layers)  # type: ignore[attr-defined]
    if not isinstance(settings, ClusterSettings) or settings.layer is None:
        return [Geometry(late, "last"), Geometry(late, "mean")]
    searched = Geometry(settings.layer, settings.pooling or "last")
    return [searched] if settings.epsilon is None else [replace(searched, epsilon=settings.epsilon), searched]


def credited_groups(
    target: Target, groups: Sequence[Group], geometries: Sequence[Geometry], gamma: float, methods: Sequence[str] = ()
) -> tuple[list[GroupCredit], dict[str, float], dict[str, str]]:
    """(estimates by name, radii found on these groups, reason for each skipped estimator). Estimators: the standard ones, the
    run's own method, and further methods."""
    policy: Any = target.policy
    parts, radii = partitions(groups, policy, geometries)
    others: dict[str, list[np.ndarray]] = {}
    left_out: dict[str, str] = {}
    requested = {f"as trained: {target.recipe.method}": "", **{f"{name}, as published": name for name in methods}}
    for name, method in requested.items():
        try:
            others[name] = credit_as_trained(target, groups, method)
        except LearnedBefore as error:
            left_out[name] = str(error)
    if target.world.hindsight is not None:
        others["skill shift, by rule"] = skill_shift(target, groups)
    estimators = make_estimators(parts, gamma, target.recipe.settings.prompt.past_turns(target.world))
    return credit_groups(groups, policy, estimators, parts, others), radii, left_out


def rule_of(target: Target) -> RuleAnalyzer:
    """The world's rule analyzer, with the run's number of critical steps or else the world's."""
    settings, world = target.recipe.settings, target.world
    own = settings.critical_steps if isinstance(settings, HindsightSettings) else None
    return RuleAnalyzer.of(world, own or world.critical_steps)


def analyzer_of(target: Target) -> Analyzer:
    """The analyzer of the run's method, or the world's rule. A model of [policies.analyzer] is loaded."""
    settings, recipe = target.recipe.settings, target.recipe
    if not isinstance(settings, HindsightSettings) or settings.analyzer == "rule":
        return rule_of(target)
    loaded: Policy | None = None
    if settings.analyzer == "model":
        loaded = load_policy(recipe.policies.get("analyzer", recipe.main), recipe.train.seed, (target.world,))
    most = settings.critical_steps or target.world.critical_steps
    model = None if loaded is None else lambda: loaded
    return ModelAnalyzer(model, most, settings.analyzer_temperature, settings.analyzer_tokens)


def skill_shift(target: Target, groups: Sequence[Group]) -> list[np.ndarray]:
    """OPID's dense signal alone, without the episode advantage; skills from the world's rule."""
    policy: Any = target.policy
    hindsight = Hindsight(rule_of(target))
    hindsight.observe(groups, policy, IterationInfo())
    return credit_per_step(
        (SkillShift(RoutedSkills(hindsight), weight=1.0),), groups, policy, [Rewards.zeros(g) for g in groups]
    )


def circumstances(
    target: Target, setup: RolloutSetup, radii: Mapping[str, float], left_out: Mapping[str, str], rollouts: int, gamma: float
) -> dict[str, Any]:
    """The settings of a measurement, as saved with its result."""
    return {
        "of": target.label, "world": target.world.name, "model": target.recipe.model, "method": target.recipe.method,
        "fingerprint": target.fingerprint, "reads": target.reads, "seed": setup.seed, "iteration": setup.iteration,
        "group_size": setup.group_size, "max_steps": setup.max_steps, "temperature": setup.sampling.temperature,
        "rollouts": rollouts, "gamma": gamma, "radii": dict(radii), "left_out": dict(left_out),
    }  # fmt: skip
