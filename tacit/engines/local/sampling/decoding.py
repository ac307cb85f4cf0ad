"""How a batch of rows is carried forward one token at a time, whatever the model.

A *wave* is a batch of rows that start together: their prompts are prefilled (identical ones once), then every row writes
one token per step until the sampler lets it go. `Lanes` hold what a wave needs on the device. Any causal LM can be decoded
through its own `forward` with a transformers cache (`GenericDecoder`); the Llama family has a faster way (llama_decoding).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from transformers import DynamicCache

from tacit.core.protocols import Sampling
from tacit.engines.local.sampling.drawing import draw


class Lanes:
    """The rows of one wave on the device: each row's last token and its position, the noise of the tokens to come, and
    the tokens and log-probabilities written so far. Updated in place, so that a CUDA graph can hold a step."""

    def __init__(self, places: int, steps: int, device: torch.device) -> None:
        self.places = self.width = places
        self.tokens_B = torch.zeros(places, dtype=torch.long, device=device)
        self.positions_B = torch.zeros(places, dtype=torch.long, device=device)
        self._index = torch.zeros(1, dtype=torch.long, device=device)
        self._noise_BM = torch.zeros(places, steps, device=device)
        self._out_tokens_BM = torch.zeros(places, steps, dtype=torch.long, device=device)
        self._out_logprobs_BM = torch.zeros(places, steps, device=device)

    def start(self, width: int, positions_B: np.ndarray, noise_BM: np.ndarray) -> None:
        """Row i continues at `positions_B[i]`; of the first `width` places, those beyond the rows run along unread."""
        rows, steps = noise_BM.shape
        self.width = width
        self.tokens_B.zero_()
        self.positions_B.zero_()
        self._index.zero_()
        self.positions_B[:rows] = torch.from_numpy(positions_B).to(self.positions_B.device)
        self._noise_BM[:rows, :steps] = torch.from_numpy(noise_BM).to(self._noise_BM.device)

    def draw(self, logits_BV: torch.Tensor, sampling: Sampling) -> None:
        """Write each row's next token. Reads no value on the host."""
        rows = len(logits_BV)
        uniform_B = self._noise_BM[:rows].index_select(1, self._index)[:, 0]
        tokens_B, logprobs_B = draw(logits_BV, uniform_B, sampling)
        self.tokens_B[:rows].copy_(tokens_B)
        self._out_tokens_BM[:rows].index_copy_(1, self._index, tokens_B[:, None])
        self._out_logprobs_BM[:rows].index_copy_(1, self._index, logprobs_B[:, None])
        self._index += 1

    def move_on(self, capacity: int) -> None:
        """The last token has been read. Rows that are over their limit and only run along stay inside the cache."""
        self.positions_B.add_(1).clamp_(max=capacity - 1)

    def written(self, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and log-probabilities `start` to `end` of every row."""
        tokens = self._out_tokens_BM[: self.width, start:end].cpu().numpy()
        return tokens, self._out_logprobs_BM[: self.width, start:end].cpu().numpy()

    def keep(self, rows: np.ndarray, width: int) -> None:
        """Place i becomes what place `rows[i]` is; `width` places go on."""
        to, source = moved(rows, self.tokens_B.device)
        for lane in (self.tokens_B, self.positions_B, self._noise_BM):
            lane[to] = lane[source]
        self.width = width

    def snapshot(self) -> tuple[torch.Tensor, ...]:
        """What a step changes and the next one reads; see `restore`."""
        return self.tokens_B.clone(), self.positions_B.clone(), self._index.clone()

    def restore(self, snapshot: tuple[torch.Tensor, ...]) -> None:
        for lane, saved in zip((self.tokens_B, self.positions_B, self._index), snapshot, strict=True):
            lane.copy_(saved)


def moved(rows: np.ndarray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(places that change, where their content comes from)"""
    to = np.flatnonzero(rows != np.arange(len(rows)))
    return torch.from_numpy(to).to(device), torch.from_numpy(rows[to]).to(device)


class Wave(Protocol):
    """Rows that are decoded together."""

    hidden_BD: torch.Tensor | None
    """the wanted layer's state at the last prompt token, per row"""
    lanes: Lanes
    prefilled_tokens: int
    """prompt tokens computed for it; identical prompts count once"""

    def first(self, sampling: Sampling) -> None:
        """Draw every row's first token, from the prefill's logits."""
        ...

    def advance(self, sampling: Sampling, steps: int) -> None:
        """Draw the next tokens of every row."""
        ...

    def keep(self, rows: np.ndarray) -> None:
        """Place i becomes what place `rows[i]` is now, and other places end. Rows that stay put have rows[i] = i."""
        ...


class Decoder(Protocol):
    check_every: int
    """steps between looks at what was written: more where looking means waiting for a device"""

    def begin(self, prompts: Sequence[np.ndarray], source_B: np.ndarray, noise_BM: np.ndarray, layer: int | None) -> Wave:
        """Prefill distinct prompts; row i continues prompt `source_B[i]` (in order) with noise `noise_BM[i]`. `layer`
        counts from 0, the embeddings."""
        ...

    def refresh(self, force: bool = False) -> None:
        """Take over weights that changed since the last wave."""
        ...


class GenericDecoder:
    """Any causal LM by its own forward pass and a transformers cache, prompts padded on the left."""

    check_every = 1

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model = model
        self.device = device
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        accepted = inspect.signature(base.forward).parameters
        self.takes_positions = "position_ids" in accepted
        self.last_logits = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    def refresh(self, force: bool = False) -> None:
        """Nothing is copied, so nothing can be stale."""

    def begin(
        self, prompts: Sequence[np.ndarray], source_B: np.ndarray, noise_BM: np.ndarray, layer: int | None
    ) -> GenericWave:
        lengths_N = np.array([len(p) for p in prompts])
        tokens_NT = np.zeros((len(prompts), lengths_N.max()), dtype=np.int64)
        for row, prompt in zip(tokens_NT, prompts, strict=True):
            row[len(row) - len(prompt) :] = prompt
        before_N1 = (tokens_NT.shape[1] - lengths_N)[:, None]
        columns_T = np.arange(tokens_NT.shape[1])[None]
        mask_NT = torch.from_numpy((columns_T >= before_N1).astype(np.int64)).to(self.device)
        positions_NT = torch.from_numpy(np.maximum(columns_T - before_N1, 0)).to(self.device)
        cache = DynamicCache(config=self.model.config)
        output = self.forward(
            torch.from_numpy(tokens_NT).to(self.device), mask_NT, positions_NT, cache, output_hidden_states=layer is not None
        )
        source = torch.from_numpy(source_B).to(self.device)
        cache.batch_select_indices(source)
        hidden = None if layer is None else output.hidden_states[layer][:, -1][source]
        lanes = Lanes(len(source_B), noise_BM.shape[1], self.device)
        lanes.start(len(source_B), lengths_N[source_B], noise_BM)
        logits = output.logits[:, -1][source]
        return GenericWave(self, cache, mask_NT[source], logits, hidden, lanes, int(lengths_N.sum()))

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any, **options: Any) -> Any:
        if self.takes_positions:
            options["position_ids"] = positions
        training = self.model.training
        self.model.eval()
        try:
            return self.model(
                input_ids=tokens,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
                **self.last_logits,
                **options,
            )
        finally:
            self.model.train(training)


class GenericWave:
    def __init__(
        self,
        decoder: GenericDecoder,
        cache: DynamicCache,
        mask_BT: torch.Tensor,
        logits_BV: torch.Tensor,
        hidden_BD: torch.Tensor | None,
        lanes: Lanes,
        prefilled_tokens: int,
    ) -> None:
        self._decoder, self._cache, self._mask_BT, self._logits_BV = decoder, cache, mask_BT, logits_BV
        self.hidden_BD = hidden_BD
        self.lanes = lanes
        self.prefilled_tokens = prefilled_tokens

    def first(self, sampling: Sampling) -> None:
        self.lanes.draw(self._logits_BV, sampling)

    def advance(self, sampling: Sampling, steps: int) -> None:
        rows = self.lanes.width
        for _ in range(steps):
            self._mask_BT = torch.cat([self._mask_BT, self._mask_BT.new_ones(rows, 1)], dim=1)
            tokens_B, positions_B = self.lanes.tokens_B[:rows], self.lanes.positions_B[:rows]
            output = self._decoder.forward(tokens_B[:, None], self._mask_BT, positions_B[:, None], self._cache)
            self.lanes.positions_B.add_(1)
            self.lanes.draw(output.logits[:, -1], sampling)

    def keep(self, rows: np.ndarray) -> None:
        self.lanes.keep(rows, len(rows))
        kept = torch.from_numpy(rows).to(self._mask_BT.device)
        self._cache.batch_select_indices(kept)
        self._mask_BT = self._mask_BT[kept]
