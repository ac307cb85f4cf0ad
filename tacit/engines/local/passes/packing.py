"""Cut ragged rows into rectangles of bounded size: rows of similar length together, so that little is padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.core.errors import TacitError


def power_from(count: int) -> int:
    """The least power of two that is not below it."""
    return 1 << (count - 1).bit_length()


def buckets(lengths: Sequence[int] | np.ndarray, token_budget: int) -> list[np.ndarray]:
    """Row indices of each micro-batch: rows × longest row ≤ token_budget, longest rows first.

    Every row is in exactly one bucket. A row longer than the whole budget gets a bucket of its own. Longest first, so
    that what is going to run out of memory does so at once. Ties keep their order: the same lengths give the same cut.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    cut: list[np.ndarray] = []
    start = 0
    while start < len(order):
        rows = max(1, token_budget // max(1, int(lengths[order[start]])))
        cut.append(order[start : start + rows])
        start += rows
    return cut


@dataclass(frozen=True, eq=False)
class Packed:
    """One micro-batch as a right-padded rectangle, and where in it the completion tokens are predicted.

    Right padding under a causal mask needs no attention mask: no real token ever sees a pad.

        prompt [5 6 7], completion [8 9]:  inputs  5 6 7 8      (9 is predicted, never read)
                                           predict . . 8 9      at positions 2 and 3
    """

    rows: np.ndarray
    """[R] rows of the whole batch"""
    input_ids: np.ndarray
    """[R, S]"""
    positions_T: np.ndarray
    """where each completion token is predicted, as an index into the flattened [R·S]"""
    targets_T: np.ndarray
    row_T: np.ndarray
    lengths_R: np.ndarray
    """completion tokens per row"""
    first_R: np.ndarray
    """each row's first predicted token, as an index into T: it is predicted from the last prompt token"""
    prompt_ends_R: np.ndarray
    """the last prompt token of each row, as an index into the flattened [R·S]"""

    @property
    def computed(self) -> int:
        """tokens the decoder runs over, padding included"""
        return self.input_ids.size


def input_lengths(prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], context_limit: int) -> np.ndarray:
    """Tokens each row has to read. The last completion token is only predicted."""
    if len(prompts) != len(completions):
        raise ValueError(f"{len(prompts)} prompts but {len(completions)} completions")
    prompt_R = np.array([len(p) for p in prompts], dtype=np.int64)
    completion_R = np.array([len(c) for c in completions], dtype=np.int64)
    if len(prompt_R) and prompt_R.min() == 0:
        raise ValueError(f"prompt {int(prompt_R.argmin())} is empty; a model needs at least one token to start from")
    total_R = prompt_R + completion_R
    if len(total_R) and total_R.max() > context_limit:
        row = int(total_R.argmax())
        raise TacitError(
            f"row {row} has {prompt_R[row]} prompt and {completion_R[row]} completion tokens, over the model's context of "
            f"{context_limit}. Shorten the prompt (less history) or take a model with a longer context."
        )
    return prompt_R + np.maximum(completion_R - 1, 0)


def pack(
    prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], rows: np.ndarray, pad: int, multiple: int = 1
) -> Packed:
    """The given rows as one rectangle; its width is rounded up to a `multiple` (few shapes, for compiled code)."""
    prompt_R = np.array([len(prompts[r]) for r in rows], dtype=np.int64)
    lengths_R = np.array([len(completions[r]) for r in rows], dtype=np.int64)
    width = int((prompt_R + np.maximum(lengths_R - 1, 0)).max())
    width = -(-width // multiple) * multiple
    input_ids = np.full((len(rows), width), pad, dtype=np.int64)
    for i, r in enumerate(rows):
        input_ids[i, : prompt_R[i]] = prompts[r]
        if lengths_R[i] > 1:
            input_ids[i, prompt_R[i] : prompt_R[i] + lengths_R[i] - 1] = completions[r][:-1]
    row_T = np.repeat(np.arange(len(rows)), lengths_R)
    within_T = within(lengths_R)
    prompt_ends_R = np.arange(len(rows)) * width + prompt_R - 1
    return Packed(
        rows=rows,
        input_ids=input_ids,
        positions_T=prompt_ends_R[row_T] + within_T,
        targets_T=flat([completions[r] for r in rows], np.int64),
        row_T=row_T,
        lengths_R=lengths_R,
        first_R=np.cumsum(lengths_R) - lengths_R,
        prompt_ends_R=prompt_ends_R,
    )


def flat(column: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    """A ragged column end to end."""
    return np.concatenate([np.asarray(c, dtype=dtype) for c in column]) if len(column) else np.zeros(0, dtype)


def within(lengths: np.ndarray) -> np.ndarray:
    """0 1 2 0 1 … for lengths 3, 2, …"""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
