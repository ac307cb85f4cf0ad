"""Llama-family inference over the weights of a transformers model: RMSNorm, grouped-query attention, RoPE, SwiGLU.

Transformers' forward pass launches several times as many operations as the math needs; in decoding, one token per sequence,
these launches are most of the cost. `LlamaLayer` is the reference layer:

    [q; k; v] = Wqkv RMSNorm(h)                  one product, with biases and LoRA
    q, k      = RoPE(q, k)                       as complex numbers
    h        += Wo attention(q, cached k, cached v)
    h        += Wdown (silu(g) · u)              with [g; u] = Wgate_up RMSNorm(h)

`LlamaForward` runs it in `prefill_varlen` (packed prompts), `prefill_padded` and `decode_step`. Two faster versions of a decode
step are `CpuDecodeStep` (float32 on a CPU) and `lora_decode` (LoRA on a GPU, lora_step.py).

Query and key features are permuted so that the two halves of each RoPE pair are adjacent: the rotation is then one complex
product, and dot products do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention, silu

from tacit.core.types import HiddenState
from tacit.engines.local.fast.attention import SequenceLayout, attend_varlen, has_flash_attention
from tacit.engines.local.fast.kv_cache import AttentionMetadata, AttentionShape, KeyValueCache, RopeAndStore, attend_last_token
from tacit.engines.local.fast.layers import MIN_TOKENS_TO_COMPILE, CompiledSamplerOps, SamplerOps, can_compile
from tacit.engines.local.fast.lora_step import has_lora_decode, lora_decode
from tacit.engines.local.fast.projections import FAMILY, FusedLinear, UnsupportedModule
from tacit.engines.local.packing import ragged_arange, to_device
from tacit.engines.local.pooling import attention_padded, attention_varlen, pool_padded, pool_varlen

QKV_TABLE_LIMIT = 1024
"""largest vocabulary for which the first layer's q, k and v are precomputed for every token after each weight update"""

StoreKV = Callable[[int, Tensor, Tensor], None]  # (layer, keys, values): stores them in the KV cache
QKV = tuple[Tensor, Tensor, Tensor]


class LlamaLayer:
    """One transformer block over the module's own weights. `ops` are the eager or compiled RMSNorm, RoPE and SwiGLU."""

    def __init__(self, layer: Any, shape: AttentionShape) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._dim, self._kv_heads, self._heads = shape.head_dim, shape.kv_heads, shape.heads
        pairs_D = torch.arange(self._dim, device=shape.device).view(2, -1).T.reshape(-1)
        rotated = self._heads + self._kv_heads
        qk_order = (torch.arange(rotated, device=pairs_D.device)[:, None] * self._dim + pairs_D).view(-1)
        v_order = torch.arange(rotated * self._dim, (rotated + self._kv_heads) * self._dim, device=pairs_D.device)
        self._pairs_D = pairs_D
        self.qkv = FusedLinear([attention.q_proj, attention.k_proj, attention.v_proj], torch.cat([qk_order, v_order]))
        self.out = FusedLinear([attention.o_proj])
        self.gate_up = FusedLinear([mlp.gate_proj, mlp.up_proj])
        self.down = FusedLinear([mlp.down_proj])
        self.projections = (self.qkv, self.out, self.gate_up, self.down)
        self._activation = silu if mlp.config.hidden_act == "silu" else mlp.act_fn
        self.input_norm, self.mlp_norm = layer.input_layernorm, layer.post_attention_layernorm
        self._qk_norms = (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None
        self.has_qk_norm, self.uses_silu = self._qk_norms is not None, self._activation is silu
        self._qk_weight: Tensor | None = None
        self.refresh()

    def refresh(self) -> None:
        if self._qk_norms is not None:
            q, k = (norm.weight[self._pairs_D] for norm in self._qk_norms)
            fresh = torch.cat([q.expand(self._heads, -1), k.expand(self._kv_heads, -1)])
            self._qk_weight = fresh if self._qk_weight is None else self._qk_weight.copy_(fresh)

    @property
    def norms(self) -> list[Any]:
        return [self.input_norm, self.mlp_norm, *(self._qk_norms or ())]

    @property
    def norm_tensors(self) -> list[Tensor]:
        return [t for t in (self.input_norm.weight, self.mlp_norm.weight, self._qk_weight) if t is not None]

    def compute_qkv(self, h: Tensor, rope: Tensor | None, ops: type[SamplerOps] = SamplerOps) -> QKV:
        """Queries, keys and values, [..., heads, head_dim] each, with RoPE; `rope=None`: without, for kernels that apply it."""
        return self.split_heads(self.project_qkv(h, ops), rope, ops)

    def project_qkv(self, h: Tensor, ops: type[SamplerOps], queries: bool = True) -> Tensor:
        """[..., features] before RoPE; `queries=False`: keys and values only."""
        x = ops.rms_norm(h, self.input_norm)
        return self.qkv(x) if queries else self.qkv.project_from(self._heads * self._dim, x)

    def split_heads(self, qkv: Tensor, rope: Tensor | None, ops: type[SamplerOps] = SamplerOps) -> QKV:
        """Split a projection into heads; apply the QK norm, if any, and RoPE. Without queries q is empty."""
        heads = qkv.unflatten(-1, (-1, self._dim))
        queries = heads.shape[-2] - 2 * self._kv_heads
        qk, v = heads.split((queries + self._kv_heads, self._kv_heads), dim=-2)
        if self._qk_norms is not None and self._qk_weight is not None:
            weight = self._qk_weight[self._heads - queries :]
            qk = rms_norm(qk, qk.shape[-1:], None, self._qk_norms[0].variance_epsilon) * weight
        if rope is not None:
            qk = ops.apply_rope(qk, rope)
        q, k = qk.split((queries, self._kv_heads), dim=-2)
        return q, k, v

    def finish(self, h: Tensor, attended: Tensor, ops: type[SamplerOps] = SamplerOps) -> Tensor:
        """Everything after attention: output projection and MLP. Changes `h` in place and returns it."""
        h = self.out.add_to(h, attended)
        return self.down.add_to(h, ops.swiglu(self.gate_up(ops.rms_norm(h, self.mlp_norm)), self._activation))


class CpuDecodeStep:
    """A float32 decode step on a CPU with a fixed number of slots. With few slots most torch calls take longer than their
    arithmetic, so calls are minimized: every intermediate is preallocated, and its views (RoPE pairs, heads, gate half) are
    made once."""

    def __init__(self, slots: int, width: int, inner: int, epsilon: float, shape: AttentionShape) -> None:
        """`width` of the residual stream, `inner` of the MLP, `epsilon` of the norms."""
        kv_heads, heads, dim = shape.kv_heads, shape.heads, shape.head_dim
        self.slots = slots
        with torch.inference_mode(False):
            self._length, self._normed = torch.empty(slots, 1), torch.empty(slots, width)
            self._qkv = torch.empty(slots, (heads + 2 * kv_heads) * dim)
            self._gate_up = torch.empty(slots, 2 * inner)
            by_head = self._qkv.view(slots, -1, dim)
            self._pairs = torch.view_as_complex(by_head[:, : heads + kv_heads].unflatten(-1, (-1, 2)))
            self._q, self._kv = by_head[:, :heads].unflatten(1, (kv_heads, -1)), by_head[:, heads:]
            self._gate, self._up = self._gate_up.chunk(2, dim=-1)
            self._epsilon = torch.tensor(epsilon)

    def __call__(
        self,
        h_BD: Tensor,
        layers: list[LlamaLayer],
        first_qkv_VF: Tensor | None,
        tokens_B: Tensor,
        rope_B: Tensor,
        cache: KeyValueCache,
        metadata: AttentionMetadata,
    ) -> None:
        """Run all layers; changes `h_BD` in place. `first_qkv_VF`: the first layer's projection of every token, if known."""
        for depth, layer in enumerate(layers):
            if depth == 0 and first_qkv_VF is not None:
                torch.index_select(first_qkv_VF, 0, tokens_B, out=self._qkv)
            else:
                layer.qkv.write_plain_to(self._qkv, self.rms_norm(h_BD, layer.input_norm.weight))
            self._pairs.mul_(rope_B)
            layer.out.add_plain_to(h_BD, cache.attend_head_major(depth, self._q, self._kv, metadata))
            layer.gate_up.write_plain_to(self._gate_up, self.rms_norm(h_BD, layer.mlp_norm.weight))
            silu(self._gate, inplace=True).mul_(self._up)
            layer.down.add_plain_to(h_BD, self._gate)

    def rms_norm(self, h_BD: Tensor, weight_D: Tensor) -> Tensor:
        """w · h / √(‖h‖² / D + ε). The result is overwritten by the next call."""
        return _rms_norm(h_BD, weight_D, self._epsilon, self._length, self._normed)


def _rms_norm(h_BD: Tensor, weight_D: Tensor, epsilon: Tensor, length_B: Tensor, out: Tensor) -> Tensor:
    vector_norm(h_BD, 2, -1, True, out=length_B)
    torch.addcmul(epsilon, length_B, length_B, value=1.0 / h_BD.shape[-1], out=length_B).rsqrt_()
    return torch.mul(h_BD, length_B, out=out).mul_(weight_D)


@dataclass(frozen=True, eq=False)
class CachedPrefixes:
    """Prefixes of prompts in the KV cache."""

    cached_U: np.ndarray  # tokens of each prefix
    kv_start_U: np.ndarray  # start of each prefix in the flat cache


@dataclass(frozen=True, eq=False)
class PackedPrompts:
    """Concatenated prompts without padding, on the device."""

    tokens_N: Tensor
    positions_N: Tensor
    ends_U: Tensor  # index of each prompt's last token
    layout: SequenceLayout
    last_layout: SequenceLayout  # for the last token of each prompt as the only query

    @staticmethod
    def pack(prompts: Sequence[np.ndarray], device: torch.device, prefixes: CachedPrefixes | None = None) -> PackedPrompts:
        """With `prefixes`, the cached beginnings of the prompts, `prompts` are the rest of each."""
        lengths_U = np.array([len(prompt) for prompt in prompts])
        positions_N = ragged_arange(lengths_U) + (0 if prefixes is None else np.repeat(prefixes.cached_U, lengths_U))

        def make_layout(queries_U: np.ndarray) -> SequenceLayout:
            if prefixes is None:
                return SequenceLayout.of(queries_U, lengths_U, device)
            return SequenceLayout.in_cache(queries_U, prefixes.cached_U + lengths_U, prefixes.kv_start_U, device)

        return PackedPrompts(
            tokens_N=to_device(np.concatenate(prompts), device),
            positions_N=to_device(positions_N, device),
            ends_U=to_device(np.cumsum(lengths_U) - 1, device),
            layout=make_layout(lengths_U),
            last_layout=make_layout(np.ones_like(lengths_U)),
        )


class LlamaForward:
    """Weights and forward passes. Raises UnsupportedModule for a model whose computation differs from Llama's."""

    def __init__(self, model: Any) -> None:
        """`model`: a transformers causal LM of the family, whose linear layers may carry LoRA."""
        config, body = model.config, model.model
        if config.model_type not in FAMILY:
            raise UnsupportedModule(f"model type {config.model_type!r}")
        if type(body.embed_tokens) is not nn.Embedding:
            raise UnsupportedModule(f"{type(body.embed_tokens).__name__} is not a plain embedding")
        if body.rotary_emb.rope_type in ("dynamic", "longrope"):
            raise UnsupportedModule("RoPE frequencies depend on the length")
        self._embed: nn.Embedding = body.embed_tokens
        self._rotary = body.rotary_emb
        self._norm = body.norm
        self.head = FusedLinear([model.lm_head])
        attention = body.layers[0].self_attn
        self.shape = AttentionShape(
            layers=len(body.layers),
            kv_heads=config.num_key_value_heads,
            queries_per_kv=config.num_attention_heads // config.num_key_value_heads,
            head_dim=attention.head_dim,
            scale=attention.scaling,
            dtype=self.dtype,
            device=self.device,
        )
        if config.model_type == "mistral":  # every layer has a sliding window, and only the configuration says so
            windows = [config.sliding_window]
        else:
            windows = [getattr(layer.self_attn, "sliding_window", None) for layer in body.layers]
        self.max_length: int | None = min((w for w in windows if w), default=None)
        """the shortest sliding window: attention here is full, so longer sequences would differ from the model's own"""
        self._layers = [LlamaLayer(layer, self.shape) for layer in body.layers]
        self._projections = [self.head, *(p for layer in self._layers for p in layer.projections)]
        self._unfused = [self._embed, self._norm, *(norm for layer in self._layers for norm in layer.norms)]
        """modules with parameters that are not part of a projection"""
        self._rope = self.make_rope(256)
        compiles = can_compile(self.device) and config.hidden_act == "silu"
        self._step_ops: type[SamplerOps] = CompiledSamplerOps if compiles else SamplerOps
        self._cpu_step: CpuDecodeStep | None = None
        self.cpu_step_allowed: bool | None = None
        self._lora_step_allowed: bool | None = None
        """whether the weights in use allow the fast steps; None: not checked since they changed"""
        self._first_qkv_VF: Tensor | None = None
        """the first layer's q, k and v of every token, before RoPE; None: not computed since the weights changed"""

    def __len__(self) -> int:
        return len(self._layers)

    @property
    def dtype(self) -> torch.dtype:
        return self._embed.weight.dtype

    @property
    def device(self) -> torch.device:
        return self._embed.weight.device

    @property
    def features(self) -> int:
        return self._embed.weight.shape[1]

    @property
    def weights_per_layer(self) -> int:
        return sum(projection.weight.numel() for projection in self._layers[0].projections)

    @property
    def vocabulary(self) -> int:
        return self.head.weight.shape[0]

    def refresh(self) -> None:
        """Copy the current weights, with the active adapter."""
        self.cpu_step_allowed = self._lora_step_allowed = self._first_qkv_VF = None
        for projection in self._projections:
            projection.refresh()
        for layer in self._layers:
            layer.refresh()

    def source_parameters(self) -> list[Tensor]:
        """Every parameter that is read or copied; `refresh` is only needed if one has changed."""
        modules = self._unfused + [m for projection in self._projections for m in projection.source_modules()]
        return [t for module in modules for t in module._parameters.values() if t is not None]

    def addresses(self) -> tuple[Any, ...]:
        """Addresses of all tensors that a step reads; a CUDA graph is valid while they do not change."""
        tensors = [self._embed.weight, self._norm.weight, self._rope]
        tensors += [t for projection in self._projections for t in projection.tensors()]
        tensors += [t for layer in self._layers for t in layer.norm_tensors]
        return tuple((t.data_ptr(), t.shape) for t in tensors)

    @property
    def rope_length(self) -> int:
        """positions with precomputed rotations"""
        return len(self._rope)

    def extend_rope(self, length: int) -> None:
        if length > self.rope_length:
            self._rope = self.make_rope(max(length, 2 * self.rope_length))

    @property
    def supports_varlen(self) -> bool:
        """whether packed prompts can be prefilled without padding"""
        return has_flash_attention(self.device, self.dtype, self.shape.head_dim)

    def prefill_varlen(
        self,
        prompts: PackedPrompts,
        hidden: HiddenState | None,
        store: StoreKV,
        rope_and_store: RopeAndStore | None = None,
        cached: Callable[[int], tuple[Tensor, Tensor]] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """`prefill_padded` for packed prompts. Keys and values [N, heads, head_dim] go to `store`, or through the fused
        `rope_and_store` if possible. `cached(layer)`: all cached keys and values, if the prompts continue cached prefixes. Does
        not synchronize with the host."""
        ops = self._step_ops if len(prompts.tokens_N) >= MIN_TOKENS_TO_COMPILE else SamplerOps
        positions_N, scale, starts = prompts.positions_N, self.shape.scale, prompts.layout.cu_seqlens_q
        fused = rope_and_store is not None and not self._layers[0].has_qk_norm
        rope_N = None if fused else self._rope[positions_N, None]

        def compute_qkv(depth: int, h: Tensor, queries: bool) -> QKV:
            qkv = self._layers[depth].project_qkv(h, ops, queries)
            if rope_and_store is not None and fused:
                rope_and_store(depth, qkv, positions_N, self._rope)
            q, k, v = self._layers[depth].split_heads(qkv, rope_N, ops)
            if not fused:
                store(depth, k, v)
            return (q, k, v) if cached is None else (q, *cached(depth))

        def attend(layout: SequenceLayout, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend_varlen(q, k, v, layout, scale).flatten(1)

        def pool(h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return pool_varlen(h, starts, hidden.pooling if hidden else "", partial(attention_varlen, q, k, starts, scale))

        h, ends_U = embedding(prompts.tokens_N, self._embed.weight), prompts.ends_U
        attends = partial(attend, prompts.layout), partial(attend, prompts.last_layout)
        return self._prefill(h, ends_U, positions_N[ends_U], hidden, compute_qkv, *attends, pool, ops)

    def prefill_padded(
        self, tokens_NT: Tensor, last_N: Tensor, hidden: HiddenState | None, store: StoreKV
    ) -> tuple[Tensor, Tensor | None]:
        """Right-padded prompts that end at column `last`: logits [N, V] and the hidden state [N, D] if requested.
        `store` gets each layer's keys and values [N, T, heads, head_dim].

        Causal attention never looks right, so padding needs no mask.
        """
        n, t = tokens_NT.shape
        rope_T, scale = self._rope[:t, None], self.shape.scale

        def compute_qkv(depth: int, h: Tensor, queries: bool) -> QKV:
            q, k, v = self._layers[depth].split_heads(self._layers[depth].project_qkv(h, SamplerOps, queries), rope_T)
            store(depth, k, v)
            return q, k, v

        def attend_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            padding_NT = torch.arange(t, device=tokens_NT.device) > last_N[:, None]
            mask_NT = torch.zeros(n, t, dtype=q.dtype, device=q.device).masked_fill_(padding_NT, float("-inf"))
            return attend_last_token(q, k, v, mask_NT[:, None, None], scale)

        def pool(h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return pool_padded(h, last_N, hidden.pooling if hidden else "", partial(attention_padded, q, k, last_N, scale))

        h, last = embedding(tokens_NT, self._embed.weight), (torch.arange(n, device=tokens_NT.device), last_N)
        return self._prefill(h, last, last_N, hidden, compute_qkv, self._causal_attention, attend_last, pool, SamplerOps)

    def _prefill(
        self,
        h: Tensor,
        last: Tensor | tuple[Tensor, ...],
        last_positions: Tensor,
        hidden: HiddenState | None,
        compute_qkv: Callable[[int, Tensor, bool], QKV],
        attend: Callable[..., Tensor],
        attend_last: Callable[..., Tensor],
        pool: Callable[..., Tensor],
        ops: type[SamplerOps],
    ) -> tuple[Tensor, Tensor | None]:
        """All layers. `last` indexes the last tokens of the prompts. The top layer's queries and MLP are computed for these
        tokens only, unless the pooled state of that layer is requested."""
        layer = None if hidden is None else hidden.layer
        pooled = pool(h, h, h) if layer == 0 else None
        for depth, block in enumerate(self._layers[:-1]):
            q, k, v = compute_qkv(depth, h, True)
            h = block.finish(h, attend(q, k, v), ops)
            if layer == depth + 1:
                pooled = pool(h, q, k)
        top, h_last = self._layers[-1], h[last]
        needs_all = hidden is not None and hidden.pooling != "last" and layer == len(self)
        q, k, v = compute_qkv(len(self) - 1, h, needs_all)
        if needs_all:
            pooled = pool(self.final_norm(top.finish(h, attend(q, k, v), ops)), q, k)
        q, _, _ = top.compute_qkv(h_last, self._rope[last_positions, None])
        h_last = self.final_norm(top.finish(h_last, attend_last(q, k, v)))
        if layer == len(self) and not needs_all:
            pooled = h_last
        return self.head.to_float32(h_last), pooled

    def decode_step(self, tokens_B: Tensor, positions_B: Tensor, cache: KeyValueCache, window: int) -> Tensor:
        """One more token per slot at its own position; reads the cache's first `window` positions. Returns logits [B, V]."""
        rope_B = self._rope.index_select(0, positions_B).unsqueeze(1)
        metadata, ops = cache.make_metadata(positions_B, window, rope_B), self._step_ops
        h = embedding(tokens_B, self._embed.weight)
        if self.can_use_cpu_step:
            slots = len(h)
            if self._cpu_step is None or self._cpu_step.slots != slots:
                inner = self._layers[0].gate_up.weight.shape[0] // 2
                epsilon = float(self._norm.variance_epsilon)
                self._cpu_step = CpuDecodeStep(slots, self._embed.weight.shape[1], inner, epsilon, self.shape)
            cpu_step = self._cpu_step
            cpu_step(h, self._layers, self._get_first_qkv(), tokens_B, rope_B, cache, metadata)
            return self.head.to_float32(cpu_step.rms_norm(h, self._norm.weight))
        rope = rope_B if metadata.rope is None else None
        if self._can_use_lora_step:
            return self.head.to_float32(lora_decode(h, self._layers, self._norm, rope, cache, metadata, ops))
        for depth, block in enumerate(self._layers):
            h = block.finish(h, cache.attend(depth, *block.compute_qkv(h, rope, ops), metadata), ops)
        return self.head.to_float32(self.final_norm(h))

    @property
    def can_use_cpu_step(self) -> bool:
        """float32 on a CPU, adapters merged, no QK norm"""
        if self.cpu_step_allowed is None:
            first = self._layers[0]
            plain = self.device.type == "cpu" and self.dtype == torch.float32 and not first.has_qk_norm and first.uses_silu
            self.cpu_step_allowed = plain and all(p.is_plain for layer in self._layers for p in layer.projections)
        return self.cpu_step_allowed

    @property
    def _can_use_lora_step(self) -> bool:
        if self._lora_step_allowed is None:
            self._lora_step_allowed = has_lora_decode(self._layers, self.device, self.dtype)
        return self._lora_step_allowed

    def _get_first_qkv(self) -> Tensor | None:
        """[V, features] the first layer's q, k and v of every token before RoPE, which do not depend on context. None for a
        vocabulary above QKV_TABLE_LIMIT."""
        if len(self._embed.weight) > QKV_TABLE_LIMIT:
            return None
        if self._first_qkv_VF is None:
            first, norm = self._layers[0], self._layers[0].input_norm
            # With the same operations as a decode step.
            h_VD, epsilon = self._embed.weight, torch.tensor(norm.variance_epsilon)
            normed_VD = _rms_norm(h_VD, norm.weight, epsilon, h_VD.new_empty(len(h_VD), 1), torch.empty_like(h_VD))
            self._first_qkv_VF = first.qkv(normed_VD)
        return self._first_qkv_VF

    def final_norm(self, h: Tensor) -> Tensor:
        return rms_norm(h, h.shape[-1:], self._norm.weight, self._norm.variance_epsilon)

    def _causal_attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[N, T, heads, head_dim] each -> [N, T, query heads · head_dim]"""
        s = self.shape
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        # Only the half-precision GPU kernel supports fewer key heads than query heads without a slow path.
        grouped = s.queries_per_kv > 1 and s.device.type == "cuda" and s.dtype != torch.float32
        if s.queries_per_kv > 1 and not grouped:
            k, v = k.repeat_interleave(s.queries_per_kv, 1), v.repeat_interleave(s.queries_per_kv, 1)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True, scale=s.scale, enable_gqa=grouped)
        return attended.transpose(1, 2).flatten(2)

    def make_rope(self, length: int) -> Tensor:
        """[length, head_dim / 2] complex: cos + i sin, from the model's own rotary module."""
        positions = torch.arange(length, device=self.device)[None]
        cos, sin = self._rotary(torch.zeros(1, dtype=torch.float32, device=self.device), positions)
        if cos.shape[-1] != self.shape.head_dim:
            raise UnsupportedModule("RoPE covers only part of each head")
        half = self.shape.head_dim // 2
        return torch.complex(cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous())
