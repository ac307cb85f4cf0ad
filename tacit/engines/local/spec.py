"""The local engine, as it is found by name. No torch is imported here."""

from __future__ import annotations

from dataclasses import replace

from tacit.core.engine import CAPABILITIES, VALUES, Engine, ModelSource
from tacit.core.protocols import Policy
from tacit.engines.local.settings import EngineSettings


def _load(model: ModelSource, settings: EngineSettings) -> Policy:
    from tacit.engines.local.policy import load_policy

    return load_policy(model.name, settings, model.seed, world_texts=model.texts, tiny=model.sizes)


def with_value_head(settings: EngineSettings, needs: frozenset[str]) -> tuple[EngineSettings, tuple[str, ...]]:
    """A method that learns a value needs a head for it."""
    if VALUES not in needs or settings.value_head:
        return settings, ()
    return replace(settings, value_head=True), ("the method learns a value, so engine.value_head = true",)


ENGINE = Engine(
    name="local",
    summary="transformers and peft in this process, on CPU or one GPU",
    capabilities=frozenset(CAPABILITIES),
    settings=EngineSettings,
    load=_load,
    fit=with_value_head,
    can_hold=lambda settings: False,
)
