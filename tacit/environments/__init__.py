"""Worlds by name. A world is imported when it is asked for, so heavy ones cost nothing until then."""

from __future__ import annotations

from tacit.core.registry import Registry
from tacit.core.world import Environment

WORLDS = {
    "countdown": "tacit.environments.countdown:ENVIRONMENT",
    "alfworld": "tacit.environments.alfworld:ENVIRONMENT",
    "cooking": "tacit.environments.cooking:ENVIRONMENT",
    "textcraft": "tacit.environments.textcraft:ENVIRONMENT",
    "sokoban": "tacit.environments.sokoban:ENVIRONMENT",
    "webshop": "tacit.environments.webshop:ENVIRONMENT",
    "searchqa": "tacit.environments.searchqa:ENVIRONMENT",
    "minihack": "tacit.environments.minihack:ENVIRONMENT",
    "scienceworld": "tacit.environments.scienceworld:ENVIRONMENT",
    "errands": "tacit.environments.errands:ENVIRONMENT",
}
REGISTRY = Registry(
    "world", "tacit.worlds", WORLDS, lambda found: isinstance(found, Environment), "a tacit.core.world.Environment"
)


def get_environment(name: str) -> Environment:
    """A world by its name, or your own as `package.module:OBJECT` or `path/to/file.py:OBJECT`."""
    return REGISTRY.get(name)
