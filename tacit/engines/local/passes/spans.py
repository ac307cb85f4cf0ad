"""Rows of different lengths that lie end to end: where each begins, and how a kernel's programs share them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from tacit.engines.local.passes.handing import handed


@dataclass(frozen=True, eq=False)
class Spans:
    """Where rows begin: row b's queries lie from `starts_q[b]` to `starts_q[b + 1]`, and so do its keys, unless `keys_B` says
    how many there are from `starts_k[b]` on: in a cache they lie apart."""

    starts_q: torch.Tensor
    starts_k: torch.Tensor
    longest_q: int
    longest_k: int
    lengths: tuple[np.ndarray, np.ndarray] | None = None
    """of each row's queries and keys, where the host knows them"""
    blocks: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)
    """of queries or of keys, by their size: those that have been asked for, or were made beforehand"""
    keys_B: torch.Tensor | None = None

    @staticmethod
    def of(queries_B: np.ndarray, keys_B: np.ndarray, device: torch.device) -> Spans:
        """Rows of so many queries and keys."""
        starts_q, starts_k = (handed(_starts(lengths), device) for lengths in (queries_B, keys_B))
        return Spans(starts_q, starts_k, int(queries_B.max()), int(keys_B.max()), (queries_B, keys_B))

    @staticmethod
    def in_cache(queries_B: np.ndarray, keys_B: np.ndarray, starts_B: np.ndarray, block: int, device: torch.device) -> Spans:
        """Rows of so many queries, whose keys begin at these slots of a cache; for a kernel that looks at a block of so many
        queries together (0: there is none)."""
        starts_q, starts_k, number_B = (handed(x.astype(np.int32), device) for x in (_starts(queries_B), starts_B, keys_B))
        table = {("queries", block): shared(queries_B, keys_B, "queries", block, starts_B)} if block else {}
        blocks = {what: handed(rows, device) for what, rows in table.items()}
        return Spans(starts_q, starts_k, int(queries_B.max()), int(keys_B.max()), blocks=blocks, keys_B=number_B)

    def query_blocks(self, size: int) -> torch.Tensor:
        """[blocks, 5] (see `shared`) of up to so many queries each, on the device."""
        return self._kept("queries", size)

    def key_blocks(self, size: int) -> torch.Tensor:
        """[blocks, 5] of up to so many keys each. Keys that no query sees are among them."""
        return self._kept("keys", size)

    def _kept(self, what: str, size: int) -> torch.Tensor:
        """Every layer of a pass asks for the same."""
        if (what, size) not in self.blocks:
            assert self.lengths is not None
            self.blocks[what, size] = handed(shared(*self.lengths, what, size), self.starts_q.device)
        return self.blocks[what, size]


def _starts(lengths_B: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths_B)]).astype(np.int32)


def most_blocks(tokens: int, rows: int, size: int) -> int:
    """that any so many rows of so many tokens in all are cut into"""
    return tokens // size + rows


def shared(queries_B: np.ndarray, keys_B: np.ndarray, what: str, size: int, starts_k: np.ndarray | None = None) -> np.ndarray:
    """[blocks, 5]: a block's first token within its row, and of the row where its queries start, how many they are, where its
    keys start, and how many those are. There is no block without tokens, however the lengths differ, and those with the most to
    do come first: a device is done when its last program is."""
    lengths_B = queries_B if what == "queries" else keys_B
    counts_B = -(-lengths_B // size)
    rows_N = np.repeat(np.arange(len(lengths_B)), counts_B)
    first_N = (np.arange(len(rows_N)) - np.repeat(_starts(counts_B)[:-1], counts_B)) * size
    queries_N, keys_N = queries_B[rows_N], keys_B[rows_N]
    if what == "queries":  # the last of a block sees so many keys
        work_N = keys_N - queries_N + np.minimum(first_N + size, queries_N)
    else:  # so many queries see one of a block
        work_N = queries_N - np.maximum(first_N - (keys_N - queries_N), 0)
    starts_k = _starts(keys_B) if starts_k is None else starts_k
    table_N5 = np.stack([first_N, _starts(queries_B)[rows_N], queries_N, starts_k[rows_N], keys_N], 1)
    return table_N5[np.argsort(-work_N, kind="stable")].astype(np.int32)
