"""Texts as vectors from an OpenAI-compatible endpoint: `POST {url}/embeddings`.

Asked as the chat client asks, with its pauses and its words for what goes wrong; but where no vector comes there is nothing to
go on with, so whatever outlasts the retries is an error.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tacit.core.errors import TacitError
from tacit.engines.chat.client import DEFAULT_KEY_VARIABLE, Broken, ChatClient

BATCH = 32
"""texts in one request; what servers take by default"""


class EmbeddingClient:
    """N texts -> [N, D]. Asked for one vector when it is made: a wrong key, address or model is found out at once."""

    def __init__(self, url: str, model: str, key_variable: str = DEFAULT_KEY_VARIABLE, retries: int = 6) -> None:
        if not url.startswith(("http://", "https://")):
            raise TacitError(f"--embedding-url {url!r} must begin with http:// or https://, such as http://localhost:8000/v1.")
        if not model:
            raise TacitError("an endpoint serves models by name: add --encoder NAME.")
        self._client = _Client(url.rstrip("/").removesuffix("/embeddings"), model, key_variable, retries=retries)
        self._dimensions = 0
        self(["any text"])

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        found = [self._client.vectors(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
        for vectors_ND in found:
            self._dimensions = self._dimensions or vectors_ND.shape[1]
            if vectors_ND.shape[1] != self._dimensions:
                raise TacitError(
                    f"{self._client.url} sends vectors of {vectors_ND.shape[1]} dimensions now, and sent {self._dimensions} "
                    f"before: is {self._client.model!r} another model now?"
                )
        return np.concatenate(found) if found else np.zeros((0, self._dimensions), np.float32)


class _Client(ChatClient):
    slow: ClassVar[str] = "is the model still loading?"

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        body = {"model": self.model, "input": list(texts), "encoding_format": "float"}
        send = self._api.embeddings.with_streaming_response.create
        try:
            return self._patiently(send, body, lambda raw: read_vectors(raw, len(texts)))
        except Broken as unusable:
            raise TacitError(
                f"{self.url} sends no vectors for {len(texts)} texts (model {self.model!r}): {unusable}"
            ) from unusable


def read_vectors(raw: bytes, count: int) -> np.ndarray:
    """[count, D], by the index that each has in the answer. Raises Broken, with the reason, where they are not all there."""
    try:
        document = json.loads(raw)
    except ValueError as error:
        raise Broken(f"the answer is not JSON: {raw[:80]!r}") from error
    try:
        told = {item["index"]: item["embedding"] for item in document["data"]}
        vectors_ND = np.array([told[i] for i in range(count)], np.float32)
    except (KeyError, TypeError, ValueError) as error:
        raise Broken(f"the answer has no data[0..{count - 1}].embedding of one size: {raw[:80]!r}") from error
    if vectors_ND.ndim != 2 or not vectors_ND.size or not np.isfinite(vectors_ND).all():
        raise Broken(f"the answer's vectors are not finite numbers: {raw[:80]!r}")
    return vectors_ND
