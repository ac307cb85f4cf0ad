"""One block of a model of the Llama family, over the module's own weights (llama.py says what it computes)."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import rms_norm, silu

from tacit.engines.local.passes.kv_cache import Geometry
from tacit.engines.local.passes.projections import Projection
from tacit.engines.local.passes.ways import Ways


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
        self, h: torch.Tensor, cis: torch.Tensor | None, ways: type[Ways] = Ways
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[..., heads, head_dim] each, rotated; None: as they are, for attention that rotates."""
        return self.by_head(self.projected(h, ways), cis, ways)

    def by_head(
        self, qkv: torch.Tensor, cis: torch.Tensor | None, ways: type[Ways] = Ways
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

    def key_value(self, h: torch.Tensor, cis: torch.Tensor, ways: type[Ways] = Ways) -> tuple[torch.Tensor, torch.Tensor]:
        return self.by_head(self.projected(h, ways, queries=False), cis, ways)[1:]

    def projected(self, h: torch.Tensor, ways: type[Ways], queries: bool = True) -> torch.Tensor:
        """[..., features] of queries, keys and values, as they are before anything is rotated."""
        projection = self.qkv if queries else self.qkv.from_feature(self._heads * self._dim)
        return projection(ways.normed(h, self.input_norm))

    def after_attention(self, h: torch.Tensor, attended: torch.Tensor, ways: type[Ways] = Ways) -> torch.Tensor:
        """`h` itself is changed."""
        h = self.out.onto(h, attended)
        return self.down.onto(h, ways.gated(self.gate_up(ways.normed(h, self.mlp_norm)), self._activation))
