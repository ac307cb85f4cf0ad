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

from typing import Any

import torch
from torch import nn
from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention, silu

from tacit.engines.local.projections import NotPlain, Projection

FAMILY = ("llama", "mistral", "qwen2", "qwen3")


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
        self.head_dim: int = attention.head_dim
        self.kv_heads: int = config.num_key_value_heads
        self.queries_per_kv: int = config.num_attention_heads // config.num_key_value_heads
        self.scale: float = attention.scaling
        if config.model_type == "mistral":  # every layer slides, and only the configuration says so
            windows = [config.sliding_window]
        else:
            windows = [getattr(layer.self_attn, "sliding_window", None) for layer in body.layers]
        self.longest: int | None = min((w for w in windows if w), default=None)
        """attention reaches back this far; beyond it this forward pass would differ from the model's"""
        self._layers = [_Layer(layer, self) for layer in body.layers]
        self._cis = self._rotations(256)

    def __len__(self) -> int:
        return len(self._layers)

    @property
    def dtype(self) -> torch.dtype:
        return self._embed.weight.dtype

    @property
    def device(self) -> torch.device:
        return self._embed.weight.device

    @property
    def vocabulary(self) -> int:
        return self.head.weight.shape[0]

    def refresh(self) -> None:
        """Take over changed weights."""
        for projection in self._projections():
            projection.refresh()
        for layer in self._layers:
            layer.refresh()

    def sources(self) -> list[torch.Tensor]:
        """Every parameter that a copy was made of."""
        found = [t for projection in self._projections() for t in projection.sources()]
        return found + [t for layer in self._layers for t in layer.qk_norm_sources()]

    def addresses(self) -> tuple[int, ...]:
        """Where all that is read lies; a CUDA graph is valid while this does not change."""
        tensors = [self._embed.weight, self._norm.weight, self._cis]
        tensors += [t for projection in self._projections() for t in projection.tensors()]
        tensors += [t for layer in self._layers for t in layer.norm_tensors()]
        return tuple(t.data_ptr() for t in tensors)

    def reach(self, length: int) -> None:
        """Make sure of rotations for positions below `length`."""
        if length > len(self._cis):
            self._cis = self._rotations(max(length, 2 * len(self._cis)))

    def prefill(
        self, tokens_NT: torch.Tensor, last_N: torch.Tensor, layer: int | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, list[tuple[torch.Tensor, torch.Tensor]]]:
        """Right-padded prompts, each ending at column `last`: logits [N, V] and the hidden state of `layer` [N, D] at the
        last token, and per model layer keys and values [N, T, heads, head_dim].

        Causal attention never looks right, so padding needs no mask. The top layer's queries and feed-forward are
        computed for the last token alone: nothing else reads them.
        """
        n, t = tokens_NT.shape
        rows_N = torch.arange(n, device=tokens_NT.device)
        cis_T = self._cis[:t, None]
        h = embedding(tokens_NT, self._embed.weight)
        wanted = h[rows_N, last_N] if layer == 0 else None
        cache = []
        for depth, block in enumerate(self._layers[:-1], start=1):
            q, k, v = block.query_key_value(h, cis_T)
            cache.append((k, v))
            attended = scaled_dot_product_attention(
                q.transpose(1, 2),
                self._per_query_head(k),
                self._per_query_head(v),
                is_causal=True,
                scale=self.scale,
            )
            h = block.after_attention(h, attended.transpose(1, 2).reshape(n, t, -1))
            if layer == depth:
                wanted = h[rows_N, last_N]
        top = self._layers[-1]
        k, v = top.key_value(h, cis_T)
        cache.append((k, v))
        q, _, _ = top.query_key_value(h[rows_N, last_N], self._cis[last_N, None])
        columns_T = torch.arange(t, device=tokens_NT.device)
        attended = self._attend(q, k, v, _mask(columns_T, last_N, h.dtype))
        h_last = self.final_norm(top.after_attention(h[rows_N, last_N], attended))
        if layer == len(self):
            wanted = h_last
        return self.head(h_last), wanted, cache

    def step(
        self,
        tokens_B: torch.Tensor,
        positions_B: torch.Tensor,
        cache: list[tuple[torch.Tensor, torch.Tensor]],
        columns_W: torch.Tensor,
    ) -> torch.Tensor:
        """One more token per row at its own position: writes the cache [B, S, heads, head_dim] and reads its first W
        columns. Returns logits [B, V]."""
        b, w, capacity = len(tokens_B), len(columns_W), cache[0][0].shape[1]
        mask_B11W = _mask(columns_W, positions_B, self.dtype)
        slots_B = torch.arange(b, device=tokens_B.device) * capacity + positions_B
        cis_B = self._cis[positions_B, None]
        h = embedding(tokens_B, self._embed.weight)
        for block, (keys, values) in zip(self._layers, cache, strict=True):
            q, k, v = block.query_key_value(h, cis_B)
            keys.view(-1, *k.shape[1:]).index_copy_(0, slots_B, k)
            values.view(-1, *v.shape[1:]).index_copy_(0, slots_B, v)
            h = block.after_attention(h, self._attend(q, keys[:, :w], values[:, :w], mask_B11W))
        return self.head(self.final_norm(h))

    def final_norm(self, h: torch.Tensor) -> torch.Tensor:
        return rms_norm(h, h.shape[-1:], self._norm.weight, self._norm.variance_epsilon)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """One query position per row. The query heads that share a key head are its rows, so keys are never repeated."""
        b = len(q)
        grouped = q.view(b, self.kv_heads, self.queries_per_kv, self.head_dim)
        attended = scaled_dot_product_attention(grouped, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, scale=self.scale)
        return attended.reshape(b, -1)

    def _per_query_head(self, x: torch.Tensor) -> torch.Tensor:
        """[N, T, kv heads, D] -> [N, query heads, T, D]"""
        n, t, heads, dim = x.shape
        x = x.transpose(1, 2)
        if self.queries_per_kv == 1:
            return x
        return x[:, :, None].expand(n, heads, self.queries_per_kv, t, dim).reshape(n, -1, t, dim)

    def _rotations(self, length: int) -> torch.Tensor:
        """[length, head_dim / 2] complex: cos + i sin, as the model's own rotary module gives them."""
        positions = torch.arange(length, device=self.device)[None]
        cos, sin = self._rotary(torch.zeros(1, dtype=torch.float32, device=self.device), positions)
        if cos.shape[-1] != self.head_dim:
            raise NotPlain("only a part of each head is rotated")
        half = self.head_dim // 2
        return torch.complex(cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous())

    def _projections(self) -> list[Projection]:
        return [self.head, *(p for layer in self._layers for p in layer.projections)]


class _Layer:
    """One decoder block."""

    def __init__(self, layer: Any, forward: LlamaForward) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._dim, self._kv = forward.head_dim, forward.kv_heads
        self._heads = self._kv * forward.queries_per_kv
        pairs_D = torch.arange(self._dim, device=forward.device).view(2, -1).T.reshape(-1)
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
        self._width = mlp.gate_proj.out_features
        self._input_norm, self._mlp_norm = layer.input_layernorm, layer.post_attention_layernorm
        self._qk_norms = (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None
        self._qk_weight: torch.Tensor | None = None
        self.refresh()

    def refresh(self) -> None:
        if self._qk_norms is not None:
            q, k = (norm.weight[self._pairs_D] for norm in self._qk_norms)
            fresh = torch.cat([q.expand(self._heads, -1), k.expand(self._kv, -1)])
            self._qk_weight = fresh if self._qk_weight is None else self._qk_weight.copy_(fresh)

    def qk_norm_sources(self) -> list[torch.Tensor]:
        return [] if self._qk_norms is None else [norm.weight for norm in self._qk_norms]

    def norm_tensors(self) -> list[torch.Tensor]:
        found = [self._input_norm.weight, self._mlp_norm.weight]
        return found if self._qk_weight is None else [*found, self._qk_weight]

    def query_key_value(self, h: torch.Tensor, cis: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[..., heads, head_dim] each, rotated."""
        qkv = self.qkv(_normed(h, self._input_norm)).unflatten(-1, (-1, self._dim))
        qk, v = qkv.split((self._heads + self._kv, self._kv), dim=-2)
        if self._qk_norms is not None and self._qk_weight is not None:
            qk = rms_norm(qk, qk.shape[-1:], None, self._qk_norms[0].variance_epsilon) * self._qk_weight
        q, k = _rotate(qk, cis).split((self._heads, self._kv), dim=-2)
        return q, k, v

    def key_value(self, h: torch.Tensor, cis: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kv = self.qkv.from_feature(self._heads * self._dim)(_normed(h, self._input_norm))
        k, v = kv.unflatten(-1, (-1, self._dim)).split((self._kv, self._kv), dim=-2)
        if self._qk_norms is not None and self._qk_weight is not None:
            k = rms_norm(k, k.shape[-1:], None, self._qk_norms[1].variance_epsilon) * self._qk_weight[self._heads :]
        return _rotate(k, cis), v

    def after_attention(self, h: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        h = h + self.out(attended)
        gate, up = self.gate_up(_normed(h, self._mlp_norm)).split(self._width, dim=-1)
        return h + self.down(self._activation(gate) * up)


def _normed(h: torch.Tensor, norm: Any) -> torch.Tensor:
    return rms_norm(h, h.shape[-1:], norm.weight, norm.variance_epsilon)


def _rotate(x: torch.Tensor, cis: torch.Tensor) -> torch.Tensor:
    """(a + ib)(cos + i sin) for every pair, in float32."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * cis).flatten(-2).to(x.dtype)


def _mask(columns_W: torch.Tensor, positions_B: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[B, 1, 1, W]: 0 up to each row's position, −∞ beyond."""
    beyond = columns_W[None, :] > positions_B[:, None]
    return torch.zeros(beyond.shape, dtype=dtype, device=beyond.device).masked_fill_(beyond, float("-inf"))[:, None, None]
