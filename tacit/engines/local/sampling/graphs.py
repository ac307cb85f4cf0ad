"""CUDA graphs of decode steps: a small model's step is hundreds of kernels of a few microseconds each, and launching them
one by one takes several times as long as running them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from functools import cache
from threading import Lock

import torch

from tacit.engines.local.memory import ran_out

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
            if ran_out(error):
                raise  # a shortage passes, once less is sampled at once; what follows is for devices that cannot record
            warnings.warn(f"sampling goes on without CUDA graphs, more slowly: {error}", stacklevel=2)
            return None
        finally:
            torch.cuda.set_stream(ours)  # torch stays on the other one where a recording cannot be ended
        return graph
