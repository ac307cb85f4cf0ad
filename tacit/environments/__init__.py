"""Worlds by name. A world is imported when it is asked for, so heavy ones cost nothing until then."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

from tacit.core.errors import TacitError, unknown
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
    place, _, attribute = name.rpartition(":")
    environment = getattr(_import(place), attribute, None)
    if not isinstance(environment, Environment):
        raise TacitError(f"{name!r} is not a tacit.core.world.Environment; export one under that name.")
    return environment


def _import(place: str):
    path = Path(place)
    try:
        if path.suffix != ".py":
            return importlib.import_module(place)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.exists():
            raise TacitError(f"there is no world file {place!r}.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    except ImportError as error:
        raise TacitError(f"cannot import the world {place!r}: {error}.") from error
