"""Fused linear log-softmax on a GPU: log-probabilities and entropies of target tokens from hidden states.

    z = h Wᵀ / T,   log π(target) = z_target − log Σ exp z,   H = −Σ π log π

    dL/dlogits = (g (1_target − π) − e π (log π + H)) / T        g, e: gradients of log π(target) and of H

One pass reads the logits, another writes their gradient in the dtype of the head; torch needs a dozen passes over [tokens,
vocabulary] in float32. Tokens are processed in chunks, and with more than one chunk the backward pass recomputes the logits. If
the head is frozen (LoRA) and e is 0, it need not:

    dL/dh = g r,   r = (1_target − π) W / T

r does not depend on the loss, so the forward pass computes it while it has the logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tacit.engines.local.fast.kernels import capability_probe, is_kernel_usable, on_tensor_device, probe_logits
from tacit.engines.local.fast.projections import linear_float32

BLOCK, WARPS = 1024, 4
"""of the forward kernel, one program per row: small, so that all rows of a chunk run at once"""
BACKWARD_BLOCK, BACKWARD_WARPS = 4096, 8


class LogprobTargets(NamedTuple):
    """What to compute from hidden states."""

    targets_T: Tensor
    temperature: float
    entropy: str
    """`none`, `value`, or `gradient` (differentiable)"""
    chunk_tokens: int

    def chunks(self) -> Iterator[slice]:
        tokens, size = len(self.targets_T), self.chunk_tokens
        return (slice(start, min(start + size, tokens)) for start in range(0, tokens, size))

    @property
    def in_one_chunk(self) -> bool:
        return len(self.targets_T) <= self.chunk_tokens


Scores = tuple[Tensor, Tensor | None]
"""log π(target) and, if requested, the entropy at each position"""


def fused_linear_logprobs(hidden_TD: Tensor, weight_VD: Tensor, targets: LogprobTargets) -> Scores:
    found: Scores
    if weight_VD.requires_grad or targets.entropy == "gradient":
        found = _FusedLinearLogprobs.apply(hidden_TD, weight_VD, targets)
    else:
        found = _FrozenHeadLogprobs.apply(hidden_TD, weight_VD, targets, hidden_TD.requires_grad and torch.is_grad_enabled())
    return found


class _FrozenHeadLogprobs(torch.autograd.Function):
    """Only the log-probabilities are differentiable, and only with respect to the hidden states."""

    @staticmethod
    def forward(ctx: Any, hidden_TD: Tensor, weight_VD: Tensor, targets: LogprobTargets, needs_gradient: bool) -> Scores:
        """`needs_gradient`: whether to prepare r."""
        logprobs_T, logsumexp_T, entropy_T = found = _make_buffers(hidden_TD)
        r_TD = torch.empty_like(hidden_TD, dtype=torch.float32) if needs_gradient else None
        ones_T = torch.ones_like(logprobs_T)
        for chunk, logits_CV in _forward_chunks(hidden_TD, weight_VD, targets, found):
            if r_TD is not None:
                gradient_CV = _backward_chunk(chunk, logits_CV, targets, logsumexp_T, entropy_T, ones_T, None, hidden_TD.dtype)
                r_TD[chunk] = linear_float32(gradient_CV, weight_VD.t())
        ctx.save_for_backward(r_TD)
        ctx.dtype = hidden_TD.dtype
        return _mark_outputs(ctx, targets, logprobs_T, entropy_T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (r_TD,), of_logprobs_T = ctx.saved_tensors, gradients[0]
        d_hidden_TD = None if of_logprobs_T is None else (of_logprobs_T[:, None] * r_TD).to(ctx.dtype)
        return d_hidden_TD, None, None, None


class _FusedLinearLogprobs(torch.autograd.Function):
    """The general case: everything is differentiable."""

    @staticmethod
    def forward(ctx: Any, hidden_TD: Tensor, weight_VD: Tensor, targets: LogprobTargets) -> Scores:
        logprobs_T, logsumexp_T, entropy_T = found = _make_buffers(hidden_TD)
        kept = None
        for _, logits_CV in _forward_chunks(hidden_TD, weight_VD, targets, found):
            kept = logits_CV if targets.in_one_chunk else None
        ctx.targets = targets
        ctx.save_for_backward(hidden_TD, weight_VD, logsumexp_T, entropy_T, kept)
        return _mark_outputs(ctx, targets, logprobs_T, entropy_T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (hidden_TD, weight_VD, logsumexp_T, entropy_T, kept), targets = ctx.saved_tensors, ctx.targets
        of_logprobs_T, of_entropy_T = (None if gradient is None else gradient.contiguous() for gradient in gradients)
        if of_logprobs_T is None:
            of_logprobs_T = torch.zeros_like(logsumexp_T)
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        d_hidden_TD = torch.empty_like(hidden_TD) if needs_hidden else None
        d_weight_VD = None  # over several chunks summed in float32 and rounded once
        for chunk in targets.chunks():
            hidden_CD = hidden_TD[chunk]
            logits_CV = linear_float32(hidden_CD, weight_VD) if kept is None else kept
            of_both = (of_logprobs_T, of_entropy_T)
            gradient_CV = _backward_chunk(chunk, logits_CV, targets, logsumexp_T, entropy_T, *of_both, hidden_TD.dtype)
            if d_hidden_TD is not None:
                torch.mm(gradient_CV, weight_VD, out=d_hidden_TD[chunk])
            if needs_weight:
                part_VD = (
                    gradient_CV.t() @ hidden_CD if targets.in_one_chunk else linear_float32(gradient_CV.t(), hidden_CD.t())
                )
                d_weight_VD = part_VD if d_weight_VD is None else d_weight_VD.add_(part_VD)
        if d_weight_VD is not None:
            d_weight_VD = d_weight_VD.to(weight_VD.dtype)
        return d_hidden_TD, d_weight_VD, None


def _make_buffers(hidden_TD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Buffers for log π(target), log Σ exp z and the entropy of every token."""
    logprobs_T, logsumexp_T, entropy_T = (hidden_TD.new_empty(len(hidden_TD), dtype=torch.float32) for _ in range(3))
    return logprobs_T, logsumexp_T, entropy_T


def _forward_chunks(
    hidden_TD: Tensor, weight_VD: Tensor, targets: LogprobTargets, found: Sequence[Tensor]
) -> Iterator[tuple[slice, Tensor]]:
    """Each chunk with its logits, after its part of the buffers has been filled."""
    for chunk in targets.chunks():
        logits_CV = linear_float32(hidden_TD[chunk], weight_VD)
        has_entropy = targets.entropy != "none"
        logprob_forward(
            logits_CV, targets.targets_T[chunk], targets.temperature, has_entropy, *(part_T[chunk] for part_T in found)
        )
        yield chunk, logits_CV


def _backward_chunk(
    chunk: slice,
    logits_CV: Tensor,
    targets: LogprobTargets,
    logsumexp_T: Tensor,
    entropy_T: Tensor,
    of_logprobs_T: Tensor,
    of_entropy_T: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    of_entropy_C = None if of_entropy_T is None else of_entropy_T[chunk]
    known = (targets.targets_T[chunk], targets.temperature, logsumexp_T[chunk], entropy_T[chunk])
    return logprob_backward(logits_CV, *known, of_logprobs_T[chunk], of_entropy_C, dtype)


def _mark_outputs(ctx: Any, targets: LogprobTargets, logprobs_T: Tensor, entropy_T: Tensor) -> Scores:
    """The outputs, marked for autograd."""
    ctx.set_materialize_grads(False)
    if targets.entropy == "none":
        return logprobs_T, None
    if targets.entropy != "gradient":
        ctx.mark_non_differentiable(entropy_T)
    return logprobs_T, entropy_T


@on_tensor_device
def logprob_forward(
    logits_CV: Tensor,
    targets_C: Tensor,
    temperature: float,
    entropy: bool,
    logprobs_C: Tensor,
    logsumexp_C: Tensor,
    entropy_C: Tensor,
) -> None:
    """Writes the last three arguments: log π(target), log Σ exp z, and the entropy if requested."""
    from tacit.engines.local.fast.logit_kernels import logprob_forward_kernel  # Triton comes with CUDA only

    rows, vocabulary = logits_CV.shape
    if rows:
        found = (logprobs_C, logsumexp_C, entropy_C)
        shape = (1 / temperature, vocabulary, logits_CV.stride(0))
        logprob_forward_kernel[(rows,)](logits_CV, targets_C, *found, *shape, ENTROPY=entropy, BLOCK=BLOCK, num_warps=WARPS)


@on_tensor_device
def logprob_backward(
    logits_CV: Tensor,
    targets_C: Tensor,
    temperature: float,
    logsumexp_C: Tensor,
    entropy_C: Tensor,
    of_logprobs_C: Tensor,
    of_entropy_C: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """The gradient of the logits."""
    from tacit.engines.local.fast.logit_kernels import logprob_backward_kernel

    rows, vocabulary = logits_CV.shape
    gradient_CV = torch.empty(rows, vocabulary, dtype=dtype, device=logits_CV.device)
    if rows:
        has = of_entropy_C is not None
        of_both = (of_logprobs_C, of_entropy_C if has else of_logprobs_C)
        shape = (1 / temperature, vocabulary, logits_CV.stride(0))
        logprob_backward_kernel[(rows, -(-vocabulary // BACKWARD_BLOCK))](
            logits_CV, targets_C, logsumexp_C, entropy_C, *of_both, gradient_CV, *shape,
            ENTROPY=has, BLOCK=BACKWARD_BLOCK, num_warps=BACKWARD_WARPS,
        )  # fmt: skip
    return gradient_CV


@capability_probe
def has_logprob_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    return is_kernel_usable("fused linear log-softmax", device, partial(_matches_torch, device, dtype))


def _matches_torch(device: torch.device, dtype: torch.dtype) -> bool:
    """Vocabularies that are no multiple of the block; for multiples of 16 Triton compiles another variant."""
    return all(_matches_at(2 * BACKWARD_BLOCK + more, device, dtype) for more in (777, 768))


def _matches_at(vocabulary: int, device: torch.device, dtype: torch.dtype) -> bool:
    """Values and gradients against float64, on sharp, flat and truncated rows."""
    generator, rows = torch.Generator(device).manual_seed(0), 16
    logits_CV = probe_logits(rows, vocabulary, BLOCK, generator)
    targets_C = torch.randint(0, vocabulary, (rows,), generator=generator, device=device)
    logits_CV.scatter_(1, targets_C[:, None], 0.5)
    of_both = torch.randn(2, rows, generator=generator, device=device)
    for temperature in (1.0, 0.7):
        logprobs_C, logsumexp_C, entropy_C, alone_C = torch.empty(4, rows, device=device)
        logprob_forward(logits_CV, targets_C, temperature, False, alone_C, logsumexp_C, entropy_C)
        logprob_forward(logits_CV, targets_C, temperature, True, logprobs_C, logsumexp_C, entropy_C)
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
                logits_CV, targets_C, temperature, logsumexp_C, entropy_C, of_both[0], of_entropy_C, dtype
            )
            expected_CV = of_both[0].double()[:, None] * -p_CV
            expected_CV.scatter_add_(1, targets_C[:, None], of_both[0].double()[:, None])
            if of_entropy_C is not None:
                expected_CV -= of_entropy_C.double()[:, None] * p_CV * (finite_CV + expected_C[:, None])
            if not torch.allclose(found_CV.double(), expected_CV / temperature, atol=1e-5, rtol=torch.finfo(dtype).eps + 1e-4):
                return False
    return True
