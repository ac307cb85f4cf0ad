"""Generalized advantage estimation, and the return targets of the value head."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scripted import make_group

from tacit.core.credit import Rewards
from tacit.credit.episode import GeneralizedAdvantage, Returns, gae

unit = st.floats(-10, 10, allow_nan=False, width=32)
episodes = st.integers(1, 6).flatmap(lambda n: st.tuples(*[st.lists(unit, min_size=n, max_size=n)] * 2))


class Values:
    def __init__(self, values):
        self._values = np.array(values, dtype=np.float32)

    def values(self, prompts):
        assert len(prompts) == len(self._values)
        return self._values


def test_gae_matches_hand_computed_values():
    # γ = 0.5, λ = 0.5, V = 1, 2, 4, r = 0, 0, 8
    # δ₂ = 8 − 4 = 4, δ₁ = 0.5·4 − 2 = 0, δ₀ = 0.5·2 − 1 = 0;  A₁ = 0.25·4, A₀ = 0.25·1
    assert gae(np.array([0.0, 0.0, 8.0]), np.array([1.0, 2.0, 4.0]), 0.5, 0.5).tolist() == [0.25, 1.0, 4.0]


@given(episodes, st.floats(0, 1))
def test_lambda_one_gives_return_minus_value(episode, gamma):
    rewards, values = map(np.array, episode)
    group = make_group([[1] * len(rewards)])
    expected = Rewards.per_step(group, rewards).returns_N(gamma) - values
    np.testing.assert_allclose(gae(rewards, values, gamma, 1.0), expected, atol=1e-9)


@given(episodes, st.floats(0, 1))
def test_lambda_zero_gives_one_step_td_error(episode, gamma):
    rewards, values = map(np.array, episode)
    ahead = np.append(values[1:], 0.0)
    np.testing.assert_allclose(gae(rewards, values, gamma, 0.0), rewards + gamma * ahead - values, atol=1e-9)


@given(episodes, st.floats(0, 1), st.floats(0, 1))
def test_gae_matches_the_explicit_sum(episode, gamma, lam):
    rewards, values = map(np.array, episode)
    deltas = rewards + gamma * np.append(values[1:], 0.0) - values
    slow = [sum((gamma * lam) ** (u - t) * deltas[u] for u in range(t, len(deltas))) for t in range(len(deltas))]
    np.testing.assert_allclose(gae(rewards, values, gamma, lam), slow, atol=1e-9)


def test_episodes_do_not_leak_into_each_other():
    groups = [make_group([[1, 2], [1]]), make_group([[], [1]])]
    rewards = [Rewards.per_step(groups[0], np.array([0.0, 8.0, 2.0])), Rewards.per_step(groups[1], np.array([1.0]))]
    term = GeneralizedAdvantage(gamma=0.5, lam=0.5, whiten=False)
    first, second = term(groups, rewards, Values([2.0, 4.0, 1.0, 1.0]))
    assert [a.tolist() for a in first.steps()] == [[1.0], [4.0, 4.0], [1.0]]
    assert second.tokens_T.tolist() == [0.0]


def test_local_penalty_does_not_reach_earlier_steps():
    group = make_group([[1, 1]])
    rewards = Rewards.per_step(group, np.array([0.0, 1.0])) + Rewards.local(group, np.array([0.0, -0.5]))
    values = Values([0.0, 0.0])
    (credit,) = GeneralizedAdvantage(gamma=1.0, lam=1.0, whiten=False)([group], [rewards], values)
    assert credit.tokens_T.tolist() == [1.0, 0.5] == rewards.returns_N(1.0).tolist()


def test_advantages_are_whitened_over_steps_of_the_batch():
    groups = [make_group([[5]]), make_group([[1]])]
    rewards = [Rewards.per_step(groups[0], np.array([3.0])), Rewards.per_step(groups[1], np.array([1.0]))]
    first, second = GeneralizedAdvantage()(groups, rewards, Values([0.0, 0.0]))
    np.testing.assert_allclose(first.tokens_T, [1.0] * 5)
    np.testing.assert_allclose(second.tokens_T, [-1.0])


def test_whitening_equal_advantages_gives_zeros():
    group = make_group([[1], [1]])
    (credit,) = GeneralizedAdvantage()([group], [Rewards.zeros(group)], Values([3.0, 3.0]))
    assert credit.tokens_T.tolist() == [0.0, 0.0]


def test_no_groups_give_no_credit():
    assert GeneralizedAdvantage()([], [], Values([])) == []


def test_returns_column_has_one_number_per_row():
    groups = [make_group([[2, 1]]), make_group([[1]])]
    rewards = [Rewards.per_step(groups[0], np.array([1.0, 2.0])), Rewards.local(groups[1], np.array([-1.0]))]
    assert Returns(0.5)(groups, rewards).tolist() == [2.0, 2.0, -1.0]
    assert Returns()([], []).shape == (0,)
    assert Returns.name == "returns" and Returns.per == "row"
