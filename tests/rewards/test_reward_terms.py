"""Outcome and InvalidPenalty."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scripted import make_group

from tacit.core.errors import TacitError
from tacit.core.types import Group
from tacit.rewards.outcome import InvalidPenalty, Outcome, build_outcome
from tacit.worlds import get_environment


def test_success_reward_of_10_is_paid_at_the_last_step():
    group = make_group([[1, 1], [1]], success=[True, False])
    (rewards,) = Outcome()([group])
    assert rewards.flow_N.tolist() == [0.0, 10.0, 0.0]
    assert rewards.local_N.tolist() == [0.0, 0.0, 0.0]
    (unit,) = Outcome(scale=1.0)([group])
    assert unit.outcomes_G().tolist() == [1.0, 0.0]


def test_outcome_of_score_pays_the_graded_score():
    group = make_group([[1], [1]], success=[True, False])
    part = replace(group.trajectories[1], score=0.25)
    (rewards,) = Outcome(scale=2.0, of="score")([Group(group.task, (group.trajectories[0], part))])
    assert rewards.flow_N.tolist() == [2.0, 0.5]


def test_outcome_of_steps_pays_step_rewards_as_flow():
    group = make_group([[1, 1], [1]], success=[True, False])
    first, second = group.trajectories
    paid_steps = tuple(replace(step, reward=r) for step, r in zip(first.steps, (0.25, 0.5), strict=True))
    paid_group = Group(group.task, (replace(first, steps=paid_steps), second))
    (rewards,) = Outcome(scale=2.0, of="steps")([paid_group])
    assert rewards.flow_N.tolist() == [0.5, 1.0, 0.0] and not rewards.local_N.any()
    assert rewards.outcomes_G().tolist() == [1.5, 0.0], "success itself is worth nothing but what was paid"
    np.testing.assert_allclose(rewards.returns_N(0.5), [1.0, 1.0, 0.0])


def test_outcome_steps_is_refused_without_step_rewards():
    with pytest.raises(TacitError, match="outcome = steps: world 'countdown' has no step rewards"):
        build_outcome(get_environment("countdown"), "steps", 1.0)
    assert build_outcome(get_environment("cooking"), "steps", 1.0) == Outcome(1.0, "steps")
    assert build_outcome(get_environment("countdown"), "score", 3.0) == Outcome(3.0, "score")


def test_invalid_penalty_applies_only_to_invalid_steps():
    group = make_group([[1, 1, 1]], success=[True], valid=[[True, False, True]])
    (penalty,) = InvalidPenalty(0.1)([group])
    (outcome,) = Outcome()([group])
    both = outcome + penalty
    assert penalty.local_N.tolist() == [0.0, -0.1, 0.0] and penalty.flow_N.tolist() == [0.0, 0.0, 0.0]
    np.testing.assert_allclose(both.returns_N(0.5), [2.5, 5.0 - 0.1, 10.0])
    assert both.outcomes_G().tolist() == [10.0], "what the episode was worth does not change"


def test_no_groups_and_no_steps_give_empty_rewards():
    assert Outcome()([]) == [] and InvalidPenalty()([]) == []
    empty = make_group([[]])
    assert Outcome(of="steps")([empty])[0].flow_N.shape == (0,)
    assert Outcome()([empty])[0].flow_N.shape == (0,) == InvalidPenalty()([empty])[0].local_N.shape
