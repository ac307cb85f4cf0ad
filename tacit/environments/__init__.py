"""Worlds by name. A world is imported when it is asked for, so heavy ones cost nothing until then."""

from __future__ import annotations

import importlib

from tacit.core.errors import TacitError, unknown
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
    if ":" not in name:
        raise unknown("world", name, WORLDS)
    environment = find("world", name)
    if not isinstance(environment, Environment):
        raise TacitError(f"{name!r} is not a tacit.core.world.Environment; export one under that name.")
    return environment
