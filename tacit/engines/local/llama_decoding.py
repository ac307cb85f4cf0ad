"""Waves of the Llama family over a preallocated cache; on a GPU, each step is a recorded CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tacit.core.protocols import Sampling
from tacit.engines.local.decoding import Lanes, moved
from tacit.engines.local.graphs import StepGraphs
from tacit.engines.local.llama import LlamaForward

Views = list[tuple[torch.Tensor, torch.Tensor]]


class LlamaDecoder:
    def __init__(self, model: Any, *, prefill_tokens: int | None = None, cuda_graphs: bool = True) -> None:
        """`prefill_tokens`: padded prompt tokens computed at once."""
        self.forward = LlamaForward(model)
        self.device = self.forward.device
        self.on_gpu = self.device.type == "cuda"
        self.check_every = 4 if self.on_gpu else 1
        self.graphs = StepGraphs(enabled=self.on_gpu and cuda_graphs)
        # a CPU wants its working set in cache, a GPU wants enough to do
        self._budget = prefill_tokens or (65536 if self.on_gpu else 2048)
        self._store: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._lanes: dict[tuple[int, int], Lanes] = {}
        self.columns = torch.zeros(0, dtype=torch.long)
        self._versions: list[int] = []
        self._addresses: tuple[int, ...] = ()
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
        width, capacity = self.width(rows), self.window(int(lengths_N.max()) + steps)
        views = self._open(width, capacity)
        logits: list[torch.Tensor] = []
        hidden: list[torch.Tensor] = []
        for start, end in _buckets(lengths_N, self._budget):
            first, last = np.searchsorted(source_B, [start, end])
            local = torch.from_numpy(source_B[first:last] - start).to(self.device)
            bucket_logits, bucket_hidden, cache = self._prefill(prompts[start:end], layer)
            shared = last - first != end - start
            for (keys, values), (k, v) in zip(views, cache, strict=True):
                columns = k.shape[1]
                keys[first:last, :columns] = k[local] if shared else k
                values[first:last, :columns] = v[local] if shared else v
            logits.append(bucket_logits[local])
            if bucket_hidden is not None:
                hidden.append(bucket_hidden[local])
        lanes = self._open_lanes(width, capacity, steps)
        lanes.start(lengths_N[source_B], noise_BM)
        hidden_BD = torch.cat(hidden) if hidden else None
        longest, prefilled = int(lengths_N.max()), int(lengths_N.sum())
        return LlamaWave(self, views, lanes, torch.cat(logits), hidden_BD, longest, prefilled)

    def width(self, rows: int) -> int:
        """Places for this many rows: exact, or on a GPU one of few sizes, each a graph."""
        if not self.on_gpu:
            return rows
        power = 1 << (rows - 1).bit_length()
        return power * 3 // 4 if power >= 16 and rows <= power * 3 // 4 else power

    def window(self, columns: int) -> int:
        """Cache columns to read for this many: exact, or on a GPU one of few sizes."""
        step = (64 if columns <= 512 else 256) if self.on_gpu else 1
        return -(-columns // step) * step

    def _prefill(self, prompts: Sequence[np.ndarray], layer: int | None) -> tuple[torch.Tensor, torch.Tensor | None, Views]:
        tokens_NT = np.zeros((len(prompts), max(len(p) for p in prompts)), dtype=np.int64)
        for row, prompt in zip(tokens_NT, prompts, strict=True):
            row[: len(prompt)] = prompt
        last_N = torch.tensor([len(p) - 1 for p in prompts], device=self.device)
        return self.forward.prefill(torch.from_numpy(tokens_NT).to(self.device), last_N, layer)

    def _open(self, width: int, capacity: int) -> Views:
        """The cache as [width, capacity, heads, head_dim] per layer, in memory that is kept from wave to wave.

        It begins as zeros: columns not yet written are masked, and a mask cannot hide a NaN.
        """
        heads, dim = self.forward.kv_heads, self.forward.head_dim
        size = width * capacity * heads * dim
        if not self._store or self._store[0][0].numel() < size:
            self._store = []  # before the new ones are made: both may not fit
            options: dict[str, Any] = {"dtype": self.forward.dtype, "device": self.device}
            self._store = [(torch.zeros(size, **options), torch.zeros(size, **options)) for _ in range(len(self.forward))]
        if len(self.columns) < capacity:
            self.columns = torch.arange(capacity, device=self.device)
        self.forward.reach(capacity)
        self._check_addresses()
        shape = (width, capacity, heads, dim)
        return [(k[:size].view(shape), v[:size].view(shape)) for k, v in self._store]

    def _open_lanes(self, width: int, capacity: int, steps: int) -> Lanes:
        if not self.on_gpu:
            return Lanes(width, steps, self.device)
        if (width, capacity) not in self._lanes:
            self._lanes[width, capacity] = Lanes(width, capacity, self.device)
        return self._lanes[width, capacity]

    def _check_addresses(self) -> None:
        stored = (self.columns.data_ptr(), *(t.data_ptr() for pair in self._store for t in pair))
        addresses = (*self.forward.addresses(), *stored)
        if addresses != self._addresses:
            self.graphs.clear()
            self._addresses = addresses


class LlamaWave:
    def __init__(
        self,
        decoder: LlamaDecoder,
        views: Views,
        lanes: Lanes,
        logits_BV: torch.Tensor,
        hidden_BD: torch.Tensor | None,
        longest: int,
        prefilled_tokens: int,
    ) -> None:
        self._decoder, self._views, self._logits_BV = decoder, views, logits_BV
        self._longest = longest
        """no row reads beyond this column"""
        self.hidden_BD = hidden_BD
        self.lanes = lanes
        self.prefilled_tokens = prefilled_tokens

    def first(self, sampling: Sampling) -> None:
        self.lanes.draw(self._logits_BV, sampling)

    def advance(self, sampling: Sampling, steps: int) -> None:
        width, capacity = self.lanes.width, self._views[0][0].shape[1]
        views = [(k[:width], v[:width]) for k, v in self._views]
        for _ in range(steps):
            self._longest = min(self._longest + 1, capacity)
            window = min(self._decoder.window(self._longest), capacity)
            columns_W = self._decoder.columns[:window]

            def step(columns_W: torch.Tensor = columns_W) -> None:
                lanes = self.lanes
                logits = self._decoder.forward.step(lanes.tokens_B[:width], lanes.positions_B[:width], views, columns_W)
                lanes.move_on(capacity)
                lanes.draw(logits, sampling)

            how = (sampling.temperature, sampling.top_p, sampling.top_k)
            key = (len(self.lanes.tokens_B), width, capacity, window, how)
            self._decoder.graphs.run(key, step, self._rewind)

    def keep(self, rows: np.ndarray) -> None:
        to, source = moved(rows, self._decoder.device)
        if len(to):
            for keys, values in self._views:
                keys[to, : self._longest] = keys[source, : self._longest]
                values[to, : self._longest] = values[source, : self._longest]
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
