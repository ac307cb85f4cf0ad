"""Segmenting many sequences at once is segmenting each."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.companions.dictionary.merging import merge_few
from tacit.companions.dictionary.merging_columns import merge_many
from tacit.companions.dictionary.segmentation import Dictionary
from tacit.companions.dictionary.segmentation_columns import (
    NEVER,
    count_type,
    longest_last,
    segment_ends,
    shortest_after,
    shortest_before,
)

AB = ("A", "B")
"""few skills, so that there are ties between segmentations"""
L = 4


def costs(corpus, code, counts) -> np.ndarray:
    cost_TLn = np.full((max(map(len, corpus)), L, len(corpus)), NEVER[counts], counts)
    cost_TLn[:, 0] = 1
    for column, sequence in enumerate(corpus):
        for row in range(len(sequence)):
            for length in range(2, L + 1):
                if row + length <= len(sequence) and sequence[row : row + length] in code:
                    cost_TLn[row, length - 1, column] = 1
    return cost_TLn


@pytest.mark.parametrize("counts", NEVER, ids=str)
@settings(max_examples=40, deadline=None)
@given(
    corpus=st.lists(st.lists(st.sampled_from(AB), min_size=1, max_size=11).map(tuple), min_size=1, max_size=6),
    merged=st.sets(st.lists(st.sampled_from(AB), min_size=2, max_size=L).map(tuple), max_size=12),
)
def test_columns_are_cut_as_sequences_are(counts, corpus, merged):
    code = Dictionary(AB, tuple(sorted(merged)), L)
    lengths_n, cost_TLn = np.array(list(map(len, corpus))), costs(corpus, code, counts)
    before_Tn, after_Tn = shortest_before(cost_TLn), shortest_after(cost_TLn, lengths_n)
    last_Tn = longest_last(cost_TLn, before_Tn)
    ends_Tn = segment_ends(last_Tn, lengths_n, L)
    for column, sequence in enumerate(corpus):
        for place in range(len(sequence) + 1):
            assert before_Tn[place, column] == code.seg(sequence[:place])
            assert after_Tn[place, column] == code.seg(sequence[place:])
        ends = np.flatnonzero(ends_Tn[:, column])
        assert ends[0] == 0 and not ends_Tn[len(sequence) + 1 :, column].any()
        assert tuple(sequence[a:b] for a, b in itertools.pairwise(ends)) == code.segment(sequence)


def test_sequences_too_long_for_the_small_type():
    assert [count_type(rows) for rows in (50, (1 << 13) - 1, 1 << 13)] == [np.int16, np.int16, np.int32]
    weights = {tuple("ABB") * 3000: 1, tuple("AB") * 40: 2}
    assert merge_many(weights, AB, L) == merge_few(weights, AB, L)
