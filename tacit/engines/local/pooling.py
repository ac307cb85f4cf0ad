"""Hidden states of prompts, pooled over their tokens; also a frozen sentence encoder.

last        h_T                          T: the last token
mean        (1/T) Σ h_t
attention   Σ w_t h_t                    w_t = mean over heads of softmax_t(q_T · k_t / √d), of the layer that returns h
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.core.errors import TacitError, first_line, unknown
from tacit.core.trust import is_code_trusted
from tacit.engines.local.fast.packed import PackedDecoder
from tacit.engines.models.bases import find_pretrained
from tacit.engines.models.tiny import no_progress_bars

POOLINGS = ("last", "mean", "attention")
Weights = Callable[[], Tensor]  # computes the attention weights, if the pooling needs them


def has_attention_pooling(hf: Any) -> bool:
    """Attention weights can be computed for the Llama family without sliding windows."""
    return PackedDecoder.supports(hf)


def check_layer(layer: int, layers: int) -> int:
    if not -layers - 1 <= layer <= layers:
        raise TacitError(
            f"layer {layer} does not exist: this model has layers 0 (embeddings) to {layers}, or −1 (the last) to "
            f"−{layers + 1}."
        )
    return layer


def check_pooling(hf: Any, layer: int, pooling: str) -> None:
    """Raise if this pooling is not available in this layer; layer 0 is the embeddings."""
    if pooling not in POOLINGS:
        raise unknown("pooling", pooling, POOLINGS)
    if pooling == "attention" and not has_attention_pooling(hf):
        raise TacitError(
            "pooling 'attention' needs the layer's attention weights, which are available for Llama, Mistral and Qwen models "
            f"without a sliding window; this is a {hf.config.model_type!r} model. Use pooling last or mean."
        )
    if pooling == "attention" and layer == 0:
        raise TacitError("layer 0 is the embeddings and has no attention: choose a later layer, or pooling last or mean.")


def pool_padded(hidden_NTD: Tensor, last_N: Tensor, pooling: str, weights: Weights) -> Tensor:
    """[N, D] of right-padded prompts that end at column `last`. `weights`: [N, T]."""
    if pooling == "last":
        return hidden_NTD[torch.arange(len(last_N), device=last_N.device), last_N]
    if pooling == "mean":
        inside_NT = torch.arange(hidden_NTD.shape[1], device=last_N.device) <= last_N[:, None]
        weights_NT = inside_NT / (last_N[:, None] + 1)
    else:
        weights_NT = weights()
    return (weights_NT[:, None] @ hidden_NTD.float()).squeeze(1)


def pool_varlen(hidden_ND: Tensor, cu_seqlens: Tensor, pooling: str, weights: Weights | None = None) -> Tensor:
    """[U, D] of packed prompts; prompt u holds the tokens `cu_seqlens[u]` to `cu_seqlens[u + 1]`. `weights`: [N]. For CUDA
    graphs: reads no value on the host."""
    if pooling == "last":
        return hidden_ND[cu_seqlens[1:] - 1]
    if pooling == "mean":
        return _reduce(hidden_ND.float(), "mean", cu_seqlens)
    assert weights is not None
    return _reduce(weights()[:, None] * hidden_ND, "sum", cu_seqlens)


def attention_padded(q_NTHK: Tensor, k_NTGK: Tensor, last_N: Tensor, scale: float) -> Tensor:
    """[N, T] attention of each prompt's last token, mean over heads."""
    columns_T = torch.arange(k_NTGK.shape[1], device=last_N.device)
    q_NGQK = q_NTHK[torch.arange(len(last_N), device=last_N.device), last_N].unflatten(1, (k_NTGK.shape[2], -1)).float()
    scores_NGQT = torch.einsum("ngqk,ntgk->ngqt", q_NGQK, k_NTGK.float()) * scale
    return scores_NGQT.masked_fill((columns_T > last_N[:, None])[:, None, None], -torch.inf).softmax(-1).mean((1, 2))


def attention_varlen(q_NHK: Tensor, k_NGK: Tensor, cu_seqlens: Tensor, scale: float) -> Tensor:
    """[N] attention of each prompt's last token, mean over heads."""
    lengths_U = cu_seqlens.diff().long()
    prompt_N = torch.repeat_interleave(torch.arange(len(lengths_U), device=q_NHK.device), lengths_U, output_size=len(q_NHK))
    q_NGQK = q_NHK[cu_seqlens[1:] - 1][prompt_N].unflatten(1, (k_NGK.shape[1], -1)).float()
    scores_NH = (q_NGQK * k_NGK[:, :, None].float()).sum(-1).flatten(1) * scale
    exp_NH = (scores_NH - _reduce(scores_NH, "max", cu_seqlens)[prompt_N]).exp()
    return (exp_NH / _reduce(exp_NH, "sum", cu_seqlens)[prompt_N]).mean(1)


def _reduce(values_N: Tensor, how: str, cu_seqlens: Tensor) -> Tensor:
    return torch.segment_reduce(values_N, how, offsets=cu_seqlens.long(), axis=0, unsafe=True)


def last_token_attention(hf: Any, layer: int, before_RSD: Tensor, lengths_R: Tensor) -> Tensor:
    """[R, S] `attention_padded` of a layer with input `before_RSD`, recomputed with the model's modules because transformers'
    fused attention does not return its weights."""
    block = hf.model.layers[layer - 1]
    attention = block.self_attn
    normed_RSD = block.input_layernorm(before_RSD)
    q_RSHK, k_RSGK = (
        project(normed_RSD).unflatten(-1, (-1, attention.head_dim)) for project in (attention.q_proj, attention.k_proj)
    )
    if hasattr(attention, "q_norm"):
        q_RSHK, k_RSGK = attention.q_norm(q_RSHK), attention.k_norm(k_RSGK)
    positions_S = torch.arange(before_RSD.shape[1], device=before_RSD.device)
    cos_SK, sin_SK = (part[0, :, None].float() for part in hf.model.rotary_emb(before_RSD, positions_S[None]))
    q_RSHK, k_RSGK = (
        x * cos_SK + torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], dim=-1) * sin_SK
        for x in (q_RSHK.float(), k_RSGK.float())
    )
    return attention_padded(q_RSHK, k_RSGK, lengths_R - 1, attention.scaling)


BATCH = 64  # texts per forward pass


class SentenceModel:
    """A frozen sentence encoder: a transformers encoder with mean pooling, as in sentence-transformers."""

    def __init__(self, name: str) -> None:
        from transformers import AutoModel, AutoTokenizer

        try:
            source = find_pretrained(name)
            with no_progress_bars():
                self.tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=is_code_trusted())
                self.model = AutoModel.from_pretrained(source, trust_remote_code=is_code_trusted()).eval()
            self(["any text"])  # fail now, not in the middle of a run
        except Exception as error:
            raise TacitError(
                f"cannot load the sentence encoder {name!r}: {first_line(error)} Give --encoder the directory of a saved "
                "encoder, or use --embedder actor, ngram or identity."
            ) from error

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """[N, D]; batched by length."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        means_ND = np.zeros((len(texts), self.model.config.hidden_size), np.float32)
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            inputs = self.tokenizer([texts[i] for i in rows], padding=True, truncation=True, return_tensors="pt")
            states_RSD = self.model(**inputs).last_hidden_state.float()
            mask_RS1 = inputs["attention_mask"][:, :, None].float()
            means_ND[rows] = ((states_RSD * mask_RS1).sum(1) / mask_RS1.sum(1)).numpy()
        return means_ND
