"""Batch: steps as plain columns."""

from __future__ import annotations

import numpy as np
import pytest
from scripted import make_group

from tacit.core.credit import Batch, Credit


def two_groups():
    groups = [make_group([[2, 1], [1]]), make_group([[1], [], [3]])]
    credits = [Credit.per_step(g, np.arange(len(g.steps)) + 10.0 * i) for i, g in enumerate(groups)]
    return groups, credits, Batch.from_groups(groups, credits, temperature=0.7)


def test_batch_has_one_row_per_step_in_rollout_major_order():
    groups, _, batch = two_groups()
    assert len(batch) == 5 and batch.total_tokens == 8 and batch.temperature == 0.7
    assert batch.group.tolist() == [0, 0, 0, 1, 1]
    # trajectory ids are unique in the batch; id 3 has no steps and therefore no row
    assert batch.trajectory.tolist() == [0, 0, 1, 2, 4]
    assert batch.step.tolist() == [0, 1, 0, 0, 0]
    steps = [s for g in groups for s in g.steps]
    assert all(np.array_equal(a, s.prompt_tokens) for a, s in zip(batch.prompts, steps, strict=True))
    assert all(np.array_equal(a, s.completion.tokens) for a, s in zip(batch.completions, steps, strict=True))
    assert all(np.array_equal(a, s.completion.logprobs) for a, s in zip(batch.behavior, steps, strict=True))
    assert [a.tolist() for a in batch.advantages] == [[0, 0], [1], [2], [10], [11, 11, 11]]


def test_select_reorders_every_column():
    _, _, batch = two_groups()
    batch = batch.with_column("reference", "token", batch.behavior)
    batch = batch.with_column("returns", "row", np.arange(5.0)).with_column("other", "row", np.arange(5) * 2)
    part = batch.select(np.array([4, 0]))
    assert part.group.tolist() == [1, 0] and part.trajectory.tolist() == [4, 0] and part.step.tolist() == [0, 0]
    assert [len(c) for c in part.completions] == [3, 2] == [len(c) for c in part.tokens["reference"]]
    assert [a.tolist() for a in part.advantages] == [[11, 11, 11], [0, 0]]
    assert part.rows["returns"].tolist() == [4.0, 0.0] and part.rows["other"].tolist() == [8, 0]
    assert part.total_tokens == 5 and part.temperature == 0.7
    assert batch.total_tokens == 8, "the whole batch is untouched"


def test_imitation_batch_weights_all_tokens_equally():
    batch = Batch.imitation([np.array([1, 2]), np.array([3])], [np.array([4]), np.array([5, 6])])
    assert [a.tolist() for a in batch.advantages] == [[1.0], [1.0, 1.0]]
    assert [b.tolist() for b in batch.behavior] == [[0.0], [0.0, 0.0]]
    assert batch.temperature == 1.0 and len(batch) == 2 and batch.total_tokens == 3


def test_no_groups_give_an_empty_batch():
    batch = Batch.from_groups([], [], 1.0)
    assert len(batch) == 0 and batch.total_tokens == 0 and batch.group.dtype == np.int64


def test_column_of_wrong_length_is_refused():
    with pytest.raises(ValueError, match="'returns' has 4 rows, the batch 5"):
        two_groups()[2].with_column("returns", "row", np.zeros(4))
