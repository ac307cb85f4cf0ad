"""From logits to tokens: temperature, top-k, top-p, and inverse-CDF sampling."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.core.errors import TacitError
from tacit.core.protocols import Sampling


def check_sampling(sampling: Sampling) -> None:
    """Raise if the settings are out of range."""
    if not sampling.temperature >= 0:
        raise TacitError(f"temperature is {sampling.temperature}; it must be 0 (greedy) or positive.")
    if not 0 < sampling.top_p <= 1:
        raise TacitError(f"top_p is {sampling.top_p}; it must be above 0 and at most 1 (1 keeps every token).")
    if sampling.top_k < 0:
        raise TacitError(f"top_k is {sampling.top_k}; it must be 0 (keep every token) or positive.")
    if any(not stop for stop in sampling.stop):
        raise TacitError("a stop string is empty and would end every completion at once; remove it.")


def sample_tokens(logits_BV: Tensor, uniform_B: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """([B] int64 tokens, [B] float32 log-probabilities): per row the first token whose cumulative probability exceeds u. The
    log-probability is that of softmax(logits / temperature) *before* top-k and top-p; at temperature 0, of softmax(logits).
    Does not synchronize with the host, so a CUDA graph can capture it."""
    if sampling.temperature == 0:
        tokens_B = logits_BV.argmax(-1)
        chosen_B = logits_BV.gather(1, tokens_B[:, None])[:, 0].float()
        return tokens_B, chosen_B - logits_BV.float().logsumexp(-1)
    if sampling.temperature == 1:
        probs_BV = torch.softmax(logits_BV, -1, dtype=torch.float32)
    else:
        probs_BV = torch.softmax(logits_BV.float() / sampling.temperature, -1)
    if 0 < sampling.top_k < logits_BV.shape[1] or sampling.top_p < 1:
        # Keep the k most likely tokens, then the smallest set of these with `top_p` of their probability.
        if 0 < sampling.top_k < probs_BV.shape[1]:
            sorted_BK, ids_BK = probs_BV.topk(sampling.top_k, dim=-1)
        else:
            sorted_BK, ids_BK = probs_BV.sort(dim=-1, descending=True, stable=True)
        cdf_BK = sorted_BK.cumsum(-1)
        if sampling.top_p < 1:
            # Keep a token if more likely tokens sum to less than top_p; always keep the most likely one.
            outside_BK = cdf_BK - sorted_BK >= sampling.top_p * cdf_BK[:, -1:]
            outside_BK[:, 0] = False
            cdf_BK = sorted_BK.masked_fill(outside_BK, 0.0).cumsum(-1)
        tokens_B = ids_BK.gather(1, _invert(cdf_BK, uniform_B)[:, None])[:, 0]
    else:
        tokens_B = _invert(probs_BV.cumsum(-1), uniform_B)
    return tokens_B, probs_BV.gather(1, tokens_B[:, None])[:, 0].log()


def _invert(cdf_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """First index whose cumulative sum exceeds u · total, so never a token of probability zero. u · total may round up to the
    total, so it is capped just below."""
    total_B = cdf_BV[:, -1]
    target_B = torch.minimum(uniform_B * total_B, torch.nextafter(total_B, torch.zeros_like(total_B)))
    return torch.searchsorted(cdf_BV, target_B[:, None], right=True)[:, 0].clamp_(max=cdf_BV.shape[1] - 1)
