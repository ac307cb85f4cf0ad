"""Prompts into a table's cache: as rectangles, end to end, or on from what lies there; recorded where that is quicker."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from tacit.engines.local.passes.handing import handed
from tacit.engines.local.passes.kv_cache import KeyValueCache
from tacit.engines.local.passes.llama import After, LlamaForward, Prompts
from tacit.engines.local.passes.packing import within
from tacit.engines.local.sampling.prefills import RecordedPrefills, States

TRIED, NEAR = 192, 0.1
"""tokens of a prompt that is read in one go and in two, and how far its logits may be apart: bfloat16 does some of that"""


class Prefilling:
    """Of one table. All prompts of a call are read with the same adapter."""

    def __init__(self, forward: LlamaForward, cache: KeyValueCache, flat: bool, recorded: RecordedPrefills) -> None:
        self._forward, self._cache, self._flat, self._recorded = forward, cache, flat, recorded

    def whole(
        self, prompts: Sequence[np.ndarray], places_N: np.ndarray, source_N: np.ndarray, recorded: bool, layer: int | None
    ) -> States:
        """Logits and states of each prompt; its keys and values go to the places of those who continue it. `source_N` says
        which each continues. `recorded`: whether it may be."""
        if not self._flat:
            return self._padded(prompts, places_N, source_N, layer)
        forward, cache, device = self._forward, self._cache, self._forward.device
        lengths = np.array([len(prompt) for prompt in prompts])
        columns = within(lengths[source_N])
        slots = np.repeat(places_N * cache.capacity, lengths[source_N]) + columns
        shared = len(source_N) > len(prompts)
        if recorded and not shared:
            behind = int(places_N[0] * cache.capacity + lengths[0])
            if (found := self._recorded.run(forward, cache, prompts, slots, behind, layer)) is not None:
                return found
        starts = np.cumsum(lengths) - lengths
        taken = handed(np.repeat(starts[source_N], lengths[source_N]) + columns, device) if shared else None
        to = handed(slots, device)
        rotating = None if shared else cache.rotating(to)
        return forward.prefill_flat(Prompts.of(prompts, device), layer, partial(cache.put_flat, to, taken), rotating)

    def rest(
        self, prompts: Sequence[np.ndarray], places_N: np.ndarray, known_N: np.ndarray, recorded: bool, layer: int | None
    ) -> States:
        """The same of prompts whose beginnings lie at their places: what comes after is computed, and reads them there."""
        forward, cache, device = self._forward, self._cache, self._forward.device
        rests = [prompt[known:] for prompt, known in zip(prompts, known_N, strict=True)]
        lengths_N = np.array([len(rest) for rest in rests])
        after = After(known_N, places_N * cache.capacity)
        slots = np.repeat(after.slots_U + known_N, lengths_N) + within(lengths_N)
        if recorded:
            behind = int(after.slots_U[0] + len(prompts[0]))
            if (found := self._recorded.run(forward, cache, rests, slots, behind, layer, after)) is not None:
                return found
        to, told = handed(slots, device), Prompts.of(rests, device, after, forward.query_block)
        return forward.prefill_flat(told, layer, partial(cache.put_flat, to, None), cache.rotating(to), cache.all_slots)

    def _padded(self, prompts: Sequence[np.ndarray], places_N: np.ndarray, source_N: np.ndarray, layer: int | None) -> States:
        """As a rectangle."""
        device, lengths = self._forward.device, np.array([len(prompt) for prompt in prompts])
        tokens_UT = np.zeros((len(prompts), lengths.max()), dtype=np.int64)
        for row, prompt in zip(tokens_UT, prompts, strict=True):
            row[: len(prompt)] = prompt
        source = None if len(source_N) == len(prompts) else handed(source_N, device)
        sink = partial(self._store, self._rows(places_N), source)
        return self._forward.prefill(handed(tokens_UT, device), handed(lengths - 1, device), layer, sink)

    def _rows(self, places_N: np.ndarray) -> slice | torch.Tensor:
        """As an index of the cache: a run of neighbours is written faster."""
        first, last = int(places_N[0]), int(places_N[-1])
        if np.array_equal(places_N, np.arange(first, last + 1)):
            return slice(first, last + 1)
        return handed(places_N, self._forward.device)

    def _store(
        self, rows: slice | torch.Tensor, source: torch.Tensor | None, depth: int, k: torch.Tensor, v: torch.Tensor
    ) -> None:
        """Into the cache; `source` says which prompt each row continues, where some share one."""
        self._cache.put(depth, rows, k if source is None else k[source], v if source is None else v[source])


def reads_on(forward: LlamaForward) -> bool:
    """Whether prompts can be read on from what lies in a cache: found out by reading one in one go and in two."""
    cache = KeyValueCache(forward.geometry)
    if not cache.reads_on:
        return False
    cache.open(2, TRIED)
    tried = Prefilling(forward, cache, True, RecordedPrefills(enabled=False))
    prompt, known = np.arange(TRIED - 1) % forward.vocabulary, TRIED // 2
    alone = np.zeros(1, dtype=np.int64)
    with torch.inference_mode():
        whole, _ = tried.whole([prompt], alone, alone, False, None)
        tried.whole([prompt[:known]], alone + 1, alone, False, None)
        in_two, _ = tried.rest([prompt], alone + 1, alone + known, False, None)
    if bool((in_two - whole).norm() <= NEAR * whole.norm()):
        return True
    why = "read on from what lies in the cache, they give other numbers"
    warnings.warn(f"prompts that only grow are read anew in every turn, which is slower: {why}", stacklevel=2)
    return False


def buckets(lengths_N: np.ndarray, whose: Sequence[str | None], budget: int, padded: bool) -> list[tuple[int, int]]:
    """Cut prompts, sorted by adapter and length, into runs of one adapter whose size stays within the budget (one prompt always
    fits)."""
    runs, start = [], 0
    for end in range(1, len(lengths_N) + 1):
        size = (end + 1 - start) * lengths_N[end] if padded and end < len(lengths_N) else lengths_N[start : end + 1].sum()
        if end == len(lengths_N) or size > budget or whose[end] != whose[start]:
            runs.append((start, end))
            start = end
    return runs
