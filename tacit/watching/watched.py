"""A run that may not have begun, may be written to this moment, or may be gone by now. It is only ever read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.report.comparison_files import COMPARISON
from tacit.report.writing import neither
from tacit.runs.directory import NEWBORN, SETTINGS

READ = (
    "*.json",
    "*.jsonl",
    "evaluations/*.json",
    "trajectories/*.jsonl.gz",
    "checkpoints/*/state.json",
    "experience/bank.sqlite*",
)
"""what pages are made of"""


@dataclass(frozen=True)
class Watched:
    path: Path
    name: str
    """of the directory, and as much of what it lies in as tells it from the others"""

    @property
    def begun(self) -> bool:
        return (self.path / SETTINGS).is_file()

    def look(self) -> tuple[str, float | None]:
        """A stamp that changes with any file that pages are made of; and when one was last written, in seconds since 1970."""
        seen = sorted(_states(self.path))
        digest = hashlib.sha256(repr((self.path.is_dir(), seen)).encode()).hexdigest()[:16]
        return digest, max((written for _, _, written in seen), default=0) / 1e9 or None

    def absence(self) -> tuple[str, str]:
        """What to say where there is no run: (heading, sentence)."""
        if not self.path.is_dir():
            return "Not begun", f"There is no directory {self.path} yet, or no longer. The run is shown as soon as it begins."
        return "Beginning", f"{self.path} has no {SETTINGS} yet. The run is shown as soon as it has written what it was told."


def watched(paths: Sequence[Path]) -> list[Watched]:
    """One of each; what cannot become a run is refused."""
    places = list(dict.fromkeys(path.expanduser().absolute() for path in paths))
    for path in places:
        _check(path)
    return [Watched(path, name) for path, name in zip(places, _names(places), strict=True)]


def _check(path: Path) -> None:
    if (path / SETTINGS).is_file() or not path.exists():
        return
    if not path.is_dir():
        raise TacitError(f"{path} is a file; name the directory of a run (runs/NAME).")
    if (path / COMPARISON).is_file():
        runs = sorted(str(file.parent.relative_to(path)) for file in path.glob(f"runs/**/{SETTINGS}"))
        named = f" Name some of its runs instead: {', '.join(runs[:5])}." if runs else ""
        raise TacitError(f"{path} is a comparison; `tacit report {path}` shows it.{named}")
    if any(not own.name.endswith(".tmp") and own.name not in NEWBORN for own in path.iterdir()):
        raise neither(path)


def _names(places: Sequence[Path]) -> list[str]:
    """
    >>> _names([Path("/a/seed/0"), Path("/b/seed/0"), Path("/b/one")])
    ['a/seed/0', 'b/seed/0', 'one']
    """

    def ending(path: Path, depth: int) -> str:
        return "/".join(path.parts[-depth:])

    names = []
    for path in places:
        depths = range(1, len(path.parts) + 1)
        alone = (d for d in depths if [ending(other, d) for other in places].count(ending(path, d)) == 1)
        names.append(ending(path, next(alone, len(path.parts))))
    return names


def _states(path: Path) -> Iterator[tuple[str, int, int]]:
    for pattern in READ:
        for file in path.glob(pattern):
            try:
                state = file.stat()
            except OSError:  # replaced or cleared away this moment
                continue
            yield str(file.relative_to(path)), state.st_size, state.st_mtime_ns
