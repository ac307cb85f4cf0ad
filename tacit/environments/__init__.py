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
    try:
        return _import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except (ImportError, ValueError) as error:
        raise TacitError(f"cannot import the world {place!r}: {error}.") from error


def _import_file(path: Path):
    """A user's file as a module under its own name, with its folder on the path: worker processes find it the same way."""
    path = path.resolve()
    if not path.exists():
        raise TacitError(f"there is no world file {str(path)!r}.")
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None:
        if Path(getattr(loaded, "__file__", None) or "").resolve() == path:
            return loaded
        raise TacitError(f"the world file {str(path)!r} has the name of another module, {name!r}; rename it.")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    return module
