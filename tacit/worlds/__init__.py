"""Worlds by name. A world is imported when it is asked for, so heavy ones cost nothing until then."""

from __future__ import annotations

from tacit.core.registry import Registry
from tacit.core.world import Environment

WORLDS = {
    "countdown": "tacit.worlds.countdown:ENVIRONMENT",
    "alfworld": "tacit.worlds.alfworld:ENVIRONMENT",
    "cooking": "tacit.worlds.cooking:ENVIRONMENT",
    "textcraft": "tacit.worlds.textcraft:ENVIRONMENT",
    "sokoban": "tacit.worlds.sokoban:ENVIRONMENT",
    "webshop": "tacit.worlds.webshop:ENVIRONMENT",
    "searchqa": "tacit.worlds.searchqa:ENVIRONMENT",
    "minihack": "tacit.worlds.minihack:ENVIRONMENT",
    "scienceworld": "tacit.worlds.scienceworld:ENVIRONMENT",
    "errands": "tacit.worlds.errands:ENVIRONMENT",
}
REGISTRY = Registry(
    "world",
    "tacit.worlds",
    WORLDS,
    lambda found: isinstance(found, Environment),
    "a tacit.core.world.Environment",
    r"tacit\.modules\.work:WORK|tacit\.modules\.carrying:DRAFT_[0-9a-f]{16}",
)


def get_environment(name: str) -> Environment:
    """A world by its name, or your own as `package.module:OBJECT` or `path/to/file.py:OBJECT`."""
    return REGISTRY.get(name)
