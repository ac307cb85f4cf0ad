"""Skill shift and RLSD modulation: hand-computed values and limit cases."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from scripted import make_group

from tacit.core.credit import Batch, Rewards
from tacit.core.hindsight import Lesson
from tacit.core.types import IterationInfo
from tacit.credit.skill_shift import ModulatedCredit, SkillShift, estimate_gradient_norm, modulate, skill_shifts


class Scores:
    """log p of a token is −(length of the prompt) · (token + 1) / 10: a longer prompt makes everything less likely."""

    def __init__(self) -> None:
        self.rows = 0

    def logprobs(self, prompts, completions, temperature=1.0):
        assert temperature == 1.0
        self.rows += len(prompts)
        return [-len(p) * (np.asarray(c) + 1) / 10 for p, c in zip(prompts, completions, strict=True)]

    def decode(self, tokens):
        return " ".join(map(str, tokens))


@dataclass
class Teaching:
    """Adds this many tokens to the prompt of each flat step. None: no skill. A tuple: several separate prompts."""

    longer: list = field(default_factory=list)

    def prompts(self, group, tokenizer):
        found = []
        for step, more in zip(group.steps, self.longer, strict=True):
            sizes = () if more is None else more if isinstance(more, tuple) else (more,)
            found.append([np.append(step.prompt_tokens, np.zeros(size, np.int64)) for size in sizes])
        return found

    def lessons(self, trajectory):
        return [(Lesson(step="do it"),)] * len(trajectory)


def credit(group, teaching, scorer=None, **settings):
    term = SkillShift(teaching, **settings)
    return term([group], [Rewards.zeros(group)], scorer or Scores(), IterationInfo())


def test_skill_shift_matches_hand_computed_values():
    group = make_group([[2, 1], [1]])  # prompts of one token; tokens 0 1, 1 and 10
    credits = credit(group, Teaching([2, None, 1]), weight=0.5)
    # two more prompt tokens: −(3 − 1) · (token + 1) / 10 for tokens 0 and 1; no skill; −(2 − 1) · 11 / 10
    np.testing.assert_allclose(credits[0].tokens_T, 0.5 * np.array([-0.2, -0.4, 0.0, -1.1]))
    assert credits.metrics["skill_shift/with_skill"] == 3 / 4
    assert credits.metrics["skill_shift/magnitude"] == pytest.approx((0.2 + 0.4 + 1.1) / 3)
    assert credits.marks[0]["skill_shift"] == pytest.approx([-0.6, 0.0, -1.1])


def test_unchanged_prompt_has_zero_shift_and_is_not_scored():
    scorer = Scores()
    credits = credit(make_group([[3], [2]]), Teaching([0, 0]), scorer)
    assert not credits[0].tokens_T.any() and scorer.rows == 0


def test_shifts_of_two_lessons_are_summed():
    group = make_group([[2]])
    both = credit(group, Teaching([(1, 3)]), weight=1.0)[0].tokens_T
    one, other = (credit(group, Teaching([n]), weight=1.0)[0].tokens_T for n in (1, 3))
    np.testing.assert_allclose(both, one + other)


def test_plain_prompt_is_scored_once_for_all_lessons():
    scorer = Scores()
    credit(make_group([[2]]), Teaching([(1, 2, 3)]), scorer)
    assert scorer.rows == 4


def test_shift_is_normalized_over_tokens_with_skill_then_clipped():
    group = make_group([[2], [1], [1]])
    credits = credit(group, Teaching([2, 1, None]), weight=1.0, normalise=True)[0].tokens_T
    raw = np.array([-0.2, -0.4, -1.1])
    np.testing.assert_allclose(credits, [*((raw - raw.mean()) / (raw.std() + 1e-6)), 0.0])
    cut = credit(group, Teaching([2, 1, None]), weight=1.0, clip=0.3)[0].tokens_T
    np.testing.assert_allclose(cut, [-0.2, -0.3, -0.3, 0.0])
    both = credit(group, Teaching([2, 1, None]), weight=1.0, normalise=True, clip=0.3)[0].tokens_T
    np.testing.assert_allclose(both, np.clip(credits, -0.3, 0.3)), "first the one, then the other"


def test_empty_completions_get_no_shift():
    group = make_group([[0, 2]])
    np.testing.assert_allclose(credit(group, Teaching([1, 1]), weight=1.0)[0].tokens_T, [-0.2, -0.3])


def test_shifts_of_several_groups_stay_separate():
    groups = [make_group([[1]]), make_group([[2], [1]])]
    shifts = skill_shifts(groups, [Teaching([1]).prompts(groups[0], None), Teaching([2, 3]).prompts(groups[1], None)], Scores())
    assert [len(shift) for shift in shifts] == [1, 3]
    np.testing.assert_allclose(shifts[1], [-0.2, -0.4, -3.3])


def test_sampled_logprobs_replace_the_plain_pass_for_the_current_weights():
    group = make_group([[2, 1]])  # the sampler's log-probabilities are −1
    scorer = Scores()
    (shift,) = skill_shifts([group], [Teaching([2, 1]).prompts(group, None)], scorer, version=0)
    np.testing.assert_allclose(shift, [1 - 0.3, 1 - 0.6, 1 - 0.4])
    assert scorer.rows == 2, "only the prompts with a skill"
    (older,) = skill_shifts([group], [Teaching([2, 1]).prompts(group, None)], scorer, version=1)
    np.testing.assert_allclose(older, [-0.2, -0.4, -0.2]), "sampled before an update"
    assert scorer.rows == 6


class Linear:
    """The gradient of row i is its advantage times a fixed vector: what the rows have in common, and noise."""

    def __init__(self, rows: int, signal: float) -> None:
        rng = np.random.default_rng(0)
        self.vectors = rng.standard_normal((rows, 400)) + signal * rng.standard_normal(400)
        self.rows: list[list[int]] = []

    def batch(self, credited: int) -> Batch:
        rows = range(len(self.vectors))
        batch = Batch.imitation([np.array([row]) for row in rows], [np.zeros(1, np.int64) for _ in rows])
        return replace(batch, advantages=[np.array([float(row < credited)]) for row in rows])

    def gradient_norm(self, batch, losses):
        rows = [int(prompt[0]) for prompt in batch.prompts]
        self.rows.append(rows)
        return float(np.linalg.norm(np.concatenate(batch.advantages) @ self.vectors[rows] / len(rows)))


@pytest.mark.parametrize("rows", [0, 40, 41, 80, 200])
def test_gradient_norm_is_exact_on_all_steps_with_credit(rows):
    policy = Linear(200, signal=0.1)
    batch = policy.batch(credited=80)
    exact = policy.gradient_norm(batch, [])
    assert estimate_gradient_norm(batch, Any, policy, rows, 0) == pytest.approx(exact)
    assert policy.rows[1:] == [list(range(80))], "one pass over the steps with credit"
    assert estimate_gradient_norm(policy.batch(credited=0), Any, policy, rows, 0) == 0 and len(policy.rows) == 2


@pytest.mark.parametrize("signal", [0.0, 0.05, 0.3, 2.0])
def test_gradient_norm_on_a_subset_is_nearly_unbiased(signal):
    """The subset's own norm is too large by up to √8 here, most where the gradient is all noise."""
    policy = Linear(800, signal)
    batch = policy.batch(credited=512)
    exact = policy.gradient_norm(batch, [])
    estimates = [estimate_gradient_norm(batch, Any, policy, 64, seed) for seed in range(300)]
    plain = [policy.gradient_norm(batch.select(np.array(rows)), []) * 512 / 800 for rows in policy.rows[1:600:2]]
    assert np.sqrt(np.mean(np.square(estimates))) == pytest.approx(exact, rel=0.15)
    assert np.mean(np.abs(np.log(np.array(estimates) / exact))) < 0.25
    assert signal > 0.1 or np.mean(plain) > 1.5 * exact


def test_subset_of_a_gradient_measurement_depends_on_the_seed_alone():
    policy = Linear(200, signal=0.3)
    batch = policy.batch(credited=200)
    first, again, other = (estimate_gradient_norm(batch, Any, policy, 32, seed) for seed in (1, 1, 2))
    assert first == again != other
    chosen = policy.rows[0]
    assert chosen == policy.rows[1] == policy.rows[2] and len({*chosen}) == 32


def test_rlsd_modulation_matches_hand_computed_values():
    advantage, ahead = np.array([2.0, 2.0, -2.0, -2.0, 0.0]), np.array([0.1, -5.0, 0.1, -5.0, 3.0])
    factors = np.array([np.exp(0.1), 0.8, np.exp(-0.1), 1.2, 1.0])
    np.testing.assert_allclose(modulate(advantage, ahead, 0.5, 0.2), advantage * (0.5 + 0.5 * factors))


def test_rlsd_keeps_signs_and_is_identity_without_shift():
    group = make_group([[2], [2]], success=[True, False])

    def episode(groups, rewards, policy, moment):
        from tacit.core.credit import Credit

        return [Credit(g, np.array([1.0, 1.0, -1.0, -1.0])) for g in groups]

    def credits(longer, iteration=1):
        term = ModulatedCredit(episode, Teaching(longer), share=0.5, bound=0.2, until=10)
        return term([group], [Rewards.zeros(group)], Scores(), IterationInfo(0, iteration, 20))[0].tokens_T

    np.testing.assert_array_equal(credits([0, 0]), [1.0, 1.0, -1.0, -1.0])
    assert (np.sign(credits([3, 3])) == [1, 1, -1, -1]).all() and (credits([3, 3]) != credits([0, 0])).any()
    np.testing.assert_array_equal(credits([3, 3], iteration=11), credits([0, 0]))  # no effect after iteration 10
    first, later = credits([3, 3])[0] - 1.0, credits([3, 3], iteration=4)[0] - 1.0
    assert first == pytest.approx(-0.5 * 0.2), "the shift is clipped to the bound"
    assert later == pytest.approx(0.7 * first), "three tenths of the way are behind"
