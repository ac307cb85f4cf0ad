"""Where a prompt's last token looks: the attention weights of one layer of the Llama family, from the model's own projections.

    w_s = mean over heads of softmax_s(q · k_s / √d),   q of the last token, k_s of token s, both rotated to their positions

A fused attention kernel never has these weights, so they are computed here, for the last token alone.
"""

from __future__ import annotations

from typing import Any

import torch

from tacit.core.errors import TacitError
from tacit.engines.local.passes.lean import LeanDecoder
from tacit.engines.local.passes.llama import FAMILY


def can_attend(hf: Any) -> bool:
    """Whether the weights can be had: the Llama family, each token seeing all that came before it."""
    return LeanDecoder.supports(hf)


def check_attention(hf: Any, layer: int) -> None:
    """Refuse what has no weights; `layer` counts from 0, the embeddings."""
    if not can_attend(hf):
        raise TacitError(
            f"pooling 'attention' weighs a prompt's states by the layer's own attention weights, which are read from "
            f"{', '.join(FAMILY)} models without a sliding window; this is a {hf.config.model_type!r} model. Use last or mean."
        )
    if layer == 0:
        raise TacitError("layer 0 is the embeddings, which attend to nothing: choose a later layer, or pooling last or mean.")


def last_token_attention(hf: Any, layer: int, before_RSD: torch.Tensor, lengths_R: torch.Tensor) -> torch.Tensor:
    """[R, S] float32 weights of each row's last token; a row sums to 1, and what lies behind its length gets 0.

    `before_RSD` is what the layer read: the states of the layer below.
    """
    block = hf.model.layers[layer - 1]
    attention = block.self_attn
    rows, width, _ = before_RSD.shape
    normed_RSD = block.input_layernorm(before_RSD)
    last_R = lengths_R - 1
    index_R = torch.arange(rows, device=before_RSD.device)
    q_RHK = attention.q_proj(normed_RSD[index_R, last_R]).unflatten(-1, (-1, attention.head_dim))
    k_RSHK = attention.k_proj(normed_RSD).unflatten(-1, (-1, attention.head_dim))
    if hasattr(attention, "q_norm"):
        q_RHK, k_RSHK = attention.q_norm(q_RHK), attention.k_norm(k_RSHK)
    positions_S = torch.arange(width, device=before_RSD.device)
    cos_SK, sin_SK = (part[0].float() for part in hf.model.rotary_emb(before_RSD, positions_S[None]))
    q_RHK = _rotate(q_RHK.float(), cos_SK[last_R, None], sin_SK[last_R, None])
    k_RSHK = _rotate(k_RSHK.float(), cos_SK[None, :, None], sin_SK[None, :, None])
    k_RSHK = k_RSHK.repeat_interleave(q_RHK.shape[1] // k_RSHK.shape[2], dim=2)
    scores_RHS = torch.einsum("rhk,rshk->rhs", q_RHK, k_RSHK) * attention.scaling
    hidden_RS = positions_S[None] >= lengths_R[:, None]
    return scores_RHS.masked_fill(hidden_RS[:, None], -torch.inf).softmax(-1).mean(1)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
