"""What a comparison comes to: its runs done, and comparison.json, table.md and table.csv from them as far as they have come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from tacit.comparison.carry_out import Happening, carry_out
from tacit.comparison.collect import check_alike, read_cell, read_start
from tacit.comparison.grid import make_grids
from tacit.comparison.pages import csv_text, markdown
from tacit.comparison.plan import START, Plan, Planned
from tacit.comparison.plots import draw
from tacit.comparison.processes import Processes
from tacit.comparison.table import CONFIDENCE, make_table
from tacit.runs.directory import versions
from tacit.runs.files import write_json, write_text

FORMAT = 1
Found = dict[str, Any]


class Results:
    """What is known of a comparison. Finished cells are read once."""

    def __init__(self, plan: Plan, directory: Path, file: str, command: Sequence[str]) -> None:
        self.plan, self.directory, self.file, self.command = plan, directory, file, list(command)
        self._versions = versions()
        self._finished: dict[Path, Found] = {}

    def carry_out(
        self, wanted: Sequence[Planned], processes: Processes, tell: Callable[[Happening], None]
    ) -> tuple[list[Planned], Found, list[Path]]:
        """Do the wanted runs, with everything written anew whenever one ends: (those that failed, all that is known, plots)."""

        def heard(event: Happening) -> None:
            if event.kind in ("finished", "failed"):
                self.write()
            tell(event)

        self.gather()  # what is there already must fit in one table before more is added to it
        try:
            failed = carry_out(self.plan, wanted, self.directory, processes, heard)
        except KeyboardInterrupt:
            self.write()
            raise
        found = self.write()
        return failed, found, draw(found, self.directory / "plots")

    def gather(self) -> Found:
        """Everything, in the layout of comparison.json (see `tacit.comparison`)."""
        plan = self.plan
        starts = {start.world: self._read(start, None) for start in plan.starts}
        order = {(cell.world, cell.method, cell.seed): cell for cell in plan.cells}
        places = product(plan.worlds, plan.methods, plan.seeds)
        cells = [self._read(order[place], starts.get(place[0])) for place in places]
        panels = {world: check_alike(world, _measured(world, cells, starts)) for world in plan.worlds}
        further = {world: _further_panels(world, cells) for world in plan.worlds}
        table = make_table(cells, plan.worlds, plan.methods, plan.thresholds)
        return {
            "format": FORMAT,
            "name": plan.name,
            "description": plan.description,
            "file": self.file,
            "command": self.command,
            "versions": self._versions,
            "seeds": list(plan.seeds),
            "worlds": list(plan.worlds),
            "methods": list(plan.methods),
            "baseline": plan.baseline,
            "thresholds": list(plan.thresholds),
            "metrics": list(plan.metrics),
            "confidence": CONFIDENCE,
            "complete": all(cell["status"] == "finished" for cell in cells),
            "notes": [*plan.notes, *_version_notes(cells)],
            "differences": {world: [asdict(each) for each in own] for world, own in plan.differences.items()},
            "panels": {world: panel for world, panel in panels.items() if panel is not None},
            "further": further,
            "starts": starts,
            "cells": cells,
            "table": table,
            "grids": {
                world: make_grids(plan.grid, [row for row in table if row["world"] == world], [panel["name"], *further[world]])
                for world, panel in panels.items()
                if panel is not None
            },
        }

    def write(self) -> Found:
        found = self.gather()
        self.directory.mkdir(parents=True, exist_ok=True)
        write_json(self.directory / "comparison.json", found)
        write_text(self.directory / "table.md", markdown(found))
        write_text(self.directory / "table.csv", csv_text(found))
        return found

    def _read(self, run: Planned, started: Found | None) -> Found:
        if run.place in self._finished:
            return self._finished[run.place]
        if run.method == START:
            found = read_start(run, self.directory)
        else:
            found = read_cell(run, self.plan, self.directory, started)
        if found["status"] == "finished":
            self._finished[run.place] = found
        return found


def _measured(world: str, cells: Sequence[Found], starts: dict[str, Found]) -> dict[str, Found]:
    """Each run's newest evaluation, by the run: all evaluations of a run are on the same panel."""
    measured = {c["run"]: c["evaluations"][-1] for c in cells if c["world"] == world and c["evaluations"]}
    start = starts.get(world)
    return measured | ({start["run"]: start["evaluation"]} if start and start["evaluation"] else {})


def _further_panels(world: str, cells: Sequence[Found]) -> list[str]:
    """Those that runs of the world were measured on after their last stage; refused where one name is two panels."""
    names = list(dict.fromkeys(panel for c in cells if c["world"] == world for panel in c["further"]))
    for name in names:
        own = {c["run"]: c["further"].get(name, {}).get("final") for c in cells if c["world"] == world}
        check_alike(world, {run: evaluation for run, evaluation in own.items() if evaluation})
    return names


def _version_notes(cells: Sequence[Found]) -> list[str]:
    """Cells made by different code may differ for that reason alone."""
    made: dict[str, list[str]] = {}
    for cell in cells:
        if cell["versions"]:
            git = cell["versions"].get("git") or {}
            changed = " with changes" if git.get("changed") else ""
            made.setdefault(f"tacit {cell['versions']['tacit']} {git.get('commit', '')[:10]}{changed}".strip(), []).append(
                f"{cell['world']}/{cell['method']}/{cell['seed']}"
            )
    if len(made) < 2:
        return []
    shown = "; ".join(f"{version}: {len(runs)} runs, the first {runs[0]}" for version, runs in made.items())
    return [f"the runs were made by different versions of the code ({shown})."]
