"""Rows that are carried forward together, one token at a time, whatever the model.

A *table* has places, and a row sits at each: its prompt was prefilled (identical ones of rows that join together once), and it
writes one token per step until it is over. Then another row may have its place. `Lanes` hold what a step needs on the device.
Any causal LM can be decoded through its own `forward` with a transformers cache (generic_decoding); the Llama family has a
faster way (llama_decoding).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from tacit.core.protocols import Sampling
from tacit.engines.local.fast.chunked_prefill import Look, Seats
from tacit.engines.local.packing import to_device
from tacit.engines.local.sampling import Onward, draw, draws_by_kernel, launch_draw

Written = Callable[[], tuple[np.ndarray, np.ndarray]]
"""tokens and their log-probabilities, [B, K] each, which a device may still be at work on: asking for them waits for it"""


@dataclass(frozen=True)
class Newcomers:
    """Rows that join a table together."""

    places_N: np.ndarray
    """where each sits"""
    prompts: Sequence[np.ndarray]
    """distinct, those of one adapter together, and the shortest of them first"""
    whose: Sequence[str | None]
    """the adapter that reads each; None: the one that is active"""
    source_N: np.ndarray
    """which prompt each continues, ascending"""
    uniform_N: np.ndarray
    """the noise of each one's first token"""
    columns: int
    """tokens of the longest of them, when it will have written all it may"""
    known_N: np.ndarray | None = None
    """tokens of each one's prompt that lie at its place already, where a table `follows`; no two of them share a prompt then"""


@dataclass(frozen=True)
class Joined:
    """What newcomers begin with: the first token of each, its log-probability, and where a layer was asked for that layer's
    state at the last prompt token."""

    tokens_N: np.ndarray
    logprobs_N: np.ndarray
    hidden_ND: np.ndarray | None


Begun = Callable[[], Joined]
"""which a device may still be at work on, as above"""


class Table(Protocol):
    """Rows that are decoded together, at places 0, 1, … without a gap; those that are over run along unread."""

    @property
    def decoder(self) -> Decoder: ...

    @property
    def check_every(self) -> int:
        """steps between looks at what was written, at most: more where looking means waiting for a device"""
        ...

    @property
    def looks_ahead(self) -> bool:
        """whether it can go on before what was written is read, so that the device does not wait for whoever reads"""
        ...

    @property
    def joins(self) -> bool:
        """whether rows can join while others are under way"""
        ...

    @property
    def taken(self) -> int:
        """how often weights were taken over: what was computed before is another model's"""
        ...

    @property
    def follows(self) -> bool:
        """whether a prompt can be read on from what lies at its place, of a row that is over"""
        ...

    @property
    def leave_below(self) -> float:
        """rows that are over leave once no more than this share of the places is under way: moving the others costs about one
        step's reading of them"""
        ...

    def join(self, newcomers: Newcomers, seated: int, sampling: Sampling, layer: int | None) -> Begun:
        """Prefill the prompts and draw each row's first token. `seated` places are taken now, or 0: begin afresh. `layer`
        counts from 0, the embeddings."""
        ...

    def reads_along(self, rows: int) -> tuple[int, ...]:
        """How many prompt tokens can be read along in a step of so many rows: a few sizes, the least first. (): none."""
        ...

    def reserve(self, seats: Seats, columns: int, seated: int) -> None:
        """Places of rows whose prompts are read along from now on. `columns` and `seated` as in `join`."""
        ...

    def advance(self, noise_BK: np.ndarray, longest: int, sampling: Sampling, look: Look | None = None) -> Written:
        """The next K tokens of every row. `longest`: tokens of the longest row. `look`: what is read along; those who are ready
        with it write from the next time on."""
        ...

    def keep(self, rows: np.ndarray) -> None:
        """Place i becomes what place `rows[i]` is now, and other places end. Rows that stay put have rows[i] = i."""
        ...


class Decoder(Protocol):
    @property
    def longest(self) -> int | None:
        """most tokens of a row that it can decode"""
        ...

    def table(self) -> Table: ...

    def put_back(self, table: Table) -> None:
        """Nobody sits at it any more."""
        ...


class Lanes:
    """What a step reads and writes, on the device: each row's last token and its position, the noise of the next few tokens,
    how many are drawn, and these with their log-probabilities. Updated in place, so that a CUDA graph can hold a step."""

    def __init__(self, places: int, steps: int, device: torch.device) -> None:
        self.places, self._steps = places, steps
        self.tokens_B = torch.zeros(places, dtype=torch.long, device=device)
        self.positions_B = torch.zeros(places, dtype=torch.long, device=device)
        self._drawn_B = torch.zeros(places, dtype=torch.long, device=device)
        self._noise_BK = torch.zeros(places, steps, device=device)
        self._out_tokens_BK = torch.zeros(places, steps, dtype=torch.long, device=device)
        self._out_logprobs_BK = torch.zeros(places, steps, device=device)

    def grown(self, places: int) -> Lanes:
        """Itself, or where it has too few places more of them, with the same rows."""
        if places <= self.places:
            return self
        more = Lanes(places, self._steps, self.tokens_B.device)
        more.tokens_B[: self.places] = self.tokens_B
        more.positions_B[: self.places] = self.positions_B
        return more

    @property
    def drawn(self) -> torch.Tensor:
        """[1] how many tokens of each row are drawn since `expect`"""
        return self._drawn_B[:1]

    def seat(self, places_N: np.ndarray, tokens_N: torch.Tensor, positions_N: np.ndarray) -> None:
        """Rows whose last token is not read yet, and goes to this position."""
        places = to_device(places_N, self.tokens_B.device)
        self.tokens_B[places] = tokens_N
        self.positions_B[places] = to_device(positions_N, self.positions_B.device)

    def expect(self, noise_BK: np.ndarray) -> None:
        """The noise of the next few tokens."""
        rows, steps = noise_BK.shape
        self._noise_BK[:rows, :steps] = to_device(noise_BK, self._noise_BK.device)
        self._drawn_B.zero_()

    def draw(self, logits_BV: torch.Tensor, sampling: Sampling, columns: int) -> None:
        """Write each row's next token, which goes to the next position. Rows that are over and only run along stay below
        `columns`. Reads no value on the host."""
        rows = len(logits_BV)
        if draws_by_kernel(logits_BV, sampling):
            onward = Onward(self._drawn_B, self.tokens_B, self.positions_B, columns - 1)
            launch_draw(logits_BV, sampling.temperature, self._noise_BK, self._out_tokens_BK, self._out_logprobs_BK, onward)
            return
        index = self.drawn
        tokens_B, logprobs_B = draw(logits_BV, self._noise_BK[:rows].index_select(1, index)[:, 0], sampling)
        self.tokens_B[:rows].copy_(tokens_B)
        self._out_tokens_BK[:rows].index_copy_(1, index, tokens_B[:, None])
        self._out_logprobs_BK[:rows].index_copy_(1, index, logprobs_B[:, None])
        self._drawn_B += 1
        self.positions_B.add_(1).clamp_(max=columns - 1)

    def written(self, rows: int, steps: int) -> Written:
        """The tokens drawn since `expect`, and their log-probabilities."""
        read = fetched(self._out_tokens_BK[:rows, :steps], self._out_logprobs_BK[:rows, :steps])
        return lambda: (read()[0], read()[1])

    def keep(self, rows: np.ndarray) -> None:
        """Place i becomes what place `rows[i]` is."""
        to, source = moved(rows, self.tokens_B.device)
        for lane in (self.tokens_B, self.positions_B):
            lane[to] = lane[source]
        self.positions_B[len(rows) :] = 0  # of nobody: a step that takes more places than there are rows has little to read

    def snapshot(self) -> tuple[torch.Tensor, ...]:
        """What a step changes and the next one reads; see `restore`."""
        return self.tokens_B.clone(), self.positions_B.clone(), self._drawn_B.clone()

    def restore(self, snapshot: tuple[torch.Tensor, ...]) -> None:
        for lane, saved in zip((self.tokens_B, self.positions_B, self._drawn_B), snapshot, strict=True):
            lane.copy_(saved)


def moved(rows: np.ndarray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(places that change, where their content comes from)"""
    to = np.flatnonzero(rows != np.arange(len(rows)))
    return to_device(to, device), to_device(rows[to], device)


def fetched(*tensors: torch.Tensor) -> Callable[[], list[np.ndarray]]:
    """As they are now, or will be once the device has done what it was told before this. Asking for them waits for that."""
    if tensors[0].device.type == "cpu":
        copies = [tensor.numpy().copy() for tensor in tensors]
        return lambda: copies
    there = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    done = torch.cuda.current_stream(tensors[0].device).record_event()

    def read() -> list[np.ndarray]:
        done.synchronize()
        return [tensor.numpy() for tensor in there]

    return read


def begun(tokens_N: torch.Tensor, logprobs_N: torch.Tensor, hidden_ND: torch.Tensor | None) -> Begun:
    """What newcomers begin with, from the device."""
    read = fetched(tokens_N, logprobs_N, *([] if hidden_ND is None else [hidden_ND.float()]))

    def joined() -> Joined:
        tokens, logprobs, *hidden = read()
        return Joined(tokens, logprobs, hidden[0] if hidden else None)

    return joined


def first_tokens(logits_NV: torch.Tensor, newcomers: Newcomers, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Each newcomer's first token, from the prefill's logits, and its log-probability."""
    return draw(logits_NV, to_device(newcomers.uniform_N, logits_NV.device), sampling)


# Any causal LM by its own forward pass and a transformers cache, rows padded on the left.


class GenericDecoder:
    longest = None

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model = model
        self.device = device
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        accepted = inspect.signature(base.forward).parameters
        self._takes_positions = "position_ids" in accepted
        self._last_logits = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    def table(self) -> GenericTable:
        return GenericTable(self)

    def put_back(self, table: Table) -> None:
        """Nothing of it is of use to others."""

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any, **options: Any) -> Any:
        if self._takes_positions:
            options["position_ids"] = positions
        training = self.model.training
        self.model.eval()
        try:
            return self.model(
                input_ids=tokens,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
                **self._last_logits,
                **options,
            )
        finally:
            self.model.train(training)


class GenericTable:
    """Rows end in the same column. Who joins is padded on the left to the length of the others, or they to its."""

    check_every, looks_ahead, leave_below = 1, False, 0.75
    follows, taken = False, 0

    def __init__(self, decoder: GenericDecoder) -> None:
        self.decoder = decoder
        self._cache = DynamicCache(config=decoder.model.config)
        self._mask_BT = torch.zeros(0, 0, dtype=torch.long, device=decoder.device)
        self._lanes = Lanes(0, self.check_every, decoder.device)

    @property
    def joins(self) -> bool:
        """Layers that slide or that keep a state of their own cannot be padded after the fact."""
        return all(type(layer) is DynamicLayer for layer in self._cache.layers)

    def join(self, newcomers: Newcomers, seated: int, sampling: Sampling, layer: int | None) -> Begun:
        decoder, device = self.decoder, self.decoder.device
        lengths_N = np.array([len(p) for p in newcomers.prompts])
        tokens_NT = np.zeros((len(lengths_N), lengths_N.max()), dtype=np.int64)
        for row, prompt in zip(tokens_NT, newcomers.prompts, strict=True):
            row[len(row) - len(prompt) :] = prompt
        before_N1 = (tokens_NT.shape[1] - lengths_N)[:, None]
        columns_T = np.arange(tokens_NT.shape[1])[None]
        mask_NT = to_device((columns_T >= before_N1).astype(np.int64), device)
        positions_NT = to_device(np.maximum(columns_T - before_N1, 0), device)
        cache = DynamicCache(config=decoder.model.config)
        tokens = to_device(tokens_NT, device)
        output = decoder.forward(tokens, mask_NT, positions_NT, cache, output_hidden_states=layer is not None)
        source = to_device(newcomers.source_N, device)
        cache.batch_select_indices(source)
        if seated:
            self._merge(cache, mask_NT[source], newcomers.places_N)
        else:
            self._cache, self._mask_BT = cache, mask_NT[source]
        tokens_N, logprobs_N = first_tokens(output.logits[:, -1][source], newcomers, sampling)
        self._lanes = self._lanes.grown(len(self._mask_BT))
        self._lanes.seat(newcomers.places_N, tokens_N, lengths_N[newcomers.source_N])
        return begun(tokens_N, logprobs_N, None if layer is None else output.hidden_states[layer][:, -1][source])

    def reads_along(self, rows: int) -> tuple[int, ...]:
        return ()

    def reserve(self, seats: Seats, columns: int, seated: int) -> None:
        raise AssertionError("no prompts are read along here")

    def advance(self, noise_BK: np.ndarray, longest: int, sampling: Sampling, look: Look | None = None) -> Written:
        assert look is None
        rows, steps = noise_BK.shape
        self._lanes.expect(noise_BK)
        for _ in range(steps):
            self._mask_BT = torch.cat([self._mask_BT, self._mask_BT.new_ones(rows, 1)], dim=1)
            tokens_B, positions_B = self._lanes.tokens_B[:rows], self._lanes.positions_B[:rows]
            output = self.decoder.forward(tokens_B[:, None], self._mask_BT, positions_B[:, None], self._cache)
            self._lanes.draw(output.logits[:, -1], sampling, self._mask_BT.shape[1] + 1)
        return self._lanes.written(rows, steps)

    def keep(self, rows: np.ndarray) -> None:
        self._lanes.keep(rows)
        kept = to_device(rows, self._mask_BT.device)
        self._cache.batch_select_indices(kept)
        self._mask_BT = self._mask_BT[kept]
        if self.joins:
            self._trim()

    def _merge(self, cache: DynamicCache, mask_NT: torch.Tensor, places_N: np.ndarray) -> None:
        """Rows of another cache take their places among ours."""
        ours, theirs = len(self._mask_BT), len(mask_NT)
        order = np.arange(max(ours, int(places_N.max()) + 1))
        order[places_N] = ours + np.arange(theirs)
        order_B = to_device(order, mask_NT.device)
        columns = max(self._mask_BT.shape[1], mask_NT.shape[1])
        for here, there in zip(self._cache.layers, cache.layers, strict=True):
            for part in ("keys", "values"):
                both = [pad(t, (0, 0, columns - t.shape[-2], 0)) for t in (getattr(here, part), getattr(there, part))]
                setattr(here, part, torch.cat(both)[order_B])
        self._mask_BT = torch.cat([pad(mask, (columns - mask.shape[1], 0)) for mask in (self._mask_BT, mask_NT)])[order_B]
        self._trim()

    def _trim(self) -> None:
        """Drop the columns in which nobody has anything any more: the longest row has left."""
        unused = int(self._mask_BT.any(0).int().argmax())
        if unused:
            self._mask_BT = self._mask_BT[:, unused:]
            for layer in self._cache.layers:
                for part in ("keys", "values"):
                    setattr(layer, part, getattr(layer, part)[..., unused:, :])
