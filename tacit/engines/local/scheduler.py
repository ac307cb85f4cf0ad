"""Continuous batching: a row that is over makes room for the next request while the others go on.

A prefill takes its time however few rows join; and as long as nobody is let in, the places of rows that are over stand idle.
So a scheduler goes on until the idle places have cost as much as letting others join would,

    Σ over steps of (rows that are over)  ≥  JOINING_COSTS · (rows under way at the beginning)

or until the first of them has waited for a while, or nothing is under way. Where rows end at an even rate this is the batch
of least loss, whatever their length; short answers come back all together. These are counts: which requests share a batch is
a function of the requests alone, and a run can be repeated bit for bit.

A GPU goes on while what it wrote is read, as long as nobody has just come to an end: then it would write for nothing. It goes
on as well while others are let in: it has the next few steps of those who stay to do until their prompts are there, and the
first few of all until it is known what they begin with.

Where a table can read prompts along in the steps of those who write (mixing.py), and they are soon read, letting others join
costs next to nothing, and idle places are not waited for as long.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import Any

import numpy as np
import torch

from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling
from tacit.core.types import Completion
from tacit.engines.local.decoding import Begun, Decoder, GenericDecoder, Newcomers, Table, Written
from tacit.engines.local.fast import chunked_prefill
from tacit.engines.local.fast.chunked_prefill import Readings, Seats
from tacit.engines.local.fast.kernels import fast_paths, is_fast_enabled
from tacit.engines.local.llama import FAMILY
from tacit.engines.local.llama_decoding import LlamaDecoder
from tacit.engines.local.memory import AdaptiveBudget, empty_cache, register_cache_owner
from tacit.engines.local.projections import NotPlain
from tacit.engines.local.sampling import check_sampling
from tacit.engines.local.slots import Asked, Job, Known, KnownStops, NotFinite, Over, Rows, end_tokens

JOINING_COSTS = 4
"""what it takes to let rows join however few they are, in steps of all rows. Chosen when no prefill was recorded on a GPU, and
its launches took several recorded steps; on a CPU it takes less, but fewer prompts that are alike are computed together"""
PATIENCE = 8 * JOINING_COSTS
"""no row that is over waits for more steps than this"""


class LocalScheduler:
    """Requests that wait, and rows of a table that are under way.

    A completion is written by one version of the weights. Where they have changed, and where the memory of a row had to be
    given up, it begins again: its noise is a function of its seed, so nothing else is lost but time.
    """

    def __init__(self, sampler: LocalSampler, sampling: Sampling, depth: int | None, version: Callable[[], int]) -> None:
        """`version` makes the right weights the active ones, and says which version of them that is."""
        self._sampler, self._sampling, self._depth, self._find_version = sampler, sampling, depth, version
        self._stops = sampler.stops(sampling.stop)
        self._submitted = 0
        self._waiting: deque[Job] = deque()
        self._finished: list[tuple[int, Completion]] = []
        self._over, self._written = 0, 0
        """rows since the scheduler was opened, and their tokens"""
        self._version = 0
        self._table: Table | None = None
        self._rows = Rows(0)
        self._readings = Readings()
        """of rows under way, the prompts that are being read along"""
        self._grow = True
        """whether prompts may begin with the turn before them, as far as is known: then rows that are over do not leave"""
        self._taken = 0
        """how often the table had taken over weights when those at it were seated"""
        self._unread: deque[Callable[[], None]] = deque()
        """what was asked of the table, in order: each waits for it and takes it down"""

    def submit(self, request: Request, adapter: str | None = None) -> int:
        """`adapter`: which LoRA adapter samples this request, for a scheduler shared by several."""
        request_id, self._submitted = self._submitted, self._submitted + 1
        self.add([self._sampler.job(request_id, request, self._sampling, adapter)])
        return request_id

    def add(self, jobs: Iterable[Job]) -> None:
        self._waiting.extend(jobs)

    @torch.inference_mode()
    def wait(self) -> list[tuple[int, Completion]]:
        with self._sampler.in_use:
            if asked := len(self._waiting) + self._rows.under_way:
                try:
                    self._go_on_as_room_allows(asked)
                except BaseException:  # an interruption, for one, may come while something is being taken down
                    self.begin_again()
                    raise
            finished, self._finished = self._finished, []
        return finished

    def begin_again(self) -> None:
        """Rows under way wait once more, before all others."""
        self._waiting.extendleft(reversed([self._rows.jobs[place] for place in np.flatnonzero(self._rows.under_way_P)]))
        self._rows, self._readings = Rows(0), Readings()
        self._unread.clear()

    def let_go(self) -> None:
        """Give up the table and its memory; rows that sit at it begin again."""
        self.begin_again()
        self._table = None

    def close(self) -> None:
        with self._sampler.in_use:
            if self._table is not None:
                self._table.decoder.put_back(self._table)
            self._table, self._rows, self._readings = None, Rows(0), Readings()
            self._unread.clear()
            self._waiting.clear()
            self._finished.clear()

    def _go_on_as_room_allows(self, asked: int) -> None:
        sampler = self._sampler
        try:
            with fast_paths(sampler.fast):
                sampler.places.run(self._go_on, 1, "sampling with a max_batch of {}", most=asked)
        except torch.OutOfMemoryError as error:
            self.let_go()
            raise TacitError(
                "out of GPU memory while sampling one completion at a time, of "
                f"{len(self._waiting[0].prompt)} prompt tokens; shorten the prompts, or let fewer runs share the GPU."
            ) from error
        except NotFinite:
            self.let_go()  # what lies in the cache would spread
            raise

    def _go_on(self, places: int) -> None:
        self._stand()
        joined = self._admit(places)
        table, rows = self._table, self._rows
        assert table is not None
        goes_ahead = table.looks_ahead and not rows.all_end
        if joined and goes_ahead:
            self._ask()
        while len(self._unread) > goes_ahead:
            self._unread.popleft()()
        over, idle, waited = len(self._finished), 0, 0
        began, steady = rows.under_way + over, not over
        while rows.under_way and not self._is_time(over, began, idle, waited):
            reads = self._readings.under_way  # into places that stay where they are; and whoever ends, there is something to do
            narrow = not reads and not self._unread and rows.under_way <= table.leave_below * len(rows)
            if narrow and not self._stays:
                table.keep(rows.move_together())
            if not self._unread:
                self._ask()
            if table.looks_ahead and (reads or (steady and not rows.some_end)):
                self._ask()
            self._unread.popleft()()
            before, over = over, began - rows.under_way
            steady = over == before
            idle += over * table.check_every
            waited += table.check_every if over else 0
        if not rows.under_way:
            self._unread.clear()
        elif table.looks_ahead and not self._unread and not rows.all_end:
            self._ask()

    def _is_time(self, over: int, began: int, idle: int, waited: int) -> bool:
        """To come back with those that are over. Whoever comes in their places waits already, or will have prompts like those
        at the table."""
        sizes = self._sizes(len(self._rows))
        coming = list(islice(self._waiting, over)) if sizes else []
        like_them = sizes and not coming and self._readings.takes([self._rows.typical] * over, sizes, self._most_steps)
        soon = self._can_be_mixed_in(coming, self._known(coming)) if coming else like_them
        costs, patience = (chunked_prefill.MIXING_COSTS, chunked_prefill.MIXING_PATIENCE) if soon else (JOINING_COSTS, PATIENCE)
        return idle >= costs * began or waited >= patience

    def _stand(self) -> None:
        """On the weights of now."""
        version = self._find_version()
        if version != self._version:
            self.begin_again()
            self._version = version
        seated = (self._rows.jobs[place] for place in np.flatnonzero(self._rows.under_way_P))
        self._sampler.refresh({job.whose for job in (*self._waiting, *seated)})
        if self._table is not None and not self._sampler.knows(self._table.decoder):
            self.let_go()
        if self._table is not None and self._table.taken != self._taken:  # others than those that rows have been read with
            self._rows.forget()
            self._taken = self._table.taken

    def _admit(self, places: int) -> bool:
        """Those that wait take the free places, in order; of those that join together, identical prompts are computed once.
        Returns whether there are any."""
        rows = self._rows
        jobs = list(islice(self._waiting, max(0, places - rows.under_way)))
        seated, known = len(rows) if rows.under_way else 0, self._known(jobs)
        self._learn(jobs, known)
        if seated:
            jobs = self._who_can_join(jobs)
        elif known and self._who_can_join(jobs) == jobs:
            known = self._only(known)
            seated = len(rows)  # nobody is under way, but those who are over have left what is read on from
        if not jobs:
            return False
        if not seated:
            self._sit_down(max(job.longest for job in jobs))
            known = {}
        for _ in jobs:
            self._waiting.popleft()
        if seated and self._can_be_mixed_in(jobs, known):
            self._mix_in(jobs, known, seated)
            return True
        following, others = ([job for job in jobs if (job.request_id in known) is lies] for lies in (True, False))
        if following:
            self._waiting.extendleft(reversed(others))  # until it is their turn: should this fail, they still wait
            self._join(following, known, seated)
            for _ in others:
                self._waiting.popleft()
        if others:
            self._join(others, known, seated)
        return True

    def _known(self, jobs: list[Job]) -> dict[int, Known]:
        """By request id: what lies at the table of prompts that only grow; of each place once."""
        if self._table is None or not self._rows.has_episodes or not self._table.follows:
            return {}
        found: dict[int, Known] = {}
        taken: set[int] = set()
        for job in jobs:
            known = self._rows.known(job)
            if known is not None and known.place not in taken:
                found[job.request_id] = known
                taken.add(known.place)
        return found

    def _learn(self, jobs: list[Job], known: dict[int, Known]) -> None:
        """Whether prompts grow: not where the turn before lies here, and the prompt does not begin with it."""
        if known:
            self._grow = True
        elif self._table is not None and self._stays and any(self._rows.before(job) for job in jobs):
            self._grow = False

    @property
    def _stays(self) -> bool:
        """Whether what rows leave behind may be read on from, so that they do not leave their places."""
        assert self._table is not None
        return self._grow and self._rows.has_episodes and self._table.follows

    def _only(self, known: dict[int, Known]) -> dict[int, Known]:
        """Of rows that are all over, those stay that are read on from, unless that is most of them anyway. Returns where."""
        table, rows = self._table, self._rows
        assert table is not None
        if len(known) > table.leave_below * len(rows):
            return known
        order = rows.move_together([one.place for one in known.values()])
        table.keep(order)
        now = {int(before): place for place, before in enumerate(order)}
        return {request_id: Known(now[one.place], one.tokens) for request_id, one in known.items()}

    def _join(self, jobs: list[Job], known: dict[int, Known], seated: int) -> None:
        """Prefill their prompts, or what comes after their beginnings, if these lie at the table: of all or of none."""
        table = self._table
        assert table is not None
        if jobs[0].request_id in known:
            jobs = sorted(jobs, key=lambda job: (job.whose or "", len(job.prompt) - _known_of(job, known), job.request_id))
            firsts, source_N = jobs, np.arange(len(jobs))
            known_N = np.array([_known_of(job, known) for job in jobs])
        else:
            jobs = sorted(jobs, key=lambda job: (job.whose or "", len(job.prompt), job.prompt.tobytes()))
            firsts, source_N, known_N = *_distinct(jobs), None
        prompts, whose = [job.prompt for job in firsts], [job.whose for job in firsts]
        places_N, uniform_N = self._rows.seat(jobs, known=[known.get(job.request_id) for job in jobs])
        columns = max(job.longest for job in jobs) + table.check_every
        newcomers = Newcomers(places_N, prompts, whose, source_N, uniform_N, columns, known_N)
        begun = table.join(newcomers, seated, self._sampling, self._depth)
        self._sampler.prefilled_tokens += sum(map(len, prompts)) - (0 if known_N is None else int(known_N.sum()))
        self._unread.append(partial(self._begin, places_N, begun))

    def _sizes(self, rows: int) -> tuple[int, ...]:
        """Of chunks of prompts that so many rows can take along, if any. Hidden states are the prefill's. What is being read is
        read to its end, however little those have written who are over since."""
        assert self._table is not None
        wanted = self._depth is None and (self._readings.under_way or self._most_steps)
        return self._table.reads_along(rows) if wanted else ()

    @property
    def _most_steps(self) -> int:
        return chunked_prefill.most_steps(self._written, self._over)

    def _can_be_mixed_in(self, jobs: list[Job], known: dict[int, Known]) -> bool:
        """Not where half of what is to be read would be read again for another: a prefill computes that once."""
        sizes = self._sizes(max(len(self._rows), self._rows.under_way + len(jobs)))
        lengths = [len(job.prompt) - _known_of(job, known) for job in jobs]
        if any(job.whose is not None for job in jobs) or not self._readings.takes(lengths, sizes, self._most_steps):
            return False
        distinct = {job.prompt.tobytes(): length for job, length in zip(jobs, lengths, strict=True)}
        return 2 * sum(distinct.values()) > sum(lengths)

    def _mix_in(self, jobs: list[Job], known: dict[int, Known], seated: int) -> None:
        """Their prompts are read in the next steps of those who sit; the shortest first, so that rows soon write."""
        table, jobs = self._table, sorted(jobs, key=lambda job: len(job.prompt) - _known_of(job, known))
        assert table is not None
        places_N, _ = self._rows.seat(jobs, reading=True, known=[known.get(job.request_id) for job in jobs])
        prompts = [job.prompt for job in jobs]
        table.reserve(Seats.at_the_end(places_N, prompts), max(job.longest for job in jobs) + table.check_every, seated)
        self._readings.add(places_N, prompts, [_known_of(job, known) for job in jobs])
        self._sampler.prefilled_tokens += sum(len(job.prompt) - _known_of(job, known) for job in jobs)

    def _who_can_join(self, jobs: list[Job]) -> list[Job]:
        """A job that only another decoder can write waits until those who sit here have left, and so do all behind it."""
        table = self._table
        assert table is not None
        most = table.decoder.longest
        return list(takewhile(lambda job: table.joins and (most is None or job.longest <= most), jobs))

    def _sit_down(self, longest: int) -> None:
        """At a table where nobody sits, of a decoder that can write so many tokens."""
        decoder = self._sampler.decoder(longest)
        if self._table is None or self._table.decoder is not decoder:
            if self._table is not None:
                self._table.decoder.put_back(self._table)
            self._table = decoder.table()
        self._rows, self._taken = Rows(self._table.check_every), self._table.taken

    def _begin(self, places_N: np.ndarray, begun: Begun) -> None:
        """Take down what newcomers begin with."""
        rows, joined = self._rows, begun()
        rows.hold(places_N, joined.hidden_ND)
        self._finish(rows.record(places_N, joined.tokens_N[:, None], joined.logprobs_N[:, None], self._stops))

    def _ask(self) -> None:
        """The table for the next few tokens of every row: no more than the last of them still has to write."""
        table, rows = self._table, self._rows
        assert table is not None
        longest = rows.longest
        steps = table.check_every if self._readings.under_way else max(1, min(table.check_every, rows.most_left))
        look = self._readings.look(steps, self._sizes(len(rows)), self._most_steps)
        noise_PK, asked = rows.ask(steps)
        self._unread.append(partial(self._read, asked, table.advance(noise_PK, longest, self._sampling, look)))
        if look is not None:
            rows.ready(look.ready.places_N)

    def _read(self, asked: Asked, written: Written) -> None:
        """Take them down. Some may be over since they were asked for, and others have their places."""
        tokens_BK, logprobs_BK = written()
        places_N = self._rows.waiting(asked)
        self._sampler.written_tokens += len(places_N) * tokens_BK.shape[1]
        self._finish(self._rows.record(places_N, tokens_BK[places_N], logprobs_BK[places_N], self._stops))

    def _finish(self, over: list[Over]) -> None:
        self._over, self._written = self._over + len(over), self._written + sum(len(row.tokens_T) for row in over)
        texts = self._stops.texts([row.tokens_T for row in over])
        self._finished += [
            (
                row.job.request_id,
                Completion(
                    tokens=row.tokens_T,
                    logprobs=row.logprobs_T,
                    text=text,
                    finish="stop" if row.stopped else "length",
                    hidden=row.hidden_D,
                    version=self._version,
                ),
            )
            for row, text in zip(over, texts, strict=True)
        ]


def _known_of(job: Job, known: dict[int, Known]) -> int:
    """Tokens of its prompt that lie at the table."""
    return known[job.request_id].tokens if job.request_id in known else 0


def _distinct(jobs: list[Job]) -> tuple[list[Job], np.ndarray]:
    """The first of each prompt that an adapter reads in a sorted list, and which of them each has."""
    firsts: list[Job] = []
    source_N = np.zeros(len(jobs), dtype=np.int64)
    for i, job in enumerate(jobs):
        if not firsts or firsts[-1].whose != job.whose or firsts[-1].prompt.tobytes() != job.prompt.tobytes():
            firsts.append(job)
        source_N[i] = len(firsts) - 1
    return firsts, source_N


# Completions from the local model: what can be asked of it, and the schedulers at which it is asked.


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
        self.places = AdaptiveBudget(max_batch, self.device)
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
        self.fast = is_fast_enabled()
        self._try_lean = lean and self.fast and text_config.model_type in FAMILY
        self._stale = False
        self._schedulers: weakref.WeakSet[LocalScheduler] = weakref.WeakSet()
        register_cache_owner(self)

    def open_scheduler(
        self, sampling: Sampling, layer: int | None = None, version: Callable[[], int] = lambda: 0
    ) -> LocalScheduler:
        """`version` is asked whenever work goes on: it makes the right weights the active ones and says which they are."""
        check_sampling(sampling)
        scheduler = LocalScheduler(self, sampling, self._depth(layer), version)
        self._schedulers.add(scheduler)
        return scheduler

    def sample(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        layer: int | None = None,
        version: Callable[[], int] = lambda: 0,
    ) -> list[Completion]:
        """One completion per request, in order."""
        scheduler = self.open_scheduler(sampling, layer, version)
        jobs = [self.job(index, request, sampling) for index, request in enumerate(requests)]
        scheduler.add(sorted(jobs, key=lambda job: (len(job.prompt), job.prompt.tobytes())))
        completions: dict[int, Completion] = {}
        try:
            while finished := scheduler.wait():
                completions.update(finished)
        finally:
            scheduler.close()
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
            for scheduler in self._schedulers:
                scheduler.let_go()
            empty_cache(self.device)
        finally:
            self.in_use.release()

    @property
    def mixes(self) -> bool:
        """whether one scheduler can have rows of several adapters"""
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
            for scheduler in self._schedulers:
                scheduler.let_go()
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

    def job(self, request_id: int, request: Request, sampling: Sampling, whose: str | None = None) -> Job:
        limit = sampling.max_tokens if request.max_tokens is None else request.max_tokens
        prompt = np.array(request.prompt, dtype=np.int64)  # ours: what lies in the cache is known by it, later too
        if prompt.ndim != 1 or not len(prompt):
            raise TacitError(f"the prompt of request {request_id} has no tokens; a model needs at least one to continue.")
        if limit < 1:
            raise TacitError(f"max_tokens of request {request_id} is {limit}; it must be at least 1.")
        if self._context is not None and len(prompt) + limit > self._context:
            raise TacitError(
                f"request {request_id} has {len(prompt)} prompt tokens and may write {limit}, together more than the "
                f"model's context of {self._context}; shorten the prompt or lower max_tokens."
            )
        if prompt.view(np.uint64).max() >= self._vocabulary:  # where a negative one is huge
            raise TacitError(
                f"the prompt of request {request_id} has a token outside 0..{self._vocabulary - 1}; it was made by "
                "another model's tokenizer."
            )
        if request.episode is not None and not 0 <= request.episode < 1 << 63:
            raise TacitError(f"request {request_id}: episode must be a non-negative 64-bit integer, got {request.episode}.")
        return Job(request_id, prompt, request.seed, limit, whose, request.episode)

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
