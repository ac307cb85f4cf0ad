"""The preallocated cache of keys and values that decoding reads, [B, S, heads, head_dim].

In memory a token's features lie together; on a CPU a head's do, which are then read in one go: a third less time.
A step writes each row's new token at its own position and reads columns up to a common window, masked per row, with torch's
fused kernel; on a GPU that has the kernel for it, each row reads its own columns (step_attention).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from tacit.engines.local.fast.decode_attention import (
    Beside,
    Chunk,
    attend_chunk_plainly,
    attend_mixed,
    attend_step,
    has_chunk_kernel,
    has_mixed_kernel,
    has_step_kernel,
)
from tacit.engines.local.fast.layers import has_rope_cache_kernel, rope_into_cache
from tacit.engines.local.fast.varlen_attention import has_varlen_kernels
from tacit.engines.local.memory import empty_cache

Rotating = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""gets a layer's projection [N, features], each token's position and the rotations of all: rotates queries and keys where they
lie, and keeps keys and values"""


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

    @property
    def heads(self) -> int:
        """of queries"""
        return self.kv_heads * self.queries_per_kv


@dataclass(frozen=True)
class Reading:
    """One decode step: where its rows write, and what they may read."""

    width: int
    window: int
    slots: tuple[torch.Tensor, ...]
    """where the new features go: rows of the flattened cache, or of a layer's memory as heads"""
    mask: torch.Tensor
    positions: torch.Tensor
    rotations: torch.Tensor | None = None
    """of each row, and behind them of each prompt token that rides along, where attention is to rotate"""
    chunk: Chunk | None = None
    """prompt tokens that ride along; they lie behind the rows"""


class KeyValueCache:
    """Memory that is kept from use to use, seen as `width` rows of `capacity` columns."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self._by_head = geometry.device.type == "cpu"
        self.width = self.capacity = 0
        self._memory: list[torch.Tensor] = []
        """of each layer: keys, then values"""
        self._columns = torch.zeros(0, dtype=torch.int64)
        self._seen, self._beyond = (torch.tensor(x, dtype=geometry.dtype, device=geometry.device) for x in (0.0, -torch.inf))

    def open(self, width: int, capacity: int, rows: int = 0, columns: int = 0) -> None:
        """Be `width` rows of `capacity` columns from now on, of which the first `rows` keep what is in their first `columns`.
        Numbers computed on it do not depend on what was there before.

        Memory begins as zeros: columns not yet written are masked, and a mask cannot hide a NaN.
        """
        if not rows and (width, capacity) == (self.width, self.capacity):
            return
        g = self.geometry
        size = width * capacity * g.kv_heads * g.head_dim
        kept = [[part.clone() for part in self._part(layer, rows, columns)] for layer in range(g.layers)] if rows else []
        self.width = self.capacity = 0  # until all is as it should be: whoever is interrupted here opens it again
        if not self._memory or self._memory[0].shape[1] < size:
            self._memory = []  # before the new one is made: both may not fit
            self._keys = self._values = self._heads = []
            empty_cache(g.device)  # the old pieces are too small for the new ones
            memory = [torch.zeros(2, size, dtype=g.dtype, device=g.device) for _ in range(g.layers)]
            self._heads, self._memory = [one.view(-1, g.head_dim) for one in memory], memory
        if len(self._columns) < capacity:
            self._columns = torch.arange(capacity, device=g.device)
        self._first_slots = self._first_columns(width, capacity) if self._by_head else torch.zeros(0)
        self._keys = [self._view(memory[0, :size], width) for memory in self._memory]
        self._values = [self._view(memory[1, :size], width) for memory in self._memory]
        self.width, self.capacity = width, capacity
        for layer, parts in enumerate(kept):
            for here, part in zip(self._part(layer, rows, columns), parts, strict=True):
                here.copy_(part)

    def addresses(self) -> tuple[Any, ...]:
        """Of all that a recorded step reads; values lie behind the keys, so it matters how much there is."""
        return (self._columns.data_ptr(), *((memory.data_ptr(), memory.shape[1]) for memory in self._memory))

    def _view(self, memory: torch.Tensor, width: int) -> torch.Tensor:
        g = self.geometry
        if self._by_head:
            return memory.view(width, g.kv_heads, -1, g.head_dim).transpose(1, 2)
        return memory.view(width, -1, g.kv_heads, g.head_dim)

    def _first_columns(self, width: int, capacity: int) -> torch.Tensor:
        """Where each row begins in a layer's memory as heads: [B, heads] of the keys, and beside them of the values."""
        heads = self.geometry.kv_heads
        keys_BH = torch.arange(width * heads).view(-1, heads) * capacity
        return torch.cat((keys_BH, keys_BH + len(self._heads[0]) // 2), 1)

    def _mask(self, positions_B: torch.Tensor, window: int) -> torch.Tensor:
        """[B, 1, 1, W]: 0 up to each row's position, −∞ beyond."""
        return torch.where(self._columns[:window] > positions_B.view(-1, 1, 1, 1), self._beyond, self._seen)

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
        to several. What is recorded of it holds for any width and capacity that the same memory is seen as."""
        for i, new in enumerate((keys_NHD, values_NHD)):
            new = new if taken_M is None else new.index_select(0, taken_M)
            if self._by_head:
                cached = (self._keys, self._values)[i][layer]
                cached[slots_M // self.capacity, slots_M % self.capacity] = new
            else:
                self._memory[layer][i].view(-1, *new.shape[1:]).index_copy_(0, slots_M, new)

    def all_slots(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of rows × columns, [slots, heads, head_dim] each, as `put_flat` finds them."""
        keys, values = self._memory[layer].view(2, -1, self.geometry.kv_heads, self.geometry.head_dim)
        return keys, values

    @property
    def reads_on(self) -> bool:
        """whether attention can read keys where they lie here, of rows that lie apart"""
        g = self.geometry
        on_gpu = g.device.type == "cuda"
        return not self._by_head and (not on_gpu or has_varlen_kernels(g.device, g.dtype, g.heads, g.kv_heads, g.head_dim))

    def rotating(self, slots_N: torch.Tensor) -> Rotating | None:
        """What rotates a layer's projection where it lies and puts its keys and values into these slots of rows × columns. None
        where that is not one operation."""
        g = self.geometry
        if self._by_head or not has_rope_cache_kernel(g.device, g.dtype, g.heads, g.kv_heads, g.head_dim):
            return None

        def rotate(layer: int, qkv_NF: torch.Tensor, positions_N: torch.Tensor, cis: torch.Tensor) -> None:
            heads = qkv_NF.shape[1] // g.head_dim - 2 * g.kv_heads
            rope_into_cache(qkv_NF, heads, positions_N, torch.view_as_real(cis), slots_N, *self.all_slots(layer))

        return rotate

    @property
    def reads_own_columns(self) -> bool:
        """whether a step reads each row's own columns, and not a window common to all"""
        g = self.geometry
        return not self._by_head and has_step_kernel(g.device, g.dtype, g.kv_heads, g.queries_per_kv, g.head_dim)

    @property
    def reads_along(self) -> bool:
        """whether prompt tokens can ride along in a step"""
        g = self.geometry
        if self._by_head:
            return True
        sizes = (g.device, g.dtype, g.kv_heads, g.queries_per_kv, g.head_dim)
        if not (self.reads_own_columns and has_chunk_kernel(*sizes)):
            return False
        has_mixed_kernel(*sizes)  # tried now, not in the middle of a step
        return True

    def reading(self, positions_B: torch.Tensor, window: int, cis_B: torch.Tensor, chunk: Chunk | None = None) -> Reading:
        """A step in which row i writes at its position and reads up to it, as far as `window` goes.
        `cis_B` [B, 1, head_dim / 2] are their rotations, and behind them those of the chunk."""
        rows = len(positions_B)
        if self.reads_own_columns:
            return Reading(rows, window, (), positions_B, positions_B, torch.view_as_real(cis_B.squeeze(1)), chunk)
        if self._by_head:
            slots = self._first_slots[:rows] + positions_B[:, None]
        else:
            slots = torch.arange(rows, device=positions_B.device) * self.capacity + positions_B
        return Reading(rows, window, (slots,), self._mask(positions_B, window), positions_B, chunk=chunk)

    def attend(self, layer: int, q_BHD: torch.Tensor, k_BHD: torch.Tensor, v_BHD: torch.Tensor, step: Reading) -> torch.Tensor:
        """Write this step's keys and values, then attend: [B, query heads · head_dim]. Queries and keys come rotated, unless
        rows read their own columns: that kernel rotates them."""
        g, keys, values = self.geometry, self._keys[layer], self._values[layer]
        if step.chunk is not None:
            return self._attend_mixed(layer, q_BHD, k_BHD, v_BHD, step, step.chunk)
        if step.rotations is not None:
            return attend_step(q_BHD, k_BHD, v_BHD, keys, values, step.positions, step.rotations, g.scale)
        if self._by_head:
            queries = q_BHD.unflatten(1, (g.kv_heads, g.queries_per_kv))
            return self.attend_by_head(layer, queries, torch.cat((k_BHD, v_BHD), 1), step)
        for cached, new in ((keys, k_BHD), (values, v_BHD)):
            cached.view(-1, g.kv_heads, g.head_dim).index_copy_(0, step.slots[0], new)
        shape, strides = (step.width, step.window, g.kv_heads, g.head_dim), keys.stride()
        return attend_last(q_BHD, keys.as_strided(shape, strides), values.as_strided(shape, strides), step.mask, g.scale)

    def _attend_mixed(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: Reading, chunk: Chunk
    ) -> torch.Tensor:
        """Rows, and behind them prompt tokens; neither reads what the other writes, see mixed_attention."""
        g, keys, values, rows = self.geometry, self._keys[layer], self._values[layer], step.width
        if step.rotations is None:
            attended = self.attend(layer, q[:rows], k[:rows], v[:rows], replace(step, chunk=None))
            rest = attend_chunk_plainly(q[rows:], k[rows:], v[rows:], keys, values, chunk.blocks_N4, g.scale)
            return torch.cat((attended, rest))
        return attend_mixed(q, Beside(k, v, keys, values, step.positions, chunk.blocks_N4, step.rotations, g.scale))

    def attend_by_head(self, layer: int, q_BHGD: torch.Tensor, kv_BHD: torch.Tensor, step: Reading) -> torch.Tensor:
        """The same on a CPU, in as few calls: queries come by the key head they share, keys and values side by side."""
        g, keys, values = self.geometry, self._keys[layer], self._values[layer]
        self._heads[layer].index_put_(step.slots, kv_BHD)
        shape, (row, column, head, feature) = (step.width, g.kv_heads, step.window, g.head_dim), keys.stride()
        seen = keys.as_strided(shape, (row, head, column, feature)), values.as_strided(shape, (row, head, column, feature))
        return scaled_dot_product_attention(q_BHGD, *seen, step.mask, scale=g.scale).reshape(step.width, -1)

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
