"""Engines by name. Looking one up imports nothing heavy; loading a policy does."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from tacit.core.engine import Engine
from tacit.core.errors import TacitError
from tacit.core.registry import Registry

ENGINES = {
    "local": "tacit.engines.local.spec:ENGINE",
    "sharded": "tacit.engines.sharded.spec:ENGINE",
    "chat": "tacit.engines.chat.spec:ENGINE",
    "tinker": "tacit.engines.tinker.spec:ENGINE",
}
REGISTRY = Registry("engine", "tacit.engines", ENGINES, lambda found: isinstance(found, Engine), "a tacit.core.engine.Engine")


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
