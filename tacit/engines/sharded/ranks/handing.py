"""A rank's part of handing weights over to servers: as a file, or tensor by tensor to each of them.

What is given directly is kept in the first rank's host memory until the next version: a server that is started again takes the
version that the others have, though the ranks may have learned on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save as as_bytes

from tacit.engines.local.memory import give_back, is_crowded
from tacit.engines.sharded.pair import GIVES, Pair

Told = list[tuple[str, tuple[int, ...], str]]
"""name, shape and number format of the tensors that come, in their order"""


class HandsOver:
    number: int
    host: str
    device: torch.device
    dtype: torch.dtype
    members: dict[str, Any]

    def __init__(self) -> None:
        self._meeting: dict[int, Any] = {}
        self._pairs: dict[int, Pair] = {}
        self._kept: dict[str, dict[str, torch.Tensor]] = {}

    def weights(self, name: str) -> bytes | None:
        """What a member trains, value head apart, whole and as passes use it; from the first rank."""
        found = dict(self._whole(name))
        return None if self.number else as_bytes(found)

    def write_weights(self, name: str, path: Path) -> str:
        """`weights` into a file, for servers; the first rank writes it, under another name until it is whole. Returns what went
        wrong."""
        written = self.weights(name)
        if written is not None:
            unfinished = path.with_suffix(".unfinished")
            try:
                unfinished.write_bytes(written)
                unfinished.rename(path)
            except OSError as error:
                unfinished.unlink(missing_ok=True)
                return str(error)
        return ""

    def leave_room(self) -> None:
        """What torch only keeps is for others now: a server on this GPU writes next, and takes more than its share at times."""
        if is_crowded(self.device):
            give_back(self.device)

    def keep_weights(self, name: str) -> Told | None:
        """Have `weights` at hand on the first rank, to be given. Returns what will come."""
        self._kept.pop(name, None)  # room for the next
        kept = dict(self._whole(name))
        if self.number:
            return None
        self._kept[name] = kept
        return [(own, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for own, tensor in kept.items()]

    def open_pair(self, server: int) -> tuple[str, int] | None:
        """Where a server can meet the first rank."""
        if self.number:
            return None
        self._pairs.pop(server, None)
        self._meeting[server] = dist.TCPStore(self.host, 0, is_master=True, wait_for_workers=False)
        return self.host, self._meeting[server].port

    def meet(self, server: int) -> str:
        """Returns what went wrong; that concerns the server, and the ranks go on."""

        def meet() -> None:
            self._pairs[server] = Pair(self._meeting[server], GIVES, self.device)

        return self._with(server, meet)

    def give_weights(self, name: str, server: int) -> str:
        """As `meet`."""

        def give() -> None:
            for tensor in self._kept[name].values():
                self._pairs[server].give(tensor)

        return self._with(server, give)

    def _with(self, server: int, work: Callable[[], None]) -> str:
        try:
            if not self.number:
                work()
        except RuntimeError as error:  # all that torch's groups raise
            self._pairs.pop(server, None)
            return str(error).strip().splitlines()[0]
        return ""

    def _whole(self, name: str) -> Iterator[tuple[str, torch.Tensor]]:
        for own, whole in self.members[name].whole(masters=False, dtype=self.dtype):
            if not self.number and not own.startswith("value_head."):
                yield own, whole.detach().to("cpu", copy=True).contiguous()  # learning goes on in the original
