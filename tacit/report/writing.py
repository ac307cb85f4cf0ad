"""`report.html` of a directory that holds a run or a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.report.comparison_page import comparison_page
from tacit.report.run_files import COMPARISON, read_comparison
from tacit.report.run_page import run_page
from tacit.report.viewer import MOST_TRAJECTORIES
from tacit.runs.directory import SETTINGS, find_runs
from tacit.runs.files import write_text

PAGE = "report.html"


def write_report(path: Path, out: Path, most_trajectories: int = MOST_TRAJECTORIES, runs: bool = False) -> Iterator[Path]:
    """The pages, as they are written; with `runs`, first those of a comparison's runs, so that its own can lead to them."""
    if most_trajectories < 0:
        raise TacitError(f"--trajectories must not be negative, and is {most_trajectories}.")
    if not (path / SETTINGS).is_file() and not (path / COMPARISON).is_file():
        raise neither(path)
    if not out.parent.is_dir():
        raise TacitError(f"there is no directory {out.parent} to write {out.name} to; make it, or name another --out.")
    if runs and not (path / COMPARISON).is_file():
        raise TacitError(f"--runs is for comparisons, and {path} has no {COMPARISON}.")
    if runs:
        found = read_comparison(path)
        for place in [place for cell in found.cells if ((place := found.place(cell)) / SETTINGS).is_file()]:
            yield from write_report(place, place / PAGE, most_trajectories)
    a_run = (path / SETTINGS).is_file()
    write_text(out, run_page(path, most_trajectories) if a_run else comparison_page(path, most_trajectories, out.parent))
    yield out


def neither(path: Path) -> TacitError:
    if path.is_file():
        return TacitError(f"{path} is a file; name a run (runs/NAME) or the directory of a comparison.")
    if not path.is_dir():
        return TacitError(f"there is no directory {path}; name a run (runs/NAME) or the directory of a comparison.")
    inside = find_runs(path)
    hint = f"It holds runs, though: {', '.join(inside)}; name one of them." if inside else "`tacit train` makes runs."
    return TacitError(f"{path} is neither a run nor a comparison: it has no {SETTINGS} and no {COMPARISON}. {hint}")
