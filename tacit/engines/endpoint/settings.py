"""A model behind an endpoint, as an engine: it can be played with and not trained."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.core.bounds import AtLeastOne, Positive


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
