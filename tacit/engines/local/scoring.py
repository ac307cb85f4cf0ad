"""Scoring: log-probabilities, distributions, hidden states and values of given text. Answers come in the order asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tacit.core.credit import Batch
from tacit.core.errors import TacitError, unknown
from tacit.engines.local.fast.cross_entropy import LogprobTargets, fused_linear_logprobs, has_logprob_kernels
from tacit.engines.local.fast.packed import PackedDecoder, VarlenDecoder
from tacit.engines.local.llama import FAMILY
from tacit.engines.local.memory import AdaptiveBudget
from tacit.engines.local.model import LanguageModel
from tacit.engines.local.packing import (
    PackedBatch,
    PaddedBatch,
    input_lengths,
    make_packed_batch,
    make_padded_batch,
    plan_packed_batches,
    plan_padded_batches,
    to_device,
)
from tacit.engines.local.tokenizer import TextCodec

# Where a prompt's last token looks: the attention weights of one layer of the Llama family, from the model's own projections.
#
#     w_s = mean over heads of softmax_s(q · k_s / √d),   q of the last token, k_s of token s, both rotated to their positions
#
# A fused attention kernel never has these weights, so they are computed here, for the last token alone.


def has_attention_pooling(hf: Any) -> bool:
    """Whether the weights can be had: the Llama family, each token seeing all that came before it."""
    return PackedDecoder.supports(hf)


def check_attention_pooling(hf: Any, layer: int) -> None:
    """Refuse what has no weights; `layer` counts from 0, the embeddings."""
    if not has_attention_pooling(hf):
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


POOLINGS = ("last", "mean", "attention")
EntropyMode = Literal["none", "value", "gradient"]
"""whether to compute entropies, and whether gradients flow through them"""


def token_logprobs(
    model: LanguageModel,
    hidden_TD: torch.Tensor,
    targets_T: torch.Tensor,
    temperature: float = 1.0,
    entropy: EntropyMode = "none",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(log π(target), entropy of π) at each position, π = softmax(logits / temperature), in float32.

    Cut into chunks of tokens, so that a large vocabulary never exists for all tokens at once; under autograd the logits of
    a chunk are computed again in the backward pass instead of kept, where they are needed there (head.py).
    """
    size, weight_VD = model.chunk_tokens, model.linear_head
    if weight_VD is not None and has_logprob_kernels(weight_VD.device, weight_VD.dtype):
        return fused_linear_logprobs(hidden_TD, weight_VD, LogprobTargets(targets_T, _positive(temperature), entropy, size))

    def chunk(hidden_CD: torch.Tensor, targets_C: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return logprobs_from_logits(model.logits(hidden_CD), targets_C, temperature, entropy)

    if len(targets_T) <= size:
        return chunk(hidden_TD, targets_T)
    recompute = torch.is_grad_enabled() and hidden_TD.requires_grad
    parts: list[Any] = [
        checkpoint(chunk, hidden_CD, targets_C, use_reentrant=False, preserve_rng_state=False)
        if recompute
        else chunk(hidden_CD, targets_C)
        for hidden_CD, targets_C in zip(hidden_TD.split(size), targets_T.split(size), strict=True)
    ]
    logprobs_T = torch.cat([logprobs_C for logprobs_C, _ in parts])
    return logprobs_T, None if entropy == "none" else torch.cat([entropy_C for _, entropy_C in parts])


def logprobs_from_logits(
    logits_TV: torch.Tensor, targets_T: torch.Tensor, temperature: float = 1.0, entropy: EntropyMode = "none"
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """log π(target) and the entropy −Σ π log π of π = softmax(logits / temperature)."""
    logps_TV = torch.log_softmax(logits_TV if _positive(temperature) == 1.0 else logits_TV / temperature, dim=-1)
    logprobs_T = logps_TV.gather(-1, targets_T[:, None]).squeeze(-1)
    if entropy == "none":
        return logprobs_T, None
    with torch.set_grad_enabled(entropy == "gradient" and torch.is_grad_enabled()):
        return logprobs_T, -(logps_TV.exp() * logps_TV).sum(-1)


def _positive(temperature: float) -> float:
    if temperature <= 0:
        raise TacitError(f"log-probabilities need a temperature above 0, got {temperature}.")
    return float(temperature)  # of numpy's numbers a kernel takes none


Rest = ParamSpec("Rest")
Answer = TypeVar("Answer")
Scoring = Callable[Concatenate["ModelScorer", Sequence[np.ndarray], Rest], Answer]


def _retry_with_smaller_batches(score: Scoring[Rest, Answer]) -> Scoring[Rest, Answer]:
    """Where memory runs out, rows are cut finer."""

    @wraps(score)
    def fitting(self: ModelScorer, prompts: Sequence[np.ndarray], /, *rest: Rest.args, **more: Rest.kwargs) -> Answer:
        def work(token_budget: int) -> Answer:
            self.token_budget = token_budget
            return score(self, prompts, *rest, **more)

        least = max((len(prompt) for prompt in prompts), default=1)
        try:
            return self._budget.fit(work, least, "a scoring pass with a token_budget of {}")
        except torch.OutOfMemoryError as error:
            raise TacitError(
                f"out of GPU memory in a scoring pass, cut as finely as its longest prompt of {least} tokens allows; shorten "
                "the prompts, or let fewer runs share the GPU."
            ) from error

    return fitting


class ModelScorer:
    """Scores text under one model. `ready` is called before each pass: it makes the right adapter active."""

    def __init__(
        self,
        model: LanguageModel,
        codec: TextCodec,
        budget: AdaptiveBudget,
        ready: Callable[[], None] = lambda: None,
    ):
        self.model, self.codec, self._ready = model, codec, ready
        self._budget, self.token_budget = budget, budget.current

    @_retry_with_smaller_batches
    @torch.no_grad()
    def logprobs(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], temperature: float = 1.0
    ) -> list[np.ndarray]:
        """log π(completion token | prompt, earlier tokens) at the temperature, one float32 array per row."""
        answers: list[np.ndarray] = [np.zeros(0, np.float32)] * len(prompts)
        for packed, hidden_TD in self._predicting(prompts, completions):
            targets_T = to_device(packed.targets_T, self.model.device)
            logprobs_T, _ = token_logprobs(self.model, hidden_TD, targets_T, temperature)
            for row, part in zip(packed.rows, _per_row(logprobs_T.cpu().numpy(), packed), strict=True):
                answers[row] = part
        return answers

    @_retry_with_smaller_batches
    @torch.no_grad()
    def distributions(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], top_k: int | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Per row (token ids [T, K], log-probabilities [T, K]), likeliest first; the whole vocabulary in its own order
        where `top_k` is None."""
        if top_k is not None and not 1 <= top_k <= self.model.vocabulary:
            raise TacitError(f"top_k = {top_k} must be between 1 and the vocabulary of {self.model.vocabulary}.")
        width = top_k or self.model.vocabulary
        nothing = (np.zeros((0, width), np.int64), np.zeros((0, width), np.float32))
        answers: list[tuple[np.ndarray, np.ndarray]] = [nothing] * len(prompts)
        everything = np.arange(self.model.vocabulary)
        for packed, hidden_TD in self._predicting(prompts, completions):
            ids, values = [], []
            for hidden_CD in hidden_TD.split(self.model.chunk_tokens):
                logps_CV = torch.log_softmax(self.model.logits(hidden_CD), dim=-1)
                if top_k is None:
                    ids.append(np.broadcast_to(everything, tuple(logps_CV.shape)))
                    values.append(logps_CV.cpu().numpy())
                else:
                    best = logps_CV.topk(top_k, dim=-1)
                    ids.append(best.indices.cpu().numpy())
                    values.append(best.values.cpu().numpy())
            ids_per_row = _per_row(np.concatenate(ids) if len(ids) > 1 else ids[0], packed)
            values_per_row = _per_row(np.concatenate(values), packed)
            for row, row_ids, row_values in zip(packed.rows, ids_per_row, values_per_row, strict=True):
                answers[row] = (row_ids, row_values)
        return answers

    def hidden_states(self, prompts: Sequence[np.ndarray], layer: int, pooling: str = "last") -> np.ndarray:
        """[N, D] float32 states of one layer. Layer 0 is the embeddings, −1 the last.

        Pooling: `last` token; `mean` over the prompt; `attention`, the mean weighted by the layer's own attention weights of
        the last token, averaged over heads.
        """
        return self.hidden_scan(prompts, [layer], [pooling])[layer, pooling]

    @_retry_with_smaller_batches
    @torch.no_grad()
    def hidden_scan(
        self, prompts: Sequence[np.ndarray], layers: Sequence[int], poolings: Sequence[str]
    ) -> dict[tuple[int, str], np.ndarray]:
        """`hidden_states` of many layers and poolings from one pass."""
        for pooling in poolings:
            if pooling not in POOLINGS:
                raise unknown("pooling", pooling, POOLINGS)
        for layer in layers:
            self.model.check_layer(layer)
            if "attention" in poolings:
                check_attention_pooling(self.model.hf, layer % (self.model.layers + 1))
        states = {(i, p): np.zeros((len(prompts), self.model.width), np.float32) for i in layers for p in poolings}
        nothing: list[np.ndarray] = [np.zeros(0, np.int64)] * len(prompts)
        lengths = input_lengths(prompts, nothing, self.codec.context_limit)
        self._ready()
        if self.model.varlen_decoder is not None and "attention" not in poolings:
            self._scan_flat(self.model.varlen_decoder, prompts, states)
            return states
        for rows in plan_padded_batches(lengths, self.token_budget):
            packed = make_padded_batch(prompts, nothing, rows, self.codec.pad)
            ends_R = to_device(packed.prompt_ends_R, self.model.device)
            every = self.model.all_hidden_states(to_device(packed.input_ids, self.model.device))
            for (layer, pooling), states_ND in states.items():
                states_ND[rows] = self._pool(every, layer, ends_R, pooling).cpu().numpy()
        return states

    def _scan_flat(
        self, decoder: VarlenDecoder, prompts: Sequence[np.ndarray], states: dict[tuple[int, str], np.ndarray]
    ) -> None:
        """Each distinct prompt once, without padding, and no layer above those asked for."""
        anything = [np.zeros(1, np.int64)] * len(prompts)  # one token to predict, and it is predicted from the prompt's end
        depths = {layer: layer % (self.model.layers + 1) for layer, _ in states}
        for rows in plan_packed_batches(prompts, anything, np.arange(len(prompts)), self.token_budget):
            packed = make_packed_batch(prompts, anything, rows)
            ends_U, of_R = np.unique(packed.source_T, return_inverse=True)
            found = decoder.states(packed, list(depths.values()))
            for (layer, pooling), states_ND in states.items():
                states_ND[rows] = _pooled(found[depths[layer]].float(), ends_U, pooling).cpu().numpy()[of_R]

    @property
    def poolings(self) -> tuple[str, ...]:
        """Those this model's states can be pooled by."""
        return tuple(pooling for pooling in POOLINGS if pooling != "attention" or has_attention_pooling(self.model.hf))

    def _pool(self, every: Sequence[torch.Tensor], layer: int, ends_R: torch.Tensor, pooling: str) -> torch.Tensor:
        hidden_RSD = every[layer].float()
        width = hidden_RSD.shape[1]
        if pooling == "last":
            return hidden_RSD.flatten(0, 1).index_select(0, ends_R)
        lengths_R = ends_R.remainder(width) + 1
        if pooling == "mean":
            inside_RS = torch.arange(width, device=hidden_RSD.device)[None] < lengths_R[:, None]
            weights_RS = inside_RS / lengths_R[:, None]
        else:
            depth = layer % (self.model.layers + 1)
            weights_RS = last_token_attention(self.model.hf, depth, every[depth - 1], lengths_R)
        return (weights_RS[:, None] @ hidden_RSD).squeeze(1)

    @_retry_with_smaller_batches
    @torch.no_grad()
    def values(self, prompts: Sequence[np.ndarray], head: nn.Module) -> np.ndarray:
        """[N] what a value head says of the last hidden state at each one's last prompt token."""
        anything = [np.zeros(1, np.int64)] * len(prompts)  # one token to predict, and it is predicted from there
        values_N = np.zeros(len(prompts), np.float32)
        for packed, hidden_TD in self._predicting(prompts, anything):
            values_N[packed.rows] = head(hidden_TD.float()).squeeze(-1).cpu().numpy()
        return values_N

    def _predicting(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray]
    ) -> Iterator[tuple[PackedBatch | PaddedBatch, torch.Tensor]]:
        """Micro-batches with the hidden states that predict their completion tokens. Empty completions are left out."""
        input_lengths(prompts, completions, self.codec.context_limit)
        self._ready()
        rows = np.array([i for i, c in enumerate(completions) if len(c)], dtype=np.int64)
        for packed in self.model.micro_batches(prompts, completions, rows, self.token_budget, self.codec.pad):
            yield packed, self.model.forward_hidden(packed)


def _pooled(hidden_ND: torch.Tensor, ends_U: np.ndarray, pooling: str) -> torch.Tensor:
    """[U, D] of prompts that lie end to end, each up to its end."""
    if pooling == "last":
        return hidden_ND.index_select(0, to_device(ends_U, hidden_ND.device))
    lengths_U = to_device(np.diff(ends_U, prepend=-1), hidden_ND.device)
    return torch.segment_reduce(hidden_ND, "mean", lengths=lengths_U, axis=0)


def _per_row(values_T: np.ndarray, packed: PackedBatch | PaddedBatch) -> list[np.ndarray]:
    return np.split(values_T, np.cumsum(packed.lengths_R)[:-1])


# Learning from oneself under another prompt: whole distributions side by side, in memory the vocabulary does not decide.

TEACHER_PROMPTS = "taught"
"""the column of prompts that the teacher reads"""


def longer_prompts(batch: Batch, needs: frozenset[str]) -> Sequence[np.ndarray]:
    """The prompts by which a batch is cut: where a teacher reads it too, the longer of the two. So one pass of the teacher fits
    wherever one of the student does, and every rank of many makes as many passes as the others, which wait for each other."""
    if "teacher" not in needs:
        return batch.prompts
    return [max(own, taught, key=len) for own, taught in zip(batch.prompts, _teacher_prompts(batch), strict=True)]


@torch.no_grad()
def teacher_hidden_states(model: LanguageModel, batch: Batch, packed: PackedBatch | PaddedBatch, pad: int) -> torch.Tensor:
    """[T, D] the states from which the teacher predicts the completion tokens of one micro-batch, in its order. The teacher is
    the policy as it stands at this step; only what it reads is another."""
    return model.forward_hidden(model.make_micro_batch(_teacher_prompts(batch), batch.completions, packed.rows, pad))


def compare_with_teacher(
    model: LanguageModel,
    student_TD: torch.Tensor,
    teacher_TD: torch.Tensor,
    temperature: float,
    compare: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """[T] `compare` of both log-distributions, chunk by chunk; a chunk's logits are computed again in the backward pass."""

    def chunk(student_CD: torch.Tensor, teacher_CD: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            teacher_CV = torch.log_softmax(model.logits(teacher_CD) / temperature, dim=-1)
        return compare(torch.log_softmax(model.logits(student_CD) / temperature, dim=-1), teacher_CV)

    size = model.chunk_tokens
    return torch.cat(
        [
            checkpoint(chunk, own, other, use_reentrant=False, preserve_rng_state=False)
            for own, other in zip(student_TD.split(size), teacher_TD.split(size), strict=True)
        ]
    )


def _teacher_prompts(batch: Batch) -> Sequence[np.ndarray]:
    if TEACHER_PROMPTS not in batch.contexts:
        raise TacitError(f"a loss compares with a teacher, but the batch has no column {TEACHER_PROMPTS!r} of prompts for it.")
    return batch.contexts[TEACHER_PROMPTS]
