"""From logits to tokens: temperature, top-k, top-p, and inverse-CDF sampling.

On a GPU, sampling from the full distribution takes two kernel launches (fast/logit_kernels.py): the first sums parts of
every row, the second reads the one part in which u falls. In a decode step it also advances the slots.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from tacit.core.errors import TacitError
from tacit.core.protocols import Sampling
from tacit.engines.local.fast.kernels import (
    capability_probe,
    early_launch_options,
    is_kernel_usable,
    on_tensor_device,
    probe_logits,
)
from tacit.engines.local.packing import next_power_of_two

BLOCK = 4096
"""logits per part of a row"""


SlotState = tuple[Tensor, Tensor, Tensor, int]
"""what the kernel advances: tokens sampled so far, the last token, its position [B], and the largest position"""


def check_sampling(sampling: Sampling) -> None:
    """Raise for settings that define no distribution."""
    if not sampling.temperature >= 0:
        raise TacitError(f"temperature is {sampling.temperature}; it must be 0 (greedy) or positive.")
    if not 0 < sampling.top_p <= 1:
        raise TacitError(f"top_p is {sampling.top_p}; it must be above 0 and at most 1 (1 keeps every token).")
    if sampling.top_k < 0:
        raise TacitError(f"top_k is {sampling.top_k}; it must be 0 (keep every token) or positive.")
    if any(not stop for stop in sampling.stop):
        raise TacitError("a stop string is empty and would end every completion at once; remove it.")


def sample_tokens(logits_BV: Tensor, uniform_B: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """One token per row and its log-probability, [B] int64 and [B] float32: the smallest whose cumulative probability
    exceeds u. The log-probability is that of softmax(logits / temperature) *before* top-k and top-p; at temperature 0, of
    softmax(logits). Never waits for the device, so a CUDA graph can capture it."""
    if sampling.temperature == 0:
        tokens_B = logits_BV.argmax(-1)
        chosen_B = logits_BV.gather(1, tokens_B[:, None])[:, 0].float()
        return tokens_B, chosen_B - logits_BV.float().logsumexp(-1)
    if can_use_kernel(logits_BV, sampling):
        return _sample_with_kernel(logits_BV, uniform_B, sampling.temperature)
    if sampling.temperature == 1:
        probs_BV = torch.softmax(logits_BV, -1, dtype=torch.float32)
    else:
        probs_BV = torch.softmax(logits_BV.float() / sampling.temperature, -1)
    if _is_truncated(logits_BV, sampling):
        # Keep the k likeliest, then of those the smallest set that holds `top_p` of their probability.
        if 0 < sampling.top_k < probs_BV.shape[1]:
            sorted_BK, ids_BK = probs_BV.topk(sampling.top_k, dim=-1)
        else:
            sorted_BK, ids_BK = probs_BV.sort(dim=-1, descending=True, stable=True)
        cdf_BK = sorted_BK.cumsum(-1)
        if sampling.top_p < 1:
            # keep a token if the likelier ones hold less than top_p; the likeliest is always kept
            outside_BK = cdf_BK - sorted_BK >= sampling.top_p * cdf_BK[:, -1:]
            outside_BK[:, 0] = False
            cdf_BK = sorted_BK.masked_fill(outside_BK, 0.0).cumsum(-1)
        tokens_B = ids_BK.gather(1, _invert(cdf_BK, uniform_B)[:, None])[:, 0]
    else:
        tokens_B = _invert(probs_BV.cumsum(-1), uniform_B)
    return tokens_B, probs_BV.gather(1, tokens_B[:, None])[:, 0].log()


def can_use_kernel(logits_BV: Tensor, sampling: Sampling) -> bool:
    if sampling.temperature == 0 or _is_truncated(logits_BV, sampling):
        return False
    return has_sampling_kernel(logits_BV.device, logits_BV.dtype)


def _is_truncated(logits_BV: Tensor, sampling: Sampling) -> bool:
    return 0 < sampling.top_k < logits_BV.shape[1] or sampling.top_p < 1


def _invert(cdf_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """First index whose cumulative sum exceeds u times the total: never one of probability zero. u·total may round up to the
    total itself; stepping just below it keeps the answer inside the support."""
    total_B = cdf_BV[:, -1]
    target_B = torch.minimum(uniform_B * total_B, torch.nextafter(total_B, torch.zeros_like(total_B)))
    return torch.searchsorted(cdf_BV, target_B[:, None], right=True)[:, 0].clamp_(max=cdf_BV.shape[1] - 1)


@on_tensor_device
def launch_sampling_kernel(
    logits_BV: Tensor,
    temperature: float,
    noise_BK: Tensor,
    tokens_BK: Tensor,
    logprobs_BK: Tensor,
    advance: SlotState | None = None,
) -> None:
    """Write the first of K tokens of each row and its log-probability; with `advance`, the next one. The [B, K] tensors are
    contiguous and may have more rows than the logits."""
    from tacit.engines.local.fast.logit_kernels import sample_kernel, sum_part_kernel  # triton comes with CUDA only

    rows, vocabulary = logits_BV.shape
    if not rows:
        return
    logits_BV = logits_BV if logits_BV.stride(1) == 1 else logits_BV.contiguous()
    parts = -(-vocabulary // BLOCK)
    parts_BP = torch.empty(rows, parts, 2, dtype=torch.float32, device=logits_BV.device)
    shape = (temperature, vocabulary, logits_BV.stride(0))
    how = {"PARTS": parts, "BLOCK": BLOCK, "num_warps": 8} | early_launch_options(logits_BV.device)
    sum_part_kernel[(rows, parts)](logits_BV, parts_BP, *shape, **how)
    sample_kernel[(rows,)](
        logits_BV, parts_BP, noise_BK, tokens_BK, logprobs_BK, *(advance or (None, None, None, 0)), *shape,
        STEPS=noise_BK.shape[1], PADDED=next_power_of_two(parts), **how,
    )  # fmt: skip


def _sample_with_kernel(logits_BV: Tensor, uniform_B: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    tokens_B1 = torch.empty(len(logits_BV), 1, dtype=torch.long, device=logits_BV.device)
    logprobs_B1 = torch.empty(len(logits_BV), 1, dtype=torch.float32, device=logits_BV.device)
    launch_sampling_kernel(logits_BV, temperature, uniform_B.contiguous()[:, None], tokens_B1, logprobs_B1)
    return tokens_B1[:, 0], logprobs_B1[:, 0]


@capability_probe
def has_sampling_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    return is_kernel_usable("sampling", device, partial(_check_kernel, device, dtype))


def _check_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Compare with torch on sharp, flat and truncated rows whose length is no multiple of a block."""
    generator = torch.Generator(device).manual_seed(0)
    rows, vocabulary = 64, 2 * BLOCK + 777
    logits_BV = probe_logits(rows, vocabulary, BLOCK, generator).to(dtype)
    uniform_B = torch.rand(rows, generator=generator, device=device)
    uniform_B[:4] = 1 - 2.0**-24
    for temperature in (1.0, 0.4):
        if not _is_correct(logits_BV, uniform_B, temperature, *_sample_with_kernel(logits_BV, uniform_B, temperature)):
            return False
    # Sample two of three tokens, with some rows at the last position.
    noise_BK = torch.rand(rows, 3, generator=generator, device=device)
    max_position, tokens_BK, logprobs_BK = 40, torch.zeros_like(noise_BK, dtype=torch.long), torch.zeros_like(noise_BK)
    sampled_B, last_B, positions_B = (torch.arange(len(noise_BK), device=noise_BK.device) * factor for factor in (0, 0, 1))
    positions_B.clamp_(max=max_position)
    expected_B = (positions_B + 2).clamp(max=max_position)
    for step in range(2):
        state = (sampled_B, last_B, positions_B, max_position)
        launch_sampling_kernel(logits_BV, 1.0, noise_BK, tokens_BK, logprobs_BK, state)
        if not _is_correct(logits_BV, noise_BK[:, step], 1.0, tokens_BK[:, step], logprobs_BK[:, step]):
            return False
    moved = torch.equal(positions_B, expected_B) and torch.equal(last_B, tokens_BK[:, 1])
    return moved and bool((sampled_B == 2).all()) and not tokens_BK[:, 2].any() and not logprobs_BK[:, 2].any()


def _is_correct(logits_BV: Tensor, uniform_B: Tensor, temperature: float, tokens_B: Tensor, logprobs_B: Tensor) -> bool:
    """Whether u falls into the token's interval of the CDF, and the log-probability is right."""
    expected_BV = torch.log_softmax(logits_BV.double() / temperature, -1)
    share_B = expected_BV.gather(1, tokens_B[:, None])[:, 0]
    upto_B = expected_BV.exp().cumsum(-1).gather(1, tokens_B[:, None])[:, 0]
    within_B = (upto_B - share_B.exp() <= uniform_B + 1e-5) & (uniform_B <= upto_B + 1e-5)
    return bool(within_B.all()) and torch.allclose(logprobs_B.double(), share_B, atol=1e-4)
