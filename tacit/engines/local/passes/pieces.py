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
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import silu

from tacit.engines.local.memory import ran_out
from tacit.engines.local.passes.gating import Gated, has_gating_kernels
from tacit.engines.local.passes.rotating import Rotated, has_turning_kernel

WORTH_COMPILING = 4096
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


class Pieces:
    """All of them, as they stand or compiled. A compiled piece takes any number of rows; width and format are compiled in."""

    def __init__(self, compiled: bool = False) -> None:
        made: Callable[[Any], Any] = _Compiled if compiled else lambda piece: piece
        self.normed, self.added, self.gated = made(normed), made(added), _by_kernel(made(gated)) if compiled else gated
        self.rotated, self.rotated_pairs = made(rotated), made(rotated_pairs)
        self._turns = has_turning_kernel if compiled else lambda *of: False

    def by_head(
        self, qkv_NF: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int, key_heads: int
    ) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values [N, heads, head_dim] of their product, the first two rotated."""
        dim, sizes = 2 * cos.shape[-1], (heads, key_heads, key_heads)
        if self._turns(qkv_NF.device, qkv_NF.dtype, heads, key_heads, dim):
            return Rotated.apply(qkv_NF, cos, sin, sizes)
        q, k, v = qkv_NF.unflatten(-1, (-1, dim)).split(sizes, 1)
        return self.rotated(q, cos, sin), self.rotated(k, cos, sin), v


def can_compile(device: torch.device) -> bool:
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def to_compile(work: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    """Compiled when it is first called; `how` as torch takes it."""
    # With gradients and without, and for each width: far fewer than this, but more than torch's own limit of 8.
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    return torch.compile(work, **how)


def goes_without(error: Exception, how: str) -> None:
    """Say that compiling has failed, and how the model runs now; a shortage of memory is no such failure, and is raised."""
    if ran_out(error):
        raise error
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    warnings.warn(f"the model runs {how}, more slowly: {first_line}", stacklevel=5)


def _by_kernel(otherwise: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """`gated` of rows by a kernel of our own, where there is one."""

    def gated(gate_up: torch.Tensor) -> torch.Tensor:
        by_kernel = gate_up.ndim == 2 and has_gating_kernels(gate_up.device, gate_up.dtype)
        return Gated.apply(gate_up) if by_kernel else otherwise(gate_up)

    return gated


class _Compiled:
    """Compiled on first use, and then held against the piece as it stands. Where that fails, on a machine without a C compiler
    for one, the latter is used."""

    failed = False

    def __init__(self, piece: Callable[..., Any]) -> None:
        self._piece = piece
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if _Compiled.failed:
            return self._piece(*arguments)
        for argument in arguments:
            if isinstance(argument, torch.Tensor) and argument.ndim > 1:
                torch._dynamo.maybe_mark_dynamic(argument, 0)
        return self._first(*arguments) if self._compiled is None else self._compiled(*arguments)

    def _first(self, *arguments: Any) -> Any:
        compiled = to_compile(self._piece)
        try:
            answer = compiled(*arguments)
            _check_alike(answer, self._piece(*arguments))
        except Exception as error:
            goes_without(error, "uncompiled")
            _Compiled.failed = True
            return self._piece(*arguments)
        self._compiled = compiled
        return answer


def _check_alike(found: Any, expected: Any) -> None:
    for ours, theirs in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, expected)), strict=True):
        exact = theirs.dtype == torch.float32
        if not torch.allclose(ours, theirs, rtol=1e-4 if exact else 2e-2, atol=1e-4 if exact else 2e-2):
            raise ArithmeticError("a compiled piece does not compute what it should")


PLAIN = Pieces()
COMPILED = Pieces(compiled=True)
