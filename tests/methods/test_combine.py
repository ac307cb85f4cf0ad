"""Settings of combined methods: each has one value, and conflicting defaults must be set explicitly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from scripted import ScriptedPolicy, solve_countdown

from tacit.config.checks import prepare
from tacit.config.flags import field_docs
from tacit.config.recipe import Recipe
from tacit.core.errors import TacitError
from tacit.core.method import Base, Schedule
from tacit.credit.episode import EpisodeRelative, LeaveOneOut, StepReturns
from tacit.credit.step_relative import ActionPeers
from tacit.losses.surrogates import PolicyGradient
from tacit.methods import get_method
from tacit.methods.combine import combine
from tacit.methods.grpo import GRPO
from tacit.prompts.history import PromptSettings
from tacit.rollout.worlds import InProcessPool
from tacit.training.loop import Collector, Loop
from tacit.worlds import get_environment

WORLD = get_environment("countdown")


def test_combined_method_takes_each_published_default():
    both = get_method("reuserl+bipace")()
    assert both.invalid_penalty == 0.01, "reuserl's own; bipace has GRPO's"
    assert both.schedule == Schedule(iterations=300, lr=5e-7), "the one's length and the other's learning rate"
    assert both.success_reward == GRPO().success_reward
    assert {"efficiency", "buffer", "epsilon", "layer", "kl"} <= set(vars(both))


@pytest.mark.parametrize("other", ["opid", "bipace", "reuserl", "rlsd", "judge"])
def test_opsd_with_a_credit_based_method_is_refused(other):
    for pair in (f"opsd+{other}", f"{other}+opsd"):
        with pytest.raises(TacitError, match="opsd ignores rewards"):
            get_method(pair)().build(WORLD)
    assert get_method("opsd+skill_grpo")().build(WORLD).conditions


def test_leading_method_decides_shared_settings():
    both = get_method("bipace+constant_context+reuserl")()
    assert (both.gamma, both.prompt.history, both.success_reward, both.invalid_penalty) == (0.98, 1, 3.0, 0.0)
    assert both.schedule.lr == 5e-6 and both.schedule.temperature == 0.8
    _, notes = both.fit_to_model(Base("model"), frozenset())
    assert "gamma = 0.98 (0.95 in bipace)" in notes and any(note.startswith("efficiency = 3") for note in notes)


def test_explicit_setting_applies_to_all_combined_terms():
    settings = {"world": "countdown", "model": "tiny", "method": {"name": "bipace+constant_context", "gamma": 0.5}}
    recipe = Recipe.from_json(settings)
    assert recipe.settings.gamma == 0.5 and not any(note.startswith("gamma") for note in recipe.notes)
    method = prepare(recipe).methods[0]
    assert [type(term) for term in method.credits] == [StepReturns, ActionPeers]
    assert {term.gamma for term in method.credits} == {0.5}
    assert isinstance(method.losses[0], PolicyGradient)
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_conflicting_defaults_must_be_set_explicitly():
    @dataclass(frozen=True)
    class Own(GRPO):
        name: ClassVar[str] = "own"
        invalid_penalty: float = 0.5

    both = combine(("own", "reuserl"), (Own, get_method("reuserl")))
    with pytest.raises(TacitError, match=r"invalid_penalty would be 0.5 \(own\) or 0.01 \(reuserl\).*--invalid-penalty"):
        both().build(WORLD)
    assert both(invalid_penalty=0.2).build(WORLD).rewards[1].penalty == 0.2


def test_combined_methods_have_one_episode_credit():
    assert type(get_method("gigpo+rloo")().build(WORLD).credits[0]) is LeaveOneOut
    assert sum(isinstance(t, EpisodeRelative) for t in get_method("gigpo+reuserl+dapo")().build(WORLD).credits) == 1


def test_duplicate_or_uncombinable_method_is_refused():
    with pytest.raises(TacitError, match="each method can be named only once"):
        get_method("bipace+bipace")

    class Whole(GRPO):
        def build(self, world, resources):
            return super().build(world, resources)

    with pytest.raises(TacitError, match="'whole' cannot be combined: it overrides `build`"):
        combine(("grpo", "whole"), (GRPO, Whole))


def test_settings_with_same_name_and_different_types_are_refused():
    @dataclass(frozen=True)
    class Own(GRPO):
        name: ClassVar[str] = "own"
        buffer: str = "large"

    with pytest.raises(TacitError, match="both have a setting 'buffer', with different types"):
        combine(("own", "reuserl"), (Own, get_method("reuserl")))


def test_flags_of_a_combined_method_have_help_texts():
    docs = field_docs(get_method("reuserl+bipace+constant_context"))
    assert docs["efficiency"].startswith("λ") and docs["epsilon"] and docs["step_cost"] and docs["kl"]


def test_combined_method_runs_one_iteration():
    small = {"prompt": PromptSettings(wording="terse", style="bare", admissible=False, history=1)}
    settings = get_method("reuserl+bipace+constant_context")(**small)
    settings = replace(settings, schedule=Schedule(groups=2, group_size=4))
    policy = ScriptedPolicy(lambda prompt, seed: solve_countdown(prompt) if seed % 2 else "hm")
    method = settings.build(WORLD)
    done = Loop([Collector(method, WORLD.tasks("train", 8, 0), InProcessPool(WORLD.make), 16, 4)], policy).iterate(1)
    assert done.metrics["dictionary_size"] >= len(WORLD.alphabet.skills) and "parts" in done.metrics
    assert len(policy.updates) == 1 and policy.updates[0][1] == method.losses
