"""The segmentation cost (Eqs. 5–6) and its limit case, round length."""

from __future__ import annotations

import pytest
from skilled import ABC, episode, group, won

from tacit.companions.dictionary import Dictionary, SkillDictionary
from tacit.core.errors import TacitError
from tacit.rewards.segmentation import SegmentationCost

CODE = Dictionary(ABC.skills, (("A", "B"),))


def test_successes_pay_by_the_segment_and_failures_nothing():
    term = SegmentationCost(ABC, CODE, horizon=20, efficiency=10.0)
    (rewards,) = term([group(episode("ABAB"), episode("ABAB", success=False), episode("CCC"), episode("A-B"))])
    assert rewards.outcomes_G().tolist() == [-1.0, 0.0, -1.5, -0.5], "the step that does not parse has no skill"
    assert rewards.flow_N.tolist()[:4] == [0.0, 0.0, 0.0, -1.0], "paid at the last step"
    assert not rewards.local_N.any()


def test_single_skills_make_it_the_length():
    term = SegmentationCost(ABC, Dictionary(ABC.skills), horizon=40, efficiency=10.0)
    (rewards,) = term([won("A", "ABAB", "ABCABC")])
    assert rewards.outcomes_G().tolist() == [-10 * n / 40 for n in (1, 4, 6)]


def test_a_success_never_costs_more_than_it_earns():
    """With λ = R = 10 and |s| ≤ T the shaped reward stays at or above that of a failure."""
    term = SegmentationCost(ABC, Dictionary(ABC.skills), horizon=6, efficiency=10.0)
    assert term.reward(episode("ABCABC")) == -10.0


def test_it_reads_the_companion_as_it_is_now():
    companion = SkillDictionary(ABC, horizon=20)
    term = SegmentationCost(ABC, companion, horizon=20, efficiency=10.0)
    batch = won(*["ABAB"] * 30)
    (before,) = term([batch])
    companion.observe([batch])
    (after,) = term([batch])
    assert before.outcomes_G()[0] == -2.0 and after.outcomes_G()[0] == -0.5


def test_terms_are_equal_where_their_settings_are():
    assert SegmentationCost(ABC, CODE, 20) == SegmentationCost(ABC, CODE, 20)
    assert SegmentationCost(ABC, CODE, 20) != SegmentationCost(ABC, Dictionary(ABC.skills), 20)
    assert SegmentationCost(ABC, SkillDictionary(ABC, 20), 20) == SegmentationCost(ABC, SkillDictionary(ABC, 20), 20)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(TacitError, match="projects to no skill"):
        SegmentationCost(ABC, CODE, 20)([won("--")])
    with pytest.raises(TacitError, match="unknown skill 'X'"):
        SegmentationCost(ABC, CODE, 20)([won("AX")])


def test_no_groups():
    assert SegmentationCost(ABC, CODE, 20)([]) == []
