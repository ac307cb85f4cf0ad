"""Embedders: one feature vector per step. Clustering normalizes the vectors, so only their directions matter.

ActorHidden      hidden state of the policy at the prompt; changes as the policy trains
HashNgram        character n-gram counts; the control that does not depend on the policy
Identity         one axis per distinct text; with radius 0 the clusters are GiGPO's
SentenceEncoder  a frozen text encoder
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.method import MethodPiece
from tacit.core.protocols import HIDDEN_STATES, Encoder
from tacit.core.resources import Encode
from tacit.core.types import Group, Step

Key = Literal["observation", "state", "prompt"]
"""The text that must be equal for two steps to count as the same state.

observation   GiGPO and HGPO
state         state block and observation, as in the prompt: equal observations before and after finding the knife are two
              states. With a wording that numbers turns, every turn is distinct.
prompt        the whole prompt, with task and history
"""


def key_texts(steps: Sequence[Step], key: Key = "observation") -> list[str]:
    if key == "observation":
        return [step.observation.text for step in steps]
    return [step.prompt.now if key == "state" else step.prompt.text for step in steps]


Pooling = Literal["last", "mean", "attention"]
"""over prompt tokens: the last token, the mean, or the mean weighted by the last token's attention in that layer"""
Features = np.ndarray | Sequence[np.ndarray]  # [N, D], or N rows of D


class Embedder(MethodPiece, ABC):
    @abstractmethod
    def __call__(self, groups: Sequence[Group], policy: Encoder | None) -> Sequence[Features]:
        """Features [N, D] of each group's N steps."""


@dataclass(frozen=True)
class ActorHidden(Embedder):
    """φ(s): hidden state of one layer at the prompt.

    The sampler returns it from the prefill if `Method.hidden_state` requests it. Missing states need a forward pass over their
    prompts.
    """

    layer: int = -8
    pooling: Pooling = "last"
    needs: ClassVar[frozenset[str]] = frozenset({HIDDEN_STATES})

    def __call__(self, groups: Sequence[Group], policy: Encoder | None) -> list[list[np.ndarray]]:
        features = [[step.completion.hidden for step in group.steps] for group in groups]
        missing = [(g, n) for g, rows in enumerate(features) for n, row in enumerate(rows) if row is None]
        if missing:
            if policy is None:
                raise TacitError(
                    f"{len(missing)} steps have no hidden states, and there is no policy to compute them. Roll out with "
                    f"hidden_state = {(self.layer, self.pooling)}, or use a text embedder (ngram, identity)."
                )
            prompts = [groups[g].steps[n].prompt_tokens for g, n in missing]
            for (g, n), state_D in zip(missing, policy.hidden_states(prompts, self.layer, self.pooling), strict=True):
                features[g][n] = state_D
        return [[row for row in rows if row is not None] for rows in features]


@dataclass(frozen=True)
class HashNgram(Embedder):
    """φ(s)ⱼ = number of character n-grams of the observation that hash to bucket j (crc32, the same on every machine)."""

    n: int = 3
    buckets: int = 1024
    key: Key = "observation"

    def __call__(self, groups: Sequence[Group], policy: Encoder | None = None) -> list[np.ndarray]:
        return [self.texts(key_texts(group.steps, self.key)) for group in groups]

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """[N, buckets]; each distinct text is counted only once."""
        counted = {text: self._count(text) for text in dict.fromkeys(texts)}
        return np.array([counted[text] for text in texts], np.float32).reshape(len(texts), self.buckets)

    def _count(self, text: str) -> np.ndarray:
        # Markers at both ends distinguish beginnings and endings, and make features of empty texts non-zero.
        data = ("\x02" * (self.n - 1) + text + "\x03" * max(1, self.n - 1)).encode()
        grams = [zlib.crc32(data[i : i + self.n]) % self.buckets for i in range(len(data) - self.n + 1)]
        return np.bincount(grams, minlength=self.buckets)


@dataclass(frozen=True)
class Identity(Embedder):
    """φ(s) = e_h, one axis per distinct observation (or state, or prompt) of the group."""

    key: Key = "observation"

    def __call__(self, groups: Sequence[Group], policy: Encoder | None = None) -> list[np.ndarray]:
        features = []
        for group in groups:
            axis: dict[str, int] = {}
            axes_N = [axis.setdefault(text, len(axis)) for text in key_texts(group.steps, self.key)]
            features.append(np.eye(len(axis), dtype=np.float32)[axes_N])
        return features


@dataclass(frozen=True)
class SentenceEncoder(Embedder):
    """φ(s) = a frozen text encoder's embedding of the observation."""

    encode: Encode | None = None

    def __call__(self, groups: Sequence[Group], policy: Encoder | None = None) -> list[np.ndarray]:
        if self.encode is None:
            raise TacitError("embedder = sentence needs an encoder, but the method was built without one.")
        texts = list(dict.fromkeys(step.observation.text for group in groups for step in group.steps))
        encoded = dict(zip(texts, self.encode(texts), strict=True)) if texts else {}
        return [np.array([encoded[step.observation.text] for step in group.steps]) for group in groups]
