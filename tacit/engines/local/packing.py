"""Micro-batches: splitting rows of (prompt, completion) tokens by a token budget, and laying them out for a forward pass.

`PaddedBatch` is a right-padded rectangle for any architecture. `PackedBatch` is a flat (varlen) token sequence without padding,
in which rows that share a prompt store it once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tacit.core.errors import TacitError


def next_power_of_two(count: int) -> int:
    """The smallest power of two ≥ count."""
    return 1 << (count - 1).bit_length()


def plan_padded_batches(lengths: Sequence[int] | np.ndarray, token_budget: int) -> list[np.ndarray]:
    """Row indices of each micro-batch: rows × longest row ≤ token_budget. A row longer than the budget is a micro-batch of its
    own. Longest rows come first, so that out of memory errors come early. Ties keep their order."""
    lengths = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    batches: list[np.ndarray] = []
    start = 0
    while start < len(order):
        rows = max(1, token_budget // max(1, int(lengths[order[start]])))
        batches.append(order[start : start + rows])
        start += rows
    return batches


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Rows for one forward pass. Completion tokens are flat (_T), row by row."""

    rows: np.ndarray  # [R] rows of the whole batch
    targets_T: np.ndarray
    lengths_R: np.ndarray  # completion tokens per row

    @property
    def first_R(self) -> np.ndarray:
        """each row's first target, as an index into T; the last prompt token predicts it"""
        return np.cumsum(self.lengths_R) - self.lengths_R


@dataclass(frozen=True, eq=False)
class PaddedBatch(MicroBatch):
    """A right-padded micro-batch. The causal mask hides the padding, so no attention mask is needed.

    prompt [5 6 7], completion [8 9]:  inputs  5 6 7 8      (9 is predicted, never an input)
                                       targets . . 8 9      at positions 2 and 3
    """

    input_ids: np.ndarray  # [R, S]
    positions_T: np.ndarray  # where each completion token is predicted, as an index into the flattened [R·S]
    last_R: np.ndarray  # column of each row's last prompt token

    @property
    def num_tokens(self) -> int:
        """tokens in the forward pass, padding included"""
        return self.input_ids.size


def input_lengths(prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], context_limit: int) -> np.ndarray:
    """Input tokens of each row: prompt + completion − 1, since the last completion token is only predicted."""
    if len(prompts) != len(completions):
        raise ValueError(f"{len(prompts)} prompts but {len(completions)} completions")
    prompt_R = np.array([len(p) for p in prompts], dtype=np.int64)
    completion_R = np.array([len(c) for c in completions], dtype=np.int64)
    if len(prompt_R) and prompt_R.min() == 0:
        raise ValueError(f"prompt {int(prompt_R.argmin())} is empty; a prompt needs at least one token")
    total_R = prompt_R + completion_R
    if len(total_R) and total_R.max() > context_limit:
        row = int(total_R.argmax())
        raise TacitError(
            f"row {row} has {prompt_R[row]} prompt and {completion_R[row]} completion tokens, over the model's context of "
            f"{context_limit}. Shorten the prompt (less history) or use a model with a longer context."
        )
    return prompt_R + np.maximum(completion_R - 1, 0)


def make_padded_batch(
    prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], rows: np.ndarray, pad: int
) -> PaddedBatch:
    """The given rows as one right-padded micro-batch."""
    prompt_R = np.array([len(prompts[r]) for r in rows], dtype=np.int64)
    lengths_R = np.array([len(completions[r]) for r in rows], dtype=np.int64)
    width = int((prompt_R + np.maximum(lengths_R - 1, 0)).max())
    input_ids = np.full((len(rows), width), pad, dtype=np.int64)
    for i, r in enumerate(rows):
        input_ids[i, : prompt_R[i]] = prompts[r]
        if lengths_R[i] > 1:
            input_ids[i, prompt_R[i] : prompt_R[i] + lengths_R[i] - 1] = completions[r][:-1]
    positions_T = np.repeat(np.arange(len(rows)) * width + prompt_R - 1, lengths_R) + ragged_arange(lengths_R)
    targets_T = concat_column([completions[r] for r in rows], np.int64)
    return PaddedBatch(rows, targets_T, lengths_R, input_ids, positions_T, prompt_R - 1)


def concat_column(column: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    """A ragged column as one flat array."""
    return np.concatenate([np.asarray(c, dtype=dtype) for c in column]) if len(column) else np.zeros(0, dtype)


def ragged_arange(lengths: np.ndarray) -> np.ndarray:
    """0 1 2 0 1 … for lengths 3, 2, …"""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


@dataclass(frozen=True, eq=False)
class AttentionPlan:
    """One causal attention call over flat tokens: `queries` [B, Q] attend to `keys` [B, K], both token indices, padded.
    Query i of row b sees keys up to `diagonal[b] + i`; without `diagonal`, up to i."""

    queries: np.ndarray
    keys: np.ndarray
    diagonal: np.ndarray | None
    query_lengths: np.ndarray  # [B] queries of each row without padding
    key_lengths: np.ndarray  # [B] keys of each row without padding

    @property
    def outputs(self) -> np.ndarray:
        """The unpadded positions of the flattened [B·Q], in order."""
        starts = np.arange(len(self.queries)) * self.queries.shape[1]
        return np.repeat(starts, self.query_lengths) + ragged_arange(self.query_lengths)

    @property
    def flat_keys(self) -> np.ndarray:
        """All rows' keys without padding, concatenated."""
        return self.keys[np.arange(self.keys.shape[1]) < self.key_lengths[:, None]]


@dataclass(frozen=True, eq=False)
class PackedBatch(MicroBatch):
    """A packed (varlen) micro-batch: flat tokens without padding. Rows that share a prompt store it once."""

    tokens_N: np.ndarray
    positions_N: np.ndarray
    lower_attention: tuple[AttentionPlan, ...]
    """of every layer but the top one; the outputs, concatenated, are the tokens in order"""
    top_attention: AttentionPlan  # of the top layer, which runs only at `source_T`
    source_T: np.ndarray  # index of the token that predicts each completion token

    @property
    def num_tokens(self) -> int:
        """tokens in the forward pass"""
        return len(self.tokens_N)


def make_packed_batch(prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], rows: np.ndarray) -> PackedBatch:
    """The given rows as a packed micro-batch. No completion may be empty.

    prompts [5 6] and [5 6], completions [7 8] and [9]:   tokens    5 6 7
                                                          targets   . 7 8   of the first row
                                                          targets   . 9     of the second
    """
    distinct: list[np.ndarray] = []  # the U distinct prompts
    index: dict[bytes, int] = {}
    source_R = np.zeros(len(rows), np.int64)  # index of each row's prompt among them
    for i, r in enumerate(rows):
        prompt = np.asarray(prompts[r], np.int64)
        source_R[i] = index.setdefault(prompt.tobytes(), len(distinct))
        if source_R[i] == len(distinct):
            distinct.append(prompt)
    suffixes = [np.asarray(completions[r], np.int64)[:-1] for r in rows]  # the last token is only predicted
    lengths_R = np.array([len(completions[r]) for r in rows], dtype=np.int64)
    prompt_R = np.array([len(distinct[u]) for u in source_R], dtype=np.int64)
    suffix_R = lengths_R - 1
    if len(distinct) == len(rows):
        # each row's prompt, then its completion: one causal attention per row
        tokens_N = np.concatenate([part for pair in zip(distinct, suffixes, strict=True) for part in pair])
        total_R = prompt_R + suffix_R
        starts_R = np.cumsum(total_R) - total_R
        suffix_start_R = starts_R + prompt_R
        positions_N = ragged_arange(total_R)
        keys = _padded_ranges(starts_R, total_R)
        lower = [AttentionPlan(keys, keys, None, total_R, total_R)]
    else:
        # all prompts, then all completions, which attend to their prompt and to themselves
        tokens_N = np.concatenate([*distinct, *suffixes])
        sizes_U = np.array([len(prompt) for prompt in distinct], dtype=np.int64)
        starts_U = np.cumsum(sizes_U) - sizes_U
        starts_R = starts_U[source_R]
        suffix_start_R = sizes_U.sum() + np.cumsum(suffix_R) - suffix_R
        positions_N = np.concatenate([ragged_arange(sizes_U), np.repeat(prompt_R, suffix_R) + ragged_arange(suffix_R)])
        prompt_keys = _padded_ranges(starts_U, sizes_U)
        lower = [AttentionPlan(prompt_keys, prompt_keys, None, sizes_U, sizes_U)]
        keys = _concat_ranges(starts_R, prompt_R, suffix_start_R, suffix_R)
        if suffix_R.any():
            suffix_keys = _padded_ranges(suffix_start_R, suffix_R)
            lower.append(AttentionPlan(suffix_keys, keys, prompt_R, suffix_R, prompt_R + suffix_R))
    first_R = np.cumsum(lengths_R) - lengths_R
    top = AttentionPlan(_padded_ranges(first_R, lengths_R), keys, prompt_R - 1, lengths_R, prompt_R + suffix_R)
    # a completion is predicted from the prompt's last token and its own tokens but the last
    sources = _concat_ranges(starts_R + prompt_R - 1, np.ones_like(lengths_R), suffix_start_R, suffix_R)
    return PackedBatch(
        rows=rows,
        targets_T=concat_column([completions[r] for r in rows], np.int64),
        lengths_R=lengths_R,
        tokens_N=tokens_N,
        positions_N=positions_N,
        lower_attention=tuple(lower),
        top_attention=top,
        source_T=sources.ravel()[top.outputs],
    )


def plan_packed_batches(
    prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], rows: np.ndarray, token_budget: int
) -> list[np.ndarray]:
    """Row indices of each micro-batch: at most `token_budget` tokens, unless a single row has more. Rows that share a prompt
    are kept together, and their prompt counts once. The others are grouped by length."""
    keys = {int(r): np.asarray(prompts[r], np.int64).tobytes() for r in rows}
    counts = Counter(keys.values())
    unshared = np.array([r for r in rows if counts[keys[r]] == 1], dtype=np.int64)
    shared = [int(r) for r in rows if counts[keys[r]] > 1]
    shared.sort(key=lambda r: (-len(prompts[r]), keys[r], -len(completions[r]), r))
    groups: list[list[int]] = []
    size = 0
    for row in shared:
        new_prompt = not groups or keys[row] != keys[groups[-1][-1]]
        suffix = max(len(completions[row]) - 1, 0)
        size += suffix + (len(prompts[row]) if new_prompt else 0)
        if not groups or size > token_budget:
            groups.append([])
            size = suffix + len(prompts[row])
        groups[-1].append(row)
    batches = [np.array(group, dtype=np.int64) for group in groups]
    lengths = [len(prompts[r]) + len(completions[r]) - 1 for r in unshared]
    return batches + [unshared[part] for part in plan_padded_batches(lengths, token_budget)]


def is_arange(index: np.ndarray) -> bool:
    return index.size > 0 and bool((index.ravel() == np.arange(index.size)).all())


def _padded_ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """[B, max length]: start, start + 1, …, padded with the row's last index; 0 for an empty row."""
    starts = np.where(lengths > 0, starts, 0)
    offsets = np.arange(max(1, int(lengths.max())))
    return starts[:, None] + np.minimum(offsets, np.maximum(lengths - 1, 0)[:, None])


def _concat_ranges(a: np.ndarray, a_lengths: np.ndarray, b: np.ndarray, b_lengths: np.ndarray) -> np.ndarray:
    """[B, max of both]: each row's range a, then its range b, padded with the first index of a. `a`, `b`: where they start."""
    offsets = np.arange(int((a_lengths + b_lengths).max()))[None]
    in_a = offsets < a_lengths[:, None]
    in_b = ~in_a & (offsets < (a_lengths + b_lengths)[:, None])
    of_a = a[:, None] + offsets
    of_b = b[:, None] + offsets - a_lengths[:, None]
    return np.select([in_a, in_b], [of_a, of_b], a[:, None])


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A copy on the device, asynchronous on a GPU (through pinned memory)."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda" and array.size:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
