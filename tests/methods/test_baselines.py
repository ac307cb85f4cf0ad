"""Each baseline changes only what its paper changes in GRPO; defaults are the published settings."""

from __future__ import annotations

import ast
import inspect
import itertools
from dataclasses import fields, is_dataclass

import pytest

from tacit.core.errors import TacitError
from tacit.core.method import Alike, Method, Schedule
from tacit.credit.episode import BatchRelative, EpisodeRelative, GeneralizedAdvantage, LeaveOneOut, Returns
from tacit.losses.surrogates import ClippedSurrogate, ClippedWeight, EntropyBonus, ReferenceKL, ReferenceLogprobs, ValueLoss
from tacit.methods import METHODS, get_method
from tacit.methods.grpo import GRPO
from tacit.methods.grpo_variants import CISPO, DAPO, GSPO, PPO, RLOO, ReinforcePP
from tacit.prompts.history import History
from tacit.rewards.outcome import InvalidPenalty, Outcome
from tacit.rollout.episodes import Mixed
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
REFERENCE = GRPO().build(WORLD)


def differs(method: Method, other: Method = REFERENCE) -> set[str]:
    """The names of the pieces that differ."""
    return {f.name for f in fields(Method) if getattr(method, f.name) != getattr(other, f.name)} - {"name"}


@pytest.mark.parametrize("name", METHODS)
def test_every_registered_method_builds_with_its_defaults(name):
    method = get_method(name)().build(WORLD)
    assert isinstance(method, Method)
    assert method.name == name.split(":")[0]
    assert method.schedule.groups > 0 and method.schedule.group_size > 0


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_has_a_docstring(name):
    """The string under a field is the help text of its flag."""

    def undocumented(settings) -> set[str]:
        """Fields without a docstring; those of sections such as [schedule] as `section.name`."""
        documented = set()
        for cls in type(settings).__mro__[:-1]:
            body = ast.parse(inspect.getsource(cls)).body[0].body
            for field, after in itertools.pairwise(body):
                if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                    documented.add(field.target.id)
        values = {f.name: getattr(settings, f.name) for f in fields(settings)}
        sections = {key: value for key, value in values.items() if is_dataclass(value)}
        inside = {f"{key}.{name}" for key, section in sections.items() for name in undocumented(section)}
        return inside | (set(values) - set(sections) - documented)

    assert not undocumented(get_method(name)())


def test_grpo_defaults_match_the_paper():
    assert REFERENCE.context == History(WORLD.wording("full"), 2, True, "tags")
    assert REFERENCE.rewards == (Outcome(10.0), InvalidPenalty(0.1))
    assert REFERENCE.credits == (EpisodeRelative("population", "trajectories", 1e-6),)
    assert REFERENCE.columns == (ReferenceLogprobs(1.0),)
    assert REFERENCE.losses == (ClippedSurrogate(0.2, 0.2, "token", "tokens", None), ReferenceKL(0.01))
    assert REFERENCE.conditions == Alike() and REFERENCE.selection is None and REFERENCE.companions == ()
    assert REFERENCE.schedule == Schedule(16, 8, 150, 1e-6, 1.0, top_p=1.0, top_k=0, epochs=1, minibatches=1)


def test_grpo_settings_change_the_method():
    build = lambda **settings: GRPO(**settings).build(WORLD)  # noqa: E731
    assert build(std="none").credits == (EpisodeRelative(None),), "Dr. GRPO"
    assert build(std="sample", over="steps").credits == (EpisodeRelative("sample", "steps"),)
    reading = lambda **prompt: GRPO().with_prompt(**prompt).build(WORLD).context  # noqa: E731
    assert reading(history=-1).turns is None and reading(history=0).turns == 0
    assert reading(wording="terse", style="bare", admissible=False) == History(WORLD.wording("terse"), 2, False, "bare")
    assert build(entropy=0.1).losses[-1] == EntropyBonus(0.1)
    without = build(kl=0.0)
    assert without.losses == (ClippedSurrogate(),) and without.columns == ()
    warm = build(schedule=Schedule(temperature=0.7))
    assert warm.columns == (ReferenceLogprobs(0.7),), "the reference is measured where the policy was sampled"


def test_unknown_wording_is_refused():
    with pytest.raises(TacitError, match="Did you mean 'terse'"):
        GRPO().with_prompt(wording="tersy").build(WORLD)


def test_rloo_changes_only_the_baseline():
    method = RLOO().build(WORLD)
    assert differs(method) == {"credits"} and method.credits == (LeaveOneOut(),)


def test_dapo_clips_higher_selects_groups_and_has_no_kl():
    method = DAPO().build(WORLD)
    assert differs(method) == {"losses", "columns", "selection"}
    assert method.losses == (ClippedSurrogate(0.2, 0.28),)
    assert method.selection == Mixed(10)
    plain = DAPO(clip_high=0.2).build(WORLD)
    assert differs(plain, GRPO(kl=0.0).build(WORLD)) == {"selection"}


def test_gspo_changes_only_the_ratio():
    method = GSPO().build(WORLD)
    assert differs(method, GRPO(kl=0.0).build(WORLD)) == {"losses"}
    assert method.losses == (ClippedSurrogate(3e-4, 4e-4, ratio="sequence", over="rows"),)


def test_cispo_changes_only_the_loss():
    method = CISPO().build(WORLD)
    assert differs(method, GRPO(kl=0.0).build(WORLD)) == {"losses"}
    assert method.losses == (ClippedWeight(1.0, 0.2),)


def test_reinforce_pp_moves_the_kl_into_the_credit():
    method = ReinforcePP().build(WORLD)
    assert differs(method) == {"credits", "columns", "losses"}
    assert method.credits == (BatchRelative(0.01, "none", 1.0),)
    assert method.losses == (ClippedSurrogate(),) and method.columns == ()
    other = ReinforcePP(baseline="group", schedule=Schedule(temperature=0.7)).build(WORLD)
    assert other.credits == (BatchRelative(0.01, "group", 0.7),)


def test_ppo_uses_a_value_head_and_gae():
    method = PPO().build(WORLD)
    assert differs(method) == {"rewards", "credits", "columns", "losses"}
    assert method.rewards == (Outcome(1.0), InvalidPenalty(0.01))
    assert method.credits == (GeneralizedAdvantage(0.99, 0.95),)
    assert method.columns == (ReferenceLogprobs(1.0), Returns(0.99))
    assert method.losses == (*REFERENCE.losses, ValueLoss(0.5))


def test_building_twice_gives_equal_methods():
    for name in METHODS:
        settings = get_method(name)()
        if not settings.build(WORLD).companions:
            assert settings.build(WORLD) == settings.build(WORLD)
