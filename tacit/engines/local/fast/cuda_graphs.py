"""CUDA graphs of decode steps and prefills. A step of a small model is hundreds of kernels of a few microseconds each, and
launching them one by one takes several times as long as running them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cache, partial
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch

from tacit.core.types import HiddenState
from tacit.engines.local.fast import kernels
from tacit.engines.local.fast.attention import SequenceLayout, max_blocks, split_into_blocks
from tacit.engines.local.fast.kv_cache import KeyValueCache
from tacit.engines.local.fast.llama import CachedPrefixes, LlamaForward, PackedPrompts
from tacit.engines.local.memory import empty_cache, is_out_of_memory
from tacit.engines.local.packing import next_power_of_two, ragged_arange

_CAPTURE_LOCK = Lock()  # a capture would also record the work of other threads on the same stream


@cache
def get_capture_stream(device: int) -> torch.cuda.Stream:
    """One stream for all warm-ups and captures, because libraries never free what they allocate per stream."""
    return torch.cuda.Stream(device)


class CudaGraphs:
    """Captures each kind of step once and replays it. A step must read and write tensors at fixed addresses."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled and "cuda_graphs" not in kernels.disabled
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def clear(self) -> None:
        """Drop all graphs. Call it when a tensor they read has moved."""
        if self._graphs:
            self._graphs.clear()
            torch.cuda.empty_cache()  # nothing else in this process can use the graphs' memory pool

    def run(self, key: Hashable, step: Callable[[], None], save_state: Callable[[], Callable[[], None]]) -> None:
        """Run `step` once. `key` identifies its shapes; `save_state()` returns a function that undoes the warm-up step."""
        if not self.enabled:
            step()
            return
        if key not in self._graphs:
            restore = save_state()
            with _CAPTURE_LOCK:
                graph = self.capture(step)
            restore()
            if graph is None:
                self.enabled = False
                step()
                return
            self._graphs[key] = graph
        self._graphs[key].replay()

    def capture(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """Capture a step after a warm-up on another stream, since library initialization cannot be captured. None if capturing
        fails."""
        main_stream, capture_stream = torch.cuda.current_stream(), get_capture_stream(torch.cuda.current_device())
        capture_stream.wait_stream(main_stream)
        try:
            with torch.cuda.stream(capture_stream):
                step()
        finally:  # kernels of a failed step must finish, too
            main_stream.wait_stream(capture_stream)
        graph = torch.cuda.CUDAGraph()
        # Steps only have in-place results and never overlap, so their graphs can share a memory pool.
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        try:
            with torch.cuda.graph(graph, pool=pool, stream=capture_stream, capture_error_mode="thread_local"):
                step()
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise  # a smaller batch may fit; the fallback below is for devices that cannot capture at all
            warnings.warn(f"CUDA graphs are off and sampling is slower: capturing a step failed: {error}", stacklevel=2)
            return None
        finally:
            torch.cuda.set_stream(main_stream)  # torch stays on the capture stream if a capture cannot be ended
        return graph


# Prefill graphs. Batches of prompts are padded to a few shapes:
#
#     [ prompt | prompt | … | padding | padding ]      fixed numbers of tokens and prompts, and a maximum length
#
# Padding consists of dummy prompts: zeros at position 0, whose results are not read. Their keys and values all go to one spare
# position in the cache, after a new prompt, which that slot's first decode step overwrites before anything reads it.

LAUNCH_BOUND_WORK = 1e11  # tokens · weights of a layer that an H200 computes in the time of a layer's launches (1 ms)
MAX_GRAPH_WORK = 8 * LAUNCH_BOUND_WORK
"""largest prefill that is captured; for larger ones the host gains nothing from the saved launches"""
RECORD_AFTER = 2  # times a shape runs uncaptured before it is captured, which costs a warm-up, a capture and a replay
MAX_GRAPHS = 96  # maximum captured prefills; when it is reached, all are dropped

PromptStates = tuple[torch.Tensor, torch.Tensor | None]  # logits and, if requested, the hidden state of each prompt


class PrefillShape(NamedTuple):
    tokens: int
    prompts: int
    longest: int

    @staticmethod
    def fit(lengths_U: np.ndarray, weights: int = 0) -> PrefillShape:
        """The smallest shape that holds these prompts and at least one token of padding. Token counts are quarters of a power
        of two where launches take longer than the wasted work, for a layer of `weights` weights, and eighths elsewhere."""
        prompts = max(8, next_power_of_two(len(lengths_U))) + 8
        needed = max(128, int(lengths_U.sum()) + prompts - len(lengths_U))
        step = max(16, next_power_of_two(needed) // (8 if needed * weights <= LAUNCH_BOUND_WORK else 16))
        tokens = -(-needed // step) * step
        longest = max(int(lengths_U.max()), int(padding_lengths(tokens, prompts, lengths_U).max()))
        return PrefillShape(tokens, prompts, max(512, next_power_of_two(longest)))


class PrefillBuffers:
    """Inputs of a captured prefill of one shape, at fixed addresses."""

    def __init__(self, shape: PrefillShape, device: torch.device) -> None:
        self.shape, (tokens, prompts, _) = shape, shape
        sizes = (tokens, tokens, tokens, prompts, prompts + 1, prompts, prompts, 5 * max_blocks(tokens, prompts), 5 * prompts)
        self._all = torch.zeros(sum(sizes), dtype=torch.long, device=device)
        self.tokens_N, self._positions_N, self.kv_index_N, self._ends_U, *rest = self._all.split(sizes)
        self._starts, self._starts_k, self._keys, self._blocks, self._last_blocks = rest
        self._single = torch.arange(prompts + 1, dtype=torch.int32, device=device)
        self._staging = torch.zeros(sum(sizes), dtype=torch.long, pin_memory=device.type == "cuda")
        """the same on the host"""
        self.staging_parts = [part.numpy() for part in self._staging.split(sizes)]
        self.copy_event: torch.cuda.Event | None = None

    def fill(
        self, prompts: Sequence[np.ndarray], kv_index_N: np.ndarray, spare: int, prefixes: CachedPrefixes | None = None
    ) -> None:
        """Upload these prompts. Their keys and values go to `kv_index_N` of the flat cache, those of the padding to `spare`.
        `prefixes`: cached tokens before each prompt."""
        if self.copy_event is not None:
            self.copy_event.synchronize()
        lengths_U, real = np.array([len(prompt) for prompt in prompts]), len(kv_index_N)
        lengths_U = np.append(lengths_U, padding_lengths(self.shape.tokens, self.shape.prompts, lengths_U))
        tokens_N, positions_N, all_kv_index_N, ends_U, starts, starts_k, keys, blocks, last_blocks = self.staging_parts
        np.concatenate(prompts, out=tokens_N[:real])
        positions_N[:real] = ragged_arange(lengths_U[: len(prompts)])
        all_kv_index_N[:real], all_kv_index_N[real:] = kv_index_N, spare
        tokens_N[real:], positions_N[real:] = 0, 0  # padding may be longer than the precomputed RoPE
        np.cumsum(lengths_U, out=starts[1:])
        ends_U[:] = starts[1:] - 1
        if prefixes is not None:
            count = len(prompts)
            positions_N[:real] += np.repeat(prefixes.cached_U, lengths_U[:count])
            starts_k[:count], keys[:count] = prefixes.kv_start_U, prefixes.cached_U + lengths_U[:count]
            starts_k[count:], keys[count:] = spare, 1  # padding has no queries
            queries_U = np.append(lengths_U[:count], np.zeros_like(lengths_U[count:]))
            for buffer, counts_U in ((blocks, queries_U), (last_blocks, np.minimum(queries_U, 1))):
                table = split_into_blocks(counts_U, keys, starts_k).ravel()
                buffer[: len(table)], buffer[len(table) :] = table, 0  # zeros: empty blocks
        self._all.copy_(self._staging, non_blocking=True)
        if self._all.is_cuda:
            self.copy_event = torch.cuda.current_stream(self._all.device).record_event()

    def as_prompts(self, in_cache: bool = False) -> PackedPrompts:
        """`in_cache`: keys are read from the cache, prefixes included."""
        starts, longest = self._starts.int(), self.shape.longest
        layout, last = SequenceLayout(starts, starts, longest, longest), SequenceLayout(self._single, starts, 1, longest)
        if in_cache:
            starts_k, keys_B = self._starts_k.int(), self._keys.int()
            layout, last = (
                replace(each, starts_k=starts_k, keys_B=keys_B, blocks_N5=blocks.view(-1, 5).int())
                for each, blocks in ((layout, self._blocks), (last, self._last_blocks))
            )
        return PackedPrompts(self.tokens_N, self._positions_N, self._ends_U, layout, last)


class PrefillGraphs:
    """CUDA graphs of one decode batch's prefills. A shape is captured after it ran `RECORD_AFTER` times."""

    def __init__(self, enabled: bool) -> None:
        self._graphs = CudaGraphs(enabled)
        self.seen: Counter[Hashable] = Counter()
        self.buffers: dict[Hashable, PrefillBuffers] = {}
        self._outputs: dict[Hashable, PromptStates] = {}
        """by number of prompts and hidden state; shared, since one prefill's outputs are read before the next prefill"""

    def __len__(self) -> int:
        return len(self._graphs)

    def clear(self) -> None:
        """Drop all graphs. Call it when a tensor they read has moved, or when there are too many."""
        self._graphs.clear()
        self.buffers.clear()
        self._outputs.clear()
        self.seen.clear()

    def run(
        self,
        forward: LlamaForward,
        cache: KeyValueCache,
        prompts: Sequence[np.ndarray],
        kv_index_N: np.ndarray,
        spare: int,
        hidden: HiddenState | None,
        prefixes: CachedPrefixes | None = None,
    ) -> PromptStates | None:
        """Prefill with a graph; None if a plain prefill should be used. The result is valid until the next call. `prefixes`:
        cached tokens before each prompt.

        Off in deterministic mode: padding changes log-probabilities in the last bits, and which shapes are captured depends on
        more than the requests (for example on memory pressure)."""
        if not self._graphs.enabled or torch.are_deterministic_algorithms_enabled():
            return None
        if len(kv_index_N) * forward.weights_per_layer > MAX_GRAPH_WORK:
            return None
        shape = PrefillShape.fit(np.array([len(prompt) for prompt in prompts]), forward.weights_per_layer)
        key = (shape, hidden, prefixes is not None)
        self.seen[key] += 1
        if self.seen[key] <= RECORD_AFTER:
            return None
        if key not in self.buffers:
            if len(self.buffers) >= MAX_GRAPHS:
                self.clear()
                return None
            if (shape.prompts, hidden) not in self._outputs:
                self._outputs[shape.prompts, hidden] = _allocate_outputs(shape.prompts, forward, hidden)
            self.buffers[key] = PrefillBuffers(shape, forward.device)
        buffers, outputs = self.buffers[key], self._outputs[shape.prompts, hidden]
        buffers.fill(prompts, kv_index_N, spare, prefixes)

        def prefill() -> None:
            kv_index_N = buffers.kv_index_N
            store, rope_and_store = partial(cache.store, kv_index_N, None), cache.make_rope_and_store(kv_index_N)
            packed, cached = buffers.as_prompts(prefixes is not None), None if prefixes is None else cache.flat_view
            results = forward.prefill_varlen(packed, hidden, store, rope_and_store, cached)
            for output, result in zip(outputs, results, strict=True):
                if output is not None and result is not None:
                    output.copy_(result)

        out_of_memory = False
        try:
            self._graphs.run(key, prefill, lambda: lambda: None)  # a warm-up prefill is simply overwritten
        except RuntimeError as error:
            if not (out_of_memory := is_out_of_memory(error)):
                raise
        if out_of_memory:  # a plain prefill needs less. Outside the handler, since the error keeps tensors alive
            self._graphs.enabled = False
            self.clear()
            empty_cache(forward.device)
            warnings.warn("CUDA graphs of prefills are off and sampling is slower: out of GPU memory", stacklevel=2)
            return None
        if not self._graphs.enabled:  # this device cannot capture
            self.clear()
        logits, pooled = outputs
        return logits[: len(prompts)], None if pooled is None else pooled[: len(prompts)]


def _allocate_outputs(prompts: int, forward: LlamaForward, hidden: HiddenState | None) -> PromptStates:
    logits = torch.empty(prompts, forward.vocabulary, device=forward.device)
    dtype = forward.dtype if hidden is None or hidden.pooling == "last" else torch.float32
    pooled = torch.empty(prompts, forward.features, dtype=dtype, device=forward.device)
    return logits, None if hidden is None else pooled


def padding_lengths(tokens: int, prompts: int, lengths_U: np.ndarray) -> np.ndarray:
    """Lengths of the dummy prompts that fill a shape."""
    count, left = prompts - len(lengths_U), tokens - int(lengths_U.sum())
    return left // count + (np.arange(count) < left % count)
