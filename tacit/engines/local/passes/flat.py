"""Micro-batches as flat tokens: no padding outside attention, and a prompt that several rows share appears once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.engines.local.passes.packing import buckets, flat, within


@dataclass(frozen=True, eq=False)
class Attention:
    """One rectangle of attention over flat tokens: `queries` [B, Q] look at `keys` [B, K], both indices of tokens.

    Query i of row b sees keys up to `reach[b] + i`; without `reach` it sees keys up to i. `slots` names the places of the
    rectangle [B·Q] whose answers are wanted, in order; the rest is padding.
    """

    queries: np.ndarray
    keys: np.ndarray
    reach: np.ndarray | None
    slots: np.ndarray
    queries_in_order: bool
    """the rectangle is the tokens as they lie: nothing to gather"""
    keys_in_order: bool
    slots_in_order: bool
    query_lengths: np.ndarray
    """[B] queries of each row that are real"""
    key_lengths: np.ndarray
    """[B] keys of each row, the same without padding"""

    @property
    def ragged_keys(self) -> np.ndarray:
        """The rows' keys end to end."""
        return self.keys[np.arange(self.keys.shape[1]) < self.key_lengths[:, None]]


@dataclass(frozen=True, eq=False)
class FlatPack:
    """One micro-batch as flat tokens without padding, each distinct prompt once where prompts are shared."""

    rows: np.ndarray
    tokens_N: np.ndarray
    positions_N: np.ndarray
    inner: tuple[Attention, ...]
    """their answers, one after the other, are the tokens in order"""
    top: Attention
    """its answers are the predicted tokens in order"""
    predicts_T: np.ndarray
    """the token from which each completion token is predicted"""
    targets_T: np.ndarray
    row_T: np.ndarray
    lengths_R: np.ndarray
    first_R: np.ndarray
    """each row's first predicted token, as an index into T: it is predicted from the last prompt token"""

    @property
    def computed(self) -> int:
        """tokens the decoder runs over"""
        return len(self.tokens_N)


def pack_flat(prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], rows: np.ndarray) -> FlatPack:
    """The given rows (none with an empty completion) as flat tokens.

    prompts [5 6] and [5 6], completions [7 8] and [9]:   tokens    5 6 7
                                                          predict   . 7 8   for the first row
                                                          predict   . 9     for the second
    """
    distinct: dict[bytes, int] = {}
    of_R = np.array([distinct.setdefault(np.asarray(prompts[r], np.int64).tobytes(), len(distinct)) for r in rows])
    firsts = np.unique(of_R, return_index=True)[1]
    heads = [np.asarray(prompts[rows[i]], np.int64) for i in firsts]
    tails = [np.asarray(completions[r], np.int64)[:-1] for r in rows]
    lengths_R = np.array([len(completions[r]) for r in rows], dtype=np.int64)
    prompt_R = np.array([len(heads[u]) for u in of_R], dtype=np.int64)
    if len(heads) == len(rows):
        parts = [part for pair in zip(heads, tails, strict=True) for part in pair]
        total_R = prompt_R + lengths_R - 1
        starts_R = np.cumsum(total_R) - total_R
        keys = _ranges(starts_R, total_R)
        positions_N = within(total_R)
        inner: tuple[Attention, ...] = (_attention(keys, keys, None, total_R, total_R),)
        tails_start_R = starts_R + prompt_R
    else:
        parts = [*heads, *tails]
        sizes_U = np.array([len(h) for h in heads], dtype=np.int64)
        starts_U = np.cumsum(sizes_U) - sizes_U
        tails_R = lengths_R - 1
        tails_start_R = sizes_U.sum() + np.cumsum(tails_R) - tails_R
        prompt_keys = _ranges(starts_U, sizes_U)
        keys = _joined(starts_U[of_R], prompt_R, tails_start_R, tails_R)
        positions_N = np.concatenate([within(sizes_U), np.repeat(prompt_R, tails_R) + within(tails_R)])
        inner = (_attention(prompt_keys, prompt_keys, None, sizes_U, sizes_U),)
        if tails_R.any():
            inner = (*inner, _attention(_ranges(tails_start_R, tails_R), keys, prompt_R, tails_R, prompt_R + tails_R))
        starts_R = starts_U[of_R]
    first_R = np.cumsum(lengths_R) - lengths_R
    top = _attention(_ranges(first_R, lengths_R), keys, prompt_R - 1, lengths_R, prompt_R + lengths_R - 1)
    asking = _joined(starts_R + prompt_R - 1, np.ones_like(lengths_R), tails_start_R, lengths_R - 1)
    return FlatPack(
        rows=rows,
        tokens_N=np.concatenate(parts),
        positions_N=positions_N,
        inner=inner,
        top=top,
        predicts_T=asking.ravel()[top.slots],
        targets_T=flat([completions[r] for r in rows], np.int64),
        row_T=np.repeat(np.arange(len(rows)), lengths_R),
        lengths_R=lengths_R,
        first_R=first_R,
    )


def flat_buckets(
    prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], rows: np.ndarray, token_budget: int
) -> list[np.ndarray]:
    """Rows of each micro-batch, at most `token_budget` tokens where more than one row is in it.

    Rows that share a prompt are neighbours and count it once; rows with a prompt of their own are bucketed by length.
    """
    keys = {int(r): np.asarray(prompts[r], np.int64).tobytes() for r in rows}
    counts: dict[bytes, int] = {}
    for key in keys.values():
        counts[key] = counts.get(key, 0) + 1
    alone = np.array([r for r in rows if counts[keys[r]] == 1], dtype=np.int64)
    shared = [int(r) for r in rows if counts[keys[r]] > 1]
    shared.sort(key=lambda r: (-len(prompts[r]), keys[r], -len(completions[r]), r))
    cut: list[list[int]] = []
    size = 0
    for row in shared:
        new = not cut or keys[row] != keys[cut[-1][-1]]
        tail = max(len(completions[row]) - 1, 0)
        size += tail + (len(prompts[row]) if new else 0)
        if not cut or size > token_budget:
            cut.append([])
            size = tail + len(prompts[row])
        cut[-1].append(row)
    lengths = [len(prompts[r]) + len(completions[r]) - 1 for r in alone]
    return [np.array(part, dtype=np.int64) for part in cut] + [alone[part] for part in buckets(lengths, token_budget)]


def _attention(
    queries: np.ndarray, keys: np.ndarray, reach: np.ndarray | None, lengths: np.ndarray, key_lengths: np.ndarray
) -> Attention:
    """`lengths` queries of each row are real, and `key_lengths` keys."""
    slots = np.repeat(np.arange(len(queries)) * queries.shape[1], lengths) + within(lengths)
    in_order = _in_order(queries), _in_order(keys), len(slots) == queries.size
    return Attention(queries, keys, reach, slots, *in_order, lengths, key_lengths)


def _in_order(index: np.ndarray) -> bool:
    return index.size > 0 and bool((index.ravel() == np.arange(index.size)).all())


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """[B, max length]: start, start + 1, …; beyond a row's length its last index again. An empty row reads token 0: its own
    start may lie past the end."""
    starts = np.where(lengths > 0, starts, 0)
    offsets = np.arange(max(1, int(lengths.max())))
    return starts[:, None] + np.minimum(offsets, np.maximum(lengths - 1, 0)[:, None])


def _joined(a: np.ndarray, a_lengths: np.ndarray, b: np.ndarray, b_lengths: np.ndarray) -> np.ndarray:
    """[B, max of both]: each row's range a, then its range b; beyond them the first index of a again."""
    offsets = np.arange(int((a_lengths + b_lengths).max()))[None]
    in_a, in_b = offsets < a_lengths[:, None], offsets < (a_lengths + b_lengths)[:, None]
    second = b[:, None] + offsets - a_lengths[:, None]
    return np.where(in_a, a[:, None] + offsets, np.where(in_b, second, a[:, None]))
