"""Decoder of the Llama family over a preallocated KV cache; on a GPU, each decode step is a CUDA graph."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.core.protocols import Sampling
from tacit.core.types import HiddenState
from tacit.engines.local.decoding import (
    DecodeBatch,
    DecodeState,
    PendingResults,
    PrefillBatch,
    find_moved,
    sample_first_tokens,
)
from tacit.engines.local.fast.cuda_graphs import CudaGraphs, PrefillGraphs, PromptStates
from tacit.engines.local.fast.kv_cache import KeyValueCache
from tacit.engines.local.fast.llama import CachedPrefixes, LlamaForward, PackedPrompts
from tacit.engines.local.packing import next_power_of_two, ragged_arange, to_device

STEPS_PER_SYNC = 4  # decode steps on a GPU between reads of the sampled tokens
CAPACITY_GROWTH = 1.25  # minimum growth of a KV cache that holds sequences, because copying them takes time
TRIAL_TOKENS, TOLERANCE = 192, 0.1
"""prompt length in `can_extend_prefix`, and the relative difference of logits it allows, due to bfloat16 rounding"""


class Prefiller:
    """Prefills prompts into the KV cache of one decode batch: padded, packed without padding, or after a cached prefix.
    Replays a CUDA graph if one is recorded for the shape."""

    def __init__(self, forward: LlamaForward, cache: KeyValueCache, varlen: bool, graphs: PrefillGraphs) -> None:
        self._forward, self._cache, self._varlen, self._graphs = forward, cache, varlen, graphs

    def prefill(
        self,
        prompts: Sequence[np.ndarray],
        slots_N: np.ndarray,
        source_N: np.ndarray,
        cached_N: np.ndarray | None,
        hidden: HiddenState | None,
    ) -> PromptStates:
        """Logits and hidden states of each prompt. Its keys and values go to the slots of all requests that share it.
        `source_N`: the prompt of each slot. `cached_N`: tokens of each prompt that its slot already holds, so that only the
        rest is computed; requires that no two requests share a prompt."""
        if not self._varlen:
            return self._prefill_padded(prompts, slots_N, source_N, hidden)
        forward, cache, device = self._forward, self._cache, self._forward.device
        starts_N, prefixes, suffixes = slots_N * cache.capacity, None, prompts
        spare = int(starts_N[0] + len(prompts[0]))
        if cached_N is not None:
            prefixes = CachedPrefixes(cached_N, starts_N)
            starts_N, suffixes = starts_N + cached_N, [prompt[n:] for prompt, n in zip(prompts, cached_N, strict=True)]
        lengths = np.array([len(suffix) for suffix in suffixes])
        positions = ragged_arange(lengths[source_N])
        kv_index = np.repeat(starts_N, lengths[source_N]) + positions
        shared = len(source_N) > len(prompts)
        if not shared:
            replayed = self._graphs.run(forward, cache, suffixes, kv_index, spare, hidden, prefixes)
            if replayed is not None:
                return replayed
        starts = np.cumsum(lengths) - lengths
        source_M = to_device(np.repeat(starts[source_N], lengths[source_N]) + positions, device) if shared else None
        kv_index_M = to_device(kv_index, device)
        rope_and_store = None if shared else cache.make_rope_and_store(kv_index_M)
        packed = PackedPrompts.pack(suffixes, device, prefixes)
        cached = cache.flat_view if prefixes else None
        return forward.prefill_varlen(packed, hidden, partial(cache.store, kv_index_M, source_M), rope_and_store, cached)

    def _prefill_padded(
        self, prompts: Sequence[np.ndarray], slots_N: np.ndarray, source_N: np.ndarray, hidden: HiddenState | None
    ) -> PromptStates:
        device, lengths = self._forward.device, np.array([len(prompt) for prompt in prompts])
        tokens_UT = np.zeros((len(prompts), lengths.max()), dtype=np.int64)
        for row, prompt in zip(tokens_UT, prompts, strict=True):
            row[: len(prompt)] = prompt
        first, last = int(slots_N[0]), int(slots_N[-1])
        contiguous = np.array_equal(slots_N, np.arange(first, last + 1))  # a slice is written faster
        slots = slice(first, last + 1) if contiguous else to_device(slots_N, device)
        source = None if len(source_N) == len(prompts) else to_device(source_N, device)

        def store(depth: int, k: Tensor, v: Tensor) -> None:
            self._cache.store_padded(depth, slots, k if source is None else k[source], v if source is None else v[source])

        return self._forward.prefill_padded(to_device(tokens_UT, device), to_device(lengths - 1, device), hidden, store)


def can_extend_prefix(forward: LlamaForward) -> bool:
    """Whether a prefill can continue from a cached prefix. Compares prefilling a prompt at once and in two parts."""
    cache = KeyValueCache(forward.shape)
    if not cache.can_extend_prefix:
        return False
    cache.resize(2, TRIAL_TOKENS)
    prefiller = Prefiller(forward, cache, True, PrefillGraphs(enabled=False))
    prompt, cached = np.arange(TRIAL_TOKENS - 1) % forward.vocabulary, TRIAL_TOKENS // 2
    zero = np.zeros(1, dtype=np.int64)
    with torch.inference_mode():
        whole, _ = prefiller.prefill([prompt], zero, zero, None, None)
        prefiller.prefill([prompt[:cached]], zero + 1, zero, None, None)
        continued, _ = prefiller.prefill([prompt], zero + 1, zero, zero + cached, None)
    if bool((continued - whole).norm() <= TOLERANCE * whole.norm()):
        return True
    reason = "continuing from a cached prefix gives different logits on this device"
    warnings.warn(f"the prefix cache is off and every turn prefills its whole prompt, which is slower: {reason}", stacklevel=2)
    return False


def split_prefill(lengths_N: np.ndarray, budget: int, padded: bool) -> list[tuple[int, int]]:
    """Split prompts, sorted by length, into ranges (start, end) of at most `budget` tokens; a single prompt may exceed it."""
    ranges, start = [], 0
    for end in range(1, len(lengths_N) + 1):
        size = (end + 1 - start) * lengths_N[end] if padded and end < len(lengths_N) else lengths_N[start : end + 1].sum()
        if end == len(lengths_N) or size > budget:
            ranges.append((start, end))
            start = end
    return ranges


class LlamaDecoder:
    """The forward pass with its copies of weights, and a spare decode batch for the next scheduler.

    `fixed_shapes`: slots and windows are padded to a few sizes and buffers stay in place, as CUDA graphs require, and tokens
    are read every few steps; otherwise shapes are exact.
    """

    def __init__(
        self,
        model: Any,
        *,
        prefill_tokens: int | None = None,
        fixed_shapes: bool | None = None,
        varlen: bool | None = None,
    ) -> None:
        """`prefill_tokens`: prompt tokens computed at once. `varlen`: prefill without padding; None: if kernels support it."""
        self.forward = LlamaForward(model)
        self.device = self.forward.device
        on_gpu = self.device.type == "cuda"
        self.fixed_shapes = on_gpu if fixed_shapes is None else fixed_shapes
        self.varlen = self.forward.supports_varlen if varlen is None else varlen
        self.uses_graphs = on_gpu
        # Few on a CPU, so that the working set stays in its cache; many on a GPU, to use it fully.
        self.prefill_tokens = prefill_tokens or (65536 if on_gpu else 1024)
        self.graph_epoch = 0  # incremented whenever a tensor that CUDA graphs read has moved
        self.weights_version = 0  # number of weight copies so far
        self.spare: LlamaDecodeBatch | None = None
        self._versions: tuple[list[int], list[int]] | None = None  # address and version counter of each source tensor
        self.addresses: tuple[Any, ...] = ()
        self.refresh(force=True)

    @property
    def max_length(self) -> int | None:
        return self.forward.max_length

    @property
    def has_prefix_cache(self) -> bool:
        """False in deterministic mode: continuing from a prefix differs from a whole prefill in the last bits, and whether a
        prefix is cached depends on more than the request."""
        return self.varlen and not torch.are_deterministic_algorithms_enabled() and self._can_extend_prefix

    @cached_property
    def _can_extend_prefix(self) -> bool:
        self.extend_rope(TRIAL_TOKENS)
        return can_extend_prefix(self.forward)

    def refresh(self, force: bool = False) -> None:
        """Copy weights if they changed, or always with `force`. Version counters of the parameters detect in-place updates, so
        the sampler does not use old weights even if a learner does not announce its updates."""
        sources = self.forward.source_parameters()
        try:
            changed = [t._version for t in sources]
        except RuntimeError:  # inference tensors have no version counter
            changed = [0 if t.is_inference() else t._version for t in sources]
        versions = [t.data_ptr() for t in sources], changed
        if force or versions != self._versions:
            self._versions = None  # set again after copying, so that an interrupted copy is repeated
            self.weights_version += 1
            self.forward.refresh()
            self._check_addresses()
            self._versions = versions

    def extend_rope(self, length: int) -> None:
        if length > self.forward.rope_length:
            self.graph_epoch += 1  # first, so that an interrupt in the next line leaves no stale graphs valid
            self.forward.extend_rope(length)
            self._check_addresses()

    def open_batch(self) -> LlamaDecodeBatch:
        batch, self.spare = self.spare or LlamaDecodeBatch(self), None
        return batch

    def recycle(self, batch: DecodeBatch) -> None:
        assert isinstance(batch, LlamaDecodeBatch)
        self.spare = batch

    def pad_slots(self, slots: int) -> int:
        """Slots of a step: exact, or rounded up to one of a few sizes."""
        if not self.fixed_shapes:
            return slots
        power = next_power_of_two(slots)
        return power * 3 // 4 if power >= 16 and slots <= power * 3 // 4 else power

    def pad_window(self, tokens: int) -> int:
        """Cache positions a step reads: exact, or rounded up to one of a few sizes."""
        return _round_up(tokens, 128 if tokens <= 1024 else 512) if self.fixed_shapes else tokens

    def pad_capacity(self, tokens: int) -> int:
        """Cache positions a slot has in memory: exact, or rounded up. They cost memory but no time, and CUDA graphs depend on
        them, so there are fewer sizes."""
        if not self.fixed_shapes:
            return tokens
        return max(256, next_power_of_two(tokens)) if tokens <= 1024 else _round_up(tokens, 1024)

    def _check_addresses(self) -> None:
        if self.uses_graphs and (addresses := self.forward.addresses()) != self.addresses:
            self.addresses = addresses
            self.graph_epoch += 1


class LlamaDecodeBatch(DecodeBatch):
    decoder: LlamaDecoder

    def __init__(self, decoder: LlamaDecoder) -> None:
        self.decoder = decoder
        self.steps_per_sync = STEPS_PER_SYNC if decoder.fixed_shapes else 1
        self.is_async = decoder.fixed_shapes
        # With padded sizes, a batch gets narrower only once a quarter of its slots is free.
        self.compact_below = 0.75 if decoder.fixed_shapes else 0.9
        self.graphs = CudaGraphs(enabled=decoder.uses_graphs)
        self.prefill_graphs = PrefillGraphs(enabled=decoder.uses_graphs and decoder.varlen)
        self.cache = KeyValueCache(decoder.forward.shape)
        self._prefiller = Prefiller(decoder.forward, self.cache, decoder.varlen, self.prefill_graphs)
        self._state = DecodeState(0, self.steps_per_sync, decoder.device)
        self._graph_addresses = self.cache.addresses()  # the cache's addresses when graphs were recorded
        self._graph_epoch = decoder.graph_epoch
        self._used = 0  # cache positions from here on are unused in all slots

    def prefill(self, batch: PrefillBatch, occupied: int, sampling: Sampling, hidden: HiddenState | None) -> PendingResults:
        decoder, slots_N, source_N = self.decoder, batch.slots_N, batch.source_N
        lengths_N = np.array([len(p) for p in batch.prompts])
        self.resize(max(occupied, int(slots_N.max()) + 1), batch.max_length, occupied)
        self.drop_stale_graphs()
        self._used = max(self._used, int(lengths_N.max()))
        logits: list[Tensor] = []
        pooled: list[Tensor] = []
        cached_N = np.zeros_like(lengths_N) if batch.cached_N is None else batch.cached_N
        for start, end in split_prefill(lengths_N - cached_N, decoder.prefill_tokens, not decoder.varlen):
            first, last = np.searchsorted(source_N, [start, end])
            local_N = source_N[first:last] - start
            prompts, slots = batch.prompts[start:end], slots_N[first:last]
            cached = None if batch.cached_N is None else cached_N[start:end]
            logits_U, states = self._prefiller.prefill(prompts, slots, local_N, cached, hidden)
            index = to_device(local_N, decoder.device)
            logits.append(logits_U[index])
            if states is not None:
                pooled.append(states[index])
        tokens_N, results = sample_first_tokens(torch.cat(logits), torch.cat(pooled) if pooled else None, batch, sampling)
        self._state.assign(slots_N, tokens_N, lengths_N[source_N])
        return results

    def decode(self, noise_BK: np.ndarray, longest: int, sampling: Sampling) -> PendingResults:
        decoder, state, cache = self.decoder, self._state, self.cache
        self.drop_stale_graphs()
        slots, steps = noise_BK.shape
        width, capacity = decoder.pad_slots(slots), cache.capacity
        state.load_noise(noise_BK)
        settings = (sampling.temperature, sampling.top_p, sampling.top_k)
        for length in range(longest, longest + steps):
            window = capacity if cache.uses_decode_kernel else min(decoder.pad_window(length), capacity)

            def step(window: int = window) -> None:
                logits = decoder.forward.decode_step(state.tokens_B[:width], state.positions_B[:width], cache, window)
                state.sample(logits, sampling, capacity)

            self.graphs.run((width, capacity, window, settings), step, state.save)
        self._used = max(self._used, min(longest + steps - 1, capacity))
        return state.fetch_tokens(slots, steps)

    def compact(self, order: np.ndarray) -> None:
        target, source = find_moved(order, self.decoder.device)
        if len(target):
            self.cache.copy_slots(target, source, self._used)
        self._state.compact(order)

    def drop_stale_graphs(self) -> None:
        """Drop CUDA graphs if the weights they read have moved."""
        if self.decoder.graph_epoch != self._graph_epoch:
            self._clear_graphs()
            self._graph_epoch = self.decoder.graph_epoch

    def _clear_graphs(self) -> None:
        self.graphs.clear()
        self.prefill_graphs.clear()

    def resize(self, slots: int, max_length: int, occupied: int) -> None:
        """Make room for `slots` slots of `max_length` tokens; the first `occupied` keep their contents."""
        decoder, cache = self.decoder, self.cache
        width, capacity = decoder.pad_slots(slots), decoder.pad_capacity(max_length)
        if not occupied:
            self._used = 0
            cache.resize(width, capacity)
            self._state.positions_B.zero_()  # positions of unused slots may exceed a smaller capacity
        elif width > cache.slots or capacity > cache.capacity:
            if capacity > cache.capacity:
                capacity = decoder.pad_capacity(max(max_length, int(CAPACITY_GROWTH * cache.capacity)))
            cache.resize(max(width, cache.slots), max(capacity, cache.capacity), occupied, self._used)
        state = self._state.grow(cache.slots)
        if state is not self._state or cache.addresses() != self._graph_addresses:
            self._clear_graphs()
        self._state, self._graph_addresses = state, cache.addresses()
        decoder.extend_rope(cache.capacity)


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step
