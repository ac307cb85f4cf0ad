"""A model behind an endpoint, as an engine: it can be played with and not trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tacit.core.bounds import AtLeastOne, Positive
from tacit.core.protocols import SAMPLING, Engine, ModelSource


@dataclass(frozen=True)
class ChatSettings:
    """How an OpenAI-compatible endpoint is asked."""

    url: str = "http://localhost:8000/v1"
    """its address, up to and including the version"""
    key_variable: str = "OPENAI_API_KEY"
    """environment variable that holds the key; a server that wants none is asked without one"""
    concurrency: AtLeastOne = 16
    """requests under way at a time"""
    timeout_s: Positive = 120.0
    """how long one answer may take"""


def _load(model: ModelSource, settings: ChatSettings) -> Any:
    from tacit.engines.endpoint.client import ChatClient
    from tacit.engines.endpoint.policy import ChatPolicy

    client = ChatClient(settings.url, model.name, settings.key_variable, settings.timeout_s)
    return ChatPolicy(client, settings.concurrency)


ENGINE = Engine(
    name="chat",
    summary="a model behind an OpenAI-compatible endpoint: plays, does not learn",
    capabilities=frozenset({SAMPLING}),
    settings=ChatSettings,
    load=_load,
    elsewhere=True,
)
