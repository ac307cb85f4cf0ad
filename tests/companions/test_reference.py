"""ReferencePenalty: a reward per step from one scoring pass that pulls towards the reference."""

from __future__ import annotations

import numpy as np
import pytest
from scripted import ScriptedPolicy, make_group

from tacit.rewards.outcome import ReferencePenalty


def test_reference_penalty_matches_hand_computed_values(tmp_path):
    """−1 per token when sampled, −0.75 under the reference: two tokens differ by −0.5, three by −0.75; β = 0.1."""
    group = make_group([[2, 3], [1]])
    policy, penalty = ScriptedPolicy(lambda prompt, seed: ""), ReferencePenalty(0.1)
    assert penalty.observe([group], policy) == {"reference_drift": pytest.approx(np.mean([-0.5, -0.75, -0.25]))}
    (rewards,) = penalty([group])
    assert rewards.flow_N == pytest.approx([0.05, 0.075, 0.025]) and not rewards.local_N.any()
    assert policy.scored == 1, "one pass for all"
    assert rewards.returns_N(1.0)[0] == pytest.approx(0.125), "earlier steps answer for where they led"


def test_policy_equal_to_reference_has_zero_penalty():
    class Same(ScriptedPolicy):
        def logprobs(self, prompts, completions, temperature=1.0):
            return [np.full(len(c), -1.0) for c in completions]

    group = make_group([[2], [4]])
    penalty = ReferencePenalty(0.5)
    penalty.observe([group], Same(lambda prompt, seed: ""))
    assert not penalty([group])[0].flow_N.any()
