"""The Llama family written out over the module's own weights: RMSNorm, grouped-query attention, rotary positions, SwiGLU.

Transformers' forward pass launches several times as many operations as the mathematics has; at decode time, one token per
row, those launches are most of the cost. Here a layer is:

    [q; k; v] = Wqkv norm(h)          one product, with biases and LoRA
    q, k      = rotate(q, k)          both at once, as complex numbers
    h        += Wo attention(q, cached k, cached v)
    h        += Wd (silu(g) · u)      with [g; u] = Wgu norm(h)

Query and key features are stored with the two halves of each rotary pair side by side, which makes the rotation one
complex product and leaves every dot product as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention, silu

from tacit.engines.local.fast.compiled import MIN_TOKENS_TO_COMPILE, CompiledSamplerOps, SamplerOps, can_compile
from tacit.engines.local.fast.cpu_step import SmallStep, projected
from tacit.engines.local.fast.decode_attention import Chunk
from tacit.engines.local.fast.lora_step import adapted_step, has_adapted_step
from tacit.engines.local.fast.varlen_attention import (
    LAUNCHES,
    SequenceLayout,
    attend_varlen,
    has_flash_attention,
    has_varlen_kernels,
)
from tacit.engines.local.kv_cache import Geometry, KeyValueCache, Rotating, attend_last
from tacit.engines.local.packing import ragged_arange, to_device
from tacit.engines.local.projections import ALL, Groups, NotPlain, Projection

# One block of a model of the Llama family, over the module's own weights (llama.py says what it computes).


class Layer:
    def __init__(self, layer: Any, geometry: Geometry) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._dim, self._kv = geometry.head_dim, geometry.kv_heads
        self._heads = self._kv * geometry.queries_per_kv
        pairs_D = torch.arange(self._dim, device=geometry.device).view(2, -1).T.reshape(-1)
        rotated = self._heads + self._kv
        order = (torch.arange(rotated, device=pairs_D.device)[:, None] * self._dim + pairs_D).view(-1)
        plain = torch.arange(rotated * self._dim, (rotated + self._kv) * self._dim, device=pairs_D.device)
        self._pairs_D = pairs_D
        self.qkv = Projection([attention.q_proj, attention.k_proj, attention.v_proj], torch.cat([order, plain]))
        self.out = Projection([attention.o_proj])
        self.gate_up = Projection([mlp.gate_proj, mlp.up_proj])
        self.down = Projection([mlp.down_proj])
        self.projections = (self.qkv, self.out, self.gate_up, self.down)
        self._activation = silu if mlp.config.hidden_act == "silu" else mlp.act_fn
        self.input_norm, self.mlp_norm = layer.input_layernorm, layer.post_attention_layernorm
        self._qk_norms = (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None
        self._qk_weight: torch.Tensor | None = None
        self.refresh()

    @property
    def is_plain(self) -> bool:
        return self.rotates_at_once and self.gates_by_silu

    @property
    def rotates_at_once(self) -> bool:
        """whether nothing lies between a projection and its rotation"""
        return self._qk_norms is None

    @property
    def gates_by_silu(self) -> bool:
        return self._activation is silu

    def refresh(self) -> None:
        if self._qk_norms is not None:
            q, k = (norm.weight[self._pairs_D] for norm in self._qk_norms)
            fresh = torch.cat([q.expand(self._heads, -1), k.expand(self._kv, -1)])
            self._qk_weight = fresh if self._qk_weight is None else self._qk_weight.copy_(fresh)

    @property
    def norms(self) -> list[Any]:
        return [self.input_norm, self.mlp_norm, *(self._qk_norms or ())]

    def norm_tensors(self) -> list[torch.Tensor]:
        found = [self.input_norm.weight, self.mlp_norm.weight]
        return found if self._qk_weight is None else [*found, self._qk_weight]

    def query_key_value(
        self, h: torch.Tensor, cis: torch.Tensor | None, ways: type[SamplerOps] = SamplerOps
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[..., heads, head_dim] each, rotated; None: as they are, for attention that rotates."""
        return self.by_head(self.projected(h, ways), cis, ways)

    def by_head(
        self, qkv: torch.Tensor, cis: torch.Tensor | None, ways: type[SamplerOps] = SamplerOps
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What `query_key_value` makes of the product, or of its last part, which has no queries."""
        by_head = qkv.unflatten(-1, (-1, self._dim))
        queries = by_head.shape[-2] - 2 * self._kv
        qk, v = by_head.split((queries + self._kv, self._kv), dim=-2)
        if self._qk_norms is not None and self._qk_weight is not None:
            weight = self._qk_weight[self._heads - queries :]
            qk = rms_norm(qk, qk.shape[-1:], None, self._qk_norms[0].variance_epsilon) * weight
        q, k = (qk if cis is None else ways.rotated(qk, cis)).split((queries, self._kv), dim=-2)
        return q, k, v

    def key_value(
        self, h: torch.Tensor, cis: torch.Tensor, ways: type[SamplerOps] = SamplerOps
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.by_head(self.projected(h, ways, queries=False), cis, ways)[1:]

    def projected(self, h: torch.Tensor, ways: type[SamplerOps], queries: bool = True) -> torch.Tensor:
        """[..., features] of queries, keys and values, as they are before anything is rotated."""
        projection = self.qkv if queries else self.qkv.from_feature(self._heads * self._dim)
        return projection(ways.normed(h, self.input_norm))

    def after_attention(self, h: torch.Tensor, attended: torch.Tensor, ways: type[SamplerOps] = SamplerOps) -> torch.Tensor:
        """`h` itself is changed."""
        h = self.out.onto(h, attended)
        return self.down.onto(h, ways.gated(self.gate_up(ways.normed(h, self.mlp_norm)), self._activation))


Sink = Callable[[int, torch.Tensor, torch.Tensor], None]
FAMILY = ("llama", "mistral", "qwen2", "qwen3")
MIXED_LIMIT = 1 << 22
"""most weights of a model that is copied for every adapter, so that rows of several are computed together"""
TABLE_LIMIT = 1024
"""most tokens of a vocabulary all of which are projected whenever weights have changed: as many as few rows soon write"""


@dataclass(frozen=True, eq=False)
class After:
    """Prompts whose beginnings lie in a cache."""

    known_U: np.ndarray
    """tokens of each that do"""
    slots_U: np.ndarray
    """where each begins"""


@dataclass(frozen=True, eq=False)
class Prompts:
    """Prompts that lie end to end, on the device."""

    tokens_N: torch.Tensor
    positions_N: torch.Tensor
    ends_U: torch.Tensor
    """where the last token of each lies"""
    spans: SequenceLayout
    last: SequenceLayout
    """of the last token of each, which sees all of its own"""

    @staticmethod
    def of(prompts: Sequence[np.ndarray], device: torch.device, after: After | None = None, block: int = 0) -> Prompts:
        """`after`: what lies in a cache of each; `prompts` are the rest. `block` as in `Spans.in_cache`."""
        lengths_U = np.array([len(prompt) for prompt in prompts])
        positions_N = ragged_arange(lengths_U) + (0 if after is None else np.repeat(after.known_U, lengths_U))
        tokens_N, positions, ends_U = (
            to_device(array, device) for array in (np.concatenate(prompts), positions_N, np.cumsum(lengths_U) - 1)
        )
        spans = []
        for queries_U in (lengths_U, np.ones_like(lengths_U)):
            if after is None:
                spans.append(SequenceLayout.of(queries_U, lengths_U, device))
            else:
                spans.append(SequenceLayout.in_cache(queries_U, after.known_U + lengths_U, after.slots_U, block, device))
        return Prompts(tokens_N, positions, ends_U, spans[0], spans[1])


class LlamaForward:
    """Weights and forward pass; knows nothing of requests. Raises NotPlain for a model that only looks like a Llama."""

    def __init__(self, model: Any) -> None:
        """`model`: a transformers causal LM of the family, whose linear layers may carry LoRA."""
        config, body = model.config, model.model
        if config.model_type not in FAMILY:
            raise NotPlain(f"model type {config.model_type!r}")
        if type(body.embed_tokens) is not nn.Embedding:
            raise NotPlain(f"{type(body.embed_tokens).__name__} is not a plain embedding")
        if body.rotary_emb.rope_type in ("dynamic", "longrope"):
            raise NotPlain("rotary frequencies depend on the length")
        self._embed: nn.Embedding = body.embed_tokens
        self._rotary = body.rotary_emb
        self._norm = body.norm
        self.head = Projection([model.lm_head])
        attention = body.layers[0].self_attn
        self.geometry = Geometry(
            layers=len(body.layers),
            kv_heads=config.num_key_value_heads,
            queries_per_kv=config.num_attention_heads // config.num_key_value_heads,
            head_dim=attention.head_dim,
            scale=attention.scaling,
            dtype=self.dtype,
            device=self.device,
        )
        if config.model_type == "mistral":  # every layer slides, and only the configuration says so
            windows = [config.sliding_window]
        else:
            windows = [getattr(layer.self_attn, "sliding_window", None) for layer in body.layers]
        self.longest: int | None = min((w for w in windows if w), default=None)
        """attention reaches back this far; beyond it this forward pass would differ from the model's"""
        self._layers = [Layer(layer, self.geometry) for layer in body.layers]
        self._projections = [self.head, *(p for layer in self._layers for p in layer.projections)]
        self._holders = [self._embed, self._norm, *(norm for layer in self._layers for norm in layer.norms)]
        """modules whose parameters are read beside the projections', where they are or copied"""
        self._cis = self._rotations(256)
        self._groups: Groups = ((None, ALL),)
        compiles = can_compile(self.device) and config.hidden_act == "silu"
        self._step_ways: type[SamplerOps] = CompiledSamplerOps if compiles else SamplerOps
        self._small: SmallStep | None = None
        self._plain: bool | None = None
        """whether matrices as they are in use allow a step on the spot; None: not looked at"""
        self._beside: bool | None = None
        """whether they have adapters that kernels of ours take along in a step; None: not looked at"""
        self._first: dict[str | None, torch.Tensor] = {}
        """by adapter: what the first layer makes of each token"""

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
    def weights_a_layer(self) -> int:
        return sum(projection.weight.numel() for projection in self._layers[0].projections)

    @property
    def vocabulary(self) -> int:
        return self.head.weight.shape[0]

    @property
    def mixes(self) -> bool:
        """whether rows with different adapters can be computed together"""
        small = sum(projection.weight.numel() for projection in self._projections) <= MIXED_LIMIT
        return small and all(projection.merges for projection in self._projections)

    def use(self, groups: Groups) -> None:
        """Rows are read with these adapters from now on, group after group."""
        if groups != self._groups:
            self._groups, self._plain, self._beside = groups, None, None
            for projection in self._projections:
                projection.use(groups)

    def refresh(self, adapter: str | None = None) -> None:
        """Take over changed weights, with the adapter that is active or with a named one."""
        self._plain = self._beside = None
        self._first.pop(adapter, None)
        for projection in self._projections:
            projection.refresh(adapter)
        for layer in self._layers:
            layer.refresh()

    def forget(self, adapter: str) -> None:
        """Give up what was copied for an adapter. Nobody may use it now."""
        self.use(((None, ALL),))
        self._first.pop(adapter, None)
        for projection in self._projections:
            projection.forget(adapter)

    def sources(self, adapter: str | None = None) -> list[torch.Tensor]:
        """Every parameter that is read, or that a copy was made of: while these are untouched, and where they are, all is up to
        date."""
        holders = self._holders + [holder for projection in self._projections for holder in projection.holders(adapter)]
        return [t for holder in holders for t in holder._parameters.values() if t is not None]

    def addresses(self) -> tuple[Any, ...]:
        """Where all that is read lies; a CUDA graph is valid while this does not change."""
        tensors = [self._embed.weight, self._norm.weight, self._cis]
        tensors += [t for projection in self._projections for t in projection.tensors()]
        tensors += [t for layer in self._layers for t in layer.norm_tensors()]
        return tuple((t.data_ptr(), t.shape) for t in tensors)

    @property
    def reached(self) -> int:
        """positions that there are rotations for"""
        return len(self._cis)

    def reach(self, length: int) -> None:
        """Make sure of rotations for positions below `length`."""
        if length > self.reached:
            self._cis = self._rotations(max(length, 2 * self.reached))

    @cached_property
    def query_block(self) -> int:
        """Queries that our kernel of attention looks at together, where there is one; else 0."""
        g = self.geometry
        has = has_varlen_kernels(self.device, self.dtype, g.heads, g.kv_heads, g.head_dim)
        return LAUNCHES[g.head_dim]["forward"]["BLOCK_Q"] if has else 0

    @property
    def takes_flat(self) -> bool:
        """whether prompts can be prefilled end to end, without padding"""
        return has_flash_attention(self.device, self.dtype, self.geometry.head_dim)

    def prefill_flat(
        self,
        prompts: Prompts,
        layer: int | None,
        sink: Sink,
        rotating: Rotating | None = None,
        cached: Callable[[int], tuple[torch.Tensor, torch.Tensor]] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`prefill` of prompts that lie end to end; `sink` gets keys and values [N, heads, head_dim], or `rotating` what they
        are made of, where that is possible. `cached` says where the keys and values of a layer are then, if the prompts are the
        rest of what lies there. Reads no value on the host."""
        ways, ends_U, scale = self._ways(len(prompts.tokens_N)), prompts.ends_U, self.geometry.scale
        h, positions_N = embedding(prompts.tokens_N, self._embed.weight), prompts.positions_N
        at_once = rotating is not None and self._layers[0].rotates_at_once
        cis_N = None if at_once else self._cis[positions_N, None]

        def kept(depth: int, h: torch.Tensor, queries: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            block = self._layers[depth]
            qkv = block.projected(h, ways, queries)
            if rotating is not None and at_once:
                rotating(depth, qkv, positions_N, self._cis)
            q, k, v = block.by_head(qkv, cis_N, ways)
            if not at_once:
                sink(depth, k, v)
            return (q, k, v) if cached is None else (q, *cached(depth))

        wanted = h[ends_U] if layer == 0 else None
        for depth, block in enumerate(self._layers[:-1]):
            q, k, v = kept(depth, h, True)
            h = block.after_attention(h, attend_varlen(q, k, v, prompts.spans, scale).flatten(1), ways)
            if layer == depth + 1:
                wanted = h[ends_U]
        top, h_U = self._layers[-1], h[ends_U]
        _, k, v = kept(len(self) - 1, h, False)
        q, _, _ = top.query_key_value(h_U, self._cis[positions_N[ends_U], None])
        h_U = self.final_norm(top.after_attention(h_U, attend_varlen(q, k, v, prompts.last, scale).flatten(1)))
        return self.head.unrounded(h_U), h_U if layer == len(self) else wanted

    def prefill(
        self, tokens_NT: torch.Tensor, last_N: torch.Tensor, layer: int | None, sink: Sink
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Right-padded prompts, each ending at column `last`: logits [N, V] and the hidden state of `layer` [N, D] at the
        last token. `sink` gets each model layer's keys and values [N, T, heads, head_dim].

        Causal attention never looks right, so padding needs no mask. The top layer's queries and feed-forward are
        computed for the last token alone: nothing else reads them.
        """
        n, t = tokens_NT.shape
        rows_N = torch.arange(n, device=tokens_NT.device)
        cis_T = self._cis[:t, None]
        h = embedding(tokens_NT, self._embed.weight)
        wanted = h[rows_N, last_N] if layer == 0 else None
        for depth, block in enumerate(self._layers[:-1]):
            q, k, v = block.query_key_value(h, cis_T)
            sink(depth, k, v)
            h = block.after_attention(h, self._attend_causally(q, k, v))
            if layer == depth + 1:
                wanted = h[rows_N, last_N]
        top, h_last = self._layers[-1], h[rows_N, last_N]
        k, v = top.key_value(h, cis_T)
        sink(len(self) - 1, k, v)
        q, _, _ = top.query_key_value(h_last, self._cis[last_N, None])
        padding_NT = torch.arange(t, device=tokens_NT.device) > last_N[:, None]
        mask_NT = torch.zeros(n, t, dtype=h.dtype, device=h.device).masked_fill_(padding_NT, float("-inf"))
        attended = attend_last(q, k, v, mask_NT[:, None, None], self.geometry.scale)
        h_last = self.final_norm(top.after_attention(h_last, attended))
        return self.head.unrounded(h_last), h_last if layer == len(self) else wanted

    def step(
        self,
        tokens_B: torch.Tensor,
        positions_B: torch.Tensor,
        cache: KeyValueCache,
        window: int,
        order: tuple[torch.Tensor, torch.Tensor] | None = None,
        chunk: Chunk | None = None,
    ) -> torch.Tensor:
        """One more token per row at its own position; reads the cache's first `window` columns. Returns logits [B, V].

        `chunk`: prompt tokens that ride along behind the rows, and leave keys and values in the cache; no order then. The top
        layer's they have left when it attends, and go no further.
        `order`: (which row comes where when they are sorted into the groups in use, and where to find each again), where the
        rows do not lie so. Only attention, which reads the cache, sees them as they lie.
        """
        where = positions_B
        if chunk is not None:
            tokens_B, where = torch.cat((tokens_B, chunk.tokens_C)), torch.cat((positions_B, chunk.positions_C))
        cis_B = self._cis.index_select(0, where).unsqueeze(1)
        reading, ways = cache.reading(positions_B, window, cis_B, chunk), self._step_ways
        if order is not None:
            tokens_B, cis_B = tokens_B[order[0]], cis_B[order[0]]
        h = embedding(tokens_B, self._embed.weight)
        if order is None and chunk is None and self._steps_small:
            small = self._small_step(len(h))
            small(h, self._layers, self._first_projections(), tokens_B, cis_B, cache, reading)
            return self.head.unrounded(small.normed(h, self._norm.weight))
        turns = cis_B if reading.rotations is None else None
        if order is None and self._steps_adapted:
            return self.head.unrounded(adapted_step(h, self._layers, self._norm, turns, cache, reading, ways))
        for depth, block in enumerate(self._layers):
            q, k, v = block.query_key_value(h, turns, ways)
            if order is not None:
                q, k, v = (x[order[1]] for x in (q, k, v))
            attended = cache.attend(depth, q, k, v, reading)
            if depth + 1 == len(self):
                h, attended = h[: reading.width], attended[: reading.width]
            h = block.after_attention(h, attended if order is None else attended[order[0]], ways)
        logits = self.head.unrounded(self.final_norm(h))
        return logits if order is None else logits[order[1]]

    @property
    def _steps_small(self) -> bool:
        """Whether a step can take place on the spot: plain matrices, adapters merged into them, and nothing beside them."""
        if self._plain is None:
            plain = self.device.type == "cpu" and self.dtype == torch.float32 and self._layers[0].is_plain
            self._plain = plain and all(projection.is_plain for layer in self._layers for projection in layer.projections)
        return self._plain

    @property
    def _steps_adapted(self) -> bool:
        """Whether a step can have what adapters do in kernels of ours, on a GPU."""
        if self._beside is None:
            self._beside = has_adapted_step(self._layers, self.device, self.dtype)
        return self._beside

    def _first_projections(self) -> torch.Tensor | None:
        """[V, features] the first layer's queries, keys and values of every token, which are the same wherever it stands; None
        where there are so many tokens that most would never be read."""
        if len(self._embed.weight) > TABLE_LIMIT:
            return None
        adapter = self._groups[0][0]
        if adapter not in self._first:
            first, norm = self._layers[0], self._layers[0].input_norm
            self._first[adapter] = projected(self._embed.weight, norm.weight, norm.variance_epsilon, first.qkv)
        return self._first[adapter]

    def _small_step(self, rows: int) -> SmallStep:
        if self._small is None or self._small.rows != rows:
            inner = self._layers[0].gate_up.weight.shape[0] // 2
            epsilon = float(self._norm.variance_epsilon)
            self._small = SmallStep(rows, self._embed.weight.shape[1], inner, epsilon, self.geometry)
        return self._small

    def final_norm(self, h: torch.Tensor) -> torch.Tensor:
        return rms_norm(h, h.shape[-1:], self._norm.weight, self._norm.variance_epsilon)

    def _attend_causally(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """[N, T, heads, head_dim] each -> [N, T, query heads · head_dim]"""
        g = self.geometry
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        # only the half-precision GPU kernel takes fewer key than query heads without falling back to a slow path
        grouped = g.queries_per_kv > 1 and g.device.type == "cuda" and g.dtype != torch.float32
        if g.queries_per_kv > 1 and not grouped:
            k, v = k.repeat_interleave(g.queries_per_kv, 1), v.repeat_interleave(g.queries_per_kv, 1)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True, scale=g.scale, enable_gqa=grouped)
        return attended.transpose(1, 2).flatten(2)

    def _rotations(self, length: int) -> torch.Tensor:
        """[length, head_dim / 2] complex: cos + i sin, as the model's own rotary module gives them."""
        positions = torch.arange(length, device=self.device)[None]
        cos, sin = self._rotary(torch.zeros(1, dtype=torch.float32, device=self.device), positions)
        if cos.shape[-1] != self.geometry.head_dim:
            raise NotPlain("only a part of each head is rotated")
        half = self.geometry.head_dim // 2
        return torch.complex(cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous())

    def _ways(self, rows: int) -> type[SamplerOps]:
        return self._step_ways if rows >= MIN_TOKENS_TO_COMPILE else SamplerOps
