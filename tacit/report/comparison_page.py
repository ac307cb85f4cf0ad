"""The page of a comparison."""

from __future__ import annotations

import shlex
from pathlib import Path

from tacit.report.comparison_episodes import comparison_viewer
from tacit.report.comparison_files import Comparison, read_comparison
from tacit.report.comparison_parts import link, missing, world_parts
from tacit.report.page import render
from tacit.report.provenance import CODE, made_by
from tacit.report.run_files import table_of
from tacit.report.viewer import MOST_TRAJECTORIES


def comparison_page(path: Path, most_trajectories: int = MOST_TRAJECTORIES, beside: Path | None = None) -> str:
    """HTML of the comparison in `path`; `beside` is the directory the page will lie in, from which its links lead."""
    found = read_comparison(path)
    notices = [*found.notices, *missing(found)]
    parts = {
        "worlds": [world_parts(found, world, notices) for world in found.worlds],
        "shown": comparison_viewer(found, most_trajectories, notices),
        "runs": [(cell, link(found, cell, beside or path)) for cell in found.cells],
        "compared": _compared(found),
        "description": str(found.found.get("description") or "").strip(),
    }
    finished, planned = sum(cell["status"] == "finished" for cell in found.cells), len(found.cells)
    headline = [
        ("methods", len(found.methods), f"against {found.baseline}"),
        ("worlds", len(found.worlds), ""),
        ("seeds", len(found.seeds), ", ".join(found.seeds)),
        ("runs finished", f"{finished} / {planned}", ""),
    ]
    name, what = str(found.found.get("name") or path.resolve().name), f"{', '.join(found.methods)} in {', '.join(found.worlds)}"
    done = ("complete", finished == planned)
    return render("comparison", notices, name=name, what=what, done=done, headline=headline, found=found, **parts)


def _compared(found: Comparison) -> list[tuple[str, str]]:
    said = found.found
    rows: list[tuple[str, str]] = [("file", CODE.format(said.get("file") or "?"))]
    if isinstance(said.get("command"), list):
        rows.append(("command", CODE.format(shlex.join(map(str, said["command"])))))
    rows += [("directory", CODE.format(found.path)), *made_by(table_of(said.get("versions")))]
    for world, start in table_of(said.get("starts")).items():
        of = table_of(start)
        rows.append((f"start in {world}", f"{of.get('checkpoint') or 'none'}, seed {of.get('seed')}: {of.get('run')}"))
    return rows
