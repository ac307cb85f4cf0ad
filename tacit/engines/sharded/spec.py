"""The sharded engine, as it is found by name. No torch is imported here."""

from __future__ import annotations

from tacit.core.engine import CAPABILITIES, Engine, ModelSource
from tacit.core.protocols import Policy
from tacit.engines.local.spec import with_value_head
from tacit.engines.sharded.settings import ShardedSettings


def _load(model: ModelSource, settings: ShardedSettings) -> Policy:
    from tacit.engines.sharded.driver.policy import load_policy

    return load_policy(model, settings)


ENGINE = Engine(
    name="sharded",
    summary="one model in shards over several processes (FSDP2), on CPUs or one GPU each",
    capabilities=frozenset(CAPABILITIES),
    settings=ShardedSettings,
    load=_load,
    fit=with_value_head,
    can_hold=lambda settings: settings.servers > 0,
)
