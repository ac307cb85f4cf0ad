"""A step as a vector, so that steps can be compared by direction. Lengths do not matter: clustering normalises.

ActorHidden     the policy's own hidden state at the prompt: moves as the policy learns
HashNgram       counts of character n-grams: knows the words, not what they mean; the policy-agnostic control
Identity        one axis per distinct text: with radius 0 the clusters are GiGPO's
SentenceEncoder a frozen text encoder
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

# By what two steps are the same where they must be equal: what was seen, what was told of the present, or all that was read.
#
# GiGPO and HGPO compare observations. A policy that reads a state block is told more than it sees: the same shelf, looked at
# before and after the knife was found, is one observation and two states. With the key `state` an exact partition knows as much
# of the present as the policy does.

Key = Literal["observation", "state", "prompt"]
"""observation: the text of what is seen. state: that and the state block, as the prompt tells them (a wording that counts turns
tells one turn from another). prompt: all of it, with the task and the turns before."""


def key_texts(steps: Sequence[Step], key: Key = "observation") -> list[str]:
    if key == "observation":
        return [step.observation.text for step in steps]
    return [step.prompt.now if key == "state" else step.prompt.text for step in steps]


Pooling = Literal["last", "mean", "attention"]
"""which of a prompt's states: the last token's, their mean, or the mean weighted by where the layer's last token attends"""
Features = np.ndarray | Sequence[np.ndarray]
"""[N, D], or N rows of D"""


class Embedder(MethodPiece, ABC):
    @abstractmethod
    def __call__(self, groups: Sequence[Group], policy: Encoder | None) -> Sequence[Features]:
        """One feature per step, group by group."""


@dataclass(frozen=True)
class ActorHidden(Embedder):
    """φ(s): the policy's hidden state of one layer at the prompt.

    At the last token it was computed by the prefill that sampled the completion, with the weights that sampled it, and came
    back with it (`Method.hidden_layer`); it is taken from there. What is missing costs one more pass over those prompts.
    """

    layer: int = -8
    pooling: Pooling = "last"
    needs: ClassVar[frozenset[str]] = frozenset({HIDDEN_STATES})

    def __call__(self, groups: Sequence[Group], policy: Encoder | None) -> list[list[np.ndarray]]:
        features = [[self._sampled(step) for step in group.steps] for group in groups]
        places = [(g, n) for g, rows in enumerate(features) for n, row in enumerate(rows) if row is None]
        if places:
            if policy is None:
                raise TacitError(
                    f"{len(places)} steps came without hidden states, and there is no policy to compute them; roll out with "
                    f"hidden_layer = {self.layer}, or use an embedder of text (ngram, identity)."
                )
            prompts = [groups[g].steps[n].prompt_tokens for g, n in places]
            for (g, n), state_D in zip(places, policy.hidden_states(prompts, self.layer, self.pooling), strict=True):
                features[g][n] = state_D
        return [[row for row in rows if row is not None] for rows in features]

    def _sampled(self, step: Step) -> np.ndarray | None:
        return step.completion.hidden if self.pooling == "last" else None


@dataclass(frozen=True)
class HashNgram(Embedder):
    """φ(s)ⱼ = how many character n-grams of the observation hash to bucket j (crc32, the same on every machine)."""

    n: int = 3
    buckets: int = 1024
    key: Key = "observation"

    def __post_init__(self) -> None:
        if self.n < 1 or self.buckets < 2:
            raise TacitError(f"n-grams of {self.n} characters in {self.buckets} buckets cannot tell texts apart.")

    def __call__(self, groups: Sequence[Group], policy: Encoder | None = None) -> list[np.ndarray]:
        return [self.texts(key_texts(group.steps, self.key)) for group in groups]

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """[N, buckets]; each distinct text is counted once."""
        counted = {text: self._count(text) for text in dict.fromkeys(texts)}
        return np.array([counted[text] for text in texts], np.float32).reshape(len(texts), self.buckets)

    def _count(self, text: str) -> np.ndarray:
        # Marked ends: beginnings and endings count as such, and no text is empty.
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
    """φ(s) = what a frozen text encoder makes of the observation. Whoever assembles a method hands the encoder in."""

    encode: Encode | None = None

    def __call__(self, groups: Sequence[Group], policy: Encoder | None = None) -> list[np.ndarray]:
        if self.encode is None:
            raise TacitError("steps are to be compared by a sentence encoder, and none was handed to the method's build.")
        texts = list(dict.fromkeys(step.observation.text for group in groups for step in group.steps))
        encoded = dict(zip(texts, self.encode(texts), strict=True)) if texts else {}
        return [np.array([encoded[step.observation.text] for step in group.steps]) for group in groups]
