"""The preallocated cache of keys and values that decoding reads, [B, S, heads, head_dim].

In memory a token's features lie together; on a CPU a head's do, which are then read in one go: a third less time.
A step writes each row's new token at its own position and reads columns up to a common window, masked per row, with torch's
fused kernel; on a GPU that has the kernel for it, each row reads its own columns (step_attention).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from tacit.engines.local.memory import give_back
from tacit.engines.local.passes.step_attention import attend_step, has_step_kernel


@dataclass(frozen=True)
class Geometry:
    """What the cache needs to know of a model."""

    layers: int
    kv_heads: int
    queries_per_kv: int
    head_dim: int
    scale: float
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Reading:
    """One decode step: where its rows write, and what they may read."""

    width: int
    window: int
    slots: tuple[torch.Tensor, ...]
    """where the new features go: rows and columns, or rows of the flattened cache"""
    mask: torch.Tensor
    positions: torch.Tensor
    rotations: torch.Tensor | None = None
    """of all positions, where attention is to rotate"""


class KeyValueCache:
    """Memory that is kept from use to use, seen as `width` rows of `capacity` columns."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self._by_head = geometry.device.type == "cpu"
        self.width = self.capacity = 0
        self._memory: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._columns = torch.zeros(0, dtype=torch.int32)

    def open(self, width: int, capacity: int, rows: int = 0, columns: int = 0) -> None:
        """Be `width` rows of `capacity` columns from now on, of which the first `rows` keep what is in their first `columns`.
        Numbers computed on it do not depend on what was there before.

        Memory begins as zeros: columns not yet written are masked, and a mask cannot hide a NaN.
        """
        g = self.geometry
        size = width * capacity * g.kv_heads * g.head_dim
        kept = [[part.clone() for part in self._part(layer, rows, columns)] for layer in range(g.layers)] if rows else []
        if not self._memory or self._memory[0][0].numel() < size:
            self._memory = []  # before the new one is made: both may not fit
            self._keys = self._values = []
            give_back(g.device)  # the old pieces are too small for the new ones
            options: dict[str, Any] = {"dtype": g.dtype, "device": g.device}
            self._memory = [(torch.zeros(size, **options), torch.zeros(size, **options)) for _ in range(g.layers)]
        if len(self._columns) < capacity:
            self._columns = torch.arange(capacity, dtype=torch.int32, device=g.device)
        self.width, self.capacity = width, capacity
        self._keys = [self._seen(k[:size]) for k, _ in self._memory]
        self._values = [self._seen(v[:size]) for _, v in self._memory]
        for layer, parts in enumerate(kept):
            for here, part in zip(self._part(layer, rows, columns), parts, strict=True):
                here.copy_(part)

    def addresses(self) -> tuple[Any, ...]:
        return (self._columns.data_ptr(), *(t.data_ptr() for pair in self._memory for t in pair))

    def _seen(self, memory: torch.Tensor) -> torch.Tensor:
        g = self.geometry
        if self._by_head:
            return memory.view(self.width, g.kv_heads, self.capacity, g.head_dim).transpose(1, 2)
        return memory.view(self.width, self.capacity, g.kv_heads, g.head_dim)

    def _mask(self, positions_B: torch.Tensor, window: int) -> torch.Tensor:
        """[B, W]: 0 up to each row's position, −∞ beyond."""
        beyond = self._columns[None, :window] > positions_B.int()[:, None]
        mask = torch.zeros(beyond.shape, dtype=self.geometry.dtype, device=self.geometry.device)
        return mask.masked_fill_(beyond, float("-inf"))

    def _part(self, layer: int, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The first columns of the first rows: keys and values, as views."""
        return self._keys[layer][:rows, :columns], self._values[layer][:rows, :columns]

    def put(self, layer: int, rows: slice | torch.Tensor, keys_NTHD: torch.Tensor, values_NTHD: torch.Tensor) -> None:
        """Prefilled keys and values of these rows."""
        columns = keys_NTHD.shape[1]
        self._keys[layer][rows, :columns] = keys_NTHD
        self._values[layer][rows, :columns] = values_NTHD

    def put_flat(
        self, slots_M: torch.Tensor, taken_M: torch.Tensor | None, layer: int, keys_NHD: torch.Tensor, values_NHD: torch.Tensor
    ) -> None:
        """Prefilled keys and values end to end, each at its slot of rows × columns; `taken` says which go there, where some go
        to several."""
        for cached, new in ((self._keys[layer], keys_NHD), (self._values[layer], values_NHD)):
            new = new if taken_M is None else new.index_select(0, taken_M)
            if self._by_head:
                cached[slots_M // self.capacity, slots_M % self.capacity] = new
            else:
                cached.flatten(0, 1).index_copy_(0, slots_M, new)

    @property
    def reads_own_columns(self) -> bool:
        """whether a step reads each row's own columns, and not a window common to all"""
        g = self.geometry
        return has_step_kernel(g.device, g.dtype, g.kv_heads, g.queries_per_kv, g.head_dim)

    def reading(self, positions_B: torch.Tensor, window: int, rotations: torch.Tensor) -> Reading:
        """A step in which row i writes at its position and reads up to it, as far as `window` goes."""
        if self.reads_own_columns:
            return Reading(len(positions_B), window, (), positions_B, positions_B, rotations)
        rows_B = torch.arange(len(positions_B), device=positions_B.device)
        slots = (rows_B, positions_B) if self._by_head else (rows_B * self.capacity + positions_B,)
        return Reading(len(positions_B), window, slots, self._mask(positions_B, window)[:, None, None], positions_B)

    def attend(self, layer: int, q_BHD: torch.Tensor, k_BHD: torch.Tensor, v_BHD: torch.Tensor, step: Reading) -> torch.Tensor:
        """Write this step's keys and values, then attend: [B, query heads · head_dim]. Queries and keys come rotated, unless
        rows read their own columns: that kernel rotates them."""
        g, keys, values = self.geometry, self._keys[layer], self._values[layer]
        if step.rotations is not None:
            return attend_step(q_BHD, k_BHD, v_BHD, keys, values, step.positions, step.rotations, g.scale)
        for cached, new in ((keys, k_BHD), (values, v_BHD)):
            if self._by_head:
                cached.index_put_(step.slots, new)
            else:
                cached.view(-1, g.kv_heads, g.head_dim).index_copy_(0, step.slots[0], new)
        shape, strides = (step.width, step.window, g.kv_heads, g.head_dim), keys.stride()
        return attend_last(q_BHD, keys.as_strided(shape, strides), values.as_strided(shape, strides), step.mask, g.scale)

    def move(self, to: torch.Tensor, source: torch.Tensor, columns: int) -> None:
        """Rows `to` become copies of rows `source`, as far as `columns`."""
        for tensor in (*self._keys, *self._values):
            tensor[to, :columns] = tensor[source, :columns]


def attend_last(
    q_BHD: torch.Tensor, k_BSHD: torch.Tensor, v_BSHD: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """One query position per row, [B, query heads · head_dim]. The query heads that share a key head are its queries, so
    keys are never repeated."""
    b, _, heads, dim = k_BSHD.shape
    queries = q_BHD.reshape(b, heads, -1, dim)
    keys, values = k_BSHD.transpose(1, 2), v_BSHD.transpose(1, 2)
    return scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale).reshape(b, -1)
