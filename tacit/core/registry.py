"""Worlds, methods and engines by name: the house's own, those of installed packages (entry points), and the user's files.

A package offers its own by an entry point in its pyproject.toml:

    [project.entry-points."tacit.worlds"]
    chess = "chess_agent.world:ENVIRONMENT"
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tacit.core.errors import TacitError, told_of
from tacit.core.finding import find

NOWHERE = "<python>"
"""the place of what was given as an object and cannot be found again: `<python>:guess`"""


@dataclass(frozen=True)
class Registry:
    kind: str
    """what to call one of them: `world`"""
    group: str
    """of entry points: `tacit.worlds`"""
    own: Mapping[str, str]
    """name -> `module:attribute`, imported only when asked for"""
    fits: Callable[[Any], bool]
    must_be: str
    """what an object of the user's must be, where it does not fit"""
    lent: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """name -> what it stands for in this process: objects that a program of the user's handed in"""

    @cached_property
    def offered(self) -> Mapping[str, EntryPoint]:
        """What other packages bring. Nobody takes a name of the house's own."""
        return {point.name: point for point in entry_points(group=self.group) if point.name not in self.own}

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.own, *sorted(self.offered))

    def lend(self, name: str, found: Any) -> None:
        """From now on `name` means this very object here."""
        self.check(found)
        self.lent[name] = found

    def check(self, found: Any) -> None:
        """Refuse an object that is none of this kind."""
        if not self.fits(found):
            raise TacitError(f"{found!r} is no {self.kind}: it must be {self.must_be}, or a name.")

    def get(self, name: str) -> Any:
        if name in self.lent:
            return self.lent[name]
        if name.startswith(f"{NOWHERE}:"):
            raise TacitError(
                f"the {self.kind} {name.partition(':')[2]!r} was given as an object by a Python program and cannot be found by "
                f"name. Open the run there: tacit.open_run(PATH, {self.kind}=…); or define it in a module or a file."
            )
        if name in self.own:
            module, _, attribute = self.own[name].partition(":")
            return getattr(importlib.import_module(module), attribute)
        if name not in self.offered:
            return find(self.kind, name, self.names, self.fits, self.must_be)
        point = self.offered[name]
        try:
            found = point.load()
        except (Exception, SystemExit) as error:
            raise TacitError(f"cannot load the {self.kind} {name!r} of {_package(point)}: {told_of(error)}.") from error
        if not self.fits(found):
            raise TacitError(f"{name!r} of {_package(point)} ({point.value}) is no {self.kind}: it must be {self.must_be}.")
        return found


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an installed package"
