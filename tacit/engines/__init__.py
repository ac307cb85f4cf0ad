"""Engines by name. Looking one up imports settings only; loading a policy imports torch or the engine's client."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.protocols import ADAPTERS, CAPABILITIES, LEARNING, REFERENCE, SAMPLING, SCORING, Engine, ModelSource, Policy
from tacit.core.registry import Registry
from tacit.core.trust import check_endpoint
from tacit.engines.endpoint import ChatClient, ChatPolicy, ChatSettings
from tacit.engines.local.settings import EngineSettings, with_value_head
from tacit.engines.models.bases import check_reachable
from tacit.engines.sharded.settings import ShardedSettings, check_servers
from tacit.engines.tinker.service import TinkerSettings, open_service


def _load_local(model: ModelSource, settings: EngineSettings) -> Policy:
    check_reachable(model.name)
    from tacit.engines.local.policy import load_policy

    return load_policy(model.name, settings, model.seed, world_texts=model.texts, tiny=model.sizes)


def _load_sharded(model: ModelSource, settings: ShardedSettings) -> Policy:
    check_servers(settings)
    check_reachable(model.name)
    from tacit.engines.sharded.policy import load_policy

    return load_policy(model, settings)


def _fit_sharded(settings: ShardedSettings, needs: frozenset[str]) -> tuple[EngineSettings, tuple[str, ...]]:
    check_servers(settings)
    return with_value_head(settings, needs)


def _load_tinker(model: ModelSource, settings: TinkerSettings) -> Policy:
    from tacit.engines.tinker.policy import load_policy

    return load_policy(model, settings, open_service(settings))


def _load_endpoint(model: ModelSource, settings: ChatSettings) -> Any:
    check_endpoint(settings.url, settings.key_variable)
    client = ChatClient(settings.url, model.name, settings.key_variable, settings.timeout_s)
    return ChatPolicy(client, settings.concurrency)


LOCAL = Engine(
    name="local",
    summary="transformers and peft in this process, on CPU or one GPU",
    capabilities=frozenset(CAPABILITIES),
    settings=EngineSettings,
    load=_load_local,
    fit=with_value_head,
    can_pin_weights=lambda settings: False,
)
SHARDED = Engine(
    name="sharded",
    summary="one model in shards over several processes (FSDP2), on CPUs or one GPU each",
    capabilities=frozenset(CAPABILITIES),
    settings=ShardedSettings,
    load=_load_sharded,
    fit=_fit_sharded,
    can_pin_weights=lambda settings: settings.servers > 0,
)
ENDPOINT = Engine(
    name="chat",
    summary="a model behind an OpenAI-compatible endpoint: samples only",
    capabilities=frozenset({SAMPLING}),
    settings=ChatSettings,
    load=_load_endpoint,
    elsewhere=True,
)
TINKER = Engine(
    name="tinker",
    summary="LoRA adapters behind the Tinker API (hosted, or your own server): samples, scores and learns remotely",
    capabilities=frozenset({SAMPLING, LEARNING, SCORING, REFERENCE, ADAPTERS}),
    settings=TinkerSettings,
    load=_load_tinker,
    elsewhere=True,
)
ENGINES = {
    "local": "tacit.engines:LOCAL",
    "sharded": "tacit.engines:SHARDED",
    "chat": "tacit.engines:ENDPOINT",
    "tinker": "tacit.engines:TINKER",
}
REGISTRY = Registry(
    "engine", "tacit.engines", ENGINES, lambda value: isinstance(value, Engine), "a tacit.core.protocols.Engine"
)


def get_engine(name: str) -> Engine:
    """An engine by name, or your own as `package.module:OBJECT` or `path/to/file.py:OBJECT`."""
    return REGISTRY.get(name)


def engines_with(setting: str) -> list[str]:
    """Names of our engines that have this setting."""
    return [name for name in ENGINES if any(field.name == setting for field in fields(get_engine(name).settings))]


def all_engines() -> Mapping[str, Engine]:
    """All engines that can be imported here, by name."""
    engines = {}
    for name in REGISTRY.names:
        with suppress(TacitError):
            engines[name] = get_engine(name)
    return engines
