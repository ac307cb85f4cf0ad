"""The operations between the matrix products of a Llama layer: eager, compiled, or as a Triton kernel, each one launch.

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
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import rms_norm as torch_rms_norm
from torch.nn.functional import silu

from tacit.core.errors import first_line
from tacit.engines.local.fast.kernels import capability_probe, is_kernel_usable, on_tensor_device, pdl_options
from tacit.engines.local.memory import is_out_of_memory
from tacit.engines.local.packing import next_power_of_two

SWIGLU_BLOCK, SWIGLU_WARPS = 1024, 4  # numbers and warps per program; each thread loads eight 16-bit numbers at once


class SwiGLU(torch.autograd.Function):
    """With its gradient, for which torch.compile takes twice as long:

    y = g σ(g) u        dL/dg = dL/dy · u · (s + a (1 − s)),  dL/du = dL/dy · a        s = σ(g), a = g s
    """

    @staticmethod
    def forward(ctx: Any, gate_up_NF: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up_NF)
        return swiglu_forward(gate_up_NF)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gate_up_NF,) = ctx.saved_tensors
        return swiglu_backward(gate_up_NF, gradients[0].contiguous())


@on_tensor_device
def swiglu_forward(gate_up_NF: Tensor) -> Tensor:
    """[N, inner] from gate and up, side by side [N, 2 · inner]."""
    from tacit.engines.local.fast.triton_kernels import swiglu_forward_kernel  # Triton comes with CUDA only

    rows, inner = len(gate_up_NF), gate_up_NF.shape[1] // 2
    out_NF = gate_up_NF.new_empty(rows, inner)
    if rows:
        shape = (inner, gate_up_NF.stride(0))
        options = {"BLOCK": SWIGLU_BLOCK, "num_warps": SWIGLU_WARPS} | pdl_options(gate_up_NF.device)
        swiglu_forward_kernel[_grid(rows, inner)](gate_up_NF, out_NF, *shape, **options)
    return out_NF


@on_tensor_device
def swiglu_backward(gate_up_NF: Tensor, gradient_NF: Tensor) -> Tensor:
    """The gradients of gate and up, side by side."""
    from tacit.engines.local.fast.triton_kernels import swiglu_backward_kernel

    rows, inner = gradient_NF.shape
    grad_gate_up_NF = gradient_NF.new_empty(rows, 2 * inner)
    if rows:
        shape = (inner, gate_up_NF.stride(0))
        swiglu_backward_kernel[_grid(rows, inner)](
            gate_up_NF, gradient_NF, grad_gate_up_NF, *shape, BLOCK=SWIGLU_BLOCK, num_warps=SWIGLU_WARPS
        )
    return grad_gate_up_NF


@capability_probe
def has_swiglu_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    return is_kernel_usable("SwiGLU", device, partial(swiglu_matches_torch, device, dtype))


def swiglu_matches_torch(device: torch.device, dtype: torch.dtype) -> bool:
    """Compare at widths that are not multiples of the block; for multiples of 16 Triton compiles another variant."""
    return all(_swiglu_matches_at(SWIGLU_BLOCK + more, device, dtype) for more in (24, 32))


def _swiglu_matches_at(inner: int, device: torch.device, dtype: torch.dtype) -> bool:
    """Compare with float64, for gates from −200 to 200."""
    generator, rows = torch.Generator(device).manual_seed(0), 5
    gate_up_NF = 4 * torch.randn(rows, 2 * inner, generator=generator, device=device)
    gate_up_NF[:, :8] = torch.tensor([-200.0, -90, -20, -1, 0, 1, 20, 200], device=device)
    gate_up_NF = gate_up_NF.to(dtype)
    gradient_NF = torch.randn(rows, inner, generator=generator, device=device).to(dtype)
    gate_NF, up_NF = gate_up_NF.double().chunk(2, -1)
    sigmoid_NF = gate_NF.sigmoid()
    activated_NF = gate_NF * sigmoid_NF
    grad_gate_NF = up_NF * (sigmoid_NF + activated_NF * (1 - sigmoid_NF))
    expected_NF = torch.cat([grad_gate_NF, activated_NF], -1) * gradient_NF.double().repeat(1, 2)
    close = partial(torch.allclose, atol=1e-5, rtol=torch.finfo(dtype).eps + 1e-4)
    return close(swiglu_forward(gate_up_NF).double(), activated_NF * up_NF) and close(
        swiglu_backward(gate_up_NF, gradient_NF).double(), expected_NF
    )


def _grid(rows: int, inner: int) -> tuple[int, int]:
    return rows, -(-inner // SWIGLU_BLOCK)


# RMSNorm without a gradient, for the sampler. torch.compile reaches a third of the memory bandwidth for rows of 1,536 numbers.

NORM_WARPS = 2
MAX_NORM_WIDTH = 8192  # widest row that fits into a program's registers


@on_tensor_device
def rms_norm_forward(h_ND: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """w · h / √(mean h² + ε) by row; `h_ND` must be contiguous."""
    from tacit.engines.local.fast.triton_kernels import rms_norm_kernel  # Triton comes with CUDA only

    rows, width = h_ND.shape
    normed_ND = torch.empty_like(h_ND)
    if rows:
        shape = {"WIDTH": width, "PADDED": next_power_of_two(width), "num_warps": NORM_WARPS}
        rms_norm_kernel[(rows,)](h_ND, weight, normed_ND, epsilon, **shape, **pdl_options(h_ND.device))
    return normed_ND


@capability_probe
def has_rms_norm_kernel(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    fits = width <= MAX_NORM_WIDTH and dtype in (torch.bfloat16, torch.float16)
    return fits and is_kernel_usable("RMSNorm", device, partial(_rms_norm_matches_torch, device, dtype, width))


def _rms_norm_matches_torch(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Compare with torch, for rows of different magnitudes."""
    generator = torch.Generator(device).manual_seed(0)
    h_ND = torch.randn(7, width, generator=generator, device=device) * torch.logspace(-3, 3, 7, device=device)[:, None]
    h_ND, weight = h_ND.to(dtype), torch.randn(width, generator=generator, device=device).to(dtype)
    expected = torch_rms_norm(h_ND.float(), (width,), weight.float(), 1e-5)
    result = rms_norm_forward(h_ND, weight, 1e-5).float()
    return torch.allclose(result, expected, atol=1e-5, rtol=2 * torch.finfo(dtype).eps)


# RoPE: (a, b) ← (a cos − b sin, b cos + a sin) for every pair of a query or key. Prefill rotates in place and writes keys and
# values into the cache (`rope_into_cache`). Updates split the fused projection into rotated queries and keys, and values
# (`RopeQKV`). Torch, compiled or not, takes two to seven times as long.

ROPE_BLOCK, ROPE_WARPS = 4096, 4  # numbers per program: all heads of a few tokens


@on_tensor_device
def rope_into_cache(
    qkv_NF: Tensor, heads: int, positions_N: Tensor, rotations: Tensor, slots_N: Tensor, keys_SGD: Tensor, values_SGD: Tensor
) -> None:
    """Rotate queries and keys of `qkv_NF` in place, and write keys and values to `slots_N` of the cache. `qkv_NF` may be a
    slice of a wider matrix. `rotations`: [positions, head_dim / 2, 2] float32, cos and sin."""
    from tacit.engines.local.fast.triton_kernels import rope_into_cache_kernel  # Triton comes with CUDA only

    key_heads, dim = keys_SGD.shape[1:]
    padded = next_power_of_two(heads + 2 * key_heads)
    block_tokens = max(1, ROPE_BLOCK // (padded * dim))
    if len(qkv_NF):
        rope_into_cache_kernel[(-(-len(qkv_NF) // block_tokens),)](
            qkv_NF, positions_N, rotations, slots_N, keys_SGD, values_SGD, len(qkv_NF), qkv_NF.stride(0),
            HEADS=heads, KEY_HEADS=key_heads, PADDED=padded, DIM=dim, TOKENS=block_tokens, num_warps=ROPE_WARPS,
        )  # fmt: skip


class RopeQKV(torch.autograd.Function):
    """Queries, keys and values [N, heads, head_dim] of their fused projection [N, features], with RoPE on the first two. Pairs
    are (first half, second half) of a head. `cos` and `sin` are [N, 1, head_dim / 2] float32."""

    @staticmethod
    def forward(ctx: Any, qkv_NF: Tensor, cos: Tensor, sin: Tensor, sizes: tuple[int, int, int]) -> tuple[Tensor, ...]:
        """`sizes`: heads of queries, keys and values."""
        ctx.save_for_backward(cos, sin)
        dim = 2 * cos.shape[-1]
        q, k, v = qkv_NF.unflatten(1, (-1, dim)).split(sizes, 1)
        rotated_NF = rope_qkv(q, k, v, cos, sin, inverse=False)
        return rotated_NF.unflatten(1, (-1, dim)).split(sizes, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (cos, sin), (q, k, v) = ctx.saved_tensors, (gradient.contiguous() for gradient in gradients)
        return rope_qkv(q, k, v, cos, sin, inverse=True), None, None, None


@on_tensor_device
def rope_qkv(q_NHD: Tensor, k_NGD: Tensor, v_NGD: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    """[N, features]: q, k, v side by side, queries and keys rotated, or with `inverse` rotated back, for the gradient."""
    from tacit.engines.local.fast.triton_kernels import rope_qkv_kernel

    (tokens, heads, dim), key_heads = q_NHD.shape, k_NGD.shape[1]
    rotated_NF = q_NHD.new_empty(tokens, (heads + 2 * key_heads) * dim)
    padded = next_power_of_two(heads)
    block_tokens = max(1, ROPE_BLOCK // (padded * dim))
    if tokens:
        rope_qkv_kernel[(-(-tokens // block_tokens),)](
            q_NHD, k_NGD, v_NGD, cos, sin, rotated_NF, tokens, q_NHD.stride(0), k_NGD.stride(0), v_NGD.stride(0),
            HEADS=heads, KEY_HEADS=key_heads, PADDED=padded, PADDED_KEYS=next_power_of_two(key_heads), HALF=dim // 2,
            TOKENS=block_tokens, INVERSE=inverse, num_warps=ROPE_WARPS,
        )  # fmt: skip
    return rotated_NF


@capability_probe
def has_rope_qkv_kernel(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, head_dim: int) -> bool:
    fits = head_dim in (16, 32, 64, 128, 256) and dtype in (torch.bfloat16, torch.float16)
    return fits and is_kernel_usable(
        "RoPE of an update", device, partial(_rope_qkv_matches_torch, device, dtype, heads, key_heads, head_dim)
    )


def _rope_qkv_matches_torch(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, head_dim: int) -> bool:
    """Compare with torch: forward from one fused tensor, backward from three separate ones."""
    generator, tokens, sizes = torch.Generator(device).manual_seed(0), 37, (heads, key_heads, key_heads)
    qkv = torch.randn(tokens, sum(sizes), head_dim, generator=generator, device=device).to(dtype)
    angles = torch.randn(tokens, 1, head_dim // 2, generator=generator, device=device)
    cos, sin = angles.cos(), angles.sin()
    for inverse, (q, k, v) in ((False, qkv.split(sizes, 1)), (True, [x.contiguous() for x in qkv.split(sizes, 1)])):
        a, b = torch.cat([q, k], 1).float().chunk(2, -1)
        sine = -sin if inverse else sin
        expected = torch.cat([torch.cat([a * cos - b * sine, b * cos + a * sine], -1), v.float()], 1).flatten(1)
        result = rope_qkv(q, k, v, cos, sin, inverse).float()
        if not torch.allclose(result, expected, atol=1e-5, rtol=2 * torch.finfo(dtype).eps):
            return False
    return True


@capability_probe
def has_rope_cache_kernel(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, head_dim: int) -> bool:
    fits = head_dim in (16, 32, 64, 128, 256) and dtype in (torch.bfloat16, torch.float16)
    trials = (partial(_rope_cache_matches_torch, device, dtype, queries, key_heads, head_dim) for queries in (heads, 0))
    return fits and is_kernel_usable("RoPE of a prefill", device, lambda: all(trial() for trial in trials))


def _rope_cache_matches_torch(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, head_dim: int) -> bool:
    """Compare with torch, for a slice of a wider tensor and a cache in which every second slot must not change."""
    generator, tokens = torch.Generator(device).manual_seed(0), 37
    width = (heads + 2 * key_heads) * head_dim
    wide = torch.randn(tokens, width + 16, generator=generator, device=device).to(dtype)
    before = wide.clone()
    positions_N = torch.randint(0, 9, (tokens,), generator=generator, device=device)
    angles = torch.randn(9, head_dim // 2, generator=generator, device=device)
    rotations = torch.polar(torch.ones_like(angles), angles)
    slots_N = 2 * torch.randperm(tokens, generator=generator, device=device)
    keys, values = (torch.zeros(2 * tokens, key_heads, head_dim, dtype=dtype, device=device) for _ in "kv")
    rope_into_cache(wide[:, :width], heads, positions_N, torch.view_as_real(rotations), slots_N, keys, values)
    qk, v = before[:, :width].unflatten(1, (-1, head_dim)).split((heads + key_heads, key_heads), 1)
    pairs = torch.view_as_complex(qk.float().unflatten(-1, (-1, 2))) * rotations[positions_N, None]
    expected = torch.cat([torch.view_as_real(pairs).flatten(-2).to(dtype), v], 1)
    result = wide[:, :width].unflatten(1, (-1, head_dim))
    close = partial(torch.allclose, atol=1e-5, rtol=2 * torch.finfo(dtype).eps)
    return (
        close(result.float(), expected.float())
        and torch.equal(wide[:, width:], before[:, width:])
        and torch.equal(keys[slots_N], result[:, heads : heads + key_heads])
        and torch.equal(values[slots_N], v)
        and not keys[1::2].any()
        and not values[1::2].any()
    )


# The operations in torch, eager or compiled, and the sets of operations that passes use.

MIN_TOKENS_TO_COMPILE = 4096
"""tokens of a pass from which operations are compiled; smaller passes are bound by launches, not by memory"""


def rms_norm(h: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    h_float32 = h.float()
    return (h_float32 * torch.rsqrt(h_float32.square().mean(-1, keepdim=True) + epsilon)).to(h.dtype) * weight


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
            for actual, eager in zip(*(x if isinstance(x, tuple) else (x,) for x in (result, expected)), strict=True):
                exact = eager.dtype == torch.float32
                if not torch.allclose(actual, eager, rtol=1e-4 if exact else 2e-2, atol=1e-4 if exact else 2e-2):
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
