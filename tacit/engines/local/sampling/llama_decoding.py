"""Waves of the Llama family over a preallocated cache; on a GPU, each step is a recorded CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from tacit.core.protocols import Sampling
from tacit.engines.local.passes.kv_cache import ColumnCache, KeyValueCache, RowCache
from tacit.engines.local.passes.llama import LlamaForward, Sink
from tacit.engines.local.sampling.decoding import Lanes, moved
from tacit.engines.local.sampling.graphs import StepGraphs


class LlamaDecoder:
    """`fixed_shapes`: widths and windows come in few sizes over buffers that stay in place, as CUDA graphs need, and the
    host looks at the tokens every few steps only; otherwise they are exact."""

    def __init__(
        self,
        model: Any,
        *,
        prefill_tokens: int | None = None,
        cuda_graphs: bool = True,
        fixed_shapes: bool | None = None,
    ) -> None:
        """`prefill_tokens`: padded prompt tokens computed at once."""
        self.forward = LlamaForward(model)
        self.device = self.forward.device
        on_gpu = self.device.type == "cuda"
        self.fixed_shapes = on_gpu if fixed_shapes is None else fixed_shapes
        self.check_every = 4 if self.fixed_shapes else 1
        self.graphs = StepGraphs(enabled=on_gpu and cuda_graphs)
        # a CPU wants its working set in cache, a GPU wants enough to do
        self._budget = prefill_tokens or (65536 if on_gpu else 1024)
        geometry = self.forward.geometry
        plain = not self.fixed_shapes and geometry.dtype == torch.float32
        self.cache: KeyValueCache = ColumnCache(geometry) if plain else RowCache(geometry)
        self._lanes: dict[int, Lanes] = {}
        self._versions: list[int] = []
        self._addresses: tuple[Any, ...] = ()
        self.refresh(force=True)

    def refresh(self, force: bool = False) -> None:
        """Copy what changed. In-place changes of parameters are noticed by their version counters as well, so that a
        learner that forgets to say so cannot make the sampler use old weights."""
        sources = self.forward.sources()
        versions = [v for t in sources for v in (t.data_ptr(), 0 if t.is_inference() else t._version)]
        if force or versions != self._versions:
            self.forward.refresh()
            self._versions = versions
        self._check_addresses()

    def begin(self, prompts: Sequence[np.ndarray], source_B: np.ndarray, noise_BM: np.ndarray, layer: int | None) -> LlamaWave:
        lengths_N = np.array([len(p) for p in prompts])
        rows, steps = noise_BM.shape
        width, capacity = self.width(rows), self.capacity(int(lengths_N.max()) + steps)
        self.cache.open(width, capacity)
        self.forward.reach(capacity)
        self._check_addresses()
        logits: list[torch.Tensor] = []
        hidden: list[torch.Tensor] = []
        for start, end in _buckets(lengths_N, self._budget):
            first, last = np.searchsorted(source_B, [start, end])
            local = torch.from_numpy(source_B[first:last] - start).to(self.device)
            source = None if last - first == end - start else local
            sink = partial(self._store, slice(first, last), source)
            bucket_logits, bucket_hidden = self._prefill(prompts[start:end], layer, sink)
            logits.append(bucket_logits[local])
            if bucket_hidden is not None:
                hidden.append(bucket_hidden[local])
        lanes = self._open_lanes(width, capacity, steps)
        lanes.start(width, lengths_N[source_B], noise_BM)
        hidden_BD = torch.cat(hidden) if hidden else None
        longest, prefilled = int(lengths_N.max()), int(lengths_N.sum())
        return LlamaWave(self, lanes, torch.cat(logits), hidden_BD, longest, prefilled)

    def width(self, rows: int) -> int:
        """Places for this many rows: exact, or one of few sizes."""
        if not self.fixed_shapes:
            return rows
        power = 1 << (rows - 1).bit_length()
        return power * 3 // 4 if power >= 16 and rows <= power * 3 // 4 else power

    def window(self, columns: int) -> int:
        """Cache columns to read for this many: exact, or one of few sizes."""
        return _round_up(columns, 128 if columns <= 1024 else 512) if self.fixed_shapes else columns

    def capacity(self, columns: int) -> int:
        """Columns a row has in memory. They cost space and no time, and recordings depend on them: fewer sizes still."""
        if not self.fixed_shapes:
            return columns
        return max(256, 1 << (columns - 1).bit_length()) if columns <= 1024 else _round_up(columns, 1024)

    def _prefill(
        self, prompts: Sequence[np.ndarray], layer: int | None, sink: Sink
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        tokens_NT = np.zeros((len(prompts), max(len(p) for p in prompts)), dtype=np.int64)
        for row, prompt in zip(tokens_NT, prompts, strict=True):
            row[: len(prompt)] = prompt
        last_N = torch.tensor([len(p) - 1 for p in prompts], device=self.device)
        return self.forward.prefill(torch.from_numpy(tokens_NT).to(self.device), last_N, layer, sink)

    def _store(self, rows: slice, source: torch.Tensor | None, depth: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Into the cache; `source` says which prompt each row continues, where some share one."""
        self.cache.put(depth, rows, k if source is None else k[source], v if source is None else v[source])

    def _open_lanes(self, width: int, capacity: int, steps: int) -> Lanes:
        if not self.fixed_shapes:
            return Lanes(width, steps, self.device)
        kept = self._lanes.get(capacity)
        if kept is None or kept.places < width:
            kept = self._lanes[capacity] = Lanes(width, capacity, self.device)
            self.graphs.clear()
        return kept

    def _check_addresses(self) -> None:
        addresses = (*self.forward.addresses(), *self.cache.addresses())
        if addresses != self._addresses:
            self.graphs.clear()
            self._addresses = addresses


class LlamaWave:
    def __init__(
        self,
        decoder: LlamaDecoder,
        lanes: Lanes,
        logits_BV: torch.Tensor,
        hidden_BD: torch.Tensor | None,
        longest: int,
        prefilled_tokens: int,
    ) -> None:
        self._decoder, self._logits_BV = decoder, logits_BV
        self._longest = longest
        """no row reads beyond this column"""
        self.hidden_BD = hidden_BD
        self.lanes = lanes
        self.prefilled_tokens = prefilled_tokens

    def first(self, sampling: Sampling) -> None:
        self.lanes.draw(self._logits_BV, sampling)

    def advance(self, sampling: Sampling, steps: int) -> None:
        decoder, lanes = self._decoder, self.lanes
        width, capacity = lanes.width, decoder.cache.capacity
        for _ in range(steps):
            self._longest = min(self._longest + 1, capacity)
            window = min(decoder.window(self._longest), capacity)

            def step(window: int = window) -> None:
                tokens_B, positions_B = lanes.tokens_B[:width], lanes.positions_B[:width]
                logits = decoder.forward.step(tokens_B, positions_B, decoder.cache, window)
                lanes.move_on(capacity)
                lanes.draw(logits, sampling)

            how = (sampling.temperature, sampling.top_p, sampling.top_k)
            key = (width, capacity, window, how)
            decoder.graphs.run(key, step, self._rewind)

    def keep(self, rows: np.ndarray) -> None:
        to, source = moved(rows, self._decoder.device)
        if len(to):
            self._decoder.cache.move(to, source, self._longest)
        self.lanes.keep(rows, self._decoder.width(len(rows)))

    def _rewind(self) -> Any:
        snapshot = self.lanes.snapshot()
        return lambda: self.lanes.restore(snapshot)


def _buckets(lengths_N: np.ndarray, budget: int) -> list[tuple[int, int]]:
    """Cut prompts, sorted by length, into runs whose padded size stays within the budget (one prompt always fits)."""
    runs, start = [], 0
    for end in range(1, len(lengths_N) + 1):
        if end == len(lengths_N) or (end + 1 - start) * lengths_N[end] > budget:
            runs.append((start, end))
            start = end
    return runs


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step
