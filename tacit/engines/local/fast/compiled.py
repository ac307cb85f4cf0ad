"""What lies between the matrix products of a Llama layer, each as one piece: compiled on a GPU, where a pass over memory is
what such a piece costs, and written out in torch it takes a dozen.

    normed(h)        = w · h / √(mean h² + ε)
    added(h, d)      = h + d, normed(h + d)
    rotated(x)       = (a cos − b sin, b cos + a sin) for the halves (a, b) of each head
    gated([g; u])    = silu(g) · u

`rotated_pairs` is `rotated` for heads that keep the two halves of each pair side by side, as the sampler does.
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
from torch.nn.functional import rms_norm, silu

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
"""rows of a pass from which on pieces are compiled: smaller ones wait for launches, not for memory"""


def normed(h: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    wide = h.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(h.dtype) * weight


def added(h: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    h = h + delta
    return h, normed(h, weight, epsilon)


def rotated(x_NHD: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`cos` and `sin` are [N, 1, head_dim / 2] in float32."""
    a, b = x_NHD.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x_NHD.dtype)


def rotated_pairs(x_NHD: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """`rotation` is [N, 1, head_dim / 2, 2] in float32: cos and sin."""
    pairs = x_NHD.float().unflatten(-1, (-1, 2))
    a, b, cos, sin = pairs[..., 0], pairs[..., 1], rotation[..., 0], rotation[..., 1]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(x_NHD.dtype)


def gated(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return silu(gate) * up


class LayerOps:
    """All of them, as they stand or compiled. A compiled piece takes any number of rows; width and format are compiled in."""

    def __init__(self, compiled: bool = False) -> None:
        made: Callable[[Any], Any] = _CompiledOp if compiled else lambda piece: piece
        self.normed, self.added, self.gated = made(normed), made(added), _by_kernel(made(gated)) if compiled else gated
        self.rotated, self.rotated_pairs = made(rotated), made(rotated_pairs)
        self._turns = has_rope_qkv_kernel if compiled else lambda *of: False

    def by_head(
        self, qkv_NF: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int, key_heads: int
    ) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values [N, heads, head_dim] of their product, the first two rotated."""
        dim, sizes = 2 * cos.shape[-1], (heads, key_heads, key_heads)
        if self._turns(qkv_NF.device, qkv_NF.dtype, heads, key_heads, dim):
            return RopeQKV.apply(qkv_NF, cos, sin, sizes)
        q, k, v = qkv_NF.unflatten(-1, (-1, dim)).split(sizes, 1)
        return self.rotated(q, cos, sin), self.rotated(k, cos, sin), v


@capability_probe
def can_compile(device: torch.device) -> bool:
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def compile_lazily(work: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    """Compiled when it is first called; `how` as torch takes it."""
    # With gradients and without, and for each width: far fewer than this, but more than torch's own limit of 8.
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    return torch.compile(work, **how)


def warn_of_fallback(error: Exception, how: str) -> None:
    """Say that compiling has failed, and how the model runs now; a shortage of memory is no such failure, and is raised."""
    if is_out_of_memory(error):
        raise error
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    warnings.warn(f"the model runs {how}, more slowly: {first_line}", stacklevel=5)


def _by_kernel(otherwise: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """`gated` of rows by a kernel of our own, where there is one."""

    def gated(gate_up: torch.Tensor) -> torch.Tensor:
        by_kernel = gate_up.ndim == 2 and has_swiglu_kernels(gate_up.device, gate_up.dtype)
        return SwiGLU.apply(gate_up) if by_kernel else otherwise(gate_up)

    return gated


class _CompiledOp:
    """Compiled on first use, and then held against the piece as it stands. Where that fails, on a machine without a C compiler
    for one, the latter is used."""

    failed = False

    def __init__(self, piece: Callable[..., Any]) -> None:
        self._piece = piece
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if _CompiledOp.failed:
            return self._piece(*arguments)
        for argument in arguments:
            if isinstance(argument, torch.Tensor) and argument.ndim > 1:
                torch._dynamo.maybe_mark_dynamic(argument, 0)
        return self._first(*arguments) if self._compiled is None else self._compiled(*arguments)

    def _first(self, *arguments: Any) -> Any:
        compiled = compile_lazily(self._piece)
        try:
            answer = compiled(*arguments)
            _check_ops_match(answer, self._piece(*arguments))
        except Exception as error:
            warn_of_fallback(error, "uncompiled")
            _CompiledOp.failed = True
            return self._piece(*arguments)
        self._compiled = compiled
        return answer


def _check_ops_match(found: Any, expected: Any) -> None:
    for ours, theirs in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, expected)), strict=True):
        exact = theirs.dtype == torch.float32
        if not torch.allclose(ours, theirs, rtol=1e-4 if exact else 2e-2, atol=1e-4 if exact else 2e-2):
            raise ArithmeticError("a compiled piece does not compute what it should")


EAGER_OPS = LayerOps()
COMPILED_OPS = LayerOps(compiled=True)


# What lies between the matrix products when sampling, in two ways: as torch has it, and each in one launch.


class SamplerOps:
    """How what lies between the matrix products is computed: as torch has it."""

    @staticmethod
    def normed(h: torch.Tensor, norm: Any) -> torch.Tensor:
        return rms_norm(h, h.shape[-1:], norm.weight, norm.variance_epsilon)

    @staticmethod
    def rotated(x: torch.Tensor, cis: torch.Tensor) -> torch.Tensor:
        """(a + ib)(cos + i sin) for every pair, in float32."""
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * cis).flatten(-2).to(x.dtype)

    @staticmethod
    def gated(gate_up: torch.Tensor, activation: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return activation(gate) * up


class CompiledSamplerOps(SamplerOps):
    """Each in one launch."""

    @staticmethod
    def normed(h: torch.Tensor, norm: Any) -> torch.Tensor:
        if h.ndim == 2 and has_rms_norm_kernel(h.device, h.dtype, h.shape[1]):
            return rms_norm_forward(h, norm.weight, norm.variance_epsilon)
        return COMPILED_OPS.normed(h, norm.weight, norm.variance_epsilon)

    @staticmethod
    def rotated(x: torch.Tensor, cis: torch.Tensor) -> torch.Tensor:
        return COMPILED_OPS.rotated_pairs(x, torch.view_as_real(cis))

    @staticmethod
    def gated(gate_up: torch.Tensor, activation: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return COMPILED_OPS.gated(gate_up)


# All that lies between two attentions, as one compiled region:
#
#     h ← h + O a                                     a: what the layer's heads attended to
#     h ← h + D (silu(G x) · U x)                     x: h normed
#     q, k, v ← R Q x, R K x, V x                     x: h normed for the next layer, whose queries, keys and values these are
#
# A GPU computes a pass of some thousand tokens sooner than the host can launch it operation by operation, and every compiled
# piece (`pieces.py`) costs the host as much again as an operation, there and back. Weights are arguments, so all layers share
# one graph, for any number of tokens; there is another without gradients.

MIN_TOKENS_FOR_REGIONS = 64
"""tokens of a pass from which on regions are used: more than the model is tried out with when it is loaded, so that a graph is
compiled when it is first needed"""
MAX_REGION_ERROR = {torch.float32: 1e-3}
"""of a tensor's norm, by which a compiled region may differ from itself uncompiled"""
MAX_REGION_ERROR_HALF = 0.1

Weights = tuple[torch.Tensor, ...]
Answer = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class RegionLayout:
    """What is compiled in: how a region's weights lie in a row, and the numbers among them that are no tensors."""

    head_dim: int
    epsilons: tuple[float, ...]
    """of the norms: after attention, of the next layer, and of its queries and keys where it has such"""
    kinds: tuple[tuple[bool, float | None], ...]
    """(has a bias, its adapter's scale) of o, gate, up, down, q, k and v"""


class CompiledRegions:
    """The regions of one model: region i lies between the attentions of layers i and i + 1."""

    def __init__(self, layers: Sequence[Any], head_dim: int) -> None:
        self._head_dim = head_dim
        self._modules = [_region_modules(*pair) for pair in pairwise(layers)]
        self._compiled: dict[RegionLayout, Callable[..., Answer]] = {}
        self._known: set[tuple[RegionLayout, bool]] = set()
        """those that have been held against themselves uncompiled, with gradients and without"""
        self.failed = False

    def bind_weights(
        self, count: int
    ) -> Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Answer] | None:
        """(i, h, attended, cos, sin) -> (h, q, k, v): the first so many regions with their modules as they are now. None where
        there is no such thing: a module is not plain or drops out, layers are of several kinds, or compiling has failed."""
        found: list[Weights] = []
        layouts: set[RegionLayout] = set()
        for norms, projections in self._modules[: 0 if self.failed else count]:
            parts = find_parts(projections)
            if parts is None:
                return None
            kinds = tuple((bias is not None, adapters[0][2] if adapters else None) for _, bias, adapters in parts)
            layouts.add(RegionLayout(self._head_dim, tuple(norm.variance_epsilon for norm in norms), kinds))
            found.append((*(norm.weight for norm in norms), *_flatten_parts(parts)))
        return partial(self._answer, layouts.pop(), found) if len(layouts) == 1 else None

    def _answer(
        self,
        layout: RegionLayout,
        of: list[Weights],
        i: int,
        h: torch.Tensor,
        attended: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> Answer:
        if torch.is_grad_enabled() and attended.requires_grad and not h.requires_grad:
            h = h.detach().requires_grad_()  # embeddings that are not trained; the others would be another graph
        for argument in (h, attended, cos, sin):
            torch._dynamo.maybe_mark_dynamic(argument, 0)
        if not self.failed and (layout, torch.is_grad_enabled()) not in self._known:
            self._try(layout, (h, attended, cos, sin, *of[i]))
        if self.failed:  # in this very pass
            return run_region(layout, h, attended, cos, sin, *of[i])
        return self._compiled[layout](h, attended, cos, sin, *of[i])

    def _try(self, layout: RegionLayout, arguments: Weights) -> None:
        """Compile, and hold against what was compiled; gradients too, since their graph is made when they are first asked for,
        and there is no way back from there. Where that fails, on a machine without a C compiler for one, say so."""
        as_it_stands = partial(run_region, layout)
        try:
            compiled = self._compiled.get(layout) or compile_lazily(_bind_layout(layout), options={"size_asserts": False})
            # Whoever counts what autograd keeps is not to count this. Detached, or an answer would hold itself (planning.py).
            with saved_tensors_hooks(torch.Tensor.detach, lambda tensor: tensor):
                _check_regions_match(compiled, as_it_stands, arguments)
        except Exception as error:
            warn_of_fallback(error, "without compiled regions")
            self.failed = True
            return
        self._compiled[layout] = compiled
        self._known.add((layout, torch.is_grad_enabled()))


def run_region(
    layout: RegionLayout, h: torch.Tensor, attended: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *weights: torch.Tensor
) -> Answer:
    """(h, q, k, v): states [N, D] after a layer, and what the next layer's heads ask, offer and give, [N, heads, head_dim]."""
    norms = list(zip(weights, layout.epsilons, strict=False))
    o, gate, up, down, *qkv = _unflatten_parts(weights[len(layout.epsilons) :], layout.kinds)
    h, x = added(h, fused_linear_autograd(attended, [o]), *norms[0])
    x = gated(fused_linear_autograd(x, [gate, up]))
    h, x = added(h, fused_linear_autograd(x, [down]), *norms[1])
    features = [len(weight) for weight, _, _ in qkv]
    q, k, v = (y.unflatten(-1, (-1, layout.head_dim)) for y in fused_linear_autograd(x, qkv).split(features, dim=-1))
    if len(norms) == 4:
        q, k = normed(q, *norms[2]), normed(k, *norms[3])
    # A view of all three would keep them; and what is compiled pays for every view that it returns.
    return h, rotated(q, cos, sin), rotated(k, cos, sin), v.clone(memory_format=torch.contiguous_format)


def _bind_layout(layout: RegionLayout) -> Callable[..., Answer]:
    def of_layout(
        h: torch.Tensor, attended: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *weights: torch.Tensor
    ) -> Answer:
        return run_region(layout, h, attended, cos, sin, *weights)

    return of_layout


def _region_modules(layer: Any, following: Any) -> tuple[list[Any], list[Any]]:
    """The norms and the projections of a region, in its order."""
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
    """`_in_a_row` undone."""
    parts: list[Parts] = []
    at = 0
    for has_bias, scale in kinds:
        weight, bias, at = weights[at], weights[at + 1] if has_bias else None, at + 1 + has_bias
        adapters = [] if scale is None else [(weights[at], weights[at + 1], scale)]
        at += 2 * len(adapters)
        parts.append((weight, bias, adapters))
    return parts


def _check_regions_match(compiled: Callable[..., Answer], as_it_stands: Callable[..., Answer], arguments: Weights) -> None:
    """Answers, and the gradients of half the sum of their squares."""
    states = [x.detach().requires_grad_(x.requires_grad) for x in arguments[:2]]  # what was before them is left alone
    for x in states:
        torch._dynamo.maybe_mark_dynamic(x, 0)
    arguments = (*states, *arguments[2:])
    read = [argument for argument in arguments if argument.requires_grad]
    found = []
    for way in (compiled, as_it_stands):
        answer = way(*arguments)
        values = [y.detach() for y in answer]
        gradients = torch.autograd.grad(answer, read, values) if answer[0].requires_grad else ()
        found.append([*values, *gradients])
    for ours, theirs in zip(*found, strict=True):
        apart = torch.linalg.vector_norm(ours.float() - theirs.float())
        if not apart <= MAX_REGION_ERROR.get(theirs.dtype, MAX_REGION_ERROR_HALF) * torch.linalg.vector_norm(theirs.float()):
            raise ArithmeticError("a compiled region does not compute what it should")
