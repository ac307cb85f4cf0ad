"""The operations between the matrix products of a Llama layer (RMSNorm, RoPE, SwiGLU): eager, or compiled into one launch each.

    rms_norm(h)       = w · h / √(mean h² + ε)
    add_rms_norm(h, d) = h + d, rms_norm(h + d)
    apply_rope(x)     = (a cos − b sin, b cos + a sin) for the halves (a, b) of each head
    swiglu([g; u])    = silu(g) · u

Updates and scoring use `LayerOps` (with --engine.compile, `CompiledRegions`); prefill and decode use `SamplerOps`.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import rms_norm as torch_rms_norm
from torch.nn.functional import silu

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
from tacit.engines.local.projections import Parts, find_parts, fused_linear_autograd

MIN_TOKENS_TO_COMPILE = 4096
"""tokens of a pass from which operations are compiled; smaller passes are bound by launches, not by memory"""


def rms_norm(h: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    wide = h.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(h.dtype) * weight


def add_rms_norm(
    h: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    h = h + delta
    return h, rms_norm(h, weight, epsilon)


def apply_rope(x_NHD: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`cos` and `sin` are [N, 1, head_dim / 2] in float32."""
    a, b = x_NHD.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x_NHD.dtype)


def apply_rope_interleaved(x_NHD: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """For heads that interleave the two halves, as in the sampler. `rotation` is [N, 1, head_dim / 2, 2] float32: cos, sin."""
    pairs = x_NHD.float().unflatten(-1, (-1, 2))
    a, b, cos, sin = pairs[..., 0], pairs[..., 1], rotation[..., 0], rotation[..., 1]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(x_NHD.dtype)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return silu(gate) * up


class LayerOps:
    """The operations above, eager or compiled. Compiled ones take any number of rows; width and dtype are compiled in. On a GPU
    the compiled set uses Triton kernels for SwiGLU and RoPE where available."""

    def __init__(self, compiled: bool = False) -> None:
        wrap: Callable[[Any], Any] = _CompiledOp if compiled else lambda op: op
        self.rms_norm, self.add_rms_norm, self._swiglu = wrap(rms_norm), wrap(add_rms_norm), wrap(swiglu)
        self.apply_rope, self.apply_rope_interleaved = wrap(apply_rope), wrap(apply_rope_interleaved)
        self._uses_kernels = compiled

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        if self._uses_kernels and gate_up.ndim == 2 and has_swiglu_kernels(gate_up.device, gate_up.dtype):
            return SwiGLU.apply(gate_up)
        return self._swiglu(gate_up)

    def split_qkv_rope(
        self, qkv_NF: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int, key_heads: int
    ) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values [N, heads, head_dim] of their fused projection, RoPE applied to the first two."""
        dim, sizes = 2 * cos.shape[-1], (heads, key_heads, key_heads)
        if self._uses_kernels and has_rope_qkv_kernel(qkv_NF.device, qkv_NF.dtype, heads, key_heads, dim):
            return RopeQKV.apply(qkv_NF, cos, sin, sizes)
        q, k, v = qkv_NF.unflatten(-1, (-1, dim)).split(sizes, 1)
        return self.apply_rope(q, cos, sin), self.apply_rope(k, cos, sin), v


@capability_probe
def can_compile(device: torch.device) -> bool:
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def compile_lazily(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """torch.compile, with a recompile limit that covers every width with and without gradients (torch's own limit is 8)."""
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    return torch.compile(function, **options)


def warn_of_fallback(error: Exception, how: str) -> None:
    """Warn that compilation failed. An out of memory error is raised instead."""
    if is_out_of_memory(error):
        raise error
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    warnings.warn(f"the model runs {how}, more slowly: {first_line}", stacklevel=5)


class _CompiledOp:
    """Compiled on first use and compared with the eager operation once. If that fails (no C compiler, say), all operations stay
    eager."""

    failed = False

    def __init__(self, op: Callable[..., Any]) -> None:
        self._op = op
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if _CompiledOp.failed:
            return self._op(*arguments)
        for argument in arguments:
            if isinstance(argument, torch.Tensor) and argument.ndim > 1:
                torch._dynamo.maybe_mark_dynamic(argument, 0)
        if self._compiled is not None:
            return self._compiled(*arguments)
        compiled = compile_lazily(self._op)
        try:
            result = compiled(*arguments)
            expected = self._op(*arguments)
            for ours, theirs in zip(*(x if isinstance(x, tuple) else (x,) for x in (result, expected)), strict=True):
                exact = theirs.dtype == torch.float32
                if not torch.allclose(ours, theirs, rtol=1e-4 if exact else 2e-2, atol=1e-4 if exact else 2e-2):
                    raise ArithmeticError("a compiled operation differs from the eager one")
        except Exception as error:
            warn_of_fallback(error, "uncompiled")
            _CompiledOp.failed = True
            return self._op(*arguments)
        self._compiled = compiled
        return result


EAGER_OPS = LayerOps()
COMPILED_OPS = LayerOps(compiled=True)


class SamplerOps:
    """The same operations for prefill and decode, in eager torch."""

    @staticmethod
    def rms_norm(h: torch.Tensor, norm: Any) -> torch.Tensor:
        return torch_rms_norm(h, h.shape[-1:], norm.weight, norm.variance_epsilon)

    @staticmethod
    def apply_rope(x: torch.Tensor, cis: torch.Tensor) -> torch.Tensor:
        """(a + ib)(cos + i sin) for every interleaved pair, in float32."""
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * cis).flatten(-2).to(x.dtype)

    @staticmethod
    def swiglu(gate_up: torch.Tensor, activation: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return activation(gate) * up


class CompiledSamplerOps(SamplerOps):
    """One launch each."""

    @staticmethod
    def rms_norm(h: torch.Tensor, norm: Any) -> torch.Tensor:
        if h.ndim == 2 and has_rms_norm_kernel(h.device, h.dtype, h.shape[1]):
            return rms_norm_forward(h, norm.weight, norm.variance_epsilon)
        return COMPILED_OPS.rms_norm(h, norm.weight, norm.variance_epsilon)

    @staticmethod
    def apply_rope(x: torch.Tensor, cis: torch.Tensor) -> torch.Tensor:
        return COMPILED_OPS.apply_rope_interleaved(x, torch.view_as_real(cis))

    @staticmethod
    def swiglu(gate_up: torch.Tensor, activation: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return COMPILED_OPS.swiglu(gate_up)


# Everything between two attentions as one compiled region:
#
#     h ← h + O a                                     a: output of the layer's attention
#     h ← h + D (silu(G x) · U x)                     x: RMSNorm of h
#     q, k, v ← RoPE(Q x), RoPE(K x), V x             x: RMSNorm of h; projections of the next layer
#
# At a few thousand tokens the host launches single operations more slowly than a GPU computes them. Weights are arguments, so
# all layers share one graph for any number of tokens, and a second one without gradients.

MIN_TOKENS_FOR_REGIONS = 64
"""more than the probe when the model is loaded has, so the graph is compiled when first needed"""
MAX_REGION_ERROR = {torch.float32: 1e-3}
"""allowed ‖compiled − eager‖ / ‖eager‖"""
MAX_REGION_ERROR_HALF = 0.1

Weights = tuple[torch.Tensor, ...]
Answer = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class RegionLayout:
    """Compile-time constants of a region: the layout of its flat weight list, and its numbers."""

    head_dim: int
    epsilons: tuple[float, ...]
    """of the norms: after attention, before the next attention, and of its queries and keys if it has QK norms"""
    kinds: tuple[tuple[bool, float | None], ...]
    """(has a bias, scale of its LoRA adapter) of o, gate, up, down, q, k and v"""


class CompiledRegions:
    """The regions of one model: region i is between the attentions of layers i and i + 1."""

    def __init__(self, layers: Sequence[Any], head_dim: int) -> None:
        self._head_dim = head_dim
        self._modules = [_region_modules(*pair) for pair in pairwise(layers)]
        self._compiled: dict[RegionLayout, Callable[..., Answer]] = {}
        self._checked: set[tuple[RegionLayout, bool]] = set()
        """(layout, with gradients): those already compared with the eager region"""
        self.failed = False

    def bind_weights(
        self, count: int
    ) -> Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Answer] | None:
        """The first `count` regions with their present weights: (i, h, attention output, cos, sin) -> (h, q, k, v). None if a
        module is not a plain linear layer or has dropout, if layers differ in kind, or if compiling failed before."""
        weights: list[Weights] = []
        layouts: set[RegionLayout] = set()
        for norms, projections in self._modules[: 0 if self.failed else count]:
            parts = find_parts(projections)
            if parts is None:
                return None
            kinds = tuple((bias is not None, adapters[0][2] if adapters else None) for _, bias, adapters in parts)
            layouts.add(RegionLayout(self._head_dim, tuple(norm.variance_epsilon for norm in norms), kinds))
            weights.append((*(norm.weight for norm in norms), *_flatten_parts(parts)))
        return partial(self._run, layouts.pop(), weights) if len(layouts) == 1 else None

    def _run(
        self,
        layout: RegionLayout,
        weights: list[Weights],
        i: int,
        h: torch.Tensor,
        attended: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> Answer:
        if torch.is_grad_enabled() and attended.requires_grad and not h.requires_grad:
            h = h.detach().requires_grad_()  # frozen embeddings: the first layer uses the same graph as the others
        for argument in (h, attended, cos, sin):
            torch._dynamo.maybe_mark_dynamic(argument, 0)
        if not self.failed and (layout, torch.is_grad_enabled()) not in self._checked:
            self._compile(layout, (h, attended, cos, sin, *weights[i]))
        if self.failed:  # in this very pass
            return run_region(layout, h, attended, cos, sin, *weights[i])
        return self._compiled[layout](h, attended, cos, sin, *weights[i])

    def _compile(self, layout: RegionLayout, arguments: Weights) -> None:
        """Compile and compare with the eager region, gradients included: their graph is only compiled when first used, too late
        to fall back. Warns on failure."""
        eager = partial(run_region, layout)
        try:
            compiled = self._compiled.get(layout) or compile_lazily(_bind_layout(layout), options={"size_asserts": False})
            # Own hooks: `count_saved_bytes` must not count the comparison.
            with saved_tensors_hooks(torch.Tensor.detach, lambda tensor: tensor):
                _check_regions_match(compiled, eager, arguments)
        except Exception as error:
            warn_of_fallback(error, "without compiled regions")
            self.failed = True
            return
        self._compiled[layout] = compiled
        self._checked.add((layout, torch.is_grad_enabled()))


def run_region(
    layout: RegionLayout, h: torch.Tensor, attended: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *weights: torch.Tensor
) -> Answer:
    """(h, q, k, v): hidden states [N, D] after a layer, and the next layer's queries, keys and values [N, heads, head_dim]."""
    norms = list(zip(weights, layout.epsilons, strict=False))
    o, gate, up, down, *qkv = _unflatten_parts(weights[len(layout.epsilons) :], layout.kinds)
    h, x = add_rms_norm(h, fused_linear_autograd(attended, [o]), *norms[0])
    x = swiglu(fused_linear_autograd(x, [gate, up]))
    h, x = add_rms_norm(h, fused_linear_autograd(x, [down]), *norms[1])
    features = [len(weight) for weight, _, _ in qkv]
    q, k, v = (y.unflatten(-1, (-1, layout.head_dim)) for y in fused_linear_autograd(x, qkv).split(features, dim=-1))
    if len(norms) == 4:
        q, k = rms_norm(q, *norms[2]), rms_norm(k, *norms[3])
    # A copy of v: a view would keep the whole fused projection alive, and compiled functions are slow to return views.
    return h, apply_rope(q, cos, sin), apply_rope(k, cos, sin), v.clone(memory_format=torch.contiguous_format)


def _bind_layout(layout: RegionLayout) -> Callable[..., Answer]:
    def of_layout(
        h: torch.Tensor, attended: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *weights: torch.Tensor
    ) -> Answer:
        return run_region(layout, h, attended, cos, sin, *weights)

    return of_layout


def _region_modules(layer: Any, following: Any) -> tuple[list[Any], list[Any]]:
    """The norms and the projections of a region, in order."""
    attention, asking = layer.self_attn, following.self_attn
    norms = [layer.post_attention_layernorm, following.input_layernorm]
    if hasattr(asking, "q_norm"):
        norms += [asking.q_norm, asking.k_norm]
    mlp = layer.mlp
    return norms, [attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj, asking.q_proj, asking.k_proj, asking.v_proj]


def _flatten_parts(parts: Sequence[Parts]) -> Iterator[torch.Tensor]:
    for weight, bias, adapters in parts:
        yield weight
        if bias is not None:
            yield bias
        for lora_A, lora_B, _ in adapters:
            yield lora_A
            yield lora_B


def _unflatten_parts(weights: Sequence[torch.Tensor], kinds: Sequence[tuple[bool, float | None]]) -> list[Parts]:
    """The inverse of `_flatten_parts`."""
    parts: list[Parts] = []
    at = 0
    for has_bias, scale in kinds:
        weight, bias, at = weights[at], weights[at + 1] if has_bias else None, at + 1 + has_bias
        adapters = [] if scale is None else [(weights[at], weights[at + 1], scale)]
        at += 2 * len(adapters)
        parts.append((weight, bias, adapters))
    return parts


def _check_regions_match(compiled: Callable[..., Answer], eager: Callable[..., Answer], arguments: Weights) -> None:
    """Compare outputs, and the gradients of half the sum of their squares."""
    states = [x.detach().requires_grad_(x.requires_grad) for x in arguments[:2]]  # no gradient beyond the region
    for x in states:
        torch._dynamo.maybe_mark_dynamic(x, 0)
    arguments = (*states, *arguments[2:])
    inputs = [argument for argument in arguments if argument.requires_grad]
    results = []
    for function in (compiled, eager):
        outputs = function(*arguments)
        values = [y.detach() for y in outputs]
        gradients = torch.autograd.grad(outputs, inputs, values) if outputs[0].requires_grad else ()
        results.append([*values, *gradients])
    for ours, theirs in zip(*results, strict=True):
        error = torch.linalg.vector_norm(ours.float() - theirs.float())
        if not error <= MAX_REGION_ERROR.get(theirs.dtype, MAX_REGION_ERROR_HALF) * torch.linalg.vector_norm(theirs.float()):
            raise ArithmeticError("a compiled region differs from the eager one")
