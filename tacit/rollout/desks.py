"""Desks for samplers that keep none: whoever can `sample` can be waited for."""

from __future__ import annotations

from tacit.core.protocols import Desk, DeskSampler, Request, Sampler, Sampling
from tacit.core.types import Completion


def open_desk(sampler: Sampler, sampling: Sampling, layer: int | None, lockstep: bool = False) -> Desk:
    """The sampler's own desk where it keeps one; `lockstep` does without."""
    if isinstance(sampler, DeskSampler) and not lockstep:
        return sampler.desk(sampling, layer)
    return BatchDesk(sampler, sampling, layer)


class BatchDesk:
    """One call of `sample` for all that waits. The longest completion holds up the others."""

    def __init__(self, sampler: Sampler, sampling: Sampling, layer: int | None = None) -> None:
        self._sampler, self._sampling, self._layer = sampler, sampling, layer
        self._waiting: dict[int, Request] = {}
        self._tickets = 0

    def submit(self, request: Request) -> int:
        ticket, self._tickets = self._tickets, self._tickets + 1
        self._waiting[ticket] = request
        return ticket

    def wait(self) -> list[tuple[int, Completion]]:
        waiting, self._waiting = self._waiting, {}
        if not waiting:
            return []
        completions = self._sampler.sample(list(waiting.values()), self._sampling, self._layer)
        return list(zip(waiting, completions, strict=True))

    def close(self) -> None:
        self._waiting = {}
