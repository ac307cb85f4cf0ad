"""Completions from the local model: prefill each distinct prompt once, then decode all rows together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling
from tacit.core.types import Completion
from tacit.engines.local.memory import cut_finer, give_back
from tacit.engines.local.passes.llama import FAMILY
from tacit.engines.local.passes.projections import NotPlain
from tacit.engines.local.sampling.decoding import Decoder, GenericDecoder
from tacit.engines.local.sampling.drawing import check_sampling
from tacit.engines.local.sampling.llama_decoding import LlamaDecoder
from tacit.engines.local.sampling.noise import uniforms
from tacit.engines.local.sampling.stopping import Stops, end_tokens

COMPACT_BELOW = 0.75
"""ended rows leave the batch once no more than this share of it is alive: moving rows costs about one step's reading"""


@dataclass(frozen=True)
class _Job:
    """One request on its way."""

    index: int
    """place in the caller's list"""
    prompt: np.ndarray
    seed: int
    limit: int


class LocalSampler:
    """Samples from a transformers causal LM (or a PeftModel around one).

    A completion depends on its request alone: its noise comes from (seed, token index), whatever else is in the batch.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        device: torch.device | str,
        *,
        max_batch: int = 256,
        prefill_tokens: int | None = None,
        cuda_graphs: bool = True,
        lean: bool = True,
    ) -> None:
        """`max_batch`: rows decoded together, the rest wait. `prefill_tokens`: prompt tokens computed at once (None picks
        for the device). `lean=False` decodes every model through its own forward pass."""
        if max_batch < 1:
            raise TacitError(f"max_batch is {max_batch}; it must be at least 1.")
        self._tokenizer, self._device = tokenizer, torch.device(device)
        self._max_batch = max_batch
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._base = base
        text_config = base.config.get_text_config()
        self._layers: int = text_config.num_hidden_layers
        self._context: int | None = getattr(text_config, "max_position_embeddings", None)
        self._vocabulary: int = base.get_input_embeddings().weight.shape[0]
        self._end_tokens = end_tokens(base, tokenizer)
        self._stops: dict[tuple[str, ...], Stops] = {}
        self._prefilled_tokens = 0
        self._generic = GenericDecoder(model, torch.device(device))
        self._lean: LlamaDecoder | None = None
        self._options: dict[str, Any] = {"prefill_tokens": prefill_tokens, "cuda_graphs": cuda_graphs}
        self._try_lean = lean and text_config.model_type in FAMILY
        self._stale = False

    @property
    def prefilled_tokens(self) -> int:
        """Prompt tokens computed since the sampler was made; identical prompts of a batch count once."""
        return self._prefilled_tokens

    def weights_changed(self) -> None:
        """Weights were updated or another adapter is active: take over what was copied. Recorded CUDA graphs stay valid
        as long as shapes and places in memory do."""
        self._stale = True

    def release(self) -> None:
        """Give up cache, graphs and copies of weights; the next wave makes them anew."""
        self._lean = None
        give_back(self._device)

    @torch.inference_mode()
    def sample(self, requests: Sequence[Request], sampling: Sampling, layer: int | None = None) -> list[Completion]:
        """One completion per request, in order."""
        check_sampling(sampling)
        depth = self._depth(layer)
        jobs = sorted(self._jobs(requests, sampling), key=lambda job: (len(job.prompt), job.prompt.tobytes()))
        completions: dict[int, Completion] = {}
        while len(completions) < len(jobs):
            left = jobs[len(completions) :]

            def complete(rows: int, left: Sequence[_Job] = left) -> dict[int, Completion]:
                return self._complete(left[:rows], sampling, depth)

            try:
                done, rows = cut_finer(complete, min(self._max_batch, len(left)), 1, self.release, "a wave of a max_batch")
            except torch.OutOfMemoryError as error:
                raise TacitError(
                    f"out of GPU memory while sampling one completion at a time, of {len(left[0].prompt)} prompt tokens; "
                    "shorten the prompts, or let fewer runs share the GPU."
                ) from error
            if rows < min(self._max_batch, len(left)):
                self._max_batch = rows
            completions.update(done)
        return [completions[i] for i in range(len(requests))]

    def _jobs(self, requests: Sequence[Request], sampling: Sampling) -> list[_Job]:
        jobs = []
        for index, request in enumerate(requests):
            limit = sampling.max_tokens if request.max_tokens is None else request.max_tokens
            prompt = np.ascontiguousarray(request.prompt, dtype=np.int64)
            if prompt.ndim != 1 or not len(prompt):
                raise TacitError(f"the prompt of request {index} has no tokens; a model needs at least one to continue.")
            if limit < 1:
                raise TacitError(f"max_tokens of request {index} is {limit}; it must be at least 1.")
            if self._context is not None and len(prompt) + limit > self._context:
                raise TacitError(
                    f"request {index} has {len(prompt)} prompt tokens and may write {limit}, together more than the "
                    f"model's context of {self._context}; shorten the prompt or lower max_tokens."
                )
            if prompt.min() < 0 or prompt.max() >= self._vocabulary:
                raise TacitError(
                    f"the prompt of request {index} has a token outside 0..{self._vocabulary - 1}; it was made by "
                    "another model's tokenizer."
                )
            jobs.append(_Job(index, prompt, request.seed, limit))
        return jobs

    def _depth(self, layer: int | None) -> int | None:
        """The layer counted from 0 (embeddings) to the number of layers (after the last and the final norm)."""
        if layer is None:
            return None
        if not -self._layers - 1 <= layer <= self._layers:
            raise TacitError(
                f"layer {layer} does not exist; this model has 0 (embeddings) to {self._layers} (the last), or "
                f"{-self._layers - 1} to -1 counted from the end."
            )
        return layer % (self._layers + 1)

    def _complete(self, jobs: Sequence[_Job], sampling: Sampling, depth: int | None) -> dict[int, Completion]:
        """Run one wave to its end."""
        prompts, source_B = _distinct([job.prompt for job in jobs])
        limits_B = np.array([job.limit for job in jobs])
        decoder = self._decoder(max(len(job.prompt) + job.limit for job in jobs))
        room = int(limits_B.max()) + decoder.check_every
        noise_BM = uniforms([job.seed for job in jobs], room)
        stops = self._stops_for(sampling.stop)
        tokens_BM = np.zeros((len(jobs), room), dtype=np.int64)
        logprobs_BM = np.zeros((len(jobs), room), dtype=np.float32)
        lengths_B = np.zeros(len(jobs), dtype=np.int64)
        stopped_B = np.zeros(len(jobs), dtype=bool)

        wave = decoder.begin(prompts, source_B, noise_BM, depth)
        self._prefilled_tokens += wave.prefilled_tokens
        hidden_BD = None if wave.hidden_BD is None else wave.hidden_BD.float().cpu().numpy()
        wave.first(sampling)
        rows = np.arange(len(jobs))  # which row each place holds; ended rows stay until the wave is compacted
        start, end = 0, 1
        while True:
            tokens, logprobs = wave.lanes.written(start, end)
            tokens_BM[rows, start:end] = tokens[: len(rows)]
            logprobs_BM[rows, start:end] = logprobs[: len(rows)]
            if not np.isfinite(logprobs[: len(rows)]).all():
                self._lean = None  # what lies in its cache would spread
                raise TacitError(
                    "the model's logits are not finite numbers: its weights have diverged or do not fit its precision. "
                    "Go back to an earlier checkpoint, and lower the learning rate."
                )
            candidate = stops.interesting(tokens[: len(rows)])
            for place in np.flatnonzero((lengths_B[rows] == 0) & (candidate.any(1) | (limits_B[rows] <= end))):
                row = rows[place]
                length, stopped = _end(tokens_BM[row], candidate[place], start, min(end, int(limits_B[row])), stops)
                if stopped or limits_B[row] <= end:
                    lengths_B[row], stopped_B[row] = length, stopped
            alive = np.flatnonzero(lengths_B[rows] == 0)
            if not len(alive):
                break
            if len(alive) <= COMPACT_BELOW * len(rows):
                order = _fill_holes(alive)
                wave.keep(order)
                rows = rows[order]
            steps = decoder.check_every
            wave.advance(sampling, steps)
            start, end = end, end + steps

        return {
            job.index: Completion(
                tokens=tokens_BM[row, : lengths_B[row]].copy(),
                logprobs=logprobs_BM[row, : lengths_B[row]].copy(),
                text=stops.text(tokens_BM[row, : lengths_B[row]]),
                finish="stop" if stopped_B[row] else "length",
                hidden=None if hidden_BD is None else hidden_BD[row].copy(),
            )
            for row, job in enumerate(jobs)
        }

    def _decoder(self, longest: int) -> Decoder:
        """The lean decoder where the model and the length allow it."""
        if self._try_lean:
            try:
                if self._lean is None:
                    self._lean = LlamaDecoder(self._base, **self._options)
                self._lean.refresh(force=self._stale)
            except NotPlain:  # another adapter may be plain again, so the next call tries anew
                self._lean = None
        self._stale = False
        if self._lean is None or (self._lean.forward.longest is not None and longest > self._lean.forward.longest):
            return self._generic
        return self._lean

    def _stops_for(self, stop: tuple[str, ...]) -> Stops:
        if stop not in self._stops:
            self._stops[stop] = Stops(self._tokenizer, self._end_tokens, stop, self._vocabulary)
        return self._stops[stop]


def _distinct(prompts: Sequence[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """The distinct prompts of a sorted list, and which of them each is."""
    distinct: list[np.ndarray] = []
    source_B = np.zeros(len(prompts), dtype=np.int64)
    for i, prompt in enumerate(prompts):
        if not distinct or not np.array_equal(distinct[-1], prompt):
            distinct.append(prompt)
        source_B[i] = len(distinct) - 1
    return distinct, source_B


def _end(tokens_M: np.ndarray, candidate: np.ndarray, start: int, end: int, stops: Stops) -> tuple[int, bool]:
    """(length, whether it stopped) of a row whose tokens `start` to `end` are new."""
    for at in range(start, end):
        if candidate[at - start] and stops.ends(tokens_M[: at + 1]):
            return at + 1, True
    return end, False


def _fill_holes(alive: np.ndarray) -> np.ndarray:
    """The rows that go on, as few of them moved as possible: the last ones take the places of the ended ones."""
    order = np.arange(len(alive))
    holes = np.setdiff1d(order, alive)
    order[holes] = alive[len(alive) - len(holes) :]
    return order
