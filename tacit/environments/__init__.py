"""Worlds by name. A world is imported when it is asked for, so heavy ones cost nothing until then."""

from __future__ import annotations

import importlib

from tacit.core.finding import find
from tacit.core.world import Environment

WORLDS = {
    "countdown": "tacit.environments.countdown",
    "alfworld": "tacit.environments.alfworld",
    "cooking": "tacit.environments.cooking",
}


def get_environment(name: str) -> Environment:
    """A world by its name, or your own as `package.module:OBJECT` or `path/to/file.py:OBJECT`."""
    if name in WORLDS:
        return importlib.import_module(WORLDS[name]).ENVIRONMENT
    return find("world", name, WORLDS, lambda found: isinstance(found, Environment), "a tacit.core.world.Environment")
