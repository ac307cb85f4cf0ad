"""Greedy merging: a hand-computed example, the literal definition, and a plain loop on long sequences."""

from __future__ import annotations

import random
import time
from collections import Counter
from itertools import chain, pairwise

import literal
import plain
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.companions.dictionary import (
    Dictionary,
    Segmentation,
    extract_dictionary,
    merge_gain,
    min_saved_segments,
    phrase_bits,
)
from tacit.core.errors import TacitError


def corpus_of(text: str) -> list[tuple[str, ...]]:
    return [tuple(word) for word in text.split()]


@st.composite
def corpora(draw) -> tuple[list[tuple[str, ...]], tuple[str, ...], int]:
    """Sequences that reuse a few phrases, so merging pays off."""
    skills = tuple("ABCD"[: draw(st.integers(1, 4))])
    skill = st.sampled_from(skills)
    motifs = draw(st.lists(st.lists(skill, min_size=1, max_size=4), min_size=1, max_size=3))
    words = st.lists(st.one_of(st.sampled_from(motifs), skill.map(lambda s: [s])), min_size=1, max_size=4)
    drawn = draw(st.lists(words.map(lambda parts: tuple(chain.from_iterable(parts))[:9]), min_size=1, max_size=10))
    return drawn * draw(st.integers(1, 4)), skills, draw(st.integers(1, 4))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(corpora())
def test_merging_matches_the_literal_definition(drawn):
    corpus, skills, max_phrase = drawn
    found = extract_dictionary(corpus, skills, max_phrase)
    assert found.dictionary.merged == literal.merge(corpus, skills, max_phrase)
    assert found.uses == Counter(chain.from_iterable(map(found.dictionary.segment, corpus)))


@pytest.mark.parametrize("seed", range(6))
def test_incremental_segmentation_matches_full_segmentation(seed):
    """After each added phrase, the segmentation of every word equals that of the full dictionary."""
    rng = random.Random(seed)
    skills, merged = tuple("ABC"), []
    motifs = ["".join(rng.choices(skills, k=rng.randint(1, 4))) for _ in range(4)]
    words = ["".join(rng.choices(motifs, k=rng.randint(1, 6))) for _ in range(12)]
    cuts = [Segmentation(word, [()] * len(word), list(word)) for word in words]
    for _ in range(6):
        word = rng.choice([cut.word for cut in cuts if len(cut.word) > 1])
        start = rng.randrange(len(word) - 1)
        phrase = word[start : start + rng.randint(2, 4)]
        if phrase in merged:
            continue
        merged.append(phrase)
        code = Dictionary(skills, tuple(map(tuple, merged)))
        cuts = [cut.with_phrase(phrase) for cut in cuts]
        for cut in cuts:
            assert tuple(map(tuple, cut.phrases)) == code.segment(cut.word)


def test_merging_long_sequences_matches_the_plain_loop():
    """Long sequences, many of them, repeated ones, several alphabets."""
    merged = 0
    for seed in range(12):
        rng = random.Random(seed)
        skills = tuple(f"S{i:02d}" for i in range(rng.choice([2, 5, 26])))
        motifs = [tuple(rng.choices(skills, k=rng.randint(2, 6))) for _ in range(rng.randint(2, 8))]
        corpus = []
        for _ in range(60):
            sequence: tuple[str, ...] = ()
            while len(sequence) < rng.randint(1, 60):
                sequence += rng.choice(motifs) if rng.random() < 0.8 else (rng.choice(skills),)
            corpus += [sequence] * rng.choice([1, 1, 3])
        L = rng.choice([2, 4, 6])
        found = extract_dictionary(corpus, skills, L)
        assert found.dictionary == plain.merge(Counter(corpus), skills, L)
        assert found.uses == Counter(chain.from_iterable(map(found.dictionary.segment, corpus)))
        assert found.segments == sum(found.uses.values())
        assert found.description_length == pytest.approx(found.dictionary.description_length(corpus))
        merged += len(found.dictionary.merged)
    assert merged > 40, "the comparison must have had something to compare"


def test_greedy_merging_matches_hand_computed_example():
    """Twenty times ABAB over {A, B}: 80 single segments of one bit.

    AB costs 2·1 + 2 = 4 bits and leaves 40 segments of log₂ 3 = 1.585 bits: 63.4 + 4 < 80. Then ABAB costs 6 and leaves 20 of
    two bits: 46 < 67.4. No pairs remain.
    """
    found = extract_dictionary(corpus_of("ABAB " * 20), ("A", "B"))
    assert found.dictionary.merged == (("A", "B"), ("A", "B", "A", "B"))
    assert (found.sequences, found.segments, found.skills) == (20, 20, 80)
    assert found.uses == {tuple("ABAB"): 20}
    assert found.description_length == pytest.approx((2 * 3 + 4 + 6 + 20 * 2) / 20)


def test_merge_must_save_bits():
    """With |C| = 1 no merge pays off, because a single phrase needs no bits."""
    assert extract_dictionary(corpus_of("AAAA " * 50), ("A",)).dictionary.merged == ()
    # |C| = 3 → 4 with 60 segments: (60 − x)·2 + 2·2 + 2 = 60·log₂3 has no integer solution; `least` is just above it
    bits = phrase_bits(2, alphabet=4, max_phrase=4)
    least = min_saved_segments(60, 3, bits)
    assert merge_gain(60, 3, least, bits) > 0 > merge_gain(60, 3, least - 1, bits)
    # |C| = 1 → 2: 60 − x bits plus those of the phrase, compared with zero: never pays off
    assert min_saved_segments(60, 1, bits) > 60


def test_ties_are_broken_by_text_not_by_order():
    forward, backward = corpus_of("CD " * 20 + "AB " * 20), corpus_of("AB " * 20 + "CD " * 20)
    first = extract_dictionary(forward, tuple("ABCD")).dictionary
    assert first == extract_dictionary(backward, tuple("ABCD")).dictionary
    assert first.merged == (("A", "B"), ("C", "D"))


def test_skill_names_with_spaces_stay_whole():
    """(`A B`, `C`) and (`A`, `B`, `C`) have the same text but are different pairs, in any order of the corpus."""
    skills = ("A", "B", "A B", "C")
    corpus = [("A", "B", "C")] * 40 + [("A B", "C")] * 40
    for arrived in (corpus, corpus[::-1]):
        assert extract_dictionary(arrived, skills, 4).dictionary.merged == (("A", "B"), ("A", "B", "C"), ("A B", "C"))


def test_unknown_skill_or_empty_corpus_is_refused():
    with pytest.raises(TacitError, match="unknown skill 'X'"):
        extract_dictionary([("A", "X")], ("A", "B"))
    with pytest.raises(TacitError, match="at least one success"):
        extract_dictionary([], ("A",))


@pytest.mark.slow
def test_merging_a_thousand_long_sequences_is_fast():
    """1,000 sequences of 200 skills out of 40: every word is segmented again after each new phrase."""
    rng = random.Random(0)
    skills = tuple(f"do thing {i}" for i in range(40))
    motifs = [tuple(rng.choices(skills, k=4)) for _ in range(10)]
    corpus = [tuple(chain.from_iterable(rng.choices(motifs, k=50))) for _ in range(1000)]
    began = time.process_time()
    found = extract_dictionary(corpus, skills)
    assert time.process_time() - began < 20
    assert set(motifs) <= set(found.dictionary.merged) and found.segments == 1000 * 50


def test_phrases_are_at_most_max_phrase_long():
    corpus = corpus_of("ABCDABCD " * 40)
    for longest in (1, 2, 3, 4):
        merged = extract_dictionary(corpus, tuple("ABCD"), longest).dictionary.merged
        assert all(len(phrase) <= longest for phrase in merged) and bool(merged) == (longest > 1)


def test_random_sequences_give_no_phrases():
    rng = random.Random(1)
    corpus = [tuple(rng.choices("ABCDEFGH", k=20)) for _ in range(100)]
    found = extract_dictionary(corpus, tuple("ABCDEFGH"))
    assert found.dictionary == Dictionary(tuple("ABCDEFGH")) and found.segments == found.skills == 2000


def test_every_merge_lowers_the_description_length():
    rng = random.Random(2)
    corpus = [tuple(rng.choice(["ABC", "DE", "ABD"]) + rng.choice("ABCDE")) * 3 for _ in range(80)]
    merged = extract_dictionary(corpus, tuple("ABCDE")).dictionary.merged
    lengths = [Dictionary(tuple("ABCDE"), merged[:n]).description_length(corpus) for n in range(len(merged) + 1)]
    assert len(merged) >= 3 and all(after < before for before, after in pairwise(lengths))
