"""Step returns normalized over the group: hand-computed values and limit cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import make_group

from tacit.core.credit import Rewards
from tacit.credit.episode import EpisodeRelative, StepReturns


def credit(shape, rewards, **settings) -> list[list[float]]:
    group = make_group(shape)
    (result,) = StepReturns(**settings)([group], [Rewards.per_step(group, np.array(rewards, dtype=float))])
    return [tokens.tolist() for tokens in result.steps()]


def test_step_returns_match_hand_computed_values():
    """γ = ½; r = (0, 4) and (1): G = 2, 4, 1, mean 7/3, population variance 14/9."""
    std = np.sqrt(14 / 9)
    result = credit([[2, 1], [1]], [0.0, 4.0, 1.0], gamma=0.5, delta=0.0)
    expected = [(2 - 7 / 3) / std, (4 - 7 / 3) / std, (1 - 7 / 3) / std]
    assert [step[0] for step in result] == pytest.approx(expected)
    assert result[0][0] == result[0][1], "every token of a step gets the step's value"
    centerd = credit([[2, 1], [1]], [0.0, 4.0, 1.0], gamma=0.5, std=None)
    assert [step[0] for step in centerd] == pytest.approx([2 - 7 / 3, 4 - 7 / 3, 1 - 7 / 3])


def test_single_step_gets_zero_credit():
    assert credit([[3]], [5.0]) == [[0.0, 0.0, 0.0]]


def test_equal_returns_give_zeros():
    assert credit([[1], [1], [1]], [0.7, 0.7, 0.7]) == [[0.0]] * 3


def test_single_episode_is_normalized_over_its_own_steps():
    early, late = (step[0] for step in credit([[1, 1]], [0.0, 1.0], gamma=0.5, delta=0.0))
    assert (early, late) == pytest.approx((-1.0, 1.0))


def test_no_groups_and_empty_groups_give_no_credit():
    assert StepReturns()([], []) == []
    group = make_group([])
    assert StepReturns()([group], [Rewards.zeros(group)])[0].tokens_T.shape == (0,)


def test_groups_are_normalized_separately():
    easy, hard = make_group([[1], [1]]), make_group([[1], [1]])
    rewards = [Rewards.per_step(g, np.array(v)) for g, v in ((easy, [10.0, 12.0]), (hard, [0.0, 2.0]))]
    first, second = StepReturns()([easy, hard], rewards)
    np.testing.assert_allclose(first.tokens_T, second.tokens_T)


@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=6))
def test_one_step_per_episode_is_grpo(outcomes):
    group = make_group([[1]] * len(outcomes))
    rewards = [Rewards.at_the_end(group, np.array(outcomes))]
    (ours,), (grpo,) = StepReturns()([group], rewards), EpisodeRelative()([group], rewards)
    np.testing.assert_allclose(ours.tokens_T, grpo.tokens_T)
