"""Packed (varlen) forward passes of the Llama family for updates and scoring: `PackedDecoder` (CPU), `VarlenDecoder` (GPU).

They avoid wasted work of a padded forward pass:
  * padding: tokens are rows of one matrix [N, D];
  * prompts shared by several rows, such as those of a group: computed once;
  * the top layer's queries and MLP at positions that predict no completion token;
  * (CPU) the first layer's projections of repeated tokens, which do not depend on the position before RoPE.

Linear layers are called as modules, so LoRA and its dropout are included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from tacit.engines.local.fast.attention import SequenceLayout, attend_varlen, has_flash_attention
from tacit.engines.local.fast.layers import COMPILED_OPS, EAGER_OPS, MIN_TOKENS_TO_COMPILE, LayerOps, can_compile
from tacit.engines.local.fast.projections import FAMILY, fused_linear
from tacit.engines.local.packing import AttentionPlan, PackedBatch, is_arange, to_device


class PackedDecoder:
    """The decoder of one transformers model of the Llama family. Attention runs on padded rows, everything else on [N, D]."""

    def __init__(self, hf: Any):
        body = hf.model
        attention = body.layers[0].self_attn
        self.body, self.layers = body, list(body.layers)
        self.device: torch.device = body.embed_tokens.weight.device
        self.head_dim, self.scale = int(attention.head_dim), float(attention.scaling)
        self.heads, self.kv_heads = int(hf.config.num_attention_heads), int(hf.config.num_key_value_heads)
        self.has_qk_norm = hasattr(attention, "q_norm")

    @staticmethod
    def supports(hf: Any) -> bool:
        config = hf.config
        if config.model_type not in FAMILY or getattr(config, "hidden_act", "") != "silu":
            return False
        if any(getattr(layer.self_attn, "sliding_window", None) for layer in hf.model.layers):
            return False
        if config.model_type == "mistral" and config.sliding_window:
            return False
        return hf.model.rotary_emb.rope_type in ("default", "linear", "llama3")

    def __call__(self, batch: PackedBatch) -> Tensor:
        """[T, D] hidden states after the final norm, at the positions that predict the completion tokens."""
        distinct_U, inverse_N = np.unique(batch.tokens_N, return_inverse=True)
        embedded_UD, index_N = self.body.embed_tokens(to_device(distinct_U, self.device)), to_device(inverse_N, self.device)
        hidden_ND = embedded_UD.index_select(0, index_N)
        rotation_N = torch.complex(*self._cos_sin(batch))
        attentions = [_PaddedAttention(attention, hidden_ND) for attention in batch.lower_attention]
        for depth, layer in enumerate(self.layers[:-1]):
            # With dropout, repeated tokens differ, so the first layer cannot share their projections.
            if depth == 0 and not any(isinstance(m, nn.Dropout) and m.training for m in layer.self_attn.modules()):
                q, k, v = (x.index_select(0, index_N) for x in self._project_qkv(layer, embedded_UD, embedded_UD))
            else:
                q, k, v = self._project_qkv(layer, hidden_ND, hidden_ND)
            q, k = _apply_rope(q, rotation_N), _apply_rope(k, rotation_N)
            attended = [padded.attend(q, k, v, self.scale) for padded in attentions]
            hidden_ND = self._finish_layer(layer, hidden_ND, attended[0] if len(attended) == 1 else torch.cat(attended))
        top, source_T = self.layers[-1], to_device(batch.source_T, self.device)
        hidden_TD = hidden_ND.index_select(0, source_T)
        q, k, v = self._project_qkv(top, hidden_TD, hidden_ND)
        q, k = _apply_rope(q, rotation_N.index_select(0, source_T)), _apply_rope(k, rotation_N)
        attended_TF = _PaddedAttention(batch.top_attention, hidden_ND).attend(q, k, v, self.scale)
        hidden_TD = self._finish_layer(top, hidden_TD, attended_TF)
        return _rms_norm(self.body.norm, hidden_TD)

    def _cos_sin(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """cos and sin [N, 1, head_dim / 2] of RoPE, from the model's own rotary module."""
        positions_N = to_device(batch.positions_N, self.device)
        cos_sin = self.body.rotary_emb(torch.zeros(1, device=self.device), positions_N[None])
        cos, sin = (part[0, :, None, : self.head_dim // 2].float().contiguous() for part in cos_sin)
        return cos, sin

    def _project_qkv(self, layer: Any, queries_QD: Tensor, keys_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values before RoPE: [·, heads, head_dim]."""
        attention, shape = layer.self_attn, (-1, self.head_dim)
        x_N = _rms_norm(layer.input_layernorm, keys_ND)
        x_Q = x_N if queries_QD is keys_ND else _rms_norm(layer.input_layernorm, queries_QD)
        if x_Q is x_N:
            qkv = concat_linear(x_N, attention.q_proj, attention.k_proj, attention.v_proj).unflatten(-1, shape)
            q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        else:
            q = attention.q_proj(x_Q).unflatten(-1, shape)
            k, v = concat_linear(x_N, attention.k_proj, attention.v_proj).unflatten(-1, shape).chunk(2, dim=1)
        if self.has_qk_norm:
            q, k = _rms_norm(attention.q_norm, q), _rms_norm(attention.k_norm, k)
        return q, k, v

    def _finish_layer(self, layer: Any, hidden: Tensor, attended: Tensor) -> Tensor:
        hidden = hidden + layer.self_attn.o_proj(attended)
        x = _rms_norm(layer.post_attention_layernorm, hidden)
        return hidden + layer.mlp.down_proj(_swiglu(concat_linear(x, layer.mlp.gate_proj, layer.mlp.up_proj)))


class _PaddedAttention:
    """An AttentionPlan on the device, for scaled_dot_product_attention on padded rows."""

    def __init__(self, attention: AttentionPlan, like: Tensor):
        device = like.device
        self._query_shape, self._key_shape = attention.queries.shape, attention.keys.shape
        # None: the padded rows hold the tokens in order, so no gather is needed.
        self._queries = None if is_arange(attention.queries) else to_device(attention.queries.ravel(), device)
        self._keys = None if is_arange(attention.keys) else to_device(attention.keys.ravel(), device)
        outputs = attention.outputs
        self._outputs = None if len(outputs) == attention.queries.size else to_device(outputs, device)
        self._mask: Tensor | None = None
        if attention.diagonal is not None:
            last_key = to_device(attention.diagonal, device)[:, None] + torch.arange(self._query_shape[1], device=device)
            masked = torch.arange(self._key_shape[1], device=device) > last_key[:, :, None]
            self._mask = torch.zeros(masked.shape, dtype=like.dtype, device=device).masked_fill_(masked, -torch.inf)[:, None]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """[outputs, heads · head_dim]"""
        repeats = q.shape[1] // k.shape[1]
        q = _gather(q, self._queries, self._query_shape)
        k, v = (_gather(x, self._keys, self._key_shape) for x in (k, v))
        if repeats > 1:
            k, v = (x[:, :, None].expand(-1, -1, repeats, -1, -1).flatten(1, 2) for x in (k, v))
        attended_BHQD = scaled_dot_product_attention(q, k, v, self._mask, is_causal=self._mask is None, scale=scale)
        x = attended_BHQD.transpose(1, 2).flatten(2).flatten(0, 1)
        return x if self._outputs is None else x.index_select(0, self._outputs)


def concat_linear(x: Tensor, *modules: Any) -> Tensor:
    """Outputs of linear layers with the same input, concatenated. Plain layers become one product, which saves most in the
    backward pass (one gradient for `x`). Layers with adapters run one by one."""
    if not all(type(module) is nn.Linear and module.bias is None for module in modules):
        return torch.cat([module(x) for module in modules], dim=-1)
    return linear(x, torch.cat([module.weight for module in modules]))


def _gather(x: Tensor, index: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """[N, heads, head_dim] -> [B, heads, width, head_dim]"""
    rows = x[: shape[0] * shape[1]] if index is None else x.index_select(0, index)
    return rows.unflatten(0, shape).transpose(1, 2)


def _apply_rope(x: Tensor, rotation: Tensor) -> Tensor:
    """(a + ib)(cos + i sin) for the pairs (a, b) of the two halves. The pairs stay interleaved in both queries and keys, so
    dot products do not change."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (2, -1)).transpose(-1, -2).contiguous())
    return torch.view_as_real(pairs * rotation).flatten(-2).to(x.dtype)


def _swiglu(gate_up: Tensor) -> Tensor:
    if gate_up.dtype == torch.float32:
        return _SwiGLU.apply(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)  # silu is rounded to half precision, as in transformers
    return silu(gate) * up


class _SwiGLU(torch.autograd.Function):
    """y = silu(g) · u of [g; u]. The sigmoid is the expensive part, so it is saved for the gradient.

    With s = σ(g) and a = g · s = silu(g):  dL/dg = dL/dy · u · (s + a · (1 − s)),  dL/du = dL/dy · a
    """

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        sigmoid = gate.sigmoid()
        activated = gate * sigmoid
        ctx.save_for_backward(up, sigmoid, activated)
        return activated * up

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient, (up, sigmoid, activated) = gradients[0], ctx.saved_tensors
        grad_gate_up = gradient.new_empty(*gradient.shape[:-1], 2 * gradient.shape[-1])
        grad_gate, grad_up = grad_gate_up.chunk(2, dim=-1)
        silu_slope = (sigmoid + activated).addcmul_(sigmoid, activated, value=-1)
        torch.mul(silu_slope.mul_(gradient), up, out=grad_gate)
        torch.mul(gradient, activated, out=grad_up)
        return grad_gate_up


def _rms_norm(module: Any, x: Tensor) -> Tensor:
    return _RMSNorm.apply(x, module.weight, module.variance_epsilon)


class _RMSNorm(torch.autograd.Function):
    """y = w · x / √(mean x² + ε), with a gradient in few passes over memory.

    With n = x / √(…) and g = w · dL/dy:  dL/dx = (g − n · mean(g · n)) / √(…),  dL/dw = Σ n · dL/dy
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        x_float32 = x.float()
        inverse_rms = vector_norm(x_float32, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
        normed = (x_float32 * inverse_rms).to(x.dtype)
        ctx.save_for_backward(normed, weight, inverse_rms)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        gradient, (normed, weight, inverse_rms) = gradients[0], ctx.saved_tensors
        product = gradient.float() * normed
        grad_weight = product.flatten(0, -2).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        mean_gn = (product @ weight.float()).div_(normed.shape[-1]).unsqueeze(-1)
        g = (gradient * weight).float()
        return g.addcmul_(normed.float(), mean_gn, value=-1).mul_(inverse_rms).to(normed.dtype), grad_weight, None


class VarlenDecoder(PackedDecoder):
    """`PackedDecoder` for a GPU: varlen attention without padding, and one launch between two matrix products."""

    @staticmethod
    def can_run(hf: Any) -> bool:
        """Whether flash attention is available for this model."""
        weight, attention = hf.model.embed_tokens.weight, hf.model.layers[0].self_attn
        return has_flash_attention(weight.device, weight.dtype, int(attention.head_dim))

    def __init__(self, hf: Any):
        super().__init__(hf)
        self._compiles = can_compile(self.device)

    def __call__(self, batch: PackedBatch) -> Tensor:
        hidden_ND, normed_ND, rotation_N = self._lower_layers(batch, len(self.layers) - 1)
        ops, top, source_T = self.choose_ops(batch), self.layers[-1], to_device(batch.source_T, self.device)
        rotation_T = tuple(part.index_select(0, source_T) for part in rotation_N)
        (q,) = self._project(normed_ND.index_select(0, source_T), top.self_attn.q_proj)
        k, v = self._project(normed_ND, top.self_attn.k_proj, top.self_attn.v_proj)
        q, k = self._norm_and_rope(ops, top, "q_norm", q, rotation_T), self._norm_and_rope(ops, top, "k_norm", k, rotation_N)
        attended_TF = _VarlenAttention(batch.top_attention, self.device).attend(q, k, v, self.scale)
        hidden_TD, normed_TD = self._after_attention(ops, top, hidden_ND.index_select(0, source_T), attended_TF)
        return self._mlp(ops, top, hidden_TD, normed_TD, self.body.norm)[1]

    def states(self, batch: PackedBatch, layers: Sequence[int]) -> dict[int, Tensor]:
        """[N, D] hidden states of every token after these layers: 0 is the embeddings, the last is after the final norm."""
        states: dict[int, Tensor] = {}
        _, normed_ND, _ = self._lower_layers(batch, max(layers), states)
        if len(self.layers) in layers:
            states[len(self.layers)] = normed_ND
        return states

    def _lower_layers(
        self, batch: PackedBatch, depth: int, states: dict[int, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """The first `depth` layers: (hidden states, the same after the next RMSNorm, RoPE factors). Stores the hidden states of
        every layer in `states` if given."""
        ops = self.choose_ops(batch)
        hidden_ND = self.body.embed_tokens(to_device(batch.tokens_N, self.device))
        rotation_N = self._cos_sin(batch)
        attentions = [_VarlenAttention(attention, self.device) for attention in batch.lower_attention]
        norms = [*(layer.input_layernorm for layer in self.layers), self.body.norm]
        normed_ND = ops.rms_norm(hidden_ND, norms[0].weight, norms[0].variance_epsilon)
        for i, layer in enumerate(self.layers[:depth]):
            if states is not None:
                states[i] = hidden_ND
            q, k, v = self._rope_qkv(ops, layer, normed_ND, rotation_N)
            queries = q.split([rows.queries for rows in attentions])
            attended = [rows.attend(part, k, v, self.scale) for rows, part in zip(attentions, queries, strict=True)]
            attended_NF = attended[0] if len(attended) == 1 else torch.cat(attended)
            hidden_ND, normed_ND = self._after_attention(ops, layer, hidden_ND, attended_NF)
            hidden_ND, normed_ND = self._mlp(ops, layer, hidden_ND, normed_ND, norms[i + 1])
        if states is not None:
            states[depth] = hidden_ND
        return hidden_ND, normed_ND, rotation_N

    def choose_ops(self, batch: PackedBatch) -> LayerOps:
        return COMPILED_OPS if self._compiles and batch.num_tokens >= MIN_TOKENS_TO_COMPILE else EAGER_OPS

    def _rope_qkv(
        self, ops: LayerOps, layer: Any, normed: Tensor, rotation: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A layer's queries, keys and values, with RoPE."""
        modules = [getattr(layer.self_attn, name) for name in ("q_proj", "k_proj", "v_proj")]
        if self.has_qk_norm:
            q, k, v = self._project(normed, *modules)
            q = self._norm_and_rope(ops, layer, "q_norm", q, rotation)
            k = self._norm_and_rope(ops, layer, "k_norm", k, rotation)
        else:
            cos, sin = rotation
            q, k, v = ops.split_qkv_rope(fused_linear(normed, *modules), cos, sin, self.heads, self.kv_heads)
        return q, k, v

    def _project(self, x: Tensor, *modules: Any) -> list[Tensor]:
        """[N, heads, head_dim] of each projection."""
        sizes = [module.out_features for module in modules]
        return [y.unflatten(-1, (-1, self.head_dim)) for y in fused_linear(x, *modules).split(sizes, dim=-1)]

    def _norm_and_rope(self, ops: LayerOps, layer: Any, norm: str, x: Tensor, rotation: tuple[Tensor, ...]) -> Tensor:
        if self.has_qk_norm:
            module = getattr(layer.self_attn, norm)
            x = ops.rms_norm(x, module.weight, module.variance_epsilon)
        return ops.apply_rope(x, *rotation)

    def _after_attention(self, ops: LayerOps, layer: Any, hidden: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        norm = layer.post_attention_layernorm
        return ops.add_rms_norm(hidden, fused_linear(attended, layer.self_attn.o_proj), norm.weight, norm.variance_epsilon)

    def _mlp(self, ops: LayerOps, layer: Any, hidden: Tensor, normed: Tensor, norm: Any) -> tuple[Tensor, Tensor]:
        x = ops.swiglu(fused_linear(normed, layer.mlp.gate_proj, layer.mlp.up_proj))
        return ops.add_rms_norm(hidden, fused_linear(x, layer.mlp.down_proj), norm.weight, norm.variance_epsilon)


class _VarlenAttention:
    """An AttentionPlan on the device, for varlen attention without padding."""

    def __init__(self, attention: AttentionPlan, device: torch.device):
        self.queries = int(attention.query_lengths.sum())
        self._layout = SequenceLayout.of(attention.query_lengths, attention.key_lengths, device)
        keys = attention.flat_keys
        self._num_keys, in_order = len(keys), np.array_equal(keys, np.arange(len(keys)))
        self._keys = None if in_order else to_device(keys, device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """[queries, heads · head_dim]"""
        if self._keys is not None:
            k, v = k.index_select(0, self._keys), v.index_select(0, self._keys)
        elif self._num_keys < len(k):
            k, v = k[: self._num_keys], v[: self._num_keys]
        return attend_varlen(q, k, v, self._layout, scale).flatten(1)
