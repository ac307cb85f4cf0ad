"""Scoring: log-probabilities, distributions, hidden states and values of given tokens. Results keep the order of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tacit.core.credit import Batch
from tacit.core.errors import TacitError
from tacit.engines.local.fast.packed import VarlenDecoder
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
from tacit.engines.local.pooling import (
    POOLINGS,
    check_pooling,
    has_attention_pooling,
    last_token_attention,
    pool_padded,
    pool_varlen,
)
from tacit.engines.local.tokenizer import TextCodec

EntropyMode = Literal["none", "value", "gradient"]
"""whether to compute entropies, and whether gradients flow through them"""


def token_logprobs(
    model: LanguageModel, hidden_TD: Tensor, targets_T: Tensor, temperature: float = 1.0, entropy: EntropyMode = "none"
) -> tuple[Tensor, Tensor | None]:
    """(log π(target), entropy of π) at each position, π = softmax(logits / temperature), in float32.

    Logits are computed in chunks of tokens and recomputed in the backward pass, so those of all tokens never exist at once.
    """

    def chunk(hidden_CD: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor | None]:
        return logprobs_from_logits(model.logits(hidden_CD), targets_C, temperature, entropy)

    if len(targets_T) <= model.chunk_tokens:
        return chunk(hidden_TD, targets_T)
    recompute = torch.is_grad_enabled() and hidden_TD.requires_grad
    parts = _run_in_chunks(chunk, model.chunk_tokens, recompute, hidden_TD, targets_T)
    logprobs_T = torch.cat([logprobs_C for logprobs_C, _ in parts])
    return logprobs_T, None if entropy == "none" else torch.cat([entropy_C for _, entropy_C in parts])


def _run_in_chunks(work: Callable[..., Any], size: int, recompute: bool, *tensors: Tensor) -> list[Any]:
    """`work` on chunks of the tensors. `recompute`: save no activations, but recompute them in the backward pass."""
    run = partial(checkpoint, work, use_reentrant=False, preserve_rng_state=False) if recompute else work
    return [run(*parts) for parts in zip(*(tensor.split(size) for tensor in tensors), strict=True)]


def logprobs_from_logits(
    logits_TV: Tensor, targets_T: Tensor, temperature: float = 1.0, entropy: EntropyMode = "none"
) -> tuple[Tensor, Tensor | None]:
    """log π(target) and the entropy −Σ π log π of π = softmax(logits / temperature)."""
    if temperature <= 0:
        raise TacitError(f"log-probabilities need a temperature above 0, got {temperature}.")
    logps_TV = torch.log_softmax(logits_TV if temperature == 1.0 else logits_TV / temperature, dim=-1)
    logprobs_T = logps_TV.gather(-1, targets_T[:, None]).squeeze(-1)
    if entropy == "none":
        return logprobs_T, None
    with torch.set_grad_enabled(entropy == "gradient" and torch.is_grad_enabled()):
        return logprobs_T, -(logps_TV.exp() * logps_TV).sum(-1)


Rest = ParamSpec("Rest")
Result = TypeVar("Result")
Scoring = Callable[Concatenate["ModelScorer", Sequence[np.ndarray], Rest], Result]


def _retry_with_smaller_batches(score: Scoring[Rest, Result]) -> Scoring[Rest, Result]:
    """On out of memory, run the scoring method again with a smaller token budget."""

    @wraps(score)
    def run(self: ModelScorer, prompts: Sequence[np.ndarray], /, *args: Rest.args, **kwargs: Rest.kwargs) -> Result:
        def work(token_budget: int) -> Result:
            self.token_budget = token_budget
            return score(self, prompts, *args, **kwargs)

        minimum = max((len(prompt) for prompt in prompts), default=1)
        try:
            return self._budget.run(work, minimum, "a scoring pass with a token_budget of {}")
        except torch.OutOfMemoryError as error:
            raise TacitError(
                f"out of GPU memory in a scoring pass, even with a single row per pass (the longest prompt has {minimum} "
                "tokens); shorten the prompts, or run fewer processes on this GPU."
            ) from error

    return run


class ModelScorer:
    """Scores tokens under one model. `activate` is called before each pass and activates the right adapter."""

    def __init__(
        self, model: LanguageModel, codec: TextCodec, budget: AdaptiveBudget, activate: Callable[[], None] = lambda: None
    ):
        self.model, self.codec, self._activate = model, codec, activate
        self._budget, self.token_budget = budget, budget.current

    @_retry_with_smaller_batches
    @torch.no_grad()
    def logprobs(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], temperature: float = 1.0
    ) -> list[np.ndarray]:
        """log π(completion token | prompt, earlier tokens) at the temperature, one float32 array per row."""
        results: list[np.ndarray] = [np.zeros(0, np.float32)] * len(prompts)
        for packed, hidden_TD in self._forward(prompts, completions):
            targets_T = to_device(packed.targets_T, self.model.device)
            logprobs_T, _ = token_logprobs(self.model, hidden_TD, targets_T, temperature)
            for row, part in zip(packed.rows, _per_row(logprobs_T.cpu().numpy(), packed), strict=True):
                results[row] = part
        return results

    @_retry_with_smaller_batches
    @torch.no_grad()
    def distributions(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], top_k: int | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Per row (token ids [T, K], log-probabilities [T, K]), most likely first. `top_k` None: all tokens, by id."""
        if top_k is not None and not 1 <= top_k <= self.model.vocabulary:
            raise TacitError(f"top_k = {top_k} must be between 1 and the vocabulary of {self.model.vocabulary}.")
        width = top_k or self.model.vocabulary
        empty = (np.zeros((0, width), np.int64), np.zeros((0, width), np.float32))
        results: list[tuple[np.ndarray, np.ndarray]] = [empty] * len(prompts)
        all_ids = np.arange(self.model.vocabulary)
        for packed, hidden_TD in self._forward(prompts, completions):
            ids, values = [], []
            for hidden_CD in hidden_TD.split(self.model.chunk_tokens):
                logps_CV = torch.log_softmax(self.model.logits(hidden_CD), dim=-1)
                if top_k is None:
                    ids.append(np.broadcast_to(all_ids, tuple(logps_CV.shape)))
                    values.append(logps_CV.cpu().numpy())
                else:
                    top = logps_CV.topk(top_k, dim=-1)
                    ids.append(top.indices.cpu().numpy())
                    values.append(top.values.cpu().numpy())
            ids_per_row = _per_row(np.concatenate(ids) if len(ids) > 1 else ids[0], packed)
            values_per_row = _per_row(np.concatenate(values), packed)
            for row, row_ids, row_values in zip(packed.rows, ids_per_row, values_per_row, strict=True):
                results[row] = (row_ids, row_values)
        return results

    @_retry_with_smaller_batches
    @torch.no_grad()
    def hidden_scan(
        self, prompts: Sequence[np.ndarray], layers: Sequence[int], poolings: Sequence[str]
    ) -> dict[tuple[int, str], np.ndarray]:
        """[N, D] float32 states by layer and pooling (pooling.py), from one pass. Layer 0 is the embeddings, −1 the last."""
        for layer in layers:
            self.model.check_layer(layer)
            for pooling in poolings:
                check_pooling(self.model.hf, layer % (self.model.layers + 1), pooling)
        states = {(i, p): np.zeros((len(prompts), self.model.width), np.float32) for i in layers for p in poolings}
        no_completions: list[np.ndarray] = [np.zeros(0, np.int64)] * len(prompts)
        lengths = input_lengths(prompts, no_completions, self.codec.context_limit)
        self._activate()
        if isinstance(self.model.packed_decoder, VarlenDecoder) and "attention" not in poolings:
            self._scan_packed(self.model.packed_decoder, prompts, states)
            return states
        for rows in plan_padded_batches(lengths, self.token_budget):
            packed = make_padded_batch(prompts, no_completions, rows, self.codec.pad)
            by_layer = self.model.all_hidden_states(to_device(packed.input_ids, self.model.device))
            last_R = to_device(packed.last_R, self.model.device)
            for (layer, pooling), states_ND in states.items():
                depth = layer % (self.model.layers + 1)
                weights = partial(last_token_attention, self.model.hf, depth, by_layer[depth - 1], last_R + 1)
                states_ND[rows] = pool_padded(by_layer[depth].float(), last_R, pooling, weights).cpu().numpy()
        return states

    def _scan_packed(
        self, decoder: VarlenDecoder, prompts: Sequence[np.ndarray], states: dict[tuple[int, str], np.ndarray]
    ) -> None:
        """Fill `states` from packed passes. Computes each distinct prompt once, and no layer above the highest requested."""
        one_token = [np.zeros(1, np.int64)] * len(prompts)  # the prompt's last token predicts it
        depths = {layer: layer % (self.model.layers + 1) for layer, _ in states}
        for rows in plan_packed_batches(prompts, one_token, np.arange(len(prompts)), self.token_budget):
            packed = make_packed_batch(prompts, one_token, rows)
            ends_U, prompt_R = np.unique(packed.source_T, return_inverse=True)
            cu_seqlens = to_device(np.append(0, ends_U + 1), self.model.device)
            by_layer = decoder.states(packed, list(depths.values()))
            for (layer, pooling), states_ND in states.items():
                pooled = pool_varlen(by_layer[depths[layer]].float(), cu_seqlens, pooling)
                states_ND[rows] = pooled.cpu().numpy()[prompt_R]

    @property
    def poolings(self) -> tuple[str, ...]:
        return tuple(pooling for pooling in POOLINGS if pooling != "attention" or has_attention_pooling(self.model.hf))

    @_retry_with_smaller_batches
    @torch.no_grad()
    def values(self, prompts: Sequence[np.ndarray], head: nn.Module) -> np.ndarray:
        """[N] the value head applied to the last hidden state at each prompt's last token."""
        one_token = [np.zeros(1, np.int64)] * len(prompts)  # the prompt's last token predicts it
        values_N = np.zeros(len(prompts), np.float32)
        for packed, hidden_TD in self._forward(prompts, one_token):
            values_N[packed.rows] = head(hidden_TD.float()).squeeze(-1).cpu().numpy()
        return values_N

    def _forward(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray]
    ) -> Iterator[tuple[PackedBatch | PaddedBatch, Tensor]]:
        """Micro-batches with the hidden states [T, D] that predict their completion tokens. Empty completions are skipped."""
        input_lengths(prompts, completions, self.codec.context_limit)
        self._activate()
        rows = np.array([i for i, c in enumerate(completions) if len(c)], dtype=np.int64)
        for part in self.model.plan_micro_batches(prompts, completions, rows, self.token_budget):
            packed = self.model.make_micro_batch(prompts, completions, part, self.codec.pad)
            yield packed, self.model.forward_hidden(packed)


def _per_row(values_T: np.ndarray, packed: PackedBatch | PaddedBatch) -> list[np.ndarray]:
    return np.split(values_T, np.cumsum(packed.lengths_R)[:-1])


# Self-distillation: the teacher is the current policy under another prompt. Distributions are compared in chunks of tokens.

TEACHER_PROMPTS = "teacher_prompts"  # the batch column of teacher prompts


def longer_prompts(batch: Batch, needs: frozenset[str]) -> Sequence[np.ndarray]:
    """The prompts by which a batch is split: with a teacher, the longer of the two per row. So student and teacher passes both
    fit, and all ranks of a sharded run make the same number of passes."""
    if "teacher" not in needs:
        return batch.prompts
    return [max(own, teacher, key=len) for own, teacher in zip(batch.prompts, teacher_prompts(batch), strict=True)]


def compare_with_teacher(
    model: LanguageModel,
    student_TD: Tensor,
    teacher_TD: Tensor,
    temperature: float,
    compare: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """[T] `compare(student, teacher)` of log-distributions, chunk by chunk; logits are recomputed in the backward pass."""

    def chunk(student_CD: Tensor, teacher_CD: Tensor) -> Tensor:
        with torch.no_grad():
            teacher_CV = torch.log_softmax(model.logits(teacher_CD) / temperature, dim=-1)
        return compare(torch.log_softmax(model.logits(student_CD) / temperature, dim=-1), teacher_CV)

    return torch.cat(_run_in_chunks(chunk, model.chunk_tokens, True, student_TD, teacher_TD))


def teacher_prompts(batch: Batch) -> Sequence[np.ndarray]:
    if TEACHER_PROMPTS not in batch.contexts:
        raise TacitError(f"a loss needs a teacher, but the batch has no column {TEACHER_PROMPTS!r} of teacher prompts.")
    return batch.contexts[TEACHER_PROMPTS]
