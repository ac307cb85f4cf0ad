"""Decode batches: sequences that advance together, one token per step.

A request is prefilled into a slot of a `DecodeBatch` (identical prompts of one prefill are computed once) and samples one token
per decode step until it finishes. `GenericDecoder` decodes any causal LM through its own `forward` with a transformers cache;
the Llama family has a faster decoder (fast/llama_decoding.py).
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from tacit.core.protocols import Sampling
from tacit.core.types import HiddenState
from tacit.engines.local.packing import to_device
from tacit.engines.local.sampling import sample_tokens

PendingResults = Callable[[], list[np.ndarray]]
"""results that the device may still be computing; calling it waits for them"""


@dataclass(frozen=True)
class PrefillBatch:
    """Requests that are prefilled together."""

    slots_N: np.ndarray
    prompts: Sequence[np.ndarray]  # distinct prompts, sorted by length
    source_N: np.ndarray  # the prompt of each request, ascending
    uniform_N: np.ndarray  # the noise of each request's first token
    max_length: int  # tokens of the longest request, prompt and completion
    cached_N: np.ndarray | None = None
    """tokens of each prompt that are already in its slot's KV cache; requires that no two requests share a prompt"""


class DecodeBatch(ABC):
    """Sequences in slots 0, 1, … that decode together. Finished slots run along; their output is discarded."""

    decoder: Decoder
    steps_per_sync = 1
    """maximum decode steps between reads of the sampled tokens (multi-step scheduling); above 1 on a GPU"""
    is_async = False  # whether steps can be launched before the tokens of earlier ones are read
    compact_below = 0.75
    """compact when at most this share of the slots is active; moving a slot costs about as much as a step reads from it"""

    @property
    def can_admit(self) -> bool:
        """whether requests can join while others are decoding"""
        return True

    @abstractmethod
    def prefill(self, batch: PrefillBatch, occupied: int, sampling: Sampling, hidden: HiddenState | None) -> PendingResults:
        """Prefill the prompts. Returns each request's first token, its log-probability and, if requested, its prompt's hidden
        state. `occupied` slots keep their contents; 0 starts an empty batch. `hidden.layer` counts from 0, the embeddings."""

    @abstractmethod
    def decode(self, noise_BK: np.ndarray, longest: int, sampling: Sampling) -> PendingResults:
        """Every slot's next K tokens and log-probabilities, [B, K] each. `longest`: tokens of the longest sequence."""

    @abstractmethod
    def compact(self, order: np.ndarray) -> None:
        """Move slot order[i] to slot i, for each i; drop all other slots."""


class Decoder(Protocol):
    @property
    def max_length(self) -> int | None:
        """longest sequence it can decode; None: no limit"""

    @property
    def weights_version(self) -> int:
        """number of weight copies so far; cached keys and values belong to one version"""

    @property
    def has_prefix_cache(self) -> bool:
        """whether a prompt can reuse the prefix that a finished sequence left in its slot"""

    def open_batch(self) -> DecodeBatch: ...

    def recycle(self, batch: DecodeBatch) -> None:
        """Take back an unused batch, to reuse its memory."""


class DecodeState:
    """Per-slot tensors of a step, on the device: the last token, its position, the noise of the next K tokens, the number
    sampled so far, and the results. Updated in place, so that a CUDA graph can capture a step."""

    def __init__(self, slots: int, steps: int, device: torch.device) -> None:
        self.slots, self._steps = slots, steps
        self.tokens_B = torch.zeros(slots, dtype=torch.long, device=device)
        self.positions_B = torch.zeros(slots, dtype=torch.long, device=device)
        self._sampled_B = torch.zeros(slots, dtype=torch.long, device=device)
        self._noise_BK = torch.zeros(slots, steps, device=device)
        self._out_tokens_BK = torch.zeros(slots, steps, dtype=torch.long, device=device)
        self._out_logprobs_BK = torch.zeros(slots, steps, device=device)

    def grow(self, slots: int) -> DecodeState:
        """Itself if it has enough slots, else a larger copy."""
        if slots <= self.slots:
            return self
        larger = DecodeState(slots, self._steps, self.tokens_B.device)
        larger.tokens_B[: self.slots] = self.tokens_B
        larger.positions_B[: self.slots] = self.positions_B
        return larger

    def assign(self, slots_N: np.ndarray, tokens_N: Tensor, positions_N: np.ndarray) -> None:
        """Set each slot's next input token and its position."""
        slots = to_device(slots_N, self.tokens_B.device)
        self.tokens_B[slots] = tokens_N
        self.positions_B[slots] = to_device(positions_N, self.positions_B.device)

    def load_noise(self, noise_BK: np.ndarray) -> None:
        slots, steps = noise_BK.shape
        self._noise_BK[:slots, :steps] = to_device(noise_BK, self._noise_BK.device)
        self._sampled_B.zero_()

    def sample(self, logits_BV: Tensor, sampling: Sampling, capacity: int) -> None:
        """Sample each slot's next token and advance its position, up to `capacity` − 1. Does not synchronize with the host."""
        slots = len(logits_BV)
        index = self._sampled_B[:1]  # number of steps since `load_noise`
        tokens_B, logprobs_B = sample_tokens(logits_BV, self._noise_BK[:slots].index_select(1, index)[:, 0], sampling)
        self.tokens_B[:slots].copy_(tokens_B)
        self._out_tokens_BK[:slots].index_copy_(1, index, tokens_B[:, None])
        self._out_logprobs_BK[:slots].index_copy_(1, index, logprobs_B[:, None])
        self._sampled_B += 1
        self.positions_B.add_(1).clamp_(max=capacity - 1)

    def fetch_tokens(self, slots: int, steps: int) -> PendingResults:
        """The tokens sampled since `load_noise`, and their log-probabilities."""
        return fetch_async(self._out_tokens_BK[:slots, :steps], self._out_logprobs_BK[:slots, :steps])

    def compact(self, order: np.ndarray) -> None:
        """Move slot order[i] to slot i, for each i."""
        target, source = find_moved(order, self.tokens_B.device)
        for tensor in (self.tokens_B, self.positions_B):
            tensor[target] = tensor[source]
        self.positions_B[len(order) :] = 0  # so that unused slots, which pad a step, read little

    def save(self) -> Callable[[], None]:
        """Copy the state that a step changes; the returned function restores it."""
        saved = [(tensor, tensor.clone()) for tensor in (self.tokens_B, self.positions_B, self._sampled_B)]

        def restore() -> None:
            for tensor, copy in saved:
                tensor.copy_(copy)

        return restore


def find_moved(order: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """(slots that change, the slots their contents come from)"""
    moved = np.flatnonzero(order != np.arange(len(order)))
    return to_device(moved, device), to_device(order[moved], device)


def fetch_async(*tensors: Tensor) -> PendingResults:
    """Start an asynchronous copy to the host; the returned function waits for it."""
    if tensors[0].device.type == "cpu":
        copies = [tensor.numpy().copy() for tensor in tensors]
        return lambda: copies
    on_host = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    done = torch.cuda.current_stream(tensors[0].device).record_event()

    def read() -> list[np.ndarray]:
        done.synchronize()
        return [tensor.numpy() for tensor in on_host]

    return read


def sample_first_tokens(
    logits_NV: Tensor, hidden_ND: Tensor | None, batch: PrefillBatch, sampling: Sampling
) -> tuple[Tensor, PendingResults]:
    """Each request's first token from the prefill's logits: (tokens on the device, the results of `DecodeBatch.prefill`)."""
    tokens_N, logprobs_N = sample_tokens(logits_NV, to_device(batch.uniform_N, logits_NV.device), sampling)
    return tokens_N, fetch_async(tokens_N, logprobs_N, *([] if hidden_ND is None else [hidden_ND.float()]))


class GenericDecoder:
    """Decodes any causal LM through its own forward pass and a transformers cache; sequences are padded on the left."""

    max_length = None
    weights_version = 0
    has_prefix_cache = False

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model = model
        self.device = device
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        accepted = inspect.signature(base.forward).parameters
        self._takes_positions = "position_ids" in accepted
        self._last_logits = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    def open_batch(self) -> GenericDecodeBatch:
        return GenericDecodeBatch(self)

    def recycle(self, batch: DecodeBatch) -> None:
        """Does nothing: memory is not reused."""

    def forward(self, tokens: Tensor, mask: Tensor, positions: Tensor, cache: Any, **options: Any) -> Any:
        if self._takes_positions:
            options["position_ids"] = positions
        training = self.model.training
        self.model.eval()
        try:
            return self.model(
                input_ids=tokens, attention_mask=mask, past_key_values=cache, use_cache=True, **self._last_logits, **options
            )
        finally:
            self.model.train(training)


class GenericDecodeBatch(DecodeBatch):
    """All sequences end in the same column; the shorter ones are padded on the left."""

    decoder: GenericDecoder

    def __init__(self, decoder: GenericDecoder) -> None:
        self.decoder = decoder
        self._cache = DynamicCache(config=decoder.model.config)
        self._mask_BT = torch.zeros(0, 0, dtype=torch.long, device=decoder.device)
        self._state = DecodeState(0, self.steps_per_sync, decoder.device)

    @property
    def can_admit(self) -> bool:
        """False with sliding-window or recurrent layers, whose caches cannot be padded later."""
        return all(type(layer) is DynamicLayer for layer in self._cache.layers)

    def prefill(self, batch: PrefillBatch, occupied: int, sampling: Sampling, hidden: HiddenState | None) -> PendingResults:
        decoder, device = self.decoder, self.decoder.device
        lengths_N = np.array([len(p) for p in batch.prompts])
        tokens_NT = np.zeros((len(lengths_N), lengths_N.max()), dtype=np.int64)
        for row, prompt in zip(tokens_NT, batch.prompts, strict=True):
            row[len(row) - len(prompt) :] = prompt
        padding_N1 = (tokens_NT.shape[1] - lengths_N)[:, None]
        columns_T = np.arange(tokens_NT.shape[1])[None]
        mask_NT = to_device((columns_T >= padding_N1).astype(np.int64), device)
        positions_NT = to_device(np.maximum(columns_T - padding_N1, 0), device)
        cache = DynamicCache(config=decoder.model.config)
        tokens = to_device(tokens_NT, device)
        output = decoder.forward(tokens, mask_NT, positions_NT, cache, output_hidden_states=hidden is not None)
        source = to_device(batch.source_N, device)
        cache.batch_select_indices(source)
        if occupied:
            self._merge(cache, mask_NT[source], batch.slots_N)
        else:
            self._cache, self._mask_BT = cache, mask_NT[source]
        hidden_ND = None
        if hidden is not None and hidden.pooling == "last":
            hidden_ND = output.hidden_states[hidden.layer][:, -1][source]
        elif hidden is not None and hidden.pooling == "mean":
            weights_NT = mask_NT / mask_NT.sum(1, keepdim=True)
            hidden_ND = (weights_NT[:, None] @ output.hidden_states[hidden.layer].float()).squeeze(1)[source]
        tokens_N, results = sample_first_tokens(output.logits[:, -1][source], hidden_ND, batch, sampling)
        self._state = self._state.grow(len(self._mask_BT))
        self._state.assign(batch.slots_N, tokens_N, lengths_N[batch.source_N])
        return results

    def decode(self, noise_BK: np.ndarray, longest: int, sampling: Sampling) -> PendingResults:
        slots, steps = noise_BK.shape
        self._state.load_noise(noise_BK)
        for _ in range(steps):
            self._mask_BT = torch.cat([self._mask_BT, self._mask_BT.new_ones(slots, 1)], dim=1)
            tokens_B, positions_B = self._state.tokens_B[:slots], self._state.positions_B[:slots]
            output = self.decoder.forward(tokens_B[:, None], self._mask_BT, positions_B[:, None], self._cache)
            self._state.sample(output.logits[:, -1], sampling, self._mask_BT.shape[1] + 1)
        return self._state.fetch_tokens(slots, steps)

    def compact(self, order: np.ndarray) -> None:
        self._state.compact(order)
        kept = to_device(order, self._mask_BT.device)
        self._cache.batch_select_indices(kept)
        self._mask_BT = self._mask_BT[kept]
        if self.can_admit:
            self._trim()

    def _merge(self, cache: DynamicCache, mask_NT: Tensor, slots_N: np.ndarray) -> None:
        """Move the sequences of another cache into these slots."""
        occupied = len(self._mask_BT)
        order = np.arange(max(occupied, int(slots_N.max()) + 1))
        order[slots_N] = occupied + np.arange(len(mask_NT))
        order_B = to_device(order, mask_NT.device)
        columns = max(self._mask_BT.shape[1], mask_NT.shape[1])
        for layer, new_layer in zip(self._cache.layers, cache.layers, strict=True):
            for name in ("keys", "values"):
                padded = [pad(t, (0, 0, columns - t.shape[-2], 0)) for t in (getattr(layer, name), getattr(new_layer, name))]
                setattr(layer, name, torch.cat(padded)[order_B])
        masks = [pad(mask, (columns - mask.shape[1], 0)) for mask in (self._mask_BT, mask_NT)]
        self._mask_BT = torch.cat(masks)[order_B]
        self._trim()

    def _trim(self) -> None:
        """Drop leading columns that are padding in every sequence."""
        unused = int(self._mask_BT.any(0).int().argmax())
        if unused:
            self._mask_BT = self._mask_BT[:, unused:]
            layers: list[Any] = self._cache.layers
            for layer in layers:
                layer.keys, layer.values = layer.keys[..., unused:, :], layer.values[..., unused:, :]
