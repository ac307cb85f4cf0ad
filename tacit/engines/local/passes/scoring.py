"""Scoring: log-probabilities, distributions, hidden states and values of given text. Answers come in the order asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tacit.core.errors import TacitError, unknown
from tacit.engines.local.memory import Budget
from tacit.engines.local.passes.attention import can_attend, check_attention, last_token_attention
from tacit.engines.local.passes.codec import TextCodec
from tacit.engines.local.passes.flat import FlatPack, flat_buckets, pack_flat
from tacit.engines.local.passes.handing import handed
from tacit.engines.local.passes.head import Asked, has_score_kernels, head_scores
from tacit.engines.local.passes.models import LanguageModel
from tacit.engines.local.passes.packing import Packed, buckets, input_lengths, pack
from tacit.engines.local.passes.ragged import RaggedDecoder

POOLINGS = ("last", "mean", "attention")
EntropyMode = Literal["none", "value", "gradient"]
"""whether to compute entropies, and whether gradients flow through them"""


def token_scores(
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
    size, weight_VD = model.chunk_tokens, model.plain_head
    if weight_VD is not None and has_score_kernels(weight_VD.device, weight_VD.dtype):
        return head_scores(hidden_TD, weight_VD, Asked(targets_T, _positive(temperature), entropy, size))

    def chunk(hidden_CD: torch.Tensor, targets_C: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return distribution_scores(model.logits(hidden_CD), targets_C, temperature, entropy)

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


def distribution_scores(
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


def _cut_to_fit(score: Scoring[Rest, Answer]) -> Scoring[Rest, Answer]:
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
        budget: Budget,
        ready: Callable[[], None] = lambda: None,
    ):
        self.model, self.codec, self._ready = model, codec, ready
        self._budget, self.token_budget = budget, budget.now

    @_cut_to_fit
    @torch.no_grad()
    def logprobs(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], temperature: float = 1.0
    ) -> list[np.ndarray]:
        """log π(completion token | prompt, earlier tokens) at the temperature, one float32 array per row."""
        answers: list[np.ndarray] = [np.zeros(0, np.float32)] * len(prompts)
        for packed, hidden_TD in self._predicting(prompts, completions):
            targets_T = handed(packed.targets_T, self.model.device)
            logprobs_T, _ = token_scores(self.model, hidden_TD, targets_T, temperature)
            for row, part in zip(packed.rows, _per_row(logprobs_T.cpu().numpy(), packed), strict=True):
                answers[row] = part
        return answers

    @_cut_to_fit
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

    @_cut_to_fit
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
                check_attention(self.model.hf, layer % (self.model.layers + 1))
        states = {(i, p): np.zeros((len(prompts), self.model.width), np.float32) for i in layers for p in poolings}
        nothing: list[np.ndarray] = [np.zeros(0, np.int64)] * len(prompts)
        lengths = input_lengths(prompts, nothing, self.codec.context_limit)
        self._ready()
        if self.model.ragged is not None and "attention" not in poolings:
            self._scan_flat(self.model.ragged, prompts, states)
            return states
        for rows in buckets(lengths, self.token_budget):
            packed = pack(prompts, nothing, rows, self.codec.pad)
            ends_R = handed(packed.prompt_ends_R, self.model.device)
            every = self.model.hidden_layers(handed(packed.input_ids, self.model.device))
            for (layer, pooling), states_ND in states.items():
                states_ND[rows] = self._pool(every, layer, ends_R, pooling).cpu().numpy()
        return states

    def _scan_flat(
        self, decoder: RaggedDecoder, prompts: Sequence[np.ndarray], states: dict[tuple[int, str], np.ndarray]
    ) -> None:
        """Each distinct prompt once, without padding, and no layer above those asked for."""
        anything = [np.zeros(1, np.int64)] * len(prompts)  # one token to predict, and it is predicted from the prompt's end
        depths = {layer: layer % (self.model.layers + 1) for layer, _ in states}
        for rows in flat_buckets(prompts, anything, np.arange(len(prompts)), self.token_budget):
            packed = pack_flat(prompts, anything, rows)
            ends_U, of_R = np.unique(packed.predicts_T, return_inverse=True)
            found = decoder.states(packed, list(depths.values()))
            for (layer, pooling), states_ND in states.items():
                states_ND[rows] = _pooled(found[depths[layer]].float(), ends_U, pooling).cpu().numpy()[of_R]

    @property
    def poolings(self) -> tuple[str, ...]:
        """Those this model's states can be pooled by."""
        return tuple(pooling for pooling in POOLINGS if pooling != "attention" or can_attend(self.model.hf))

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

    @_cut_to_fit
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
    ) -> Iterator[tuple[FlatPack | Packed, torch.Tensor]]:
        """Micro-batches with the hidden states that predict their completion tokens. Empty completions are left out."""
        input_lengths(prompts, completions, self.codec.context_limit)
        self._ready()
        rows = np.array([i for i, c in enumerate(completions) if len(c)], dtype=np.int64)
        for packed in self.model.cut(prompts, completions, rows, self.token_budget, self.codec.pad):
            yield packed, self.model.predicting(packed)


def _pooled(hidden_ND: torch.Tensor, ends_U: np.ndarray, pooling: str) -> torch.Tensor:
    """[U, D] of prompts that lie end to end, each up to its end."""
    if pooling == "last":
        return hidden_ND.index_select(0, handed(ends_U, hidden_ND.device))
    lengths_U = handed(np.diff(ends_U, prepend=-1), hidden_ND.device)
    return torch.segment_reduce(hidden_ND, "mean", lengths=lengths_U, axis=0)


def _per_row(values_T: np.ndarray, packed: FlatPack | Packed) -> list[np.ndarray]:
    return np.split(values_T, np.cumsum(packed.lengths_R)[:-1])
