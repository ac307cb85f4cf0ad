"""CUDA graphs of decode steps: a small model's step is hundreds of kernels of a few microseconds each, and launching them
one by one takes several times as long as running them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch

from tacit.engines.local.fast.varlen_attention import SequenceLayout, max_blocks, split_into_blocks
from tacit.engines.local.kv_cache import KeyValueCache
from tacit.engines.local.llama import After, LlamaForward, Prompts
from tacit.engines.local.memory import empty_cache, is_out_of_memory
from tacit.engines.local.packing import next_power_of_two, ragged_arange

_RECORDING = Lock()
"""what another thread did on that stream meanwhile would be recorded with it"""


@cache
def _aside(device: int) -> torch.cuda.Stream:
    """Where steps are tried and recorded: one stream for all, since what libraries set up for a stream stays for good."""
    return torch.cuda.Stream(device)


class StepGraphs:
    """Records each kind of step once and replays it. A step must read and write tensors that stay where they are."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def clear(self) -> None:
        """Forget all recordings: something they read has moved."""
        if self._graphs:
            self._graphs.clear()
            torch.cuda.empty_cache()  # their working memory is of no use to anyone else in this process

    def run(self, key: Hashable, step: Callable[[], None], rewind: Callable[[], Callable[[], None]]) -> None:
        """Do `step` once. `key` says what is the same in every recording; `rewind()` returns what undoes a trial step."""
        if not self.enabled:
            step()
            return
        if key not in self._graphs:
            undo = rewind()
            with _RECORDING:
                graph = self._record(step)
            undo()
            if graph is None:
                self.enabled = False
                step()
                return
            self._graphs[key] = graph
        self._graphs[key].replay()

    def _record(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """Libraries set themselves up on a first run, which cannot be recorded: try the step once on another stream."""
        ours, aside = torch.cuda.current_stream(), _aside(torch.cuda.current_device())
        aside.wait_stream(ours)
        try:
            with torch.cuda.stream(aside):
                step()
        finally:  # what a failed one has begun is over, too, before anything else is done
            ours.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # steps leave nothing behind but their in-place results, and never overlap: they can share their working memory
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        try:
            with torch.cuda.graph(graph, pool=pool, stream=aside, capture_error_mode="thread_local"):
                step()
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise  # a shortage passes, once less is sampled at once; what follows is for devices that cannot record
            warnings.warn(f"sampling goes on without CUDA graphs, more slowly: {error}", stacklevel=2)
            return None
        finally:
            torch.cuda.set_stream(ours)  # torch stays on the other one where a recording cannot be ended
        return graph


# Prefills in few sizes, recorded as steps are: of a small model, launching its hundreds of kernels takes longer than running
# them.
#
#     [ prompt | prompt | … | filling | filling ]      so many tokens, so many prompts, none longer than so much
#
# What fills a size up are prompts too, of zeros at position 0, and nobody reads what comes of them. Their keys and values all
# go to one slot, behind a prompt of those who join: that row's first step writes there before anything reads it.

LAUNCHED = 1e11
"""tokens · weights of a layer that an H200 has done in the time that a layer's launches take (1 ms)"""
MOST_WORK = 8 * LAUNCHED
"""of a prefill that is recorded: up to here a host that is rid of the launches has other things to do meanwhile"""
SEEN = 2
"""times that a size has come before it is recorded, which takes a trial, a recording and a replay where one pass would do"""
MOST_KEPT = 96
"""recordings; where more are wanted, all are given up"""

States = tuple[torch.Tensor, torch.Tensor | None]
"""logits and, where asked for, a layer's states, of each prompt"""


class Size(NamedTuple):
    tokens: int
    prompts: int
    longest: int

    @staticmethod
    def of(lengths_U: np.ndarray, weights: int = 0) -> Size:
        """One of few in which they have room, and a filling of one token at least. Tokens are quarters of a power of two where
        launches take longer than what is computed for nothing, with a layer of so many weights, and eighths elsewhere."""
        prompts = max(8, next_power_of_two(len(lengths_U))) + 8
        needed = max(128, int(lengths_U.sum()) + prompts - len(lengths_U))
        step = max(16, next_power_of_two(needed) // (8 if needed * weights <= LAUNCHED else 16))
        tokens = -(-needed // step) * step
        longest = max(int(lengths_U.max()), int(_filling(tokens, prompts, lengths_U).max()))
        return Size(tokens, prompts, max(512, next_power_of_two(longest)))


class FixedPrompts:
    """Prompts of one size, at addresses that stay."""

    def __init__(self, size: Size, device: torch.device, block: int) -> None:
        """`block`: queries that a kernel of attention looks at together, which is told who does what; 0: there is none."""
        self.size, (tokens, prompts, _) = size, size
        self._block, blocks = block, max_blocks(tokens, prompts, block) if block else 0
        parts = (tokens, tokens, tokens, prompts, prompts + 1, prompts, prompts, 5 * blocks, 5 * prompts)
        self._all = torch.zeros(sum(parts), dtype=torch.long, device=device)
        self._tokens_N, self._positions_N, self.slots_N, self._ends_U, self._starts, *more = self._all.split(parts)
        self._starts_k, self._keys = more[:2]
        self._blocks, self._last_blocks = (table.view(-1, 5) for table in more[2:])
        self._single = torch.arange(prompts + 1, dtype=torch.int32, device=device)
        self._there = torch.zeros(sum(parts), dtype=torch.long, pin_memory=device.type == "cuda")
        """what it is filled from, on the host"""
        self._here = [part.numpy() for part in self._there.split(parts)]
        self._fetched: torch.cuda.Event | None = None

    def fill(self, prompts: Sequence[np.ndarray], slots_N: np.ndarray, spare: int, after: After | None = None) -> None:
        """With these, whose keys and values go to the slots; those of the filling to the spare one. `after`: what lies before
        each in the cache."""
        if self._fetched is not None:
            self._fetched.synchronize()
        lengths_U, real = np.array([len(prompt) for prompt in prompts]), len(slots_N)
        lengths_U = np.append(lengths_U, _filling(self.size.tokens, self.size.prompts, lengths_U))
        tokens_N, positions_N, all_slots_N, ends_U, starts, starts_k, keys, blocks, last_blocks = self._here
        np.concatenate(prompts, out=tokens_N[:real])
        positions_N[:real] = ragged_arange(lengths_U[: len(prompts)])
        all_slots_N[:real], all_slots_N[real:] = slots_N, spare
        tokens_N[real:], positions_N[real:] = 0, 0  # a filling may be longer than anything there are rotations for
        np.cumsum(lengths_U, out=starts[1:])
        ends_U[:] = starts[1:] - 1
        starts_k[:], keys[:], asking_U = starts[:-1], lengths_U, lengths_U
        if after is not None:
            count = len(prompts)
            positions_N[:real] += np.repeat(after.known_U, lengths_U[:count])
            starts_k[:count], keys[:count] = after.slots_U, after.known_U + lengths_U[:count]
            starts_k[count:], keys[count:] = spare, 1  # a filling has nothing to look at, and asks nobody
            asking_U = np.append(lengths_U[:count], np.zeros_like(lengths_U[count:]))
        if self._block:
            for table, queries_U in ((blocks, asking_U), (last_blocks, np.minimum(asking_U, 1))):
                shares = split_into_blocks(queries_U, keys, "queries", self._block, starts_k).ravel()
                table[: len(shares)], table[len(shares) :] = shares, 0  # where there is nothing to do for anybody
        self._all.copy_(self._there, non_blocking=True)
        if self._all.is_cuda:
            self._fetched = torch.cuda.current_stream(self._all.device).record_event()

    def prompts(self, after: bool = False) -> Prompts:
        """`after`: with the keys where they lie in a cache."""
        starts, longest, block = self._starts.int(), self.size.longest, self._block
        starts_k, keys_B = (self._starts_k.int(), self._keys.int()) if after else (starts, None)
        all_blocks, last_blocks = (
            {("queries", block): table.int()} if block else {} for table in (self._blocks, self._last_blocks)
        )
        spans = SequenceLayout(starts, starts_k, longest, longest, blocks=all_blocks, keys_B=keys_B)
        last = SequenceLayout(self._single, starts_k, 1, longest, blocks=last_blocks, keys_B=keys_B)
        return Prompts(self._tokens_N, self._positions_N, self._ends_U, spans, last)


class RecordedPrefills:
    """Of one table: each size is recorded when it has come a few times."""

    def __init__(self, enabled: bool) -> None:
        self._graphs = StepGraphs(enabled)
        self._seen: Counter[Hashable] = Counter()
        self._rooms: dict[Hashable, FixedPrompts] = {}
        self._found: dict[Hashable, States] = {}
        """of so many prompts: one prefill is read before the next"""

    def __len__(self) -> int:
        return len(self._graphs)

    def clear(self) -> None:
        """Something they read has moved, or there are too many."""
        self._graphs.clear()
        self._rooms.clear()
        self._found.clear()
        self._seen.clear()

    def run(
        self,
        forward: LlamaForward,
        cache: KeyValueCache,
        prompts: Sequence[np.ndarray],
        slots_N: np.ndarray,
        spare: int,
        layer: int | None,
        after: After | None = None,
    ) -> States | None:
        """None where it is better not recorded. What is returned is good until the next one. `after`: what lies in the cache
        before each, which is read where it lies.

        With a filling, log-probabilities are others in the last bits, and which sizes have come before depends on more than the
        requests (on what was given up for want of memory, say). Nothing is recorded where a run again is to have the same
        bits."""
        if not self._graphs.enabled or torch.are_deterministic_algorithms_enabled():
            return None
        if len(slots_N) * forward.weights_a_layer > MOST_WORK:
            return None
        size = Size.of(np.array([len(prompt) for prompt in prompts]), forward.weights_a_layer)
        key = (size, layer, after is not None)
        self._seen[key] += 1
        if self._seen[key] <= SEEN:
            return None
        if key not in self._rooms:
            if len(self._rooms) >= MOST_KEPT:
                self.clear()
                return None
            if (size.prompts, layer) not in self._found:
                self._found[size.prompts, layer] = _states_of(size.prompts, forward, layer)
            self._rooms[key] = FixedPrompts(size, forward.device, forward.query_block)
        fixed, found = self._rooms[key], self._found[size.prompts, layer]
        fixed.fill(prompts, slots_N, spare, after)

        def prefill() -> None:
            sink, rotating = partial(cache.put_flat, fixed.slots_N, None), cache.rotating(fixed.slots_N)
            told, cached = (fixed.prompts(), None) if after is None else (fixed.prompts(after=True), cache.all_slots)
            for here, state in zip(found, forward.prefill_flat(told, layer, sink, rotating, cached), strict=True):
                if here is not None and state is not None:
                    here.copy_(state)

        if not self._goes(key, prefill):
            self._graphs.enabled = False
            self.clear()
            empty_cache(forward.device)
            warnings.warn("there is no GPU memory to record prefills; sampling goes on without, more slowly", stacklevel=2)
            return None
        if not self._graphs.enabled:  # it cannot be recorded here
            self.clear()
        logits, hidden = found
        return logits[: len(prompts)], None if hidden is None else hidden[: len(prompts)]

    def _goes(self, key: Hashable, prefill: Callable[[], None]) -> bool:
        """Whether there was memory for it: without a recording less is needed, and no row has to begin again."""
        try:
            self._graphs.run(key, prefill, lambda: _nothing)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return False
        return True


def _states_of(prompts: int, forward: LlamaForward, layer: int | None) -> States:
    """Room for them."""
    logits = torch.empty(prompts, forward.vocabulary, device=forward.device)
    hidden = torch.empty(prompts, forward.features, dtype=forward.dtype, device=forward.device)
    return logits, None if layer is None else hidden


def _filling(tokens: int, prompts: int, lengths_U: np.ndarray) -> np.ndarray:
    """Lengths of what fills a size up."""
    count, left = prompts - len(lengths_U), tokens - int(lengths_U.sum())
    return left // count + (np.arange(count) < left % count)


def _nothing() -> None:
    """A prefill that is tried writes what it will write again."""
