"""Worlds, methods and engines by name: built in, from installed packages (entry points), or from the user's files.

A package registers its own with an entry point in its pyproject.toml:

    [project.entry-points."tacit.worlds"]
    chess = "chess_agent.world:ENVIRONMENT"
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from tacit.core.errors import TacitError, describe_error, unknown
from tacit.core.trust import check_import


def path_from_env(variable: str, missing: str) -> Path:
    """The path in an environment variable. `missing` is the error message if it is unset."""
    value = os.environ.get(variable, "")
    if not value:
        raise TacitError(missing)
    return Path(value).expanduser()


def _import_file(kind: str, path: Path) -> ModuleType:
    """Import a file as a module named after it, with its folder on sys.path, so that worker processes can import it too."""
    path = path.resolve()
    if not path.exists():
        raise TacitError(f"the {kind} file {str(path)!r} does not exist.")
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
    if str(path.parent) not in sys.path:  # it may import files next to it
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


IN_MEMORY = "<python>"  # prefix of objects that exist only in this process: `<python>:guess`


@dataclass(frozen=True)
class Registry:
    kind: str  # in error messages: `world`
    group: str  # of entry points: `tacit.worlds`
    builtin: Mapping[str, str]  # name -> `module:attribute`, imported on first use
    fits: Callable[[Any], bool]  # whether an object is valid
    must_be: str  # description of a valid object, for error messages
    unlisted: str = "(?!)"  # pattern of built-in `module:attribute` names outside `builtin` that need no trust
    registered: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)  # name -> the user's object

    @cached_property
    def plugins(self) -> Mapping[str, EntryPoint]:
        """Entry points of other packages. Built-in names cannot be overridden."""
        return {point.name: point for point in entry_points(group=self.group) if point.name not in self.builtin}

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.builtin, *sorted(self.plugins))

    def register(self, name: str, value: Any) -> None:
        """Make `name` refer to this object in this process."""
        self.check(value)
        self.registered[name] = value

    def check(self, value: Any) -> None:
        if not self.fits(value):
            raise TacitError(f"{value!r} is not a valid {self.kind}: it must be {self.must_be}, or a name.")

    def get(self, name: str) -> Any:
        if name in self.registered:
            return self.registered[name]
        if name.startswith(f"{IN_MEMORY}:"):
            raise TacitError(
                f"the {self.kind} {name.partition(':')[2]!r} was passed as a Python object and cannot be found by name. Open "
                f"the run from Python: tacit.open_run(PATH, {self.kind}=…); or define it in a module or file."
            )
        if name in self.builtin:
            module, _, attribute = self.builtin[name].partition(":")
            return getattr(importlib.import_module(module), attribute)
        if name not in self.plugins:
            value, label = self._import(name), repr(name)
        else:
            point = self.plugins[name]
            package = point.dist.name if point.dist is not None else "an installed package"
            try:
                value, label = point.load(), f"{name!r} of {package} ({point.value})"
            except (Exception, SystemExit) as error:
                raise TacitError(f"cannot load the {self.kind} {name!r} of {package}: {describe_error(error)}.") from error
        if not self.fits(value):
            raise TacitError(f"{label} is not a valid {self.kind}: it must be {self.must_be}.")
        return value

    def file_hash(self, name: str) -> str:
        """`guess.py 3f2a91c04b7d`: file and hash of the imported module that defines the user's object; else empty."""
        base = name.partition("+")[0]
        source = (self.plugins[base].value if base in self.plugins else base).rpartition(":")[0]
        module = sys.modules.get(Path(source).stem if source.endswith(".py") else source)
        file = Path(getattr(module, "__file__", None) or "")
        if base in self.registered or not file.is_file():
            return ""
        return f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"

    def _import(self, name: str) -> Any:
        """The object `package.module:NAME` or `path/to/file.py:NAME`."""
        kind, (path, colon, attribute) = self.kind, name.rpartition(":")
        if not colon:
            if name.endswith(".py"):
                raise TacitError(f"{name!r} is a file; name the {kind} in it: {name}:NAME.")
            raise TacitError(f"{unknown(kind, name, self.names)} Your own: package.module:NAME or path/to/file.py:NAME.")
        if name not in self.builtin.values() and not re.fullmatch(self.unlisted, name):
            check_import(kind, name)
        try:
            module = _import_file(kind, Path(path).expanduser()) if path.endswith(".py") else importlib.import_module(path)
        except TacitError:
            raise
        except (Exception, SystemExit) as error:  # a script may call sys.exit()
            reason = str(error) if isinstance(error, ImportError | SyntaxError) else describe_error(error)
            raise TacitError(f"cannot import the {kind} {name!r}: {reason}.") from error
        if not hasattr(module, attribute):
            valid = [key for key, value in vars(module).items() if not key.startswith("_") and self.fits(value)]
            has = f"{path} has {', '.join(valid) or f'no {kind}'}"
            raise TacitError(f"cannot import the {kind} {name!r}: {has}, not {attribute!r}.")
        return getattr(module, attribute)
