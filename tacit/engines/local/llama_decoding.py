"""Tables of the Llama family over a preallocated cache; on a GPU, each step is a recorded CUDA graph."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from tacit.core.protocols import Sampling
from tacit.engines.local.decoding import Begun, Lanes, Newcomers, Table, Written, begun, first_tokens, moved
from tacit.engines.local.fast.chunked_prefill import ChunkRoom, ChunkRooms, Look, Seats, chunk_sizes
from tacit.engines.local.fast.cuda_graphs import RecordedPrefills, States, StepGraphs
from tacit.engines.local.kv_cache import KeyValueCache
from tacit.engines.local.llama import After, LlamaForward, Prompts
from tacit.engines.local.packing import next_power_of_two, ragged_arange, to_device
from tacit.engines.local.projections import ALL, Groups

# Prompts into a table's cache: as rectangles, end to end, or on from what lies there; recorded where that is quicker.

TRIED, NEAR = 192, 0.1
"""tokens of a prompt that is read in one go and in two, and how far its logits may be apart: bfloat16 does some of that"""


class Prefilling:
    """Of one table. All prompts of a call are read with the same adapter."""

    def __init__(self, forward: LlamaForward, cache: KeyValueCache, flat: bool, recorded: RecordedPrefills) -> None:
        self._forward, self._cache, self._flat, self._recorded = forward, cache, flat, recorded

    def whole(
        self, prompts: Sequence[np.ndarray], places_N: np.ndarray, source_N: np.ndarray, recorded: bool, layer: int | None
    ) -> States:
        """Logits and states of each prompt; its keys and values go to the places of those who continue it. `source_N` says
        which each continues. `recorded`: whether it may be."""
        if not self._flat:
            return self._padded(prompts, places_N, source_N, layer)
        forward, cache, device = self._forward, self._cache, self._forward.device
        lengths = np.array([len(prompt) for prompt in prompts])
        columns = ragged_arange(lengths[source_N])
        slots = np.repeat(places_N * cache.capacity, lengths[source_N]) + columns
        shared = len(source_N) > len(prompts)
        if recorded and not shared:
            behind = int(places_N[0] * cache.capacity + lengths[0])
            if (found := self._recorded.run(forward, cache, prompts, slots, behind, layer)) is not None:
                return found
        starts = np.cumsum(lengths) - lengths
        taken = to_device(np.repeat(starts[source_N], lengths[source_N]) + columns, device) if shared else None
        to = to_device(slots, device)
        rotating = None if shared else cache.rotating(to)
        return forward.prefill_flat(Prompts.of(prompts, device), layer, partial(cache.put_flat, to, taken), rotating)

    def rest(
        self, prompts: Sequence[np.ndarray], places_N: np.ndarray, known_N: np.ndarray, recorded: bool, layer: int | None
    ) -> States:
        """The same of prompts whose beginnings lie at their places: what comes after is computed, and reads them there."""
        forward, cache, device = self._forward, self._cache, self._forward.device
        rests = [prompt[known:] for prompt, known in zip(prompts, known_N, strict=True)]
        lengths_N = np.array([len(rest) for rest in rests])
        after = After(known_N, places_N * cache.capacity)
        slots = np.repeat(after.slots_U + known_N, lengths_N) + ragged_arange(lengths_N)
        if recorded:
            behind = int(after.slots_U[0] + len(prompts[0]))
            if (found := self._recorded.run(forward, cache, rests, slots, behind, layer, after)) is not None:
                return found
        to, told = to_device(slots, device), Prompts.of(rests, device, after, forward.query_block)
        return forward.prefill_flat(told, layer, partial(cache.put_flat, to, None), cache.rotating(to), cache.all_slots)

    def _padded(self, prompts: Sequence[np.ndarray], places_N: np.ndarray, source_N: np.ndarray, layer: int | None) -> States:
        """As a rectangle."""
        device, lengths = self._forward.device, np.array([len(prompt) for prompt in prompts])
        tokens_UT = np.zeros((len(prompts), lengths.max()), dtype=np.int64)
        for row, prompt in zip(tokens_UT, prompts, strict=True):
            row[: len(prompt)] = prompt
        source = None if len(source_N) == len(prompts) else to_device(source_N, device)
        sink = partial(self._store, self._rows(places_N), source)
        return self._forward.prefill(to_device(tokens_UT, device), to_device(lengths - 1, device), layer, sink)

    def _rows(self, places_N: np.ndarray) -> slice | torch.Tensor:
        """As an index of the cache: a run of neighbours is written faster."""
        first, last = int(places_N[0]), int(places_N[-1])
        if np.array_equal(places_N, np.arange(first, last + 1)):
            return slice(first, last + 1)
        return to_device(places_N, self._forward.device)

    def _store(
        self, rows: slice | torch.Tensor, source: torch.Tensor | None, depth: int, k: torch.Tensor, v: torch.Tensor
    ) -> None:
        """Into the cache; `source` says which prompt each row continues, where some share one."""
        self._cache.put(depth, rows, k if source is None else k[source], v if source is None else v[source])


def reads_on(forward: LlamaForward) -> bool:
    """Whether prompts can be read on from what lies in a cache: found out by reading one in one go and in two."""
    cache = KeyValueCache(forward.geometry)
    if not cache.reads_on:
        return False
    cache.open(2, TRIED)
    tried = Prefilling(forward, cache, True, RecordedPrefills(enabled=False))
    prompt, known = np.arange(TRIED - 1) % forward.vocabulary, TRIED // 2
    alone = np.zeros(1, dtype=np.int64)
    with torch.inference_mode():
        whole, _ = tried.whole([prompt], alone, alone, False, None)
        tried.whole([prompt[:known]], alone + 1, alone, False, None)
        in_two, _ = tried.rest([prompt], alone + 1, alone + known, False, None)
    if bool((in_two - whole).norm() <= NEAR * whole.norm()):
        return True
    why = "read on from what lies in the cache, they give other numbers"
    warnings.warn(f"prompts that only grow are read anew in every turn, which is slower: {why}", stacklevel=2)
    return False


def buckets(lengths_N: np.ndarray, whose: Sequence[str | None], budget: int, padded: bool) -> list[tuple[int, int]]:
    """Cut prompts, sorted by adapter and length, into runs of one adapter whose size stays within the budget (one prompt always
    fits)."""
    runs, start = [], 0
    for end in range(1, len(lengths_N) + 1):
        size = (end + 1 - start) * lengths_N[end] if padded and end < len(lengths_N) else lengths_N[start : end + 1].sum()
        if end == len(lengths_N) or size > budget or whose[end] != whose[start]:
            runs.append((start, end))
            start = end
    return runs


ROOM = 1.25
"""a cache that must have more columns while rows sit at it gets so many times as many: moving it takes time"""
CHECK_EVERY = 4
"""steps of a GPU that are asked for at once, and read at once"""


Versions = tuple[list[int], list[int]]
"""of tensors: where each lies, and how often it was changed"""


class LlamaDecoder:
    """The forward pass with its copies of weights, and a table that is kept for the next scheduler.

    `fixed_shapes`: widths and windows come in few sizes over buffers that stay in place, as CUDA graphs need, and the host
    looks at the tokens every few steps only; otherwise they are exact.
    """

    def __init__(
        self,
        model: Any,
        *,
        prefill_tokens: int | None = None,
        cuda_graphs: bool = True,
        fixed_shapes: bool | None = None,
        flat: bool | None = None,
    ) -> None:
        """`prefill_tokens`: prompt tokens computed at once. `flat`: without padding; None is where there are kernels for it."""
        self.forward = LlamaForward(model)
        self.device = self.forward.device
        on_gpu = self.device.type == "cuda"
        self.fixed_shapes = on_gpu if fixed_shapes is None else fixed_shapes
        self.flat = self.forward.takes_flat if flat is None else flat
        self.records = on_gpu and cuda_graphs
        # a CPU wants its working set in cache, a GPU wants enough to do
        self.prefill_tokens = prefill_tokens or (65536 if on_gpu else 1024)
        self.moves = 0
        """how often something that a recorded step reads has moved"""
        self.taken = 0
        """how often weights were taken over"""
        self.spare: LlamaTable | None = None
        self._versions: dict[str | None, Versions] = {}
        self._sources: dict[str | None, list[torch.Tensor]] = {}
        self._addresses: tuple[Any, ...] = ()
        self.refresh(force=True)

    @property
    def longest(self) -> int | None:
        return self.forward.longest

    @cached_property
    def reads_along(self) -> bool:
        """whether prompts of those who join can be read in the steps of those who write. Found out where it is asked for: a
        kernel is compiled for it"""
        return self.fixed_shapes and self.flat and KeyValueCache(self.forward.geometry).reads_along

    @property
    def follows(self) -> bool:
        """whether a prompt can be read on from what lies in the cache. Its numbers are others in the last bits than those of a
        whole prefill, and whether it lies there depends on more than the request: not where a run again is to have the same."""
        return self.flat and not torch.are_deterministic_algorithms_enabled() and self._reads_on

    @cached_property
    def _reads_on(self) -> bool:
        self.reach(TRIED)
        return reads_on(self.forward)

    @property
    def mixes(self) -> bool:
        """whether rows of several adapters can sit at one table"""
        return not (self.fixed_shapes or self.flat or self.longest) and self.forward.mixes

    def refresh(self, force: bool = False, whose: str | None = None) -> None:
        """Copy what changed of an adapter, or of the active one. In-place changes of parameters are noticed by their version
        counters as well, so that a learner that forgets to say so cannot make the sampler use old weights."""
        if force:
            self._versions.clear()
            self._sources.clear()
        sources = self._sources.get(whose) or self.forward.sources(whose)
        if whose is not None:  # its own: which adapter is active may change without a word
            self._sources[whose] = sources
        versions = _versions(sources)
        if versions != self._versions.get(whose):
            self._versions.pop(whose, None)  # it is known again when all is done: somebody may be interrupted in between
            self.taken += 1
            self.forward.refresh(whose)
            self._check_addresses()
            self._versions[whose] = versions

    def forget(self, whose: str) -> None:
        self._versions.pop(whose, None)
        self._sources.pop(whose, None)
        self.forward.forget(whose)

    def reach(self, columns: int) -> None:
        if columns > self.forward.reached:
            self.moves += 1  # whoever is interrupted in the next line does not go on with what was recorded
            self.forward.reach(columns)
            self._check_addresses()

    def table(self) -> LlamaTable:
        table, self.spare = self.spare or LlamaTable(self), None
        return table

    def put_back(self, table: Table) -> None:
        assert isinstance(table, LlamaTable)
        self.spare = table

    def width(self, rows: int) -> int:
        """Places for this many rows: exact, or one of few sizes."""
        if not self.fixed_shapes:
            return rows
        power = next_power_of_two(rows)
        return power * 3 // 4 if power >= 16 and rows <= power * 3 // 4 else power

    def window(self, columns: int) -> int:
        """Cache columns to read for this many: exact, or one of few sizes."""
        return _round_up(columns, 128 if columns <= 1024 else 512) if self.fixed_shapes else columns

    def capacity(self, columns: int) -> int:
        """Columns a row has in memory. They cost space and no time, and recordings depend on them: fewer sizes still."""
        if not self.fixed_shapes:
            return columns
        return max(256, next_power_of_two(columns)) if columns <= 1024 else _round_up(columns, 1024)

    def _check_addresses(self) -> None:
        if self.records and (addresses := self.forward.addresses()) != self._addresses:
            self._addresses = addresses
            self.moves += 1


class LlamaTable:
    joins = True

    def __init__(self, decoder: LlamaDecoder) -> None:
        self.decoder = decoder
        self.check_every = CHECK_EVERY if decoder.fixed_shapes else 1
        self.looks_ahead = decoder.fixed_shapes
        # where there are few widths, a table is no narrower before a quarter has left it
        self.leave_below = 0.75 if decoder.fixed_shapes else 0.9
        self.graphs = StepGraphs(enabled=decoder.records)
        self.prefills = RecordedPrefills(enabled=decoder.records and decoder.flat)
        self.cache = KeyValueCache(decoder.forward.geometry)
        self._prefilling = Prefilling(decoder.forward, self.cache, decoder.flat, self.prefills)
        self._lanes = Lanes(0, self.check_every, decoder.device)
        self._recorded_at = self.cache.addresses()
        """where what recordings read of the cache lay"""
        self._used = 0
        """no row has anything beyond this column"""
        self._moves = decoder.moves
        self._whose: list[str | None] = []
        """by place"""
        self._order: tuple[torch.Tensor, torch.Tensor] | None = None
        self._groups: Groups = ()
        self._rooms = ChunkRooms(self.check_every, decoder.device)

    def join(self, newcomers: Newcomers, seated: int, sampling: Sampling, layer: int | None) -> Begun:
        decoder, places_N, source_N = self.decoder, newcomers.places_N, newcomers.source_N
        lengths_N = np.array([len(p) for p in newcomers.prompts])
        self._open(max(seated, int(places_N.max()) + 1), newcomers.columns, seated)
        self._follow()
        self._used = max(self._used, int(lengths_N.max()))
        self._seat(places_N, [newcomers.whose[source] for source in source_N], seated)
        logits: list[torch.Tensor] = []
        hidden: list[torch.Tensor] = []
        known_N = np.zeros_like(lengths_N) if newcomers.known_N is None else newcomers.known_N
        for start, end in buckets(lengths_N - known_N, newcomers.whose, decoder.prefill_tokens, padded=not decoder.flat):
            decoder.forward.use(((newcomers.whose[start], ALL),))
            first, last = np.searchsorted(source_N, [start, end])
            local_N = source_N[first:last] - start
            prompts, places, recorded = newcomers.prompts[start:end], places_N[first:last], newcomers.whose[start] is None
            if newcomers.known_N is None:
                found, states = self._prefilling.whole(prompts, places, local_N, recorded, layer)
            else:
                found, states = self._prefilling.rest(prompts, places, known_N[start:end], recorded, layer)
            index = to_device(local_N, decoder.device)
            logits.append(found[index])
            if states is not None:
                hidden.append(states[index])
        tokens_N, logprobs_N = first_tokens(torch.cat(logits), newcomers, sampling)
        self._lanes.seat(places_N, tokens_N, lengths_N[source_N])
        return begun(tokens_N, logprobs_N, torch.cat(hidden) if hidden else None)

    @property
    def taken(self) -> int:
        return self.decoder.taken

    @property
    def follows(self) -> bool:
        return self.decoder.follows

    def reads_along(self, rows: int) -> tuple[int, ...]:
        alone = self.decoder.reads_along and self._groups == ((None, ALL),)
        return chunk_sizes(self.decoder.width(rows)) if alone else ()

    def reserve(self, seats: Seats, columns: int, seated: int) -> None:
        places_N = seats.places_N
        self._open(max(seated, int(places_N.max()) + 1), columns, seated)
        self._used = max(self._used, int(seats.positions_N.max()))
        self._seat(places_N, [None] * len(places_N), seated)
        self._sit(seats)

    def advance(self, noise_BK: np.ndarray, longest: int, sampling: Sampling, look: Look | None = None) -> Written:
        decoder, lanes, cache = self.decoder, self._lanes, self.cache
        self._follow()
        rows, steps = noise_BK.shape
        width, capacity, order = decoder.width(rows), cache.capacity, self._order
        decoder.forward.use(self._groups)
        lanes.expect(noise_BK)
        for columns, room in enumerate(self._rooms.fill(look, steps), longest):
            window = capacity if cache.reads_own_columns else min(decoder.window(columns), capacity)

            def step(window: int = window, room: ChunkRoom | None = room) -> None:
                tokens_B, positions_B = lanes.tokens_B[:width], lanes.positions_B[:width]
                chunk = None if room is None else room.chunk(lanes.drawn)
                logits = decoder.forward.step(tokens_B, positions_B, cache, window, order, chunk)
                lanes.draw(logits, sampling, capacity)

            how = (sampling.temperature, sampling.top_p, sampling.top_k)
            self.graphs.run((width, capacity, window, how, room and room.size), step, self._rewind)
        self._used = max(self._used, min(longest + steps - 1, capacity))
        written = lanes.written(rows, steps)
        if look is not None and len(look.ready.places_N):
            self._sit(look.ready)
        return written

    def _sit(self, seats: Seats) -> None:
        self._lanes.seat(seats.places_N, to_device(seats.tokens_N, self.decoder.device), seats.positions_N)

    def keep(self, rows: np.ndarray) -> None:
        to, source = moved(rows, self.decoder.device)
        if len(to):
            self.cache.move(to, source, self._used)
        self._lanes.keep(rows)
        self._whose = [self._whose[row] for row in rows]
        self._sort()

    def _seat(self, places_N: np.ndarray, whose: Sequence[str | None], seated: int) -> None:
        taken = self._whose[:seated]
        self._whose = [*taken, *[whose[0]] * (int(places_N.max()) + 1 - len(taken))]
        for place, name in zip(places_N, whose, strict=True):
            self._whose[place] = name
        self._sort()

    def _sort(self) -> None:
        """Rows of one adapter are computed together, wherever they sit."""
        names = list(dict.fromkeys(self._whose))
        if len(names) == 1:
            self._groups, self._order = ((names[0], ALL),), None
            return
        number_B = np.array([names.index(name) for name in self._whose])
        self._groups = tuple(zip(names, np.bincount(number_B).tolist(), strict=True))
        by_name_B = np.argsort(number_B, kind="stable")
        self._order = torch.from_numpy(by_name_B), torch.from_numpy(np.argsort(by_name_B))

    def _follow(self) -> None:
        """Forget what was recorded of weights that have moved since."""
        if self.decoder.moves != self._moves:
            self._forget()
            self._moves = self.decoder.moves

    def _forget(self) -> None:
        self.graphs.clear()
        self.prefills.clear()

    def _open(self, rows: int, columns: int, seated: int) -> None:
        """Places and columns for all; those who sit keep what they have."""
        decoder, cache = self.decoder, self.cache
        width, capacity = decoder.width(rows), decoder.capacity(columns)
        if not seated:
            self._used = 0
            cache.open(width, capacity)
            self._lanes.positions_B.zero_()  # of places that nobody takes: there may be fewer columns now
        elif width > cache.width or capacity > cache.capacity:
            if capacity > cache.capacity:
                capacity = decoder.capacity(max(columns, int(ROOM * cache.capacity)))
            cache.open(max(width, cache.width), max(capacity, cache.capacity), seated, self._used)
        lanes = self._lanes.grown(cache.width)
        if lanes is not self._lanes or cache.addresses() != self._recorded_at:
            self._forget()
        self._lanes, self._recorded_at = lanes, cache.addresses()
        decoder.reach(cache.capacity)

    def _rewind(self) -> Any:
        snapshot = self._lanes.snapshot()
        return lambda: self._lanes.restore(snapshot)


def _versions(tensors: Sequence[torch.Tensor]) -> Versions:
    try:
        changed = [t._version for t in tensors]
    except RuntimeError:  # nobody counts how often inference tensors are
        changed = [0 if t.is_inference() else t._version for t in tensors]
    return [t.data_ptr() for t in tensors], changed


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step
