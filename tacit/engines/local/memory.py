"""Room on a GPU, which several runs may share.

Torch keeps what it has freed, for itself: no other process can have it. And a sampler keeps a cache and recorded graphs from
use to use. Both are given back when there is no room. What then still does not fit is cut finer: neither a gradient, nor a
score, nor a completion depends on how a batch is cut.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

CROWDED = 0.25
"""with less than this share of a GPU free, what is only kept in case it is needed again is given back between phases"""

Result = TypeVar("Result")


def give_back(device: torch.device) -> None:
    """Let other processes have the memory that torch keeps and nothing uses."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def is_crowded(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    free, whole = torch.cuda.mem_get_info(device)
    return free < CROWDED * whole


def free_bytes(device: torch.device) -> int:
    """What torch could still have: free memory, and its own that nothing uses."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def cut_finer(
    work: Callable[[int], Result], budget: int, least: int, make_room: Callable[[], None], what: str
) -> tuple[Result, int]:
    """(`work(budget)`, the budget it was done with): halved, after `make_room()`, each time memory runs out. With a budget of
    `least` or less there is nothing left to cut, and the error is raised."""
    while True:
        try:
            return work(budget), budget
        except torch.OutOfMemoryError:
            if budget <= least:
                raise
        # Outside of the handler: until it is left, the error holds on to every tensor of the attempt.
        make_room()
        smaller = max(least, budget // 2)
        warnings.warn(f"out of GPU memory in {what} of {budget}; it goes on with {smaller}, more slowly", stacklevel=3)
        budget = smaller
