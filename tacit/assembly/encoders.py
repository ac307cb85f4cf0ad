"""Sentence encoders: held here, or behind an endpoint."""

from __future__ import annotations

import os

from tacit.companions.experience.embedding import served_model
from tacit.core.errors import TacitError
from tacit.core.tools import Encode

ADDRESS = "OPENAI_BASE_URL"
"""environment variable with the endpoint of a bank that was made by one: a bank keeps the model's name, not where it was"""


def load_encoder(name: str, url: str = "", key_variable: str = "OPENAI_API_KEY") -> Encode:
    """With a `url` the model of that name there, else a directory or a hub id."""
    if url:
        from tacit.engines.chat.embeddings import EmbeddingClient

        return EmbeddingClient(url, name, key_variable)
    from tacit.engines.local.sentences import SentenceModel

    return SentenceModel(name)


def encoder_of_bank(embedder: str) -> Encode:
    """What a bank says its vectors were made with."""
    model = served_model(embedder)
    if model is None:
        return load_encoder(embedder)
    url = os.environ.get(ADDRESS, "")
    if not url:
        raise TacitError(
            f"the bank was made with {model!r} behind an endpoint: say where it is, {ADDRESS}=http://HOST:PORT/v1."
        )
    return load_encoder(model, url)
