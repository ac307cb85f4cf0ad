"""Things of the user's own, named on the command line (`package.module:NAME` or `path/to/file.py:NAME`), and files of theirs,
named by an environment variable."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from tacit.core.errors import TacitError, told_of, unknown


def path_named_by(variable: str, missing: str) -> Path:
    """Where the user's files lie. Where the variable names nothing, `missing` is said: what is not there, and what to set."""
    value = os.environ.get(variable, "")
    if not value:
        raise TacitError(missing)
    return Path(value).expanduser()


def find(kind: str, name: str, known: Iterable[str], fits: Callable[[Any], bool], must_be: str) -> Any:
    """The object `name` means. `kind` is what to call it when it cannot be had, `known` the names that need no place; what does
    not fit is refused as not being what it `must_be`."""
    place, colon, attribute = name.rpartition(":")
    if not colon:
        if name.endswith(".py"):
            raise TacitError(f"{name!r} is a file; say which {kind} in it: {name}:NAME.")
        raise TacitError(f"{unknown(kind, name, known)} Your own: package.module:NAME or path/to/file.py:NAME.")
    try:
        module = _import_file(kind, Path(place).expanduser()) if place.endswith(".py") else importlib.import_module(place)
    except TacitError:
        raise
    except (Exception, SystemExit) as error:  # a script that ends itself is no module
        raise TacitError(f"cannot import the {kind} {name!r}: {_told(error)}.") from error
    if not hasattr(module, attribute):
        there = [own for own, value in vars(module).items() if not own.startswith("_") and fits(value)]
        raise TacitError(
            f"cannot import the {kind} {name!r}: {place} has {', '.join(there) or f'no {kind}'}, not {attribute!r}."
        )
    found = getattr(module, attribute)
    if not fits(found):
        raise TacitError(f"{name!r} is no {kind}: it must be {must_be}.")
    return found


def _told(error: BaseException) -> str:
    """The error, and where in the user's code it came up; an import that failed says enough by itself."""
    if isinstance(error, ImportError | SyntaxError):
        return str(error)
    return told_of(error)


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
    if str(path.parent) not in sys.path:  # before it runs: it may import the file beside it
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
