"""Write `report.html` for a run or a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.report.comparison_page import render_comparison
from tacit.report.run_files import COMPARISON, read_comparison
from tacit.report.run_page import render_run
from tacit.report.viewer import MAX_TRAJECTORIES
from tacit.runs.directory import SETTINGS, find_runs
from tacit.runs.files import write_text

PAGE = "report.html"


def write_report(path: Path, out: Path, most_trajectories: int = MAX_TRAJECTORIES, runs: bool = False) -> Iterator[Path]:
    """Yield each page after writing it. With `runs`, write the pages of a comparison's runs first, so that it can link them."""
    if most_trajectories < 0:
        raise TacitError(f"--trajectories must not be negative, but is {most_trajectories}.")
    if not (path / SETTINGS).is_file() and not (path / COMPARISON).is_file():
        raise make_missing_error(path)
    if not out.parent.is_dir():
        raise TacitError(f"there is no directory {out.parent} to write {out.name} to; create it, or choose another --out.")
    if runs and not (path / COMPARISON).is_file():
        raise TacitError(f"--runs is for comparisons, but {path} has no {COMPARISON}.")
    if runs:
        found = read_comparison(path)
        for cell in found.cells:
            run = found.run_directory(cell)
            if (run / SETTINGS).is_file():
                yield from write_report(run, run / PAGE, most_trajectories)
    is_run = (path / SETTINGS).is_file()
    write_text(out, render_run(path, most_trajectories) if is_run else render_comparison(path, most_trajectories, out.parent))
    yield out


def make_missing_error(path: Path) -> TacitError:
    if path.is_file():
        return TacitError(f"{path} is a file; name a run (runs/NAME) or the directory of a comparison.")
    if not path.is_dir():
        return TacitError(f"there is no directory {path}; name a run (runs/NAME) or the directory of a comparison.")
    inside = find_runs(path)
    hint = f"It contains runs: {', '.join(inside)}; name one of them." if inside else "`tacit train` creates runs."
    return TacitError(f"{path} is neither a run nor a comparison: it has no {SETTINGS} and no {COMPARISON}. {hint}")
