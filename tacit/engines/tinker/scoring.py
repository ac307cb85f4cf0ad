"""Log-probabilities from a service: of the weights that are trained there, and of frozen ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tacit.core.errors import TacitError
from tacit.engines.tinker.connection import answer
from tacit.engines.tinker.data import completion_part, scored_datum, whole_input
from tacit.engines.tinker.learning import check_temperature
from tacit.engines.tinker.settings import TinkerSettings


class TinkerScorer:
    """Log-probabilities from the weights that are trained."""

    def __init__(self, client: Callable[[], Any], settings: TinkerSettings) -> None:
        self._client, self._settings = client, settings

    def logprobs(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], temperature: float = 1.0
    ) -> list[np.ndarray]:
        check_temperature(temperature, "scoring")
        rows = [i for i, completion in enumerate(completions) if len(completion)]
        found = [np.zeros(0, np.float32)] * len(prompts)
        if rows:
            data = [scored_datum(prompts[r], completions[r]) for r in rows]
            outputs = answer(self._client().forward(data, "cross_entropy"), self._settings, "scoring").loss_fn_outputs
            for r, output in zip(rows, outputs, strict=True):
                found[r] = completion_part(prompts[r], completions[r], output)
        return found

    def distributions(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], top_k: int | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        raise TacitError("whole distributions cannot be had of the Tinker API; use --engine local.")


class TinkerReference:
    """Log-probabilities from weights that are not trained any more."""

    def __init__(self, client: Callable[[], Any], settings: TinkerSettings) -> None:
        self._client, self._settings = client, settings

    def logprobs(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], temperature: float = 1.0
    ) -> list[np.ndarray]:
        check_temperature(temperature, "scoring")
        client, found = self._client(), [np.zeros(0, np.float32)] * len(prompts)
        asked = {
            r: client.compute_logprobs(whole_input(np.concatenate([prompt, completion])))
            for r, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
            if len(completion)
        }
        for r, future in asked.items():
            whole = answer(future, self._settings, "the reference's scoring")
            found[r] = np.array(whole[len(prompts[r]) :], np.float32)
        return found

    distributions = TinkerScorer.distributions
