"""A float32 decode step on a CPU. With few slots most torch calls take longer than their arithmetic, so there are as few calls
as operations: every intermediate is preallocated, and its views (RoPE pairs, heads, gate half) are made once per batch size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.linalg import vector_norm
from torch.nn.functional import silu

from tacit.engines.local.kv_cache import AttentionMetadata, AttentionShape, KeyValueCache
from tacit.engines.local.projections import FusedLinear


class CpuDecodeStep:
    """Buffers and layers of a step with a fixed number of slots. Computes what `LlamaForward.decode_step` does."""

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
        h_BD: torch.Tensor,
        layers: list[Any],
        first_qkv_VF: torch.Tensor | None,
        tokens_B: torch.Tensor,
        rope_B: torch.Tensor,
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

    def rms_norm(self, h_BD: torch.Tensor, weight_D: torch.Tensor) -> torch.Tensor:
        """w · h / √(‖h‖² / D + ε). The result is overwritten by the next call."""
        return _rms_norm(h_BD, weight_D, self._epsilon, self._length, self._normed)


def project_tokens(h_ND: torch.Tensor, weight_D: torch.Tensor, epsilon: float, qkv: FusedLinear) -> torch.Tensor:
    """The qkv projection of these states by the same operations as in a step, in new memory."""
    normed_ND = _rms_norm(h_ND, weight_D, torch.tensor(epsilon), h_ND.new_empty(len(h_ND), 1), torch.empty_like(h_ND))
    return qkv(normed_ND)


def _rms_norm(
    h_BD: torch.Tensor, weight_D: torch.Tensor, epsilon: torch.Tensor, length_B: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    vector_norm(h_BD, 2, -1, True, out=length_B)
    torch.addcmul(epsilon, length_B, length_B, value=1.0 / h_BD.shape[-1], out=length_B).rsqrt_()
    return torch.mul(h_BD, length_B, out=out).mul_(weight_D)
