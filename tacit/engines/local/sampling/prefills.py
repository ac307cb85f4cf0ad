"""Prefills in few sizes, recorded as steps are: of a small model, launching its hundreds of kernels takes longer than running
them.

    [ prompt | prompt | … | filling | filling ]      so many tokens, so many prompts, none longer than so much

What fills a size up are prompts too, of zeros, and nobody reads what comes of them. Their keys and values all go to one slot,
behind a prompt of those who join: that row's first step writes there before anything reads it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from tacit.engines.local.passes.handing import handed
from tacit.engines.local.passes.kv_cache import KeyValueCache
from tacit.engines.local.passes.llama import LlamaForward, Prompts
from tacit.engines.local.passes.packing import power_from, within
from tacit.engines.local.passes.ragged_attention import Spans
from tacit.engines.local.sampling.graphs import StepGraphs

MOST_TOKENS = 16384
"""of a prefill that is recorded: a larger one keeps a GPU busy for longer than its launches take"""
MOST_KEPT = 8
"""recordings, which hold on to their buffers; where more are wanted, all are given up"""

States = tuple[torch.Tensor, torch.Tensor | None]
"""logits and, where asked for, a layer's states, of each prompt"""


class Size(NamedTuple):
    tokens: int
    prompts: int
    longest: int

    @staticmethod
    def of(lengths_U: np.ndarray) -> Size:
        """One of few in which they have room, and a filling of one token at least. Tokens are eighths of a power of two: no
        more than that much is computed for nothing."""
        prompts = max(8, power_from(len(lengths_U) + 1))
        needed = max(128, int(lengths_U.sum()) + prompts - len(lengths_U))
        step = max(16, power_from(needed) // 16)
        tokens = -(-needed // step) * step
        longest = max(int(lengths_U.max()), int(_filling(tokens, prompts, lengths_U).max()))
        return Size(tokens, prompts, power_from(longest))


class FixedPrompts:
    """Prompts of one size, at addresses that stay."""

    def __init__(self, size: Size, device: torch.device) -> None:
        self.size, (tokens, prompts, _) = size, size
        self._all = torch.zeros(3 * tokens + 2 * prompts + 1, dtype=torch.long, device=device)
        self._tokens_N, self._positions_N, self.slots_N, self._ends_U, self._starts = self._all.split(
            (tokens, tokens, tokens, prompts, prompts + 1)
        )
        self._single = torch.arange(prompts + 1, dtype=torch.int32, device=device)

    def fill(self, prompts: Sequence[np.ndarray], slots_N: np.ndarray, spare: int) -> None:
        """With these, whose keys and values go to the slots; those of the filling to the spare one."""
        lengths_U = np.array([len(prompt) for prompt in prompts])
        filling = self.size.tokens - len(slots_N)
        lengths_U = np.append(lengths_U, _filling(self.size.tokens, self.size.prompts, lengths_U))
        tokens_N = np.concatenate([*prompts, np.zeros(filling, dtype=np.int64)])
        ends_U = np.cumsum(lengths_U)
        starts = np.append(0, ends_U)
        packed = np.concatenate([tokens_N, within(lengths_U), slots_N, np.full(filling, spare), ends_U - 1, starts])
        self._all.copy_(handed(packed, self._all.device))

    def prompts(self) -> Prompts:
        starts, longest = self._starts.int(), self.size.longest
        spans, last = Spans(starts, starts, longest, longest), Spans(self._single, starts, 1, longest)
        return Prompts(self._tokens_N, self._positions_N, self._ends_U, spans, last)


class RecordedPrefills:
    """Of one table: each size is recorded when it comes for the second time."""

    def __init__(self, enabled: bool) -> None:
        self._graphs = StepGraphs(enabled)
        self._seen: set[Hashable] = set()
        self._rooms: dict[Hashable, tuple[FixedPrompts, States]] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def clear(self) -> None:
        """Something they read has moved, or there are too many."""
        self._graphs.clear()
        self._rooms.clear()
        self._seen.clear()

    def run(
        self,
        forward: LlamaForward,
        cache: KeyValueCache,
        prompts: Sequence[np.ndarray],
        slots_N: np.ndarray,
        spare: int,
        layer: int | None,
    ) -> States | None:
        """None where it is better not recorded. What is returned is good until the next one."""
        if not self._graphs.enabled or len(slots_N) > MOST_TOKENS:
            return None
        size = Size.of(np.array([len(prompt) for prompt in prompts]))
        key = (size, cache.width, cache.capacity, layer)
        if key not in self._seen:
            self._seen.add(key)
            return None
        if key not in self._rooms:
            if len(self._rooms) >= MOST_KEPT:
                self.clear()
                return None
            self._rooms[key] = FixedPrompts(size, forward.device), _states_of(size, forward, layer)
        fixed, found = self._rooms[key]
        fixed.fill(prompts, slots_N, spare)

        def prefill() -> None:
            sink = partial(cache.put_flat, fixed.slots_N, None)
            for here, state in zip(found, forward.prefill_flat(fixed.prompts(), layer, sink), strict=True):
                if here is not None and state is not None:
                    here.copy_(state)

        self._graphs.run(key, prefill, lambda: _nothing)
        if not self._graphs.enabled:  # it cannot be recorded here
            self._rooms.clear()
        logits, hidden = found
        return logits[: len(prompts)], None if hidden is None else hidden[: len(prompts)]


def _states_of(size: Size, forward: LlamaForward, layer: int | None) -> States:
    """Room for them."""
    logits = torch.empty(size.prompts, forward.vocabulary, device=forward.device)
    hidden = torch.empty(size.prompts, forward.features, dtype=forward.dtype, device=forward.device)
    return logits, None if layer is None else hidden


def _filling(tokens: int, prompts: int, lengths_U: np.ndarray) -> np.ndarray:
    """Lengths of what fills a size up."""
    count, left = prompts - len(lengths_U), tokens - int(lengths_U.sum())
    return left // count + (np.arange(count) < left % count)


def _nothing() -> None:
    """A prefill that is tried writes what it will write again."""
