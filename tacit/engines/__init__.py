"""Engines by name. Looking one up imports nothing heavy; loading a policy does."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from tacit.core.errors import TacitError
from tacit.core.protocols import Engine
from tacit.core.registry import Registry

ENGINES = {
    "local": "tacit.engines.local.settings:ENGINE",
    "sharded": "tacit.engines.sharded.settings:ENGINE",
    "chat": "tacit.engines.endpoint.settings:ENGINE",
    "tinker": "tacit.engines.tinker.settings:ENGINE",
}
REGISTRY = Registry(
    "engine", "tacit.engines", ENGINES, lambda found: isinstance(found, Engine), "a tacit.core.protocols.Engine"
)


def get_engine(name: str) -> Engine:
    """An engine by its name, or your own as `package.module:OBJECT` or `path/to/file.py:OBJECT`."""
    return REGISTRY.get(name)


def all_engines() -> Mapping[str, Engine]:
    """Those that can be found by name here; one of another package that cannot be loaded is nobody's remedy."""
    found = {}
    for name in REGISTRY.names:
        with suppress(TacitError):
            found[name] = get_engine(name)
    return found
