"""The preallocated KV cache of decoding, [slots, capacity, heads, head_dim], and a decode step's attention over it.

Memory order is token-major; on a CPU head-major, which takes a third less time. A step writes each slot's new key and value at
its own position. It then reads a window common to all slots under a mask, with torch's fused attention; on a GPU with the
decode kernel, each slot reads exactly its own positions (fast/attention.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tacit.engines.local.fast.attention import decode_attention, has_decode_kernel, has_prefix_kernel
from tacit.engines.local.fast.layers import has_rope_cache_kernel, rope_into_cache
from tacit.engines.local.memory import empty_cache

RopeAndStore = Callable[[int, Tensor, Tensor, Tensor], None]
"""(layer, qkv [N, features], positions, rope): applies RoPE to queries and keys in place, and stores keys and values"""


@dataclass(frozen=True)
class AttentionShape:
    """A model's attention dimensions."""

    layers: int
    kv_heads: int
    queries_per_kv: int
    head_dim: int
    scale: float
    dtype: torch.dtype
    device: torch.device

    @property
    def heads(self) -> int:
        """query heads"""
        return self.kv_heads * self.queries_per_kv


@dataclass(frozen=True)
class AttentionMetadata:
    """Inputs of attention in one decode step: where its slots write, and what they may read."""

    slots: int
    window: int
    kv_index: tuple[Tensor, ...]
    """where new keys and values go: indices into the flat cache, or into the head-major memory of a layer"""
    mask: Tensor
    positions: Tensor
    rope: Tensor | None = None  # rotations of each slot, if the attention kernel applies RoPE


class KeyValueCache:
    """Memory of `slots` × `capacity` tokens, reused from batch to batch."""

    def __init__(self, shape: AttentionShape, head_major: bool | None = None) -> None:
        """`head_major`: whether each head's tokens are contiguous; default: on a CPU."""
        self.shape = shape
        self.head_major = shape.device.type == "cpu" if head_major is None else head_major
        self.slots = self.capacity = 0
        self.memory: list[Tensor] = []  # per layer: keys, then values
        self._positions = torch.zeros(0, dtype=torch.int64)
        self._visible, self._masked = (torch.tensor(x, dtype=shape.dtype, device=shape.device) for x in (0.0, -torch.inf))

    def resize(self, slots: int, capacity: int, kept_slots: int = 0, kept_tokens: int = 0) -> None:
        """Resize to `slots` × `capacity`; the first `kept_slots` keep their first `kept_tokens` tokens. Results do not depend
        on earlier contents.

        Memory is initialized with zeros, because masking unwritten positions would not hide a NaN.
        """
        if not kept_slots and (slots, capacity) == (self.slots, self.capacity):
            return
        s = self.shape
        size = slots * capacity * s.kv_heads * s.head_dim
        kept = []
        if kept_slots:
            kept = [[part.clone() for part in self.first_tokens(layer, kept_slots, kept_tokens)] for layer in range(s.layers)]
        self.slots = self.capacity = 0  # so that after an interrupt the next call starts over
        if not self.memory or self.memory[0].shape[1] < size:
            self.memory = []  # before allocating: both may not fit
            self.keys = self.values = self._heads = []
            empty_cache(s.device)  # the freed blocks are too small for the new ones
            memory = [torch.zeros(2, size, dtype=s.dtype, device=s.device) for _ in range(s.layers)]
            self._heads, self.memory = [layer.view(-1, s.head_dim) for layer in memory], memory
        if len(self._positions) < capacity:
            self._positions = torch.arange(capacity, device=s.device)
        self._head_starts = torch.zeros(0)
        if self.head_major:  # start of each slot in a layer's memory: [B, heads] for keys, then for values
            keys_BH = torch.arange(slots * s.kv_heads).view(-1, s.kv_heads) * capacity
            self._head_starts = torch.cat((keys_BH, keys_BH + len(self._heads[0]) // 2), 1)
        self.keys = [self.view_slots(memory[0, :size], slots) for memory in self.memory]
        self.values = [self.view_slots(memory[1, :size], slots) for memory in self.memory]
        self.slots, self.capacity = slots, capacity
        for layer, parts in enumerate(kept):
            for target, part in zip(self.first_tokens(layer, kept_slots, kept_tokens), parts, strict=True):
                target.copy_(part)

    def addresses(self) -> tuple[Any, ...]:
        """Addresses and sizes of all tensors that a CUDA graph reads. Values follow the keys, so the size matters."""
        return (self._positions.data_ptr(), *((memory.data_ptr(), memory.shape[1]) for memory in self.memory))

    def view_slots(self, memory: Tensor, slots: int) -> Tensor:
        s = self.shape
        if self.head_major:
            return memory.view(slots, s.kv_heads, -1, s.head_dim).transpose(1, 2)
        return memory.view(slots, -1, s.kv_heads, s.head_dim)

    def first_tokens(self, layer: int, slots: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Views of the first tokens of the first slots: keys and values."""
        return self.keys[layer][:slots, :tokens], self.values[layer][:slots, :tokens]

    def store_padded(self, layer: int, slots: slice | Tensor, keys_NTHD: Tensor, values_NTHD: Tensor) -> None:
        tokens = keys_NTHD.shape[1]
        self.keys[layer][slots, :tokens] = keys_NTHD
        self.values[layer][slots, :tokens] = values_NTHD

    def store(self, kv_index_M: Tensor, source_M: Tensor | None, layer: int, keys_NHD: Tensor, values_NHD: Tensor) -> None:
        """Store packed keys and values at these indices of the flat cache. `source_M`: the token stored at each index, if some
        go to several slots. A CUDA graph of it is valid for any slots × capacity of the same memory."""
        for i, new in enumerate((keys_NHD, values_NHD)):
            new = new if source_M is None else new.index_select(0, source_M)
            if self.head_major:
                cached = (self.keys, self.values)[i][layer]
                cached[kv_index_M // self.capacity, kv_index_M % self.capacity] = new
            else:
                self.memory[layer][i].view(-1, *new.shape[1:]).index_copy_(0, kv_index_M, new)

    def flat_view(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values [slots · capacity, heads, head_dim], in the order of `store`'s indices."""
        keys, values = self.memory[layer].view(2, -1, self.shape.kv_heads, self.shape.head_dim)
        return keys, values

    @property
    def can_extend_prefix(self) -> bool:
        """whether attention can read the keys of scattered slots in place"""
        s = self.shape
        on_gpu = s.device.type == "cuda"
        return not self.head_major and (not on_gpu or has_prefix_kernel(s.device, s.dtype, s.heads, s.kv_heads, s.head_dim))

    def make_rope_and_store(self, kv_index_N: Tensor) -> RopeAndStore | None:
        """A fused kernel that applies RoPE in place and stores keys and values at these indices; None without it."""
        s = self.shape
        if self.head_major or not has_rope_cache_kernel(s.device, s.dtype, s.heads, s.kv_heads, s.head_dim):
            return None

        def rope_and_store(layer: int, qkv_NF: Tensor, positions_N: Tensor, rope: Tensor) -> None:
            heads = qkv_NF.shape[1] // s.head_dim - 2 * s.kv_heads
            rope_into_cache(qkv_NF, heads, positions_N, torch.view_as_real(rope), kv_index_N, *self.flat_view(layer))

        return rope_and_store

    @property
    def uses_decode_kernel(self) -> bool:
        """whether a step reads each slot's own positions instead of a common window"""
        s = self.shape
        return not self.head_major and has_decode_kernel(s.device, s.dtype, s.kv_heads, s.queries_per_kv, s.head_dim)

    def make_metadata(self, positions_B: Tensor, window: int, rope_B: Tensor) -> AttentionMetadata:
        """Metadata of a step in which slot i writes at its position and reads up to it, within `window`. `rope_B`
        [B, 1, head_dim / 2]: rotations of the slots."""
        slots = len(positions_B)
        if self.uses_decode_kernel:
            rope = torch.view_as_real(rope_B.squeeze(1))
            return AttentionMetadata(slots, window, (), positions_B, positions_B, rope)
        if self.head_major:
            kv_index = self._head_starts[:slots] + positions_B[:, None]
        else:
            kv_index = torch.arange(slots, device=positions_B.device) * self.capacity + positions_B
        # [B, 1, 1, W]: 0 up to each slot's position, −∞ beyond
        mask = torch.where(self._positions[:window] > positions_B.view(-1, 1, 1, 1), self._masked, self._visible)
        return AttentionMetadata(slots, window, (kv_index,), mask, positions_B)

    def attend(self, layer: int, q_BHD: Tensor, k_BHD: Tensor, v_BHD: Tensor, step: AttentionMetadata) -> Tensor:
        """Store this step's keys and values, then attend: [B, query heads · head_dim]. RoPE is applied already, unless the
        decode kernel does it."""
        s, keys, values = self.shape, self.keys[layer], self.values[layer]
        if step.rope is not None:
            return decode_attention(q_BHD, k_BHD, v_BHD, keys, values, step.positions, step.rope, s.scale)
        if self.head_major:
            queries = q_BHD.unflatten(1, (s.kv_heads, s.queries_per_kv))
            return self.attend_head_major(layer, queries, torch.cat((k_BHD, v_BHD), 1), step)
        for cached, new in ((keys, k_BHD), (values, v_BHD)):
            cached.view(-1, s.kv_heads, s.head_dim).index_copy_(0, step.kv_index[0], new)
        shape, strides = (step.slots, step.window, s.kv_heads, s.head_dim), keys.stride()
        return attend_last_token(q_BHD, keys.as_strided(shape, strides), values.as_strided(shape, strides), step.mask, s.scale)

    def attend_head_major(self, layer: int, q_BHGD: Tensor, kv_BHD: Tensor, step: AttentionMetadata) -> Tensor:
        """`attend` on a CPU, in few torch calls: queries grouped by key head, keys and values concatenated."""
        s, keys, values = self.shape, self.keys[layer], self.values[layer]
        self._heads[layer].index_put_(step.kv_index, kv_BHD)
        shape, (slot, token, head, feature) = (step.slots, s.kv_heads, step.window, s.head_dim), keys.stride()
        strides = (slot, head, token, feature)
        visible = keys.as_strided(shape, strides), values.as_strided(shape, strides)
        return scaled_dot_product_attention(q_BHGD, *visible, step.mask, scale=s.scale).reshape(step.slots, -1)

    def copy_slots(self, target: Tensor, source: Tensor, tokens: int) -> None:
        for tensor in (*self.keys, *self.values):
            tensor[target, :tokens] = tensor[source, :tokens]


def attend_last_token(q_BHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, mask: Tensor, scale: float) -> Tensor:
    """One query position per sequence, [B, query heads · head_dim]. The query heads of a key head become its queries, so keys
    are never repeated."""
    b, _, heads, dim = k_BSHD.shape
    queries = q_BHD.reshape(b, heads, -1, dim)
    keys, values = k_BSHD.transpose(1, 2), v_BSHD.transpose(1, 2)
    return scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale).reshape(b, -1)
