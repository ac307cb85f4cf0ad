"""The segmentation cost (Eqs. 5–6) and its limit case, round length."""

from __future__ import annotations

import pytest
from skilled import ABC, episode, group, won

from tacit.companions.dictionary import Dictionary, SkillDictionary
from tacit.core.errors import TacitError
from tacit.rewards.segmentation import SegmentationCost

CODE = Dictionary(ABC.skills, (("A", "B"),))


def test_cost_counts_segments_of_successes_only():
    term = SegmentationCost(ABC, CODE, horizon=20, efficiency=10.0)
    (rewards,) = term([group(episode("ABAB"), episode("ABAB", success=False), episode("CCC"), episode("A-B"))])
    assert rewards.outcomes_G().tolist() == [-1.0, 0.0, -1.5, -0.5], "the step that does not parse has no skill"
    assert rewards.flow_N.tolist()[:4] == [0.0, 0.0, 0.0, -1.0], "paid at the last step"
    assert not rewards.local_N.any()


def test_single_skill_dictionary_gives_round_length():
    term = SegmentationCost(ABC, Dictionary(ABC.skills), horizon=40, efficiency=10.0)
    (rewards,) = term([won("A", "ABAB", "ABCABC")])
    assert rewards.outcomes_G().tolist() == [-10 * n / 40 for n in (1, 4, 6)]


def test_cost_is_at_most_the_success_reward():
    """With λ = R = 10 and |s| ≤ T, the shaped reward of a success is at least that of a failure."""
    term = SegmentationCost(ABC, Dictionary(ABC.skills), horizon=6, efficiency=10.0)
    assert term.reward(episode("ABCABC")) == -10.0


def test_cost_uses_the_current_dictionary():
    companion = SkillDictionary(ABC, horizon=20)
    term = SegmentationCost(ABC, companion, horizon=20, efficiency=10.0)
    batch = won(*["ABAB"] * 30)
    (before,) = term([batch])
    companion.observe([batch])
    (after,) = term([batch])
    assert before.outcomes_G()[0] == -2.0 and after.outcomes_G()[0] == -0.5


def test_terms_are_equal_by_settings():
    assert SegmentationCost(ABC, CODE, 20) == SegmentationCost(ABC, CODE, 20)
    assert SegmentationCost(ABC, CODE, 20) != SegmentationCost(ABC, Dictionary(ABC.skills), 20)
    assert SegmentationCost(ABC, SkillDictionary(ABC, 20), 20) == SegmentationCost(ABC, SkillDictionary(ABC, 20), 20)


def test_success_without_skills_or_with_unknown_skill_is_refused():
    with pytest.raises(TacitError, match="has no skills"):
        SegmentationCost(ABC, CODE, 20)([won("--")])
    with pytest.raises(TacitError, match="unknown skill 'X'"):
        SegmentationCost(ABC, CODE, 20)([won("AX")])


def test_no_groups_give_no_rewards():
    assert SegmentationCost(ABC, CODE, 20)([]) == []
