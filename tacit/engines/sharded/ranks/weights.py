"""The weights a rank trains: its shards of the model, or adapters and value heads, of which every rank has all.

AdamW goes weight by weight, so each rank steps its own shards as plain tensors, and what is the same on all ranks stays so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from tacit.engines.local.learning.weights import TrainedWeights, off_the_grid, places_of
from tacit.engines.local.settings import EngineSettings
from tacit.engines.sharded.ranks.shards import Sharded


class ShardedWeights(TrainedWeights):
    def __init__(
        self,
        sharded: Mapping[str, Any],
        replicated: Mapping[str, nn.Parameter],
        settings: EngineSettings,
        dtype: torch.dtype = torch.float32,
    ):
        """`sharded`: parameters that are DTensors. `dtype`: what passes round them to"""
        self._rounded = dtype
        self.sharded, self.replicated = dict(sorted(sharded.items())), dict(sorted(replicated.items()))
        # A shard of the model and the parameter that is stepped are one piece of memory.
        shards = {name: nn.Parameter(p.detach().to_local()) for name, p in self.sharded.items()}
        super().__init__({**shards, **self.replicated}, settings)

    @torch.no_grad()
    def leave_the_grid(self) -> None:
        super().leave_the_grid()
        if self.steps or self._rounded == torch.float32:
            return
        for name, p in self.sharded.items():
            places = places_of(name, p.shape, p.device)  # of the whole, so that it does not matter who has which part
            own = distribute_tensor(places, p.device_mesh, p.placements, src_data_rank=None).to_local()
            self.master[name].copy_(off_the_grid(self.master[name], own, self._rounded))

    def add_up(self) -> None:
        """After the last backward pass: shards get their gradients, and those of what all ranks have are added up."""
        for name, p in self.sharded.items():
            gradient: Any = p.grad
            self.master[name].grad = None if gradient is None else gradient.to_local()
        own = {name for name in self.replicated if self.master[name].grad is not None}
        for name in sorted(set().union(*from_all(own))):
            master = self.master[name]
            if master.grad is None:
                master.grad = torch.zeros_like(master)
            dist.all_reduce(master.grad)

    def gradient_norm(self) -> torch.Tensor:
        """Of the whole gradient: √(Σ over ranks of their shards' squares + the squares of what all have)."""
        device = next(iter(self.master.values())).device
        shards, shared = (torch.zeros((), dtype=torch.float64, device=device) for _ in range(2))
        for name, master in self.master.items():
            if master.grad is not None:
                total = shards if name in self.sharded else shared
                total += torch.linalg.vector_norm(master.grad, dtype=torch.float64).square()
        dist.all_reduce(shards)
        return (shards + shared).sqrt()

    def clear(self) -> None:
        super().clear()
        for p in self.sharded.values():
            p.grad = None

    def distributed(self, name: str, own: torch.Tensor) -> torch.Tensor:
        """What one rank has for a parameter (a moment, say), as its part of what all have."""
        whole = self.sharded.get(name)
        if whole is None:
            return own
        return DTensor.from_local(
            own, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )


@dataclass(eq=False)
class ShardMember:
    """What belongs to one adapter (or to the whole model, where all parameters are trained)."""

    sharded: dict[str, Any]
    replicated: dict[str, nn.Parameter]
    value_head: nn.Linear | None
    settings: EngineSettings
    dtype: torch.dtype = torch.float32
    """what passes round the model to"""
    reference: Sharded | str | None = None
    """a frozen copy of the model, or the name of the frozen adapter"""
    _weights: ShardedWeights | None = field(default=None, repr=False)

    @property
    def weights(self) -> ShardedWeights:
        """Made on first use: a policy that only plays needs no optimiser."""
        if self._weights is None:
            self._weights = ShardedWeights(self.sharded, self.replicated, self.settings, self.dtype)
        return self._weights

    @property
    def steps(self) -> int:
        return self._weights.steps if self._weights else 0

    def forget_training(self) -> None:
        self._weights = None

    def names(self) -> list[str]:
        return sorted({*self.sharded, *self.replicated})

    def own(self, name: str, masters: bool = True) -> torch.Tensor:
        """One trained tensor, in shards where it is."""
        if name in self.sharded:
            return self.sharded[name].detach()
        split = self._weights is not None and masters
        return (self._weights.master[name] if split and self._weights else self.replicated[name]).detach()

    def whole(self, masters: bool, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """Every trained tensor in the order of their names, gathered one after the other: all ranks must go through them.
        Without `masters` they are rounded to `dtype`, as passes use them."""
        for name in self.names():
            own = self.own(name, masters)
            whole = own.full_tensor() if isinstance(own, DTensor) else own
            yield name, whole if masters or name not in self.sharded else whole.to(dtype)


def from_all(own: Any) -> list[Any]:
    """What each rank has, in their order; all must ask."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found
