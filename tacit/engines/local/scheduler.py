"""Continuous batching: when a sequence finishes, its slot goes to the next request while the others keep decoding.

One call of `LocalScheduler.wait` runs one round: waiting requests take free slots, their prompts are prefilled, all slots
decode until enough sequences have finished, and their completions are returned; the caller's next requests take the free slots.
Finished slots serve as a prefix cache for the next turn of an episode. Batch composition depends on the requests alone, not on
timing, so a run repeats bit for bit.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby, islice, takewhile
from typing import Any, Literal

import numpy as np
import torch

from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling
from tacit.core.types import Completion, HiddenState
from tacit.engines.local.decoding import (
    DecodeBatch,
    Decoder,
    GenericDecoder,
    PendingResults,
    PrefillBatch,
)
from tacit.engines.local.fast.kernels import fast_paths, is_fast_enabled
from tacit.engines.local.fast.llama_decoding import LlamaDecoder
from tacit.engines.local.fast.projections import FAMILY, UnsupportedModule
from tacit.engines.local.memory import AdaptiveBudget, cache_owners, empty_cache
from tacit.engines.local.pooling import check_layer, check_pooling
from tacit.engines.local.sampling import check_sampling
from tacit.engines.local.slots import (
    CachedPrefix,
    EngineRequest,
    FinishedSequence,
    NonFiniteLogits,
    Occupants,
    Slots,
    cache_stop_conditions,
    find_end_tokens,
)

ADMIT_COST = 4
"""cost of admitting any number of requests, in decode steps of all slots. Chosen for GPU prefills without CUDA graphs, whose
launches take as long as several decode steps. Lower on a CPU, but then fewer identical prompts would be prefilled together"""
MAX_WAIT_STEPS = 8 * ADMIT_COST  # maximum decode steps that a finished sequence waits for others

Prefixes = dict[int, CachedPrefix]  # request id -> cached prefix of its prompt


class LocalScheduler:
    """A queue of requests and the slots of one decode batch. A completion is sampled from one version of the weights: if they
    change, or memory runs out, active sequences are restarted. Noise depends on the seed alone, so only time is lost."""

    def __init__(
        self, sampler: LocalSampler, sampling: Sampling, hidden: HiddenState | None, activate_weights: Callable[[], int]
    ) -> None:
        """`activate_weights` is called before every round and returns the version of the weights it activated."""
        self._sampler, self._sampling, self._hidden, self._activate_weights = sampler, sampling, hidden, activate_weights
        self._stops = sampler.stop_conditions(sampling.stop)
        self._submitted = 0
        self.waiting: deque[EngineRequest] = deque()
        self._finished: list[tuple[int, Completion]] = []
        self._version = 0
        self.batch: DecodeBatch | None = None
        self.slots = Slots(0)
        self.prompts_grow = True
        """whether prompts extend the previous turn, so far; if so, finished slots are kept as a prefix cache"""
        self._cached_version = 0  # the decoder's `weights_version` that cached keys and values belong to
        self._pending: deque[Callable[[], None]] = deque()
        """launched prefills and decodes, in order; calling one waits for its results and records them"""

    def submit(self, request: Request) -> int:
        request_id = self._submitted
        self._submitted += 1
        self.waiting.append(self._sampler.make_request(request_id, request, self._sampling))
        return request_id

    @torch.inference_mode()
    def wait(self) -> list[tuple[int, Completion]]:
        with self._sampler.lock:
            unfinished = len(self.waiting) + self.slots.num_active
            if unfinished:
                try:
                    with fast_paths(self._sampler.fast):
                        self._sampler.slot_budget.run(self._run_round, 1, "sampling with a max_batch of {}", maximum=unfinished)
                except torch.OutOfMemoryError as error:
                    self.release()
                    raise TacitError(
                        "out of GPU memory while sampling one completion at a time, of "
                        f"{len(self.waiting[0].prompt)} prompt tokens; shorten the prompts, or let fewer runs share the GPU."
                    ) from error
                except NonFiniteLogits:
                    self.release()  # NaNs in the KV cache would spread
                    raise
                except BaseException:  # including an interrupt while results are being recorded
                    self.requeue_all()
                    raise
            finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        with self._sampler.lock:
            if self.batch is not None:
                self.batch.decoder.recycle(self.batch)
            self.batch, self.slots = None, Slots(0)
            self._pending.clear()
            self.waiting.clear()
            self._finished.clear()

    def requeue_all(self) -> None:
        """Put active requests back at the head of the queue, to be restarted."""
        self.waiting.extendleft(reversed(self.slots.active_requests))
        self.slots = Slots(0)
        self._pending.clear()

    def release(self) -> None:
        """Free the decode batch and its memory; active requests are restarted."""
        self.requeue_all()
        self.batch = None

    def _run_round(self, max_slots: int) -> None:
        # Sequences of older weights are restarted, and their cached prefixes dropped.
        version = self._activate_weights()
        if version != self._version:
            self.requeue_all()
            self._version = version
        self._sampler.refresh_weights()
        if self.batch is not None and self.batch.decoder not in (self._sampler.llama_decoder, self._sampler.generic_decoder):
            self.release()  # the Llama decoder was dropped
        if self.batch is not None and self.batch.decoder.weights_version != self._cached_version:
            self.slots.episodes_S[:] = -1  # cached prefixes are those of the old weights
            self._cached_version = self.batch.decoder.weights_version
        self._decode_until_admission(self._admit(max_slots))

    # Admission and prefill.

    def _admit(self, max_slots: int) -> bool:
        """Move waiting requests into free slots, in order, and launch their prefill. Returns whether there were any."""
        slots = self.slots
        requests = list(islice(self.waiting, max(0, max_slots - slots.num_active)))
        prefixes = self._find_cached_prefixes(requests)
        if prefixes:
            self.prompts_grow = True
        elif self.batch is not None and self._keeps_prefixes and any(map(slots.find_previous_turns, requests)):
            self.prompts_grow = False  # a previous turn is cached, and the new prompt does not begin with it
        occupied = len(slots) if slots.num_active else 0
        if occupied:
            requests = self._take_admissible(requests)
        elif prefixes and self._take_admissible(requests) == requests:
            prefixes = self._keep_only_prefixes(prefixes)
            occupied = len(slots)  # nothing is active, but finished slots hold cached prefixes
        if not requests:
            return False
        if not occupied:
            self._start_empty(max(request.max_length for request in requests))
            prefixes = {}
        extending = [request for request in requests if request.request_id in prefixes]
        others = [request for request in requests if request.request_id not in prefixes]
        for group in filter(None, (extending, others)):
            for request in group:  # the others stay queued, in case that the first prefill fails
                self.waiting.remove(request)
            self._prefill(group, prefixes, occupied)
        return True

    def _start_empty(self, max_length: int) -> None:
        """Start with empty slots, in a batch whose decoder supports `max_length` tokens."""
        decoder = self._sampler.select_decoder(max_length)
        if self.batch is None or self.batch.decoder is not decoder:
            if self.batch is not None:
                self.batch.decoder.recycle(self.batch)
            self.batch = decoder.open_batch()
        self.slots = Slots(self.batch.steps_per_sync)
        self._cached_version = decoder.weights_version

    def _take_admissible(self, requests: list[EngineRequest]) -> list[EngineRequest]:
        """The leading requests that the current batch can decode; the others wait until it is empty."""
        batch = self.batch
        assert batch is not None
        if not batch.can_admit:
            return []
        limit = batch.decoder.max_length
        if limit is None:
            return requests
        return list(takewhile(lambda request: request.max_length <= limit, requests))

    def _prefill(self, requests: list[EngineRequest], prefixes: Prefixes, occupied: int) -> None:
        """Prefill whole prompts, identical ones once; or only the rest of each prompt, if all have cached prefixes."""
        batch = self.batch
        assert batch is not None
        if requests[0].request_id in prefixes:
            requests = sorted(requests, key=lambda r: (len(r.prompt) - prefixes[r.request_id].tokens, r.request_id))
            prompts = [request.prompt for request in requests]
            source_N = np.arange(len(requests))
            cached_N = np.array([prefixes[request.request_id].tokens for request in requests])
        else:
            requests = sorted(requests, key=lambda r: (len(r.prompt), r.prompt.tobytes()))
            groups = [list(group) for _, group in groupby(requests, key=lambda r: r.prompt.tobytes())]
            prompts = [group[0].prompt for group in groups]
            source_N = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
            cached_N = None
        slots_N, uniform_N = self.slots.assign(requests, [prefixes.get(request.request_id) for request in requests])
        max_length = max(request.max_length for request in requests) + batch.steps_per_sync
        prefill_batch = PrefillBatch(slots_N, prompts, source_N, uniform_N, max_length, cached_N)
        results = batch.prefill(prefill_batch, occupied, self._sampling, self._hidden)
        self._sampler.prefilled_tokens += sum(len(prompt) for prompt in prompts)
        if cached_N is not None:
            self._sampler.prefilled_tokens -= int(cached_N.sum())
        self._pending.append(partial(self._record_prefill, slots_N, results))

    # Prefix cache.

    def _find_cached_prefixes(self, requests: list[EngineRequest]) -> Prefixes:
        """Cached prefixes of these requests; each slot serves one request at most. Empty if pooling needs the states of all
        prompt tokens."""
        if self._hidden is not None and self._hidden.pooling != "last":
            return {}
        if self.batch is None or not self.slots.has_episodes or not self.batch.decoder.has_prefix_cache:
            return {}
        prefixes: Prefixes = {}
        taken: set[int] = set()
        for request in requests:
            prefix = self.slots.find_cached_prefix(request)
            if prefix is not None and prefix.slot not in taken:
                prefixes[request.request_id] = prefix
                taken.add(prefix.slot)
        return prefixes

    @property
    def _keeps_prefixes(self) -> bool:
        """Whether finished slots are kept as a prefix cache instead of being compacted away."""
        assert self.batch is not None
        return self.prompts_grow and self.slots.has_episodes and self.batch.decoder.has_prefix_cache

    def _keep_only_prefixes(self, prefixes: Prefixes) -> Prefixes:
        """Compact to the slots of these prefixes, unless they are most of the slots. Returns the prefixes with new slots."""
        batch, slots = self.batch, self.slots
        assert batch is not None
        if len(prefixes) > batch.compact_below * len(slots):
            return prefixes
        order = slots.compact([prefix.slot for prefix in prefixes.values()])
        batch.compact(order)
        new_slot = {int(old): new for new, old in enumerate(order)}
        return {request_id: CachedPrefix(new_slot[slot], tokens) for request_id, (slot, tokens) in prefixes.items()}

    # Decoding.

    def _decode_until_admission(self, admitted: bool) -> None:
        """Decode until idle slots have cost as much as an admission:

            Σ over steps of (finished slots)  ≥  ADMIT_COST · (slots active at the start)

        or a sequence has been finished for MAX_WAIT_STEPS.

        On a GPU, the next steps are launched before the tokens of the previous ones are read, unless a sequence has just
        finished (its steps would be wasted). The GPU also decodes while the host prepares a prefill."""
        batch, slots = self.batch, self.slots
        assert batch is not None
        launch_ahead = batch.is_async and bool((slots.remaining_N > 0).any())
        if admitted and launch_ahead:
            self._launch_decode()
        while len(self._pending) > int(launch_ahead):
            self._pending.popleft()()
        num_finished = len(self._finished)
        num_started = slots.num_active + num_finished
        just_finished = num_finished > 0
        idle_slot_steps = waited_steps = 0
        while slots.num_active and idle_slot_steps < ADMIT_COST * num_started and waited_steps < MAX_WAIT_STEPS:
            sparse = slots.num_active <= batch.compact_below * len(slots)
            if sparse and not self._pending and not self._keeps_prefixes:
                batch.compact(slots.compact())
            if not self._pending:
                self._launch_decode()
            if batch.is_async and not just_finished and bool((slots.remaining_N > 0).all()):
                self._launch_decode()
            self._pending.popleft()()
            finished_before, num_finished = num_finished, num_started - slots.num_active
            just_finished = num_finished > finished_before
            idle_slot_steps += num_finished * batch.steps_per_sync
            if num_finished:
                waited_steps += batch.steps_per_sync
        if not slots.num_active:
            self._pending.clear()
        elif batch.is_async and not self._pending and (slots.remaining_N > 0).any():
            self._launch_decode()

    def _launch_decode(self) -> None:
        """Launch the next decode steps: `steps_per_sync`, or fewer if no active sequence needs that many."""
        batch, slots = self.batch, self.slots
        assert batch is not None
        longest = slots.max_length
        steps = min(batch.steps_per_sync, int(slots.remaining_N.max()))
        noise_SK, occupants = slots.launch(max(1, steps))
        tokens = batch.decode(noise_SK, longest, self._sampling)
        self._pending.append(partial(self._record_tokens, occupants, tokens))

    # Results.

    def _record_prefill(self, slots_N: np.ndarray, pending: PendingResults) -> None:
        tokens_N, logprobs_N, *hidden_ND = pending()
        for i, slot in enumerate(slots_N):
            self.slots.hidden[slot] = hidden_ND[0][i].copy() if hidden_ND else None
        self._finish(self.slots.record(slots_N, tokens_N[:, None], logprobs_N[:, None], self._stops))

    def _record_tokens(self, occupants: Occupants, pending: PendingResults) -> None:
        """Record tokens, except of sequences that have finished since the launch; their slots may have new requests."""
        tokens_BK, logprobs_BK = pending()
        slots_N = self.slots.find_still_active(occupants)
        self._sampler.written_tokens += len(slots_N) * tokens_BK.shape[1]
        self._finish(self.slots.record(slots_N, tokens_BK[slots_N], logprobs_BK[slots_N], self._stops))

    def _finish(self, sequences: list[FinishedSequence]) -> None:
        texts = self._stops.decode_all([sequence.tokens_T for sequence in sequences])
        for sequence, text in zip(sequences, texts, strict=True):
            finish: Literal["stop", "length"] = "stop" if sequence.stopped else "length"
            completion = Completion(sequence.tokens_T, sequence.logprobs_T, text, finish, sequence.hidden_D, self._version)
            self._finished.append((sequence.request.request_id, completion))


class LocalSampler:
    """Samples from a transformers causal LM (or a PeftModel around one) through its schedulers. A completion depends on its
    request alone: its noise is a function of (seed, token index)."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        device: torch.device | str,
        *,
        max_batch: int = 256,
        prefill_tokens: int | None = None,
        use_llama_decoder: bool = True,
    ) -> None:
        """`max_batch`: slots, i.e. sequences decoded together; further requests wait. `prefill_tokens`: prompt tokens computed
        at once (None: by device). `use_llama_decoder=False` decodes every model through its own forward pass."""
        if max_batch < 1:
            raise TacitError(f"max_batch is {max_batch}; it must be at least 1.")
        self.device = torch.device(device)
        self.lock = threading.RLock()
        """held while sampling, so that another thread that frees memory does not free what is in use"""
        self.slot_budget = AdaptiveBudget(max_batch, self.device)
        self.prefilled_tokens = 0  # prompt tokens computed so far; identical prompts of one prefill count once
        self.written_tokens = 0  # tokens decoded so far, including unfinished completions
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._base = base
        text_config = base.config.get_text_config()
        self.num_layers: int = text_config.num_hidden_layers
        self._context: int | None = getattr(text_config, "max_position_embeddings", None)
        self._vocabulary: int = base.get_input_embeddings().weight.shape[0]
        self.stop_conditions = cache_stop_conditions(tokenizer, find_end_tokens(base, tokenizer), self._vocabulary)
        self.generic_decoder = GenericDecoder(model, torch.device(device))
        self.llama_decoder: LlamaDecoder | None = None
        self._prefill_tokens = prefill_tokens
        self.fast = is_fast_enabled()  # whether kernels, CUDA graphs and the Llama decoder are used at all
        self._try_llama = use_llama_decoder and self.fast and text_config.model_type in FAMILY
        self._stale = False
        self._schedulers: weakref.WeakSet[LocalScheduler] = weakref.WeakSet()
        cache_owners.add(self)

    def open_scheduler(
        self, sampling: Sampling, hidden: HiddenState | None = None, activate_weights: Callable[[], int] = lambda: 0
    ) -> LocalScheduler:
        check_sampling(sampling)
        if hidden is not None:  # count its layer from 0, the embeddings
            layer = check_layer(hidden.layer, self.num_layers) % (self.num_layers + 1)
            check_pooling(self._base, layer, hidden.pooling)
            hidden = HiddenState(layer, hidden.pooling)
        scheduler = LocalScheduler(self, sampling, hidden, activate_weights)
        self._schedulers.add(scheduler)
        return scheduler

    def sample(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        hidden: HiddenState | None = None,
        activate_weights: Callable[[], int] = lambda: 0,
    ) -> list[Completion]:
        scheduler = self.open_scheduler(sampling, hidden, activate_weights)
        queue = [self.make_request(index, request, sampling) for index, request in enumerate(requests)]
        scheduler.waiting.extend(sorted(queue, key=lambda request: (len(request.prompt), request.prompt.tobytes())))
        completions: dict[int, Completion] = {}
        try:
            while finished := scheduler.wait():
                completions.update(finished)
        finally:
            scheduler.close()
        return [completions[i] for i in range(len(requests))]

    def weights_changed(self) -> None:
        """Call when weights were updated or another adapter is active; the next round copies them."""
        self._stale = True

    def release(self) -> None:
        """Free KV caches, CUDA graphs and weight copies; the next round rebuilds them. Does nothing while sampling."""
        if not self.lock.acquire(blocking=False):
            return
        try:
            self._drop_llama()
            for scheduler in self._schedulers:
                scheduler.release()
            empty_cache(self.device)
        finally:
            self.lock.release()

    def refresh_weights(self) -> None:
        """Copy the current weights if they have changed."""
        if self._try_llama:
            try:
                if self.llama_decoder is None:
                    self.llama_decoder = LlamaDecoder(self._base, prefill_tokens=self._prefill_tokens)
                self.llama_decoder.refresh(self._stale)
            except UnsupportedModule:  # another adapter may be supported, so the next call tries again
                self._drop_llama()
        self._stale = False

    def _drop_llama(self) -> None:
        """Break the reference cycle of decoder and spare batch, so that they are freed at once."""
        if self.llama_decoder is not None:
            self.llama_decoder.spare = None
        self.llama_decoder = None

    def select_decoder(self, max_length: int) -> Decoder:
        """The Llama decoder if it supports the model and length, else the generic one."""
        if self.llama_decoder is None or (
            self.llama_decoder.max_length is not None and max_length > self.llama_decoder.max_length
        ):
            return self.generic_decoder
        return self.llama_decoder

    def make_request(self, request_id: int, request: Request, sampling: Sampling) -> EngineRequest:
        """Validate a request and resolve its limits."""
        max_new_tokens = sampling.max_tokens if request.max_tokens is None else request.max_tokens
        prompt = np.array(request.prompt, dtype=np.int64)  # a copy: cached prefixes are compared with it later
        if prompt.ndim != 1 or not len(prompt):
            raise TacitError(f"the prompt of request {request_id} has no tokens; a model needs at least one to continue.")
        if max_new_tokens < 1:
            raise TacitError(f"max_tokens of request {request_id} is {max_new_tokens}; it must be at least 1.")
        if self._context is not None and len(prompt) + max_new_tokens > self._context:
            raise TacitError(
                f"request {request_id} has {len(prompt)} prompt tokens and max_tokens {max_new_tokens}, together more than the "
                f"model's context of {self._context}; shorten the prompt or lower max_tokens."
            )
        if prompt.view(np.uint64).max() >= self._vocabulary:  # as unsigned, a negative token is huge
            raise TacitError(
                f"the prompt of request {request_id} has a token outside 0..{self._vocabulary - 1}; encode it with this "
                "model's tokenizer."
            )
        if request.episode is not None and not 0 <= request.episode < 1 << 63:
            raise TacitError(f"request {request_id}: episode must be a non-negative 64-bit integer, got {request.episode}.")
        return EngineRequest(request_id, prompt, request.seed, max_new_tokens, request.episode)
