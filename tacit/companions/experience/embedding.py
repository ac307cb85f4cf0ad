"""Texts as vectors, by one interface: a sentence encoder, here or behind an endpoint, or for tests and tiny policies the counts
of character n-grams."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tacit.core.tools import Encode
from tacit.credit.embedders import HashNgram


class Embedding(Protocol):
    @property
    def name(self) -> str:
        """what a bank says its vectors were made with"""
        ...

    @property
    def dimensions(self) -> int: ...

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """[N, D]"""
        ...


@dataclass(frozen=True)
class Ngrams:
    """Counts of character n-grams: texts that share words are near. Needs no model."""

    n: int = 3
    dimensions: int = 384

    @property
    def name(self) -> str:
        return f"{self.n}-grams"

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return HashNgram(self.n, self.dimensions).texts(texts)


class Sentences:
    """A frozen sentence encoder; it is asked for its size once it is first used."""

    def __init__(self, name: str, encode: Encode) -> None:
        self.name, self._encode, self._dimensions = name, encode, 0

    @property
    def dimensions(self) -> int:
        self._dimensions = self._dimensions or self._encode(["size"]).shape[1]
        return self._dimensions

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return np.asarray(self._encode(texts), np.float32)


_SERVED = " (endpoint)"


def served_name(model: str) -> str:
    """What a bank says of a model behind an endpoint. Not where it was: a server may move, and its vectors stay the same."""
    return model + _SERVED


def served_model(name: str) -> str | None:
    """The model of such a name; None where it is another one's."""
    return name.removesuffix(_SERVED) if name.endswith(_SERVED) else None


class Remembered:
    """The same, each text once: the members of a group all ask with the same words. Any number of threads may ask."""

    def __init__(self, embedding: Embedding, most: int = 10_000) -> None:
        self._embedding, self._most = embedding, most
        self._known: dict[str, np.ndarray] = {}
        self._keeping = threading.Lock()
        self.asked = self.computed = 0

    @property
    def name(self) -> str:
        return self._embedding.name

    @property
    def dimensions(self) -> int:
        return self._embedding.dimensions

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        with self._keeping:
            known = {text: self._known[text] for text in texts if text in self._known}
            new = [text for text in dict.fromkeys(texts) if text not in known]
            self.asked, self.computed = self.asked + len(texts), self.computed + len(new)
        if new:  # outside the lock: what is known need not wait for what is not
            fresh = dict(zip(new, self._embedding(new), strict=True))
            known |= fresh
            with self._keeping:
                self._known |= fresh
                while len(self._known) > self._most:
                    self._known.pop(next(iter(self._known)))
        return np.stack([known[text] for text in texts]) if len(texts) else np.zeros((0, self.dimensions), np.float32)
