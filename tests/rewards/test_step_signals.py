"""StepSignals: weights, step cost, excluded rules and missing signals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scripted import make_group

from tacit.core.errors import TacitError
from tacit.core.types import Group
from tacit.rewards.outcome import Outcome, StepSignals


def measured(values, success=None) -> Group:
    """`values[i][t]` are (progress, error) of step t of member i."""
    group = make_group([[1] * len(member) for member in values], success)
    members = []
    for trajectory, member in zip(group.trajectories, values, strict=True):
        pairs = zip(trajectory.steps, member, strict=True)
        steps = tuple(replace(s, signals={"progress": p, "error": e}) for s, (p, e) in pairs)
        members.append(replace(trajectory, steps=steps))
    return Group(group.task, tuple(members))


def test_step_reward_is_progress_minus_error_minus_step_cost():
    group = measured([[(1.0, 0.0), (0.02, 0.3)], [(0.0, 0.15)]], [True, False])
    (rewards,) = StepSignals()([group])
    np.testing.assert_allclose(rewards.flow_N, [0.99, 0.02 - 0.3 - 0.01, -0.16])
    assert not rewards.local_N.any(), "it flows: what an action led to is its merit too"
    (outcome,) = Outcome(3.0)([group])
    np.testing.assert_allclose((rewards + outcome).returns_N(0.5), [0.99 + 0.5 * (3 - 0.29), 3 - 0.29, -0.16])


def test_signal_weights_and_step_cost_are_settings():
    group = measured([[(1.0, 0.3)]])
    (rewards,) = StepSignals((("progress", 2.0), ("error", 0.0)), step_cost=0.5)([group])
    assert rewards.flow_N.tolist() == [1.5]
    (nothing,) = StepSignals((), step_cost=0.0)([make_group([[1, 1]])])
    assert nothing.flow_N.tolist() == [0.0, 0.0]


def test_missing_signal_is_refused_unless_its_weight_is_zero():
    group = make_group([[1]])
    with pytest.raises(TacitError, match=r"no signal 'progress' \(it has: none\)"):
        StepSignals()([group])
    (rewards,) = StepSignals((("progress", 0.0),))([group])
    assert rewards.flow_N.tolist() == [-0.01]


def test_rules_can_be_excluded_by_name():
    """Two progress rules and one error rule fired. Excluding a rule removes its contribution."""
    group = measured([[(1.02, 0.2), (0.0, 0.0)]])
    rules = {"progress.subgoal": 1.0, "progress.hinted_place": 0.02, "error.repeated": 0.2}
    first, second = group.trajectories[0].steps
    steps = (replace(first, signals={**first.signals, **rules}), second)
    group = Group(group.task, (replace(group.trajectories[0], steps=steps),))

    def rewards(*without):
        return StepSignals(step_cost=0.0, without=without)([group])[0].flow_N

    np.testing.assert_allclose(rewards(), [0.82, 0.0])
    np.testing.assert_allclose(rewards("progress.subgoal"), [-0.18, 0.0])
    np.testing.assert_allclose(rewards("error.repeated", "progress.hinted_place"), [1.0, 0.0])
    np.testing.assert_allclose(rewards("error.invalid"), [0.82, 0.0])
    np.testing.assert_allclose(rewards(*rules), 0.0, atol=1e-12)
    assert rewards("progress", "error").tolist() == [0.0, 0.0]
    half = StepSignals((("progress", 0.5), ("error", -1.0)), 0.0, ("progress.subgoal",))([group])[0].flow_N
    np.testing.assert_allclose(half, [0.5 * 0.02 - 0.2, 0.0])


def test_no_groups_and_empty_groups_give_no_rewards():
    assert StepSignals()([]) == []
    assert StepSignals()([make_group([])])[0].flow_N.shape == (0,)
