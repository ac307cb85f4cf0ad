"""From the last states to what is asked of the chosen tokens, on a GPU: of the logits no more exists than they themselves.

    z = h Wᵀ / T,   log π(target) = z_target − log Σ exp z,   H = −Σ π log π

    dL/dlogits = (g (1_target − π) − e π (log π + H)) / T        where g and e are the gradients of log π(target) and of H

Written out in torch, logits go into a log-softmax, that into an exponential and a product, and the gradient back through all of
them: a dozen passes over [tokens, vocabulary] in float32. Here one pass reads the logits, and another makes their gradient of
them, in the format in which it is multiplied by the head. Tokens are taken in chunks; the logits of a chunk are computed again
for the gradient, unless there is only one. Nor are they where the head is not trained, as with adapters, and e is 0: then

    dL/dh = g r,   r = (1_target − π) W / T

and r, in which there is nothing of the loss, is computed while the logits are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from tacit.engines.local.fast.kernels import capability_probe, is_kernel_usable, on_tensor_device, probe_logits
from tacit.engines.local.memory import is_out_of_memory

# Logits as they are summed, in float32, also of a model in bfloat16.
#
#     logits = h Wᵀ
#
# The head's product is added up in float32 anyway; but as a number of bfloat16 a logit of 20 is a multiple of 1/8, and of all
# that is rounded in a pass this shows most in a log-probability. Gradients go back in the model's own format.


def linear_float32(x_ND: torch.Tensor, weight_VD: torch.Tensor) -> torch.Tensor:
    """[N, V] in float32, where this device can; rounded before, where not."""
    if weight_VD.dtype == torch.float32:
        return linear(x_ND, weight_VD)
    if weight_VD.device.type != "cpu" and not has_float32_output(weight_VD.device, weight_VD.dtype):
        return linear(x_ND, weight_VD).float()
    return _LinearFloat32.apply(x_ND, weight_VD)


class _LinearFloat32(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        if weight.device.type == "cpu":
            return x.float() @ weight.float().t()
        return torch.mm(x, weight.t(), out_dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].to(x.dtype)
        needs_x, needs_weight = ctx.needs_input_grad
        return gradient @ weight if needs_x else None, gradient.t() @ x if needs_weight else None


@cache
def has_float32_output(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch multiplies in this format and answers in float32: asked by doing so once."""
    try:
        x = torch.arange(64.0, device=device).view(4, 16).to(dtype)
        return torch.equal(torch.mm(x, x.t(), out_dtype=torch.float32), x.float() @ x.float().t())
    except (RuntimeError, TypeError) as error:  # an older torch does not know it
        if is_out_of_memory(error):
            raise
        return False


BLOCK, WARPS = 1024, 4
"""of a program that reads a whole row: so small that all rows of a chunk find a place at once"""
BACKWARD_BLOCK, BACKWARD_WARPS = 4096, 8


class LogprobTargets(NamedTuple):
    """Of states that are there."""

    targets_T: torch.Tensor
    temperature: float
    entropy: str
    """`none`, its `value`, or one with a `gradient`"""
    chunk_tokens: int

    def chunks(self) -> Iterator[slice]:
        tokens, size = len(self.targets_T), self.chunk_tokens
        return (slice(start, min(start + size, tokens)) for start in range(0, tokens, size))

    @property
    def in_one_chunk(self) -> bool:
        return len(self.targets_T) <= self.chunk_tokens


Scores = tuple[torch.Tensor, torch.Tensor | None]
"""log π(target) and, where it is asked for, the entropy at each position"""


def fused_linear_logprobs(hidden_TD: torch.Tensor, weight_VD: torch.Tensor, asked: LogprobTargets) -> Scores:
    found: Scores
    if weight_VD.requires_grad or asked.entropy == "gradient":
        found = _FusedLinearLogprobs.apply(hidden_TD, weight_VD, asked)
    else:
        found = _FrozenHeadLogprobs.apply(hidden_TD, weight_VD, asked, hidden_TD.requires_grad and torch.is_grad_enabled())
    return found


class _FrozenHeadLogprobs(torch.autograd.Function):
    """Only log-probabilities have a gradient, and only states are given one."""

    @staticmethod
    def forward(ctx: Any, hidden_TD: torch.Tensor, weight_VD: torch.Tensor, asked: LogprobTargets, pulls: bool) -> Scores:
        """`pulls`: whether a gradient may be asked for."""
        logprobs_T, normers_T, entropy_T = found = _room(hidden_TD)
        towards_TD = torch.empty_like(hidden_TD, dtype=torch.float32) if pulls else None
        ones_T = torch.ones_like(logprobs_T)
        for chunk, logits_CV in _weighed_chunks(hidden_TD, weight_VD, asked, found):
            if towards_TD is not None:
                away_CV = _pulled_chunk(chunk, logits_CV, asked, normers_T, entropy_T, ones_T, None, hidden_TD.dtype)
                towards_TD[chunk] = linear_float32(away_CV, weight_VD.t())
        ctx.save_for_backward(towards_TD)
        ctx.dtype = hidden_TD.dtype
        return _scores(ctx, asked, logprobs_T, entropy_T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        (towards_TD,), of_logprobs_T = ctx.saved_tensors, gradients[0]
        for_hidden_TD = None if of_logprobs_T is None else (of_logprobs_T[:, None] * towards_TD).to(ctx.dtype)
        return for_hidden_TD, None, None, None


class _FusedLinearLogprobs(torch.autograd.Function):
    """Everything may have a gradient."""

    @staticmethod
    def forward(ctx: Any, hidden_TD: torch.Tensor, weight_VD: torch.Tensor, asked: LogprobTargets) -> Scores:
        logprobs_T, normers_T, entropy_T = found = _room(hidden_TD)
        kept = None
        for _, logits_CV in _weighed_chunks(hidden_TD, weight_VD, asked, found):
            kept = logits_CV if asked.in_one_chunk else None
        ctx.asked = asked
        ctx.save_for_backward(hidden_TD, weight_VD, normers_T, entropy_T, kept)
        return _scores(ctx, asked, logprobs_T, entropy_T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        (hidden_TD, weight_VD, normers_T, entropy_T, kept), asked = ctx.saved_tensors, ctx.asked
        of_logprobs_T, of_entropy_T = (None if gradient is None else gradient.contiguous() for gradient in gradients)
        if of_logprobs_T is None:
            of_logprobs_T = torch.zeros_like(normers_T)
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        for_hidden_TD = torch.empty_like(hidden_TD) if needs_hidden else None
        for_weight_VD = None  # of many chunks, added up in float32 and rounded once
        for chunk in asked.chunks():
            hidden_CD = hidden_TD[chunk]
            logits_CV = linear_float32(hidden_CD, weight_VD) if kept is None else kept
            of_both = (of_logprobs_T, of_entropy_T)
            gradient_CV = _pulled_chunk(chunk, logits_CV, asked, normers_T, entropy_T, *of_both, hidden_TD.dtype)
            if for_hidden_TD is not None:
                torch.mm(gradient_CV, weight_VD, out=for_hidden_TD[chunk])
            if needs_weight:
                part_VD = gradient_CV.t() @ hidden_CD if asked.in_one_chunk else linear_float32(gradient_CV.t(), hidden_CD.t())
                for_weight_VD = part_VD if for_weight_VD is None else for_weight_VD.add_(part_VD)
        if for_weight_VD is not None:
            for_weight_VD = for_weight_VD.to(weight_VD.dtype)
        return for_hidden_TD, for_weight_VD, None


def _room(hidden_TD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For log π(target), log Σ exp z and the entropy of every token."""
    logprobs_T, normers_T, entropy_T = (hidden_TD.new_empty(len(hidden_TD), dtype=torch.float32) for _ in range(3))
    return logprobs_T, normers_T, entropy_T


def _weighed_chunks(
    hidden_TD: torch.Tensor, weight_VD: torch.Tensor, asked: LogprobTargets, found: Sequence[torch.Tensor]
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Each chunk with its logits, of which is then known what there was room for."""
    for chunk in asked.chunks():
        logits_CV = linear_float32(hidden_TD[chunk], weight_VD)
        has_entropy = asked.entropy != "none"
        logprob_forward(logits_CV, asked.targets_T[chunk], asked.temperature, has_entropy, *(part_T[chunk] for part_T in found))
        yield chunk, logits_CV


def _pulled_chunk(
    chunk: slice,
    logits_CV: torch.Tensor,
    asked: LogprobTargets,
    normers_T: torch.Tensor,
    entropy_T: torch.Tensor,
    of_logprobs_T: torch.Tensor,
    of_entropy_T: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    of_entropy_C = None if of_entropy_T is None else of_entropy_T[chunk]
    known = (asked.targets_T[chunk], asked.temperature, normers_T[chunk], entropy_T[chunk])
    return logprob_backward(logits_CV, *known, of_logprobs_T[chunk], of_entropy_C, dtype)


def _scores(ctx: Any, asked: LogprobTargets, logprobs_T: torch.Tensor, entropy_T: torch.Tensor) -> Scores:
    """What a pass gives back, as autograd has to know of it."""
    ctx.set_materialize_grads(False)
    if asked.entropy == "none":
        return logprobs_T, None
    if asked.entropy != "gradient":
        ctx.mark_non_differentiable(entropy_T)
    return logprobs_T, entropy_T


@on_tensor_device
def logprob_forward(
    logits_CV: torch.Tensor,
    targets_C: torch.Tensor,
    temperature: float,
    entropy: bool,
    logprobs_C: torch.Tensor,
    normers_C: torch.Tensor,
    entropy_C: torch.Tensor,
) -> None:
    """The last three are written to: log π(target), log Σ exp z, and the entropy where it is asked for."""
    from tacit.engines.local.fast.cross_entropy_kernels import (
        logprob_forward_kernel,  # triton is only there where there is a GPU
    )

    rows, vocabulary = logits_CV.shape
    if rows:
        found = (logprobs_C, normers_C, entropy_C)
        shape = (1 / temperature, vocabulary, logits_CV.stride(0))
        logprob_forward_kernel[(rows,)](logits_CV, targets_C, *found, *shape, ENTROPY=entropy, BLOCK=BLOCK, num_warps=WARPS)


@on_tensor_device
def logprob_backward(
    logits_CV: torch.Tensor,
    targets_C: torch.Tensor,
    temperature: float,
    normers_C: torch.Tensor,
    entropy_C: torch.Tensor,
    of_logprobs_C: torch.Tensor,
    of_entropy_C: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The gradient of the logits."""
    from tacit.engines.local.fast.cross_entropy_kernels import logprob_backward_kernel

    rows, vocabulary = logits_CV.shape
    gradient_CV = torch.empty(rows, vocabulary, dtype=dtype, device=logits_CV.device)
    if rows:
        has = of_entropy_C is not None
        of_both = (of_logprobs_C, of_entropy_C if has else of_logprobs_C)
        shape = (1 / temperature, vocabulary, logits_CV.stride(0))
        logprob_backward_kernel[(rows, -(-vocabulary // BACKWARD_BLOCK))](
            logits_CV,
            targets_C,
            normers_C,
            entropy_C,
            *of_both,
            gradient_CV,
            *shape,
            ENTROPY=has,
            BLOCK=BACKWARD_BLOCK,
            num_warps=BACKWARD_WARPS,
        )
    return gradient_CV


@capability_probe
def has_logprob_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    return is_kernel_usable("scores", device, partial(_matches_torch, device, dtype))


def _matches_torch(device: torch.device, dtype: torch.dtype) -> bool:
    """Rows whose length is no multiple of a block; of one that is a multiple of 16 the compiler makes other kernels."""
    return all(_matches_at(2 * BACKWARD_BLOCK + more, device, dtype) for more in (777, 768))


def _matches_at(vocabulary: int, device: torch.device, dtype: torch.dtype) -> bool:
    """Sharp, flat and truncated rows: values and gradients."""
    generator, rows = torch.Generator(device).manual_seed(0), 16
    logits_CV = probe_logits(rows, vocabulary, BLOCK, generator)
    targets_C = torch.randint(0, vocabulary, (rows,), generator=generator, device=device)
    logits_CV.scatter_(1, targets_C[:, None], 0.5)
    of_both = torch.randn(2, rows, generator=generator, device=device)
    for temperature in (1.0, 0.7):
        logprobs_C, normers_C, entropy_C, alone_C = torch.empty(4, rows, device=device)
        logprob_forward(logits_CV, targets_C, temperature, False, alone_C, normers_C, entropy_C)
        logprob_forward(logits_CV, targets_C, temperature, True, logprobs_C, normers_C, entropy_C)
        if not torch.allclose(alone_C, logprobs_C, atol=1e-4, rtol=1e-5):
            return False
        logps_CV = torch.log_softmax(logits_CV.double() / temperature, -1)
        p_CV, finite_CV = logps_CV.exp(), logps_CV.clamp(min=-1e30)
        expected_C = -(p_CV * finite_CV).sum(-1)
        if not torch.allclose(logprobs_C.double(), logps_CV.gather(1, targets_C[:, None])[:, 0], atol=1e-4, rtol=1e-5):
            return False
        if not torch.allclose(entropy_C.double(), expected_C, atol=1e-4, rtol=1e-5):
            return False
        for of_entropy_C in (None, of_both[1]):
            found_CV = logprob_backward(
                logits_CV, targets_C, temperature, normers_C, entropy_C, of_both[0], of_entropy_C, dtype
            )
            expected_CV = of_both[0].double()[:, None] * -p_CV
            expected_CV.scatter_add_(1, targets_C[:, None], of_both[0].double()[:, None])
            if of_entropy_C is not None:
                expected_CV -= of_entropy_C.double()[:, None] * p_CV * (finite_CV + expected_C[:, None])
            if not torch.allclose(found_CV.double(), expected_CV / temperature, atol=1e-5, rtol=torch.finfo(dtype).eps + 1e-4):
                return False
    return True
