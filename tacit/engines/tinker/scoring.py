"""Log-probabilities from a service: of the weights that are trained there, and of frozen ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tacit.core.errors import TacitError
from tacit.engines.tinker.connection import answer
from tacit.engines.tinker.data import completion_part, scored_datum, whole_input
from tacit.engines.tinker.learning import check_temperature
from tacit.engines.tinker.settings import TinkerSettings


class _Scoring(ABC):
    """What is asked of weights that are elsewhere: rows without a completion are not sent."""

    def __init__(self, client: Callable[[], Any], settings: TinkerSettings) -> None:
        self._client, self._settings = client, settings

    def logprobs(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], temperature: float = 1.0
    ) -> list[np.ndarray]:
        check_temperature(temperature, "scoring")
        asked = {r: (prompts[r], completions[r]) for r in range(len(prompts)) if len(completions[r])}
        found = dict(zip(asked, self._scored(list(asked.values())), strict=True)) if asked else {}
        return [found.get(r, np.zeros(0, np.float32)) for r in range(len(prompts))]

    @abstractmethod
    def _scored(self, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        """Of each prompt and its completion."""

    def distributions(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], top_k: int | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        raise TacitError("whole distributions cannot be had of the Tinker API; use --engine local.")


class TinkerScorer(_Scoring):
    """Log-probabilities from the weights that are trained."""

    def _scored(self, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        data = [scored_datum(prompt, completion) for prompt, completion in rows]
        outputs = answer(self._client().forward(data, "cross_entropy"), self._settings, "scoring").loss_fn_outputs
        return [completion_part(*row, output) for row, output in zip(rows, outputs, strict=True)]


class TinkerReference(_Scoring):
    """Log-probabilities from weights that are not trained any more."""

    def _scored(self, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        client = self._client()
        asked = [client.compute_logprobs(whole_input(np.concatenate(row))) for row in rows]
        whole = [answer(future, self._settings, "the reference's scoring") for future in asked]
        return [np.array(scored[len(prompt) :], np.float32) for (prompt, _), scored in zip(rows, whole, strict=True)]
