"""An update at a service that knows none of our losses.

    1  forward             log π of every completion token, as the service has it
    2  our losses, here    on a `TokenView` of the whole batch; g = ∂L / ∂log π, one number per token
    3  forward_backward    Σ g · ∇log π, by `importance_sampling` with advantages −g
    4  optim_step          AdamW there, with our settings

By the chain rule ∇L = Σ (∂L / ∂log π) · ∇log π: exact for every loss that reads log-probabilities alone, whatever it does with
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tacit.core.batch import Batch
from tacit.core.engine import DURING_UPDATES
from tacit.core.errors import NonFiniteLoss, TacitError
from tacit.core.protocols import LossTerm, TokenView
from tacit.engines.local.learning.update import Tally
from tacit.engines.tinker.data import gradient_datum

WORDS = {
    "values": "a value head",
    "entropy": "the entropy of the distribution",
    "logits": "all logits",
    "teacher": "distributions under another prompt",
}


def check_losses(losses: Sequence[LossTerm]) -> None:
    asked = sorted(frozenset().union(*(loss.needs for loss in losses)) & DURING_UPDATES)
    if asked:
        wanted = " and ".join(WORDS[need] for need in asked)
        raise TacitError(
            f"this method's loss needs {wanted} ({', '.join(asked)}), which the Tinker API does not give; use --engine local, "
            "sharded, or another method."
        )


def check_temperature(temperature: float, what: str) -> None:
    if temperature != 1.0:
        raise TacitError(
            f"{what} at temperature {temperature:g}: the Tinker API computes log-probabilities at temperature 1 only; use "
            "--temperature 1, or --engine local."
        )


def gradient(
    batch: Batch,
    losses: Sequence[LossTerm],
    score: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], list[np.ndarray]],
) -> tuple[list[Any], dict[str, float]]:
    """(what to send, metrics): the losses' gradient with regard to the log-probability of every completion token."""
    check_losses(losses)
    check_temperature(batch.temperature, "an update")
    rows = [i for i, completion in enumerate(batch.completions) if len(completion)]
    if not rows:
        return [], {"loss": 0.0, "tokens": 0.0, "rows": 0.0}
    logprobs = score([batch.prompts[r] for r in rows], [batch.completions[r] for r in rows])
    logprobs_T = torch.from_numpy(np.concatenate(logprobs)).requires_grad_(True)
    tally = Tally(losses, batch.total_tokens)
    loss = tally.add(_view(batch, rows, logprobs_T), batch.sampled)
    if loss.requires_grad:
        loss.backward()
    by_token = np.zeros(len(logprobs_T)) if logprobs_T.grad is None else logprobs_T.grad.numpy().astype(np.float64)
    metrics = tally.metrics(tally.read(torch.zeros(())))
    del metrics["grad_norm"]  # of the weights, which only the service knows
    if not (math.isfinite(metrics["loss"]) and np.isfinite(by_token).all()):
        failure = NonFiniteLoss(
            f"the loss is {metrics['loss']}, or its gradient is not finite; nothing was sent and no weight has been changed. "
            "Lower the learning rate, or look for extreme advantages and log-probabilities in the batch."
        )
        failure.batch = batch
        raise failure
    ends = np.cumsum([len(own) for own in logprobs])
    parts = np.split(by_token, ends[:-1])
    data = [
        gradient_datum(batch.prompts[r], batch.completions[r], own, part)
        for r, own, part in zip(rows, logprobs, parts, strict=True)
    ]
    return data, {**metrics, "tokens": float(batch.total_tokens), "rows": float(len(rows))}


def _view(batch: Batch, rows: Sequence[int], logprobs_T: torch.Tensor) -> TokenView:
    lengths = [len(batch.completions[r]) for r in rows]

    def per_token(column: Sequence[np.ndarray]) -> torch.Tensor:
        return _tensor(np.concatenate([np.asarray(column[r]) for r in rows]))

    return TokenView(
        logprobs_T=logprobs_T,
        behaviour_T=per_token(batch.behaviour).float(),
        advantages_T=per_token(batch.advantages).float(),
        row_T=torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(lengths)),
        lengths_R=torch.tensor(lengths),
        total_tokens=batch.total_tokens,
        total_rows=len(rows),
        tokens={name: per_token(column) for name, column in batch.tokens.items()},
        rows={name: _tensor(np.asarray(column)[list(rows)]) for name, column in batch.rows.items()},
    )


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32) if np.issubdtype(values.dtype, np.floating) else values)
