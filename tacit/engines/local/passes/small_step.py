"""A decode step in float32 on a CPU, where at a few rows most calls take longer than their arithmetic.

So there are no more calls than the mathematics has operations: every intermediate has its place, and the ways to look at a
place (as pairs, as heads, as the half that is the gate) are made once for a number of rows, not in every layer of every step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.linalg import vector_norm
from torch.nn.functional import silu

from tacit.engines.local.passes.kv_cache import Geometry, KeyValueCache, Reading


class SmallStep:
    """Where a step of so many rows takes place. The mathematics is that of `LlamaForward.step`, which says who may use it."""

    def __init__(self, rows: int, width: int, inner: int, epsilon: float, geometry: Geometry) -> None:
        """`width` of the residual stream, `inner` of the feed-forward, `epsilon` of the norms."""
        kv_heads, dim = geometry.kv_heads, geometry.head_dim
        heads = kv_heads * geometry.queries_per_kv
        self.rows, self._share = rows, 1.0 / width
        with torch.inference_mode(False):
            self._length, self._normed = torch.empty(rows, 1), torch.empty(rows, width)
            self._qkv, rotated = torch.empty(rows, (heads + 2 * kv_heads) * dim), torch.empty(rows, heads + kv_heads, dim)
            self._gate_up = torch.empty(rows, 2 * inner)
            by_head = self._qkv.view(rows, -1, dim)
            self._pairs, self._rotated = _as_pairs(by_head[:, : heads + kv_heads]), _as_pairs(rotated)
            self._q, self._k, self._v = rotated[:, :heads], rotated[:, heads:], by_head[:, heads + kv_heads :]
            self._gate, self._up = self._gate_up.chunk(2, dim=-1)
            self._epsilon = torch.tensor(epsilon)

    def __call__(
        self, h_BD: torch.Tensor, layers: list[Any], cis_B: torch.Tensor, cache: KeyValueCache, reading: Reading
    ) -> torch.Tensor:
        """Through all layers; `h_BD` itself is changed."""
        for depth, layer in enumerate(layers):
            layer.qkv.into(self._qkv, self.normed(h_BD, layer.input_norm.weight))
            torch.mul(self._pairs, cis_B, out=self._rotated)
            layer.out.add_to(h_BD, cache.attend(depth, self._q, self._k, self._v, reading))
            layer.gate_up.into(self._gate_up, self.normed(h_BD, layer.mlp_norm.weight))
            silu(self._gate, inplace=True).mul_(self._up)
            layer.down.add_to(h_BD, self._gate)
        return h_BD

    def normed(self, h_BD: torch.Tensor, weight_D: torch.Tensor) -> torch.Tensor:
        """w · h / √(‖h‖² / D + ε), until the next time."""
        length_B = vector_norm(h_BD, 2, -1, True, out=self._length)
        torch.addcmul(self._epsilon, length_B, length_B, value=self._share, out=length_B).rsqrt_()
        return torch.mul(h_BD, length_B, out=self._normed).mul_(weight_D)


def _as_pairs(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))
