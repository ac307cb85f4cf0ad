"""The operations between the matrix products of a Llama layer (RMSNorm, RoPE, SwiGLU): eager, or compiled into one launch each.

    rms_norm(h)       = w · h / √(mean h² + ε)
    add_rms_norm(h, d) = h + d, rms_norm(h + d)
    apply_rope(x)     = (a cos − b sin, b cos + a sin) for the halves (a, b) of each head
    swiglu([g; u])    = silu(g) · u

Updates and scoring use `LayerOps`; prefill and decode use `SamplerOps`.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm as torch_rms_norm
from torch.nn.functional import silu

from tacit.core.errors import first_line
from tacit.engines.local.fast.kernels import capability_probe
from tacit.engines.local.fast.layers import (
    RopeQKV,
    SwiGLU,
    has_rms_norm_kernel,
    has_rope_qkv_kernel,
    has_swiglu_kernels,
    rms_norm_forward,
)
from tacit.engines.local.memory import is_out_of_memory

MIN_TOKENS_TO_COMPILE = 4096
"""tokens of a pass from which operations are compiled; smaller passes are bound by launches, not by memory"""


def rms_norm(h: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = h.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(h.dtype) * weight


def add_rms_norm(h: Tensor, delta: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    h = h + delta
    return h, rms_norm(h, weight, epsilon)


def apply_rope(x_NHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`cos` and `sin` are [N, 1, head_dim / 2] in float32."""
    a, b = x_NHD.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x_NHD.dtype)


def apply_rope_interleaved(x_NHD: Tensor, rotation: Tensor) -> Tensor:
    """For heads that interleave the two halves, as in the sampler. `rotation` is [N, 1, head_dim / 2, 2] float32: cos, sin."""
    pairs = x_NHD.float().unflatten(-1, (-1, 2))
    a, b, cos, sin = pairs[..., 0], pairs[..., 1], rotation[..., 0], rotation[..., 1]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(x_NHD.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return silu(gate) * up


class LayerOps:
    """The operations above, eager or compiled. Compiled ones take any number of rows; width and dtype are compiled in. On a GPU
    the compiled set uses Triton kernels for SwiGLU and RoPE where available."""

    def __init__(self, compiled: bool = False) -> None:
        wrap: Callable[[Any], Any] = CompiledOp if compiled else lambda op: op
        self.rms_norm, self.add_rms_norm, self._swiglu = wrap(rms_norm), wrap(add_rms_norm), wrap(swiglu)
        self.apply_rope, self.apply_rope_interleaved = wrap(apply_rope), wrap(apply_rope_interleaved)
        self._uses_kernels = compiled

    def swiglu(self, gate_up: Tensor) -> Tensor:
        if self._uses_kernels and gate_up.ndim == 2 and has_swiglu_kernels(gate_up.device, gate_up.dtype):
            return SwiGLU.apply(gate_up)
        return self._swiglu(gate_up)

    def split_qkv_rope(self, qkv_NF: Tensor, cos: Tensor, sin: Tensor, heads: int, key_heads: int) -> tuple[Tensor, ...]:
        """Queries, keys and values [N, heads, head_dim] of their fused projection, RoPE applied to the first two."""
        dim, sizes = 2 * cos.shape[-1], (heads, key_heads, key_heads)
        if self._uses_kernels and has_rope_qkv_kernel(qkv_NF.device, qkv_NF.dtype, heads, key_heads, dim):
            return RopeQKV.apply(qkv_NF, cos, sin, sizes)
        q, k, v = qkv_NF.unflatten(-1, (-1, dim)).split(sizes, 1)
        return self.apply_rope(q, cos, sin), self.apply_rope(k, cos, sin), v


@capability_probe
def can_compile(device: torch.device) -> bool:
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


class CompiledOp:
    """Compiled on first use and compared with the eager operation once. If that fails (no C compiler, say), all operations stay
    eager."""

    failed = False

    def __init__(self, op: Callable[..., Any]) -> None:
        self._op = op
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if CompiledOp.failed:
            return self._op(*arguments)
        for argument in arguments:
            if isinstance(argument, Tensor) and argument.ndim > 1:
                torch._dynamo.maybe_mark_dynamic(argument, 0)
        if self._compiled is not None:
            return self._compiled(*arguments)
        # Every width, with and without gradients, is a compilation of its own; torch's own limit is 8.
        torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
        compiled = torch.compile(self._op)
        try:
            result = compiled(*arguments)
            expected = self._op(*arguments)
            for ours, theirs in zip(*(x if isinstance(x, tuple) else (x,) for x in (result, expected)), strict=True):
                exact = theirs.dtype == torch.float32
                if not torch.allclose(ours, theirs, rtol=1e-4 if exact else 2e-2, atol=1e-4 if exact else 2e-2):
                    raise ArithmeticError("a compiled operation differs from the eager one")
        except Exception as error:
            if is_out_of_memory(error):
                raise
            warnings.warn(f"the model runs uncompiled, more slowly: {first_line(error)}", stacklevel=4)
            CompiledOp.failed = True
            return self._op(*arguments)
        self._compiled = compiled
        return result


EAGER_OPS = LayerOps()
COMPILED_OPS = LayerOps(compiled=True)


class SamplerOps:
    """The same operations for prefill and decode, in eager torch."""

    @staticmethod
    def rms_norm(h: Tensor, norm: Any) -> Tensor:
        return torch_rms_norm(h, h.shape[-1:], norm.weight, norm.variance_epsilon)

    @staticmethod
    def apply_rope(x: Tensor, cis: Tensor) -> Tensor:
        """(a + ib)(cos + i sin) for every interleaved pair, in float32."""
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * cis).flatten(-2).to(x.dtype)

    @staticmethod
    def swiglu(gate_up: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return activation(gate) * up


class CompiledSamplerOps(SamplerOps):
    """One launch each."""

    @staticmethod
    def rms_norm(h: Tensor, norm: Any) -> Tensor:
        if h.ndim == 2 and has_rms_norm_kernel(h.device, h.dtype, h.shape[1]):
            return rms_norm_forward(h, norm.weight, norm.variance_epsilon)
        return COMPILED_OPS.rms_norm(h, norm.weight, norm.variance_epsilon)

    @staticmethod
    def apply_rope(x: Tensor, cis: Tensor) -> Tensor:
        return COMPILED_OPS.apply_rope_interleaved(x, torch.view_as_real(cis))

    @staticmethod
    def swiglu(gate_up: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        return COMPILED_OPS.swiglu(gate_up)
