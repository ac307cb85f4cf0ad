"""Rows as the API takes them. A sequence is sent as its tokens without the last; position i predicts token i + 1, and all that
a loss reads (`target_tokens`, `weights`, `logprobs`, `advantages`) has one number per position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def scored_datum(prompt: np.ndarray, completion: np.ndarray) -> Any:
    """To ask for the log-probabilities of a completion: cross entropy, which weighs the completion and not the prompt."""
    import tinker

    weights = _placed(prompt, np.ones(len(completion)))
    return tinker.Datum(model_input=_input(prompt, completion), loss_fn_inputs={"target_tokens": _targets(prompt, completion),
                                                                               "weights": _floats(weights)})  # fmt: skip


def gradient_datum(prompt: np.ndarray, completion: np.ndarray, logprobs: np.ndarray, gradient: np.ndarray) -> Any:
    """To have Σ gradient · ∇log π: `importance_sampling` is −Σ exp(log π − logprobs) · advantages, whose gradient at logprobs
    = log π is −Σ advantages · ∇log π. So the gradient is sent as advantages, with its sign turned round, beside the
    log-probabilities that the service itself has just computed."""
    import tinker

    return tinker.Datum(
        model_input=_input(prompt, completion),
        loss_fn_inputs={
            "target_tokens": _targets(prompt, completion),
            "logprobs": _floats(_placed(prompt, logprobs)),
            "advantages": _floats(_placed(prompt, -np.asarray(gradient))),
        },
    )


def completion_part(prompt: np.ndarray, completion: np.ndarray, output: Any) -> np.ndarray:
    """The completion's log-probabilities among those of a whole row."""
    logprobs = np.asarray(output["logprobs"].data, np.float64)
    return logprobs[len(prompt) - 1 :][: len(completion)].astype(np.float32)


def whole_input(tokens: np.ndarray) -> Any:
    import tinker

    return tinker.ModelInput.from_ints(tokens=np.asarray(tokens).tolist())


def _input(prompt: np.ndarray, completion: np.ndarray) -> Any:
    return whole_input(np.concatenate([prompt, completion])[:-1])


def _targets(prompt: np.ndarray, completion: np.ndarray) -> Any:
    import tinker

    tokens: Sequence[int] = np.concatenate([prompt, completion])[1:].tolist()
    return tinker.TensorData(data=list(tokens), dtype="int64", shape=[len(tokens)])


def _floats(numbers: np.ndarray) -> Any:
    import tinker

    return tinker.TensorData(data=np.asarray(numbers, np.float32).tolist(), dtype="float32", shape=[len(numbers)])


def _placed(prompt: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Zeros where the prompt's own tokens are predicted, then the numbers."""
    return np.concatenate([np.zeros(len(prompt) - 1), numbers])
