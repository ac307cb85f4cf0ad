"""REINFORCE++: normalization over the whole batch, KL inside the reward."""

from __future__ import annotations

import numpy as np
import pytest
from scripted import TASK, make_group, make_step

from tacit.core.credit import Rewards
from tacit.core.types import Group, Observation, StopReason, Trajectory
from tacit.credit.episode import BatchRelative


class FakeReference:
    """Returns fixed log-probabilities and is its own reference."""

    def __init__(self, answers):
        self.answers, self.calls = answers, []

    def reference(self):
        return self

    def logprobs(self, prompts, completions, temperature=1.0):
        self.calls.append(([c.tolist() for c in completions], temperature))
        return [np.array(a) for a in self.answers]


def group_of(*rows):
    """One member per row of log-probabilities, one step each."""
    members = tuple(
        Trajectory(TASK, (make_step(len(r), logprobs=r),), False, 0.0, StopReason.FAILURE, Observation("")) for r in rows
    )
    return Group(TASK, members)


def z(values):
    values = np.array(values, dtype=float)
    return (values - values.mean()) / (values.std() + 1e-6)


def test_kl_is_summed_from_token_to_end_of_step():
    group = group_of([-1.0, -2.0], [-1.0])
    reference = FakeReference([[-2.0, -4.0], [-0.5]])
    # log π − log π_ref = [1, 2] and [−0.5]; sums to the end: [3, 2] and [−0.5]; with β = 0.1 and R = 1, 0:
    raw = [1 - 0.3, 1 - 0.2, 0 + 0.05]
    (credit,) = BatchRelative(kl=0.1, temperature=0.7)([group], [Rewards.at_the_end(group, np.array([1.0, 0.0]))], reference)
    np.testing.assert_allclose(credit.tokens_T, z(raw))
    assert reference.calls == [([[0, 1], [0]], 0.7)], "one pass, at the sampling temperature"


def test_zero_kl_needs_no_reference_pass():
    groups = [make_group([[2], [1]]), make_group([[1]])]
    rewards = [Rewards.at_the_end(groups[0], np.array([3.0, 0.0])), Rewards.at_the_end(groups[1], np.array([1.0]))]
    reference = FakeReference([])
    first, second = BatchRelative(kl=0.0)(groups, rewards, reference)
    expected = z([3.0, 3.0, 0.0, 1.0])
    np.testing.assert_allclose(np.concatenate([first.tokens_T, second.tokens_T]), expected)
    assert reference.calls == []


def test_group_baseline_is_subtracted_before_normalization():
    groups = [make_group([[1], [1]]), make_group([[1], [1]])]
    rewards = [Rewards.at_the_end(groups[0], np.array([10.0, 0.0])), Rewards.at_the_end(groups[1], np.array([100.0, 98.0]))]
    first, second = BatchRelative(kl=0.0, baseline="group")(groups, rewards, None)
    np.testing.assert_allclose(np.concatenate([first.tokens_T, second.tokens_T]), z([5.0, -5.0, 1.0, -1.0]))


def test_local_penalty_stays_on_its_step():
    group = make_group([[1, 1]])
    rewards = Rewards.at_the_end(group, np.array([1.0])) + Rewards.local(group, np.array([-0.5, 0.0]))
    (credit,) = BatchRelative(kl=0.0)([group], [rewards], None)
    np.testing.assert_allclose(credit.tokens_T, z([0.5, 1.0]))


def test_batch_with_equal_rewards_gets_zeros():
    group = make_group([[2], [1]])
    (credit,) = BatchRelative(kl=0.0)([group], [Rewards.zeros(group)], None)
    assert credit.tokens_T.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_no_groups_give_no_credit(kl):
    assert BatchRelative(kl=kl)([], [], FakeReference([])) == []
