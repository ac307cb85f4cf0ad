"""The Tinker engine, as it is found by name. Neither torch nor the client is imported here."""

from __future__ import annotations

from tacit.core.engine import ADAPTERS, LEARNING, REFERENCE, SAMPLING, SCORING, Engine, ModelSource
from tacit.core.protocols import Policy
from tacit.engines.tinker.settings import TinkerSettings


def _load(model: ModelSource, settings: TinkerSettings) -> Policy:
    from tacit.engines.tinker.connection import open_service
    from tacit.engines.tinker.policy import load_policy

    return load_policy(model, settings, open_service(settings))


ENGINE = Engine(
    name="tinker",
    summary="LoRA adapters behind the Tinker API, hosted or your own server: samples, scores and learns elsewhere",
    capabilities=frozenset({SAMPLING, LEARNING, SCORING, REFERENCE, ADAPTERS}),
    settings=TinkerSettings,
    load=_load,
    elsewhere=True,
)
