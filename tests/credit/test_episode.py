"""Episode credit: hand-computed values, limit cases, comparison with slow references."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import make_group

from tacit.core.credit import Rewards
from tacit.credit.episode import EpisodeRelative, LeaveOneOut, leave_one_out, standardize, step_scores

numbers = st.lists(st.floats(-100, 100, allow_nan=False, width=32), min_size=1, max_size=8)


def outcomes(group, values, local=None) -> Rewards:
    rewards = Rewards.at_the_end(group, np.array(values, dtype=float))
    return rewards if local is None else rewards + Rewards.local(group, np.array(local, dtype=float))


def per_step(credit) -> list[float]:
    """The value of each step; asserts that all its tokens have it."""
    values = []
    for tokens in credit.steps():
        assert np.ptp(tokens) == 0
        values.append(float(tokens[0]))
    return values


def test_standardize_matches_hand_computed_values():
    pool = np.array([1.0, 3.0])
    np.testing.assert_allclose(standardize(pool, pool, delta=0.0), [-1.0, 1.0])
    np.testing.assert_allclose(standardize(pool, pool, "sample", delta=0.0), [-1 / math.sqrt(2), 1 / math.sqrt(2)])
    np.testing.assert_allclose(standardize(pool, pool, None), [-1.0, 1.0])
    np.testing.assert_allclose(standardize(pool, pool, delta=1.0), [-0.5, 0.5])
    # values need not be in the pool: (5 − 2) / 1
    np.testing.assert_allclose(standardize(np.array([5.0]), pool, delta=0.0), [3.0])


@pytest.mark.parametrize("std", ["population", "sample", None])
@pytest.mark.parametrize("pool", [[4.0], [2.0, 2.0, 2.0], []])
def test_standardize_gives_zeros_without_spread_in_the_pool(std, pool):
    assert standardize(np.array([1.0, 2.0]), np.array(pool), std).tolist() == [0.0, 0.0]


@given(numbers)
def test_standardized_values_have_zero_mean_and_at_most_unit_std(values):
    pool = np.array(values)
    result = standardize(pool, pool)
    assert abs(result.mean()) < 1e-6 and result.std() <= 1 + 1e-9


def test_episode_credit_uses_one_outcome_per_trajectory():
    # R = 10, 0, 0, 0: mean 2.5, population std √(18.75) = 4.3301
    group = make_group([[1, 2], [1], [1, 1, 1], [1]])
    (credit,) = EpisodeRelative()([group], [outcomes(group, [10, 0, 0, 0])])
    high, low = 7.5 / (math.sqrt(18.75) + 1e-6), -2.5 / (math.sqrt(18.75) + 1e-6)
    np.testing.assert_allclose(per_step(credit), [high, high, low, low, low, low, low])


def test_sample_std_and_dr_grpo():
    group = make_group([[1], [1], [1]])
    rewards = outcomes(group, [3, 0, 0])
    (sample,) = EpisodeRelative("sample", delta=0.0)([group], [rewards])
    np.testing.assert_allclose(per_step(sample), np.array([2.0, -1.0, -1.0]) / math.sqrt(3))
    (mean_only,) = EpisodeRelative(None)([group], [rewards])
    np.testing.assert_allclose(per_step(mean_only), [2.0, -1.0, -1.0])


def test_over_steps_weights_episodes_by_length():
    # scores of the steps: 1, 0, 0, 0 → mean 1/4, std √3/4
    group = make_group([[1], [1, 1, 1]])
    (credit,) = EpisodeRelative(over="steps", delta=0.0)([group], [outcomes(group, [1, 0])])
    np.testing.assert_allclose(per_step(credit), np.array([3.0, -1.0, -1.0, -1.0]) / math.sqrt(3))


def test_local_penalty_is_scaled_by_the_group_std():
    # outcomes 1, 0: mean 1/2, std 1/2; the bad step scores 1 − 0.1
    group = make_group([[1, 1], [1]])
    (credit,) = EpisodeRelative(delta=0.0)([group], [outcomes(group, [1, 0], local=[0, -0.1, 0])])
    np.testing.assert_allclose(per_step(credit), [1.0, 0.8, -1.0])


@pytest.mark.parametrize("over", ["trajectories", "steps"])
@pytest.mark.parametrize("std", ["population", "sample", None])
def test_group_of_one_gets_zero_advantage(std, over):
    group = make_group([[1, 1]])
    (credit,) = EpisodeRelative(std, over)([group], [outcomes(group, [10], local=[0, -0.1])])
    assert credit.tokens_T.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("std", ["population", "sample", None])
def test_group_with_equal_outcomes_gets_zero_advantage(std):
    group = make_group([[1, 1], [1]])
    (credit,) = EpisodeRelative(std)([group], [outcomes(group, [10, 10], local=[0, -0.1, 0])])
    assert credit.tokens_T.tolist() == [0.0, 0.0, 0.0]


def test_groups_are_normalized_separately():
    groups = [make_group([[1], [1]]), make_group([[1], [1]])]
    rewards = [outcomes(groups[0], [1, 0]), outcomes(groups[1], [100, 0])]
    first, second = EpisodeRelative(delta=0.0)(groups, rewards)
    assert first.tokens_T.tolist() == second.tokens_T.tolist() == [1.0, -1.0]


@given(numbers)
def test_leave_one_out_equals_the_mean_of_the_others(values):
    slow = [v - np.mean(values[:i] + values[i + 1 :]) if len(values) > 1 else 0.0 for i, v in enumerate(values)]
    np.testing.assert_allclose(leave_one_out(np.array(values)), slow, atol=1e-4)


def test_leave_one_out_matches_hand_computed_values():
    # 6 − mean(0, 3) = 4.5, 0 − 4.5, 3 − 3; and the penalty as it is
    group = make_group([[1], [1, 1], [1]])
    (credit,) = LeaveOneOut()([group], [outcomes(group, [6, 0, 3], local=[0, 0, -0.1, 0])])
    np.testing.assert_allclose(per_step(credit), [4.5, -4.5, -4.6, 0.0])


def test_leave_one_out_of_one_is_zero():
    group = make_group([[1, 1]])
    (credit,) = LeaveOneOut()([group], [outcomes(group, [6], local=[0, -0.1])])
    assert credit.tokens_T.tolist() == [0.0, 0.0]


def test_step_scores_are_outcome_plus_local_reward():
    group = make_group([[1, 1], [1]])
    np.testing.assert_allclose(step_scores(outcomes(group, [1, 2], local=[0, -0.5, 0])), [1.0, 0.5, 2.0])


@pytest.mark.parametrize("term", [EpisodeRelative(), EpisodeRelative(over="steps"), LeaveOneOut()])
def test_no_groups_give_no_credit(term):
    assert list(term([], [])) == []


def test_credit_magnitude_is_averaged_over_tokens():
    group = make_group([[2, 3], [1], [1], [1]])
    explained = EpisodeRelative(None)([group], [outcomes(group, [4, 0, 0, 0])])
    assert explained.metrics == {"episode_credit_magnitude": (5 * 3 + 3 * 1) / 8}
    assert EpisodeRelative()([], []).metrics == {"episode_credit_magnitude": 0.0}
