"""CUDA graphs of decode steps: a small model's step is hundreds of kernels of a few microseconds each, and launching them
one by one takes several times as long as running them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable

import torch

from tacit.engines.local.memory import ran_out


class StepGraphs:
    """Records each kind of step once and replays it. A step must read and write tensors that stay where they are."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._stream: torch.cuda.Stream | None = None
        """for trial steps; one for all, since torch keeps what was freed on a stream for that stream alone"""

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
        stream = self._stream = self._stream or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # steps leave nothing behind but their in-place results, and never overlap: they can share their working memory
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        try:
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                step()
        except RuntimeError as error:
            if ran_out(error):
                raise  # a shortage passes, once less is sampled at once; what follows is for devices that cannot record
            warnings.warn(f"sampling goes on without CUDA graphs, more slowly: {error}", stacklevel=2)
            return None
        return graph
