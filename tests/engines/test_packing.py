"""Padded micro-batches: how rows are split and laid out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.core.errors import TacitError
from tacit.engines.local.packing import input_lengths, make_padded_batch, plan_padded_batches


@given(st.lists(st.integers(1, 200), max_size=60), st.integers(1, 1000))
def test_every_row_is_in_exactly_one_batch_within_the_token_budget(lengths: list[int], budget: int) -> None:
    cut = plan_padded_batches(lengths, budget)
    assert sorted(np.concatenate(cut).tolist() if cut else []) == list(range(len(lengths)))
    for bucket in cut:
        padded = len(bucket) * max(lengths[r] for r in bucket)
        assert padded <= budget or len(bucket) == 1


def test_similar_lengths_are_batched_together_longest_first() -> None:
    assert [b.tolist() for b in plan_padded_batches([3, 10, 4, 9, 3], 20)] == [[1, 3], [2, 0, 4]]


def test_docstring_example_of_make_padded_batch() -> None:
    packed = make_padded_batch([np.array([1]), np.array([5, 6, 7])], [np.array([2]), np.array([8, 9])], np.array([1, 0]), pad=0)
    assert packed.input_ids.tolist() == [[5, 6, 7, 8], [1, 0, 0, 0]]
    assert packed.positions_T.tolist() == [2, 3, 4]
    assert packed.targets_T.tolist() == [8, 9, 2]
    assert packed.lengths_R.tolist() == [2, 1]
    assert packed.last_R.tolist() == [2, 0]


def test_last_token_is_a_target_but_not_an_input() -> None:
    assert input_lengths([np.arange(3), np.arange(3)], [np.arange(2), np.arange(0)], 10).tolist() == [4, 3]


def test_rows_longer_than_the_context_are_refused() -> None:
    with pytest.raises(TacitError, match=r"row 1 has 8 prompt and 3 completion tokens.*context of 10"):
        input_lengths([np.arange(8), np.arange(8)], [np.arange(2), np.arange(3)], 10)


def test_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt 0 is empty"):
        input_lengths([np.arange(0)], [np.arange(2)], 10)
