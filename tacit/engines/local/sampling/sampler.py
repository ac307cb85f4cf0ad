"""Completions from the local model: what can be asked of it, and the desks at which it is asked."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch

from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling
from tacit.core.types import Completion
from tacit.engines.local.memory import Budget, give_back, may_be_asked
from tacit.engines.local.passes.llama import FAMILY
from tacit.engines.local.passes.projections import NotPlain
from tacit.engines.local.sampling.decoding import Decoder
from tacit.engines.local.sampling.desk import LocalDesk
from tacit.engines.local.sampling.drawing import check_sampling
from tacit.engines.local.sampling.generic_decoding import GenericDecoder
from tacit.engines.local.sampling.llama_decoding import LlamaDecoder
from tacit.engines.local.sampling.rows import Job
from tacit.engines.local.sampling.stopping import KnownStops, end_tokens


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
        self.device = torch.device(device)
        self.in_use = threading.RLock()
        """held by whoever samples: what is needed at this moment is not given up because another thread is short of memory"""
        self.places = Budget(max_batch, self.device)
        """rows decoded together"""
        self.prefilled_tokens = 0
        """prompt tokens computed since the sampler was made; identical prompts that joined together count once"""
        self.written_tokens = 0
        """tokens decoded since the sampler was made, those of completions under way too"""
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._base = base
        text_config = base.config.get_text_config()
        self._layers: int = text_config.num_hidden_layers
        self._context: int | None = getattr(text_config, "max_position_embeddings", None)
        self._vocabulary: int = base.get_input_embeddings().weight.shape[0]
        self.stops = KnownStops(tokenizer, end_tokens(base, tokenizer), self._vocabulary)
        self._generic = GenericDecoder(model, torch.device(device))
        self._lean: LlamaDecoder | None = None
        self._options: dict[str, Any] = {"prefill_tokens": prefill_tokens, "cuda_graphs": cuda_graphs}
        self._try_lean = lean and text_config.model_type in FAMILY
        self._stale = False
        self._desks: weakref.WeakSet[LocalDesk] = weakref.WeakSet()
        may_be_asked(self)

    def desk(self, sampling: Sampling, layer: int | None = None, version: Callable[[], int] = lambda: 0) -> LocalDesk:
        """`version` is asked whenever work goes on: it makes the right weights the active ones and says which they are."""
        check_sampling(sampling)
        desk = LocalDesk(self, sampling, self._depth(layer), version)
        self._desks.add(desk)
        return desk

    def sample(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        layer: int | None = None,
        version: Callable[[], int] = lambda: 0,
    ) -> list[Completion]:
        """One completion per request, in order."""
        desk = self.desk(sampling, layer, version)
        jobs = [self.job(index, request, sampling) for index, request in enumerate(requests)]
        desk.add(sorted(jobs, key=lambda job: (len(job.prompt), job.prompt.tobytes())))
        completions: dict[int, Completion] = {}
        try:
            while finished := desk.wait():
                completions.update(finished)
        finally:
            desk.close()
        return [completions[i] for i in range(len(requests))]

    def weights_changed(self) -> None:
        """Weights were updated or another adapter is active: take over what was copied. Recorded CUDA graphs stay valid
        as long as shapes and places in memory do."""
        self._stale = True

    def release(self) -> None:
        """Give up caches, graphs and copies of weights; whoever samples next makes them anew."""
        if not self.in_use.acquire(blocking=False):
            return
        try:
            self._give_up_lean()
            for desk in self._desks:
                desk.let_go()
            give_back(self.device)
        finally:
            self.in_use.release()

    @property
    def mixes(self) -> bool:
        """whether one desk can have rows of several adapters"""
        with self.in_use:
            self.refresh()
            return self._lean is not None and self._lean.mixes

    def refresh(self, whose: Collection[str | None] = (None,)) -> None:
        """Be ready to sample from the weights as they are now, with these adapters; None: with the active one."""
        if self._try_lean:
            try:
                if self._lean is None:
                    self._lean = LlamaDecoder(self._base, **self._options)
                for name in whose:
                    self._lean.refresh(self._stale, name)
                    self._stale = False
            except NotPlain:  # another adapter may be plain again, so the next call tries anew
                self._give_up_lean()
                if any(name is not None for name in whose):  # no other decoder reads with an adapter that is not active
                    raise
        self._stale = False

    def _give_up_lean(self) -> None:
        """Its spare table knows it, as it knows the table: but for this only Python's collector would let go of the two."""
        if self._lean is not None:
            self._lean.spare = None
        self._lean = None

    def forget(self, whose: str) -> None:
        """Give up what was copied of an adapter; rows that it writes begin again, and had better not."""
        with self.in_use:
            for desk in self._desks:
                desk.let_go()
            if self._lean is not None:
                self._lean.forget(whose)

    def decoder(self, longest: int) -> Decoder:
        """The lean decoder where the model and the length allow it."""
        if self._lean is None or (self._lean.longest is not None and longest > self._lean.longest):
            return self._generic
        return self._lean

    def knows(self, decoder: Decoder) -> bool:
        """Whether it has the weights as of the last `refresh`."""
        return decoder is self._lean or decoder is self._generic

    def job(self, ticket: int, request: Request, sampling: Sampling, whose: str | None = None) -> Job:
        limit = sampling.max_tokens if request.max_tokens is None else request.max_tokens
        prompt = np.array(request.prompt, dtype=np.int64)  # ours: what lies in the cache is known by it, later too
        if prompt.ndim != 1 or not len(prompt):
            raise TacitError(f"the prompt of request {ticket} has no tokens; a model needs at least one to continue.")
        if limit < 1:
            raise TacitError(f"max_tokens of request {ticket} is {limit}; it must be at least 1.")
        if self._context is not None and len(prompt) + limit > self._context:
            raise TacitError(
                f"request {ticket} has {len(prompt)} prompt tokens and may write {limit}, together more than the "
                f"model's context of {self._context}; shorten the prompt or lower max_tokens."
            )
        if prompt.view(np.uint64).max() >= self._vocabulary:  # where a negative one is huge
            raise TacitError(
                f"the prompt of request {ticket} has a token outside 0..{self._vocabulary - 1}; it was made by "
                "another model's tokenizer."
            )
        if request.thread is not None and not 0 <= request.thread < 1 << 63:
            raise TacitError(f"the thread of request {ticket} is {request.thread}; it must be a whole number from 0 on.")
        return Job(ticket, prompt, request.seed, limit, whose, request.thread)

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
