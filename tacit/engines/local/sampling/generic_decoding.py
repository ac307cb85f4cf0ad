"""Any causal LM by its own forward pass and a transformers cache, rows padded on the left."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from tacit.core.protocols import Sampling
from tacit.engines.local.passes.handing import handed
from tacit.engines.local.sampling.decoding import Begun, Lanes, Newcomers, Table, Written, begun, first_tokens
from tacit.engines.local.sampling.mixing import Look, Seats


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
        mask_NT = handed((columns_T >= before_N1).astype(np.int64), device)
        positions_NT = handed(np.maximum(columns_T - before_N1, 0), device)
        cache = DynamicCache(config=decoder.model.config)
        tokens = handed(tokens_NT, device)
        output = decoder.forward(tokens, mask_NT, positions_NT, cache, output_hidden_states=layer is not None)
        source = handed(newcomers.source_N, device)
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
        kept = handed(rows, self._mask_BT.device)
        self._cache.batch_select_indices(kept)
        self._mask_BT = self._mask_BT[kept]
        if self.joins:
            self._trim()

    def _merge(self, cache: DynamicCache, mask_NT: torch.Tensor, places_N: np.ndarray) -> None:
        """Rows of another cache take their places among ours."""
        ours, theirs = len(self._mask_BT), len(mask_NT)
        order = np.arange(max(ours, int(places_N.max()) + 1))
        order[places_N] = ours + np.arange(theirs)
        order_B = handed(order, mask_NT.device)
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
