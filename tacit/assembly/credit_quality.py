"""What `tacit inspect credit` and benchmarks/credit_quality.py put together: a run, its estimators, and what they came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tacit.assembly.ground import LearnedBefore, credit_as_trained
from tacit.assembly.players import Target
from tacit.calibration.probe import late_layer
from tacit.companions.hindsight.analyzers import ByRule
from tacit.companions.hindsight.companion import Hindsight
from tacit.companions.hindsight.teachers import Routed
from tacit.core.credit import Rewards
from tacit.core.moment import Moment
from tacit.core.types import Group
from tacit.credit.skill_shift import SkillShift
from tacit.evaluation.credit.estimators import Geometry, credit_per_step, partitions, standard
from tacit.evaluation.credit.measured import Credited, credit_groups
from tacit.evaluation.ground import Ground


def geometries_of(target: Target) -> list[Geometry]:
    """The run's own, where its method has one, and the same layer with a searched radius; else a late layer's last token, and
    the mean over its prompt."""
    settings, policy = target.recipe.settings, target.policy
    late = late_layer(policy.engine.model.layers)  # type: ignore[attr-defined]
    layer, pooling = getattr(settings, "layer", None), getattr(settings, "pooling", None)
    if layer is None:
        return [Geometry(late, "last"), Geometry(late, "mean")]
    searched = Geometry(layer, pooling or "last")
    epsilon = getattr(settings, "epsilon", None)
    return [searched] if epsilon is None else [Geometry(layer, pooling or "last", epsilon), searched]


def credited_groups(
    target: Target, groups: Sequence[Group], geometries: Sequence[Geometry], gamma: float, methods: Sequence[str] = ()
) -> tuple[list[Credited], dict[str, float], dict[str, str]]:
    """(the standard estimators over these groups, what the run itself would have given them, and further methods by name;
    the radii that were searched on these groups; what is left out, and why)"""
    policy: Any = target.policy
    history = getattr(target.recipe.settings, "history", 2)
    parts, radii = partitions(groups, policy, geometries)
    others: dict[str, list[np.ndarray]] = {}
    left_out: dict[str, str] = {}
    asked = {f"as trained: {target.recipe.method}": "", **{f"{name}, as published": name for name in methods}}
    for name, method in asked.items():
        try:
            others[name] = credit_as_trained(target, groups, method)
        except LearnedBefore as error:
            left_out[name] = str(error)
    if target.world.hindsight is not None:
        others["skill shift, by rule"] = skill_shift(target, groups)
    estimators = standard(parts, gamma, None if history < 0 else history)
    return credit_groups(groups, policy, estimators, parts, others), radii, left_out


def rule_of(target: Target) -> ByRule:
    """The world's own analyzer, with as many critical steps as the run's method has, or else the world's."""
    return ByRule.of(target.world, getattr(target.recipe.settings, "critical_steps", None) or target.world.critical_steps)


def skill_shift(target: Target, groups: Sequence[Group]) -> list[np.ndarray]:
    """OPID's dense signal by itself, without the episode's advantage beside it; skills by the world's own rule."""
    policy: Any = target.policy
    hindsight = Hindsight(rule_of(target))
    hindsight.observe(groups, policy, Moment())
    return credit_per_step((SkillShift(Routed(hindsight), weight=1.0),), groups, policy, [Rewards.zeros(g) for g in groups])


def circumstances(
    target: Target,
    ground: Ground,
    radii: Mapping[str, float],
    left_out: Mapping[str, str],
    rollouts: int,
    gamma: float,
) -> dict[str, Any]:
    """Under what a measurement was made."""
    return {
        "of": target.label,
        "world": target.world.name,
        "model": target.recipe.model,
        "method": target.recipe.method,
        "fingerprint": target.fingerprint,
        "reads": target.reads,
        "seed": ground.seed,
        "iteration": ground.iteration,
        "group_size": ground.group_size,
        "max_steps": ground.max_steps,
        "temperature": ground.sampling.temperature,
        "rollouts": rollouts,
        "gamma": gamma,
        "radii": dict(radii),
        "left_out": dict(left_out),
    }
