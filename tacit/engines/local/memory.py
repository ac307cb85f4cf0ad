"""Room on a GPU, which several runs may share.

Torch keeps what it has freed, for itself: no other process can have it. And a sampler keeps a cache and recorded graphs from
use to use. Both are given back when there is no room, by every sampler of this process: a run may have two models. What then
still does not fit is cut finer: neither a gradient, nor a score, nor a completion depends on how a batch is cut. For the same
reason it is cut less finely again once there is more room. And what cannot be cut any finer waits, where others have the
memory: minutes later they may be at something else.

    room = what is free + what torch holds here          all that this process can have; the rest of the GPU is others'
"""

from __future__ import annotations

import gc
import re
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

from tacit.core.errors import NoRoom

CROWDED = 0.25
"""with less than this share of a GPU free, what is only kept in case it is needed again is given back between phases; and
where others hold more than this share, it is worth waiting for them"""
IN_PIECES = 1.5
"""torch holds so many times as much as was ever in use at once: pieces of sizes that do not come again"""
GROWN = 1.25
"""so many times the room there was when less had to do, and more is tried: if that fails too, it waits for as much again"""
WAITS_S = (2.0, 4.0, 8.0, 16.0, *19 * (30.0,))
"""seconds between attempts to have memory that others hold: ten minutes, in which a run beside this one may well be over"""
GIB = 2**30

Result = TypeVar("Result")

_SHORTAGE = re.compile(
    r"cuda.*out of memory|CU\w+_STATUS_ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED.*cublasCreate", re.I | re.S
)


def empty_cache(device: torch.device) -> None:
    """Let other processes have the memory that torch keeps and nothing uses."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


class CacheOwner(Protocol):
    """Keeps on a GPU what it can make again."""

    device: torch.device

    def release(self) -> None:
        """Give it up, unless it is in use at this moment: another thread may be asking."""


_keepers: weakref.WeakSet[CacheOwner] = weakref.WeakSet()


def register_cache_owner(keeper: CacheOwner) -> None:
    """To give up what it keeps, whoever in this process is short of memory."""
    _keepers.add(keeper)


def free_memory(device: torch.device) -> None:
    """Give up whatever this process can make again, and what nobody needs any more: an attempt that failed may be held by a
    ring, an error that a frame of its own traceback has a name for, as frames of a compiler do."""
    for keeper in list(_keepers):
        if keeper.device.type == device.type:
            keeper.release()
    gc.collect()
    empty_cache(device)


def is_nearly_full(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    free, whole = torch.cuda.mem_get_info(device)
    return free < CROWDED * whole


def is_fragmented(device: torch.device) -> bool:
    """Whether torch keeps far more than it has ever used, as it does when every pass has other shapes than the last."""
    if device.type != "cuda":
        return False
    return torch.cuda.memory_reserved(device) > IN_PIECES * torch.cuda.max_memory_allocated(device)


def free_bytes(device: torch.device) -> int:
    """What torch could still have: free memory, and its own that nothing uses. Of the latter not what recordings work in:
    torch counts it as unused between two replays, and gives it to nobody else."""
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + unused - _kept_for_recordings(device))


def _kept_for_recordings(device: torch.device) -> int:
    """Bytes of the pools that CUDA graphs have for themselves in which nothing lies now."""
    index = torch.cuda.current_device() if device.index is None else device.index
    here = [segment for segment in torch.cuda.memory_snapshot() if segment["device"] == index]
    return sum(s["total_size"] - s["allocated_size"] for s in here if tuple(s.get("segment_pool_id", (0, 0))) != (0, 0))


def available_and_total(device: torch.device) -> tuple[int, int]:
    """Bytes that this process has or could have, and those of the whole GPU. A CPU has none to speak of."""
    if device.type != "cuda":
        return 0, 0
    free, whole = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device)), int(whole)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is memory running out: torch's own error; that of a library which asks for memory without torch (cuBLAS for
    its handle, a loader of kernels); or what a shortage has led to, such as a recording that could not be ended.

    Those leave the device usable. An error that does not is never one of them, whatever it says.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, torch.OutOfMemoryError) or (isinstance(cause, RuntimeError) and _SHORTAGE.search(str(cause))):
            return _is_usable()
        cause = cause.__cause__ or cause.__context__
    return False


def _is_usable() -> bool:
    """After an illegal access, for one, every call fails, and this one with them."""
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


class MemoryWait:
    """How long memory is waited for that other processes hold: as long as they hold it, and ten minutes at most."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._waits = device, list(WAITS_S)

    @property
    def can_help(self) -> bool:
        room, whole = available_and_total(self._device)
        return bool(self._waits) and whole - room > CROWDED * whole

    def wait(self, said: str = "") -> None:
        """`said` is told once, and how much others hold."""
        if said and len(self._waits) == len(WAITS_S):
            room, whole = available_and_total(self._device)
            others = f"other processes hold {(whole - room) / GIB:.1f} of this GPU's {whole / GIB:.1f} GiB"
            warnings.warn(f"{said}: {others}. It waits for them, up to {sum(WAITS_S):.0f} s", stacklevel=4)
        time.sleep(self._waits.pop(0))


class AdaptiveBudget:
    """How much is done at once: as chosen, or less since memory ran short, and then more again once there is room."""

    def __init__(self, chosen: int, device: torch.device) -> None:
        self.limit = self.current = chosen
        self._device = device
        self._room = 0
        """that there was when it was last found out how much fits; 0 before the first time"""

    def set_current(self, now: int) -> None:
        """So much fits, in the room there is at this moment."""
        self.current, self._room = now, available_and_total(self._device)[0]

    @property
    def can_grow(self) -> bool:
        """Whether it has not been looked at yet, or there is clearly more room than when less had to do. Only then: an attempt
        that fails is lost time, and as long as memory stays short none is made."""
        return (self.current < self.limit or not self._room) and available_and_total(self._device)[0] > GROWN * self._room

    def fit(
        self,
        work: Callable[[int], Result],
        least: int,
        what: str,
        most: int | None = None,
        let_go: Callable[[], None] = lambda: None,
    ) -> Result:
        """`work(budget)`: halved, after room was made, each time memory runs out. With a budget of `least` or less there is
        nothing left to cut: where others have the memory it is tried again for minutes, and else the error is raised.

        `what` says it in words, with the budget as {}; `most` is what there is to do; `let_go()` gives up what an
        attempt has left behind."""
        budget = min(self.limit, 2 * self.current) if self.current < self.limit and self.can_grow else self.current
        budget = budget if most is None else min(budget, most)
        patience = MemoryWait(self._device)
        while True:
            try:
                result = work(budget)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                smaller = max(least, budget // 2)
                self.set_current(min(self.current, smaller))
                if budget <= least and not patience.can_help:
                    raise torch.OutOfMemoryError(str(error)) from error
            else:
                self.current = max(self.current, budget)
                return result
            # Outside of the handler: until it is left, the error holds on to every tensor of the attempt.
            let_go()
            free_memory(self._device)
            said = f"out of GPU memory in {what.format(budget)}"
            if budget > least:
                warnings.warn(f"{said}; it goes on with {smaller}, more slowly", stacklevel=3)
                budget = smaller
            else:
                patience.wait(said)


def retry_on_oom(work: Callable[[], Result], device: torch.device, what: str) -> Result:
    """`work()`, which cannot be cut: tried again once room has been made, and for minutes where others have the memory."""
    try:
        return work()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    free_memory(device)
    try:
        return AdaptiveBudget(1, device).fit(lambda _: work(), 1, what)
    except torch.OutOfMemoryError as error:
        raise NoRoom(
            f"out of GPU memory in {what}; take a smaller model, train adapters (--engine.lora-rank), or let fewer runs share "
            "the GPU."
        ) from error
