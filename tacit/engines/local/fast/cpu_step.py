"""A decode step in float32 on a CPU, where at a few rows most calls take longer than their arithmetic.

So there are no more calls than the mathematics has operations: every intermediate has its place, and the ways to look at a
place (as pairs, as heads, as the half that is the gate) are made once for a number of rows, not in every layer of every step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.linalg import vector_norm
from torch.nn.functional import silu

from tacit.engines.local.kv_cache import Geometry, KeyValueCache, Reading
from tacit.engines.local.projections import Projection


class SmallStep:
    """Where a step of so many rows takes place. The mathematics is that of `LlamaForward.step`, which says who may use it."""

    def __init__(self, rows: int, width: int, inner: int, epsilon: float, geometry: Geometry) -> None:
        """`width` of the residual stream, `inner` of the feed-forward, `epsilon` of the norms."""
        kv_heads, dim = geometry.kv_heads, geometry.head_dim
        heads = kv_heads * geometry.queries_per_kv
        self.rows = rows
        with torch.inference_mode(False):
            self._length, self._normed = torch.empty(rows, 1), torch.empty(rows, width)
            self._qkv = torch.empty(rows, (heads + 2 * kv_heads) * dim)
            self._gate_up = torch.empty(rows, 2 * inner)
            by_head = self._qkv.view(rows, -1, dim)
            self._pairs = torch.view_as_complex(by_head[:, : heads + kv_heads].unflatten(-1, (-1, 2)))
            self._q, self._kv = by_head[:, :heads].unflatten(1, (kv_heads, -1)), by_head[:, heads:]
            self._gate, self._up = self._gate_up.chunk(2, dim=-1)
            self._epsilon = torch.tensor(epsilon)

    def __call__(
        self,
        h_BD: torch.Tensor,
        layers: list[Any],
        first_VF: torch.Tensor | None,
        tokens_B: torch.Tensor,
        cis_B: torch.Tensor,
        cache: KeyValueCache,
        reading: Reading,
    ) -> None:
        """Through all layers; `h_BD` itself is changed. `first`: what the first one makes of a token, where that is known."""
        for depth, layer in enumerate(layers):
            if depth == 0 and first_VF is not None:
                torch.index_select(first_VF, 0, tokens_B, out=self._qkv)
            else:
                layer.qkv.into(self._qkv, self.normed(h_BD, layer.input_norm.weight))
            self._pairs.mul_(cis_B)
            layer.out.add_to(h_BD, cache.attend_by_head(depth, self._q, self._kv, reading))
            layer.gate_up.into(self._gate_up, self.normed(h_BD, layer.mlp_norm.weight))
            silu(self._gate, inplace=True).mul_(self._up)
            layer.down.add_to(h_BD, self._gate)

    def normed(self, h_BD: torch.Tensor, weight_D: torch.Tensor) -> torch.Tensor:
        """w · h / √(‖h‖² / D + ε), until the next time."""
        return _normed(h_BD, weight_D, self._epsilon, self._length, self._normed)


def projected(h_ND: torch.Tensor, weight_D: torch.Tensor, epsilon: float, qkv: Projection) -> torch.Tensor:
    """What a step makes of these states before it rotates anything, by the same operations, in memory of its own."""
    normed_ND = _normed(h_ND, weight_D, torch.tensor(epsilon), h_ND.new_empty(len(h_ND), 1), torch.empty_like(h_ND))
    return qkv(normed_ND)


def _normed(
    h_BD: torch.Tensor, weight_D: torch.Tensor, epsilon: torch.Tensor, length_B: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    vector_norm(h_BD, 2, -1, True, out=length_B)
    torch.addcmul(epsilon, length_B, length_B, value=1.0 / h_BD.shape[-1], out=length_B).rsqrt_()
    return torch.mul(h_BD, length_B, out=out).mul_(weight_D)
