"""Things of the user's own, named on the command line: `package.module:NAME` or `path/to/file.py:NAME`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tacit.core.errors import TacitError


def find(kind: str, name: str) -> Any:
    """The object `name` means; `kind` is what to call it when it cannot be had."""
    place, _, attribute = name.rpartition(":")
    try:
        module = _import_file(kind, Path(place)) if place.endswith(".py") else importlib.import_module(place)
        return getattr(module, attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise TacitError(f"cannot import the {kind} {name!r}: {error}.") from error


def _import_file(kind: str, path: Path) -> ModuleType:
    """A user's file as a module under its own name, with its folder on the path: worker processes find it the same way."""
    path = path.resolve()
    if not path.exists():
        raise TacitError(f"there is no {kind} file {str(path)!r}.")
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None:
        if Path(getattr(loaded, "__file__", None) or "").resolve() == path:
            return loaded
        raise TacitError(f"the {kind} file {str(path)!r} has the name of another module, {name!r}; rename it.")
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
