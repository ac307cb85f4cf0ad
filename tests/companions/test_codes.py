"""Dictionary: minimum segmentation, hand-computed costs, Proposition 1 and its counterexample."""

from __future__ import annotations

from math import log2

import literal
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.companions.dictionary import Dictionary
from tacit.core.errors import TacitError

ABC = ("A", "B", "C")


def phrases_of(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(word) for word in text.split())


@given(
    st.lists(st.sampled_from(ABC), max_size=9).map(tuple),
    st.sets(st.lists(st.sampled_from(ABC), min_size=2, max_size=4).map(tuple), max_size=6),
)
def test_segmentation_matches_exhaustive_minimum(sequence, merged):
    code = Dictionary(ABC, tuple(sorted(merged)))
    found = code.segment(sequence)
    assert sum(found, ()) == sequence and all(phrase in code for phrase in found)
    assert code.seg(sequence) == len(found) == literal.seg(sequence, code.phrases)
    assert found == literal.segment(sequence, code.phrases), "ties: the longest last phrase"


def test_segmentation_is_shorter_than_greedy_longest_match():
    """Greedy longest match gives AB, C, D; the minimum is A, BCD."""
    code = Dictionary(tuple("ABCD"), phrases_of("AB BCD"))
    assert code.segment(tuple("ABCD")) == phrases_of("A BCD")


def test_ties_go_to_the_longest_last_phrase():
    assert Dictionary(ABC, phrases_of("AB BC")).segment(tuple("ABC")) == phrases_of("A BC")


def test_dictionary_cost_matches_hand_computed_value():
    """Eq. 2: three single skills and AB, ABC; K = 3, L = 4."""
    code = Dictionary(ABC, phrases_of("AB ABC"))
    assert len(code) == 5
    assert code.bits == pytest.approx(3 * (log2(3) + 2) + (2 * log2(3) + 2) + (3 * log2(3) + 2))


def test_description_length_matches_hand_computed_value():
    """Eq. 3: ABAB is two phrases, C one; with |C| = 4 each phrase takes two bits."""
    code = Dictionary(ABC, phrases_of("AB"))
    assert code.description_length([tuple("ABAB"), ("C",)]) == pytest.approx((3 * (log2(3) + 2) + 2 * log2(3) + 2) / 2 + 3)
    assert code.segment(tuple("ABAB")) == (("A", "B"), ("A", "B")) and code.segment(("C",)) == (("C",),)


@given(st.lists(st.sampled_from(ABC), min_size=1, max_size=30).map(tuple))
def test_proposition_1_single_skills_count_steps(sequence):
    assert Dictionary(ABC).seg(sequence) == len(sequence)


@pytest.mark.parametrize("T", [4, 12, 48])
def test_proposition_1_equal_lengths_can_have_different_costs(T):
    """§A.1: s_A = (σ₁σ₂)^{T/2}, s_B = (σ₁σ₃σ₂σ₃)^{T/4}, C = Σ ∪ {σ₁σ₂}."""
    code = Dictionary(("1", "2", "3"), phrases_of("12"))
    reusing, idiosyncratic = tuple("12") * (T // 2), tuple("1323") * (T // 4)
    assert len(reusing) == len(idiosyncratic) == T
    assert code.seg(reusing) == T // 2 and code.seg(idiosyncratic) == T
    assert Dictionary(code.skills).seg(reusing) == Dictionary(code.skills).seg(idiosyncratic) == T


def test_empty_sequence_has_no_segments():
    assert Dictionary(ABC).seg(()) == 0 and Dictionary(ABC).segment(()) == ()


def test_segmentation_of_a_12000_skill_sequence():
    code = Dictionary(ABC, phrases_of("AB ABC CABC"))
    assert code.seg(tuple("ABC") * 4000) == 4000


@pytest.mark.parametrize(
    ("skills", "merged", "max_phrase", "reason"),
    [
        ((), (), 4, "at least one skill"),
        (("A", "B", "A"), (), 4, "the skill 'A' twice"),
        (("A", 3), (), 4, "contains 3; a skill must be a non-empty name"),
        (("A", " "), (), 4, "contains ' '"),
        (ABC, phrases_of("ABCAB"), 4, "has 5 skills; it must have 2 to 4"),
        (ABC, (("A",),), 4, "has 1 skills; it must have 2 to 4"),
        (ABC, phrases_of("AX"), 4, "unknown skill 'X'"),
        (ABC, phrases_of("AB AB"), 4, "twice"),
    ],
)
def test_invalid_dictionary_is_refused(skills, merged, max_phrase, reason):
    with pytest.raises(TacitError, match=reason):
        Dictionary(skills, merged, max_phrase)


def test_unknown_skill_or_empty_corpus_is_refused():
    with pytest.raises(TacitError, match="unknown skill 'D'"):
        Dictionary(ABC).seg(("A", "D"))
    with pytest.raises(TacitError, match="at least one success"):
        Dictionary(ABC).description_length([])
