"""Our own draw inside vLLM: the n-th token of a request is a function of its logits, its seed and n, as it is everywhere else.

vLLM's part ends with the logits. This processor draws from them as the local engine does, and leaves one token to choose: its
logit becomes the log-probability that the draw says it has, and all others −∞. vLLM is then asked for the greedy token and
for its processed logit. So a request says the same wherever it is written, up to rounding, and no generator has to be kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from tacit.core.protocols import Sampling
from tacit.engines.local.sampling.drawing import draw
from tacit.engines.local.sampling.noise import uniforms
from tacit.engines.sharded.servers.orders import Order

LOGPROBS_MODE = "processed_logits"
"""how vLLM must report log-probabilities for this to work"""


def parameters(order: Order, end_tokens: tuple[int, ...]) -> SamplingParams:
    drawn = order.sampling
    return SamplingParams(
        temperature=0.0,
        max_tokens=order.max_tokens,
        stop_token_ids=list(end_tokens),
        ignore_eos=True,  # the ends are ours
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args={"seed": order.seed, "temperature": drawn.temperature, "top_p": drawn.top_p, "top_k": drawn.top_k},
    )


@dataclass(frozen=True)
class _Row:
    sampling: Sampling
    uniform_T: np.ndarray
    written: list[int]
    """grows as the request does"""


class OwnDraw(LogitsProcessor):
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool):
        self._rows: dict[int, _Row] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for place in batch_update.removed:
            self._rows.pop(place, None)
        for place, asked, _, written in batch_update.added:
            self._rows.pop(place, None)
            if told := asked.extra_args:
                sampling = Sampling(told["temperature"], told["top_p"], told["top_k"])
                self._rows[place] = _Row(sampling, uniforms([told["seed"]], asked.max_tokens)[0], written)
        for source, target, how in batch_update.moved:
            moved, there = self._rows.pop(source, None), self._rows.pop(target, None)
            if moved is not None:
                self._rows[target] = moved
            if there is not None and how is MoveDirectionality.SWAP:
                self._rows[source] = there

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        together: dict[Sampling, list[int]] = {}
        for place, row in self._rows.items():
            together.setdefault(row.sampling, []).append(place)
        for sampling, places in together.items():
            # A prompt that is read in parts gives logits before its end; what is drawn from those is thrown away.
            noise = [self._rows[p].uniform_T[min(len(self._rows[p].written), len(self._rows[p].uniform_T) - 1)] for p in places]
            rows_B = torch.tensor(places, device=logits.device)
            tokens_B, logprobs_B = draw(logits[rows_B], torch.tensor(np.array(noise), device=logits.device), sampling)
            logits[rows_B] = -torch.inf
            logits[rows_B, tokens_B] = logprobs_B
        return logits
