"""The number of critical steps in credit measurement: the method's setting, or else the world's."""

from __future__ import annotations

import pytest
from scripted import ScriptedPolicy

from tacit.config.agents import Target
from tacit.config.credit_quality import rule_of
from tacit.config.recipe import Recipe
from tacit.core.protocols import Sampling
from tacit.worlds import get_environment


@pytest.mark.parametrize(
    ("world", "method", "most"),
    [
        ("alfworld", {"name": "grpo"}, 5),
        ("searchqa", {"name": "grpo"}, 2),
        ("searchqa", {"name": "opid"}, 2),
        ("searchqa", {"name": "opid", "critical_steps": 3}, 3),
        ("searchqa", {"name": "opid+bipace", "critical_steps": 3}, 3),
    ],
)
def test_credit_measurement_uses_the_number_of_critical_steps_of_training(world, method, most):
    recipe, there = Recipe.from_json({"world": world, "model": "tiny", "method": method}), get_environment(world)
    context = recipe.settings.build(there).context
    target = Target("an agent", recipe, there, context, ScriptedPolicy(lambda prompt: ""), Sampling(), 0)
    assert rule_of(target).max_steps == most
