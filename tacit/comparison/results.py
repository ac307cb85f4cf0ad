"""Run a comparison, and write comparison.json, table.md and table.csv from the runs so far."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tacit.comparison.pages import csv_text, draw, markdown
from tacit.comparison.plan import START, Plan, PlannedRun, make_grids
from tacit.comparison.run import LOG, Processes, RunEvent, failure_of, run_cells, status_of
from tacit.core.errors import TacitError
from tacit.evaluation.statistics import (
    area,
    bounded_interval,
    crossed_bootstrap,
    effective_episodes,
    holm,
    mcnemar,
    median_steps_to,
    paired_interval_over_tasks,
    share_interval,
    sign_flip,
    steps_to,
    t_interval,
)
from tacit.runs.directory import open_checkpoints, read_summary, versions
from tacit.runs.files import write_json, write_text
from tacit.runs.metrics import read_metrics

# Reading runs: one dict per cell, as in comparison.json.

Found = dict[str, Any]
METRICS = "metrics.jsonl"
FROM_SUMMARY = ("iterations", "episodes", "turns", "generated_tokens", "wall_s", "digest")


def read_cell(cell: PlannedRun, plan: Plan, directory: Path, started: Found | None) -> Found:
    """`started`: the cell of the shared start, if there is one."""
    path = directory / cell.place
    status = status_of(path, cell.iterations)
    finished = status == "finished"
    summary = read_summary(path) if finished else {}
    evaluations = _evaluations(path, status)
    practised = [e for e in evaluations if e["stage"] == "rl"]
    before = [e for e in evaluations if e["stage"] != "rl"]
    # A run's own first evaluation, or the shared start's last.
    start = before[-1] if before else started["evaluation"] if started else None
    start = start if cell.learns else None
    final = evaluations[-1] if finished and evaluations else None
    points = ([{**start, "step": 0}] if start else []) + practised
    curve = [(p["step"], p["success"]) for p in points]
    return {
        "world": cell.world,
        "method": cell.method,
        "seed": cell.seed,
        "run": cell.place.as_posix(),
        "status": status,
        "error": failure_of(path),
        "command": _command(path),
        "settings": cell.with_start(directory),
        "versions": _versions(path),
        "evaluations": evaluations,
        "start": start,
        "final": final,
        "peak": max(practised or evaluations, key=lambda e: e["success"]) if final and cell.learns else None,
        "further": _further(summary.get("further", ()), start, final),
        "curve": [{"step": p["step"], "success": p["success"], "score": p["score"]} for p in points],
        "practice": _rl_metrics(path, plan.metrics) if finished else {},
        "steps_to": [{"threshold": t, "step": steps_to(curve, t)} for t in plan.thresholds],
        "area": area(curve),
        "outcomes": _outcomes(final) if final else None,
        **{name: summary.get(name) for name in FROM_SUMMARY},
    }


def check_same_panel(world: str, measured: dict[str, Found]) -> Found | None:
    """The panel shared by all evaluations of a world; raises if there are two."""
    first: tuple[str, Found] | None = None
    for run, evaluation in measured.items():
        if first is None:
            first = run, evaluation
            continue
        other, one = first
        for key, what in (("panel_hash", "panels"), ("episodes", "numbers of episodes"), ("sampling", "ways of sampling")):
            if one[key] != evaluation[key]:
                raise TacitError(
                    f"world {world!r} was measured on two different {what}, which do not belong in one table: {one['panel']} "
                    f"with {key} {one[key]} in {other}, and {evaluation['panel']} with {key} {evaluation[key]} in {run}. Move "
                    "the runs made under the old conditions away and compare again."
                )
    if first is None:
        return None
    return {"name": first[1]["panel"], "hash": first[1]["panel_hash"], "episodes": first[1]["episodes"]}


def _evaluations(path: Path, status: str) -> list[Found]:
    if status == "finished":
        return read_summary(path)["evaluations"]
    newest = open_checkpoints(path).newest()
    return newest.state()["evaluations"] if newest else []


def _rl_metrics(path: Path, names: Sequence[str]) -> dict[str, list[list[float]]]:
    """metric -> [iteration, value] of RL"""
    told = [record for record in read_metrics(path / METRICS) if record["stage"] == "rl"] if names else []
    return {name: [[r["step"], r[name]] for r in told if r.get(name) is not None] for name in names}


def _further(measured: Sequence[Found], start: Found | None, final: Found | None) -> dict[str, Found]:
    """By panel: evaluations at the start and the end of RL."""
    found: dict[str, Found] = {}
    for evaluation in measured:
        panel = found.setdefault(evaluation["panel"], {"start": None, "final": None})
        for name, own in (("start", start), ("final", final)):
            if own is not None and (own["stage"], own["step"]) == (evaluation["stage"], evaluation["step"]):
                panel[name] = evaluation
    return found


def _outcomes(final: Found) -> list[bool] | None:
    """Successes in panel order, repeat after repeat; None for runs of older versions."""
    outcomes = [digit == "1" for repeat in final.get("outcomes", ()) for digit in repeat]
    return outcomes if len(outcomes) == final["episodes"] else None


def _versions(path: Path) -> Found | None:
    try:
        return json.loads((path / "versions.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _command(path: Path) -> list[str] | None:
    """The first command in the run's log; later ones resumed it."""
    try:
        with (path / LOG).open(encoding="utf-8", errors="replace") as file:
            return file.readline().removeprefix("$ ").split()
    except OSError:
        return None


# The table: each method over its seeds, and against the first method.

CONFIDENCE = 0.95
UNIT = (0.0, 1.0)


def make_table(
    cells: Sequence[Found], worlds: Sequence[str], methods: Sequence[str], thresholds: Sequence[float]
) -> list[Found]:
    """One row per world and method. p-values are Holm-corrected over all rows."""
    rows = []
    for world in worlds:
        first = _finished(cells, world, methods[0])
        for method in methods:
            row = _row(cells, world, method, thresholds)
            row["against"] = None if method == methods[0] else _against(_finished(cells, world, method), first, methods[0])
            rows.append(row)
    for name in ("p", "p_seeds"):
        asked = [row["against"] for row in rows if row["against"] and row["against"][name] is not None]
        for against, corrected in zip(asked, holm([a[name] for a in asked]), strict=True):
            against[f"{name}_holm"] = corrected
    return rows


def _row(cells: Sequence[Found], world: str, method: str, thresholds: Sequence[float]) -> Found:
    planned = [c for c in cells if (c["world"], c["method"]) == (world, method)]
    done = _finished(cells, world, method)
    finals = [c["final"] for c in done]
    steps = [[reached["step"] for reached in c["steps_to"]] for c in done if c["curve"]]
    return {
        "world": world,
        "method": method,
        "seeds": [c["seed"] for c in done],
        "missing": [c["seed"] for c in planned if c not in done],
        "start": _share([c["start"] for c in done]),
        "final": _share(finals),
        "peak": _share([c["peak"] for c in done]),
        "further": {
            panel: {end: _share([c["further"].get(panel, {}).get(end) for c in done]) for end in ("start", "final")}
            for panel in dict.fromkeys(panel for c in done for panel in c["further"])
        },
        "score": _mean([e["score"] for e in finals], UNIT),
        "success_length": _mean([e["success_steps"] if e["successes"] else None for e in finals], (0.0, math.inf)),
        "invalid": _mean([e["invalid"] for e in finals], UNIT),
        "ineffective": _mean([e["ineffective"] for e in finals], UNIT),
        "area": _mean([c["area"] for c in done], UNIT),
        "bootstrap": _bootstrap(done),
        "steps_to": [
            {
                "threshold": threshold,
                "reached": sum(s[i] is not None for s in steps),
                "of": len(steps),
                "median": median_steps_to([s[i] for s in steps]),
            }
            for i, threshold in enumerate(thresholds)
        ],
        "against": None,
    }


def _against(ours: Sequence[Found], theirs: Sequence[Found], name: str) -> Found | None:
    """Paired by seed and episode: both methods play the same tasks with the same seeds."""
    by_seed = {c["seed"]: c for c in theirs}
    pairs = [(c, by_seed[c["seed"]]) for c in ours if c["seed"] in by_seed]
    if not pairs:
        return None
    differences = [a["final"]["success"] - b["final"]["success"] for a, b in pairs]
    difference = _mean(differences, (-1.0, 1.0)) or {}
    won = lost = p = None
    ours_T, theirs_T = (_outcomes_by_task([c["final"] for c in side]) for side in zip(*pairs, strict=True))
    if ours_T is not None and theirs_T is not None:
        won, lost, p = mcnemar(*([x for own in tries for x in own] for tries in (ours_T, theirs_T)))
        # At least as wide as the interval over tasks.
        gaps_T = [[x - y for x, y in zip(*both, strict=True)] for both in zip(ours_T, theirs_T, strict=True)]
        low, high = paired_interval_over_tasks(gaps_T, CONFIDENCE)
        ends = {"low": (min, low), "high": (max, high)}
        difference |= {k: v if difference[k] is None else widest(difference[k], v) for k, (widest, v) in ends.items()}
    return {
        "method": name,
        "seeds": [a["seed"] for a, _ in pairs],
        "difference": difference,
        "won": won,
        "lost": lost,
        "p": p,
        "p_holm": None,
        "p_seeds": sign_flip(differences) if len(differences) > 1 else None,
        "p_seeds_holm": None,
    }


def _finished(cells: Sequence[Found], world: str, method: str) -> list[Found]:
    return [c for c in cells if (c["world"], c["method"]) == (world, method) and c["final"] is not None]


def _share(evaluations: Sequence[Found | None]) -> Found | None:
    there = [e for e in evaluations if e is not None]
    if not there or len(there) < len(evaluations):
        return None
    # Seeds that share one evaluated start have one measurement, not several.
    once = list({id(e): e for e in there}.values())
    shares, tries_T = [e["success"] for e in once], _outcomes_by_task(once)
    p, episodes = float(np.mean(shares)), float(once[0]["episodes"])  # where tasks cannot be told apart, one seed's
    if tries_T is not None:
        episodes = effective_episodes([sum(own) / len(own) for own in tries_T], p * (1 - p), sum(map(len, tries_T)))
    low, high = share_interval(shares, episodes, CONFIDENCE)
    per_seed = [e["success"] for e in there]
    return {"mean": float(np.mean(per_seed)), "low": low, "high": high, "per_seed": per_seed}


def _outcomes_by_task(evaluations: Sequence[Found]) -> list[list[bool]] | None:
    """Each task's outcomes over seeds and repeats; None if a run has none."""
    rows = [repeat for e in evaluations for repeat in e.get("outcomes", ())]
    if sum(map(len, rows)) != sum(e["episodes"] for e in evaluations):
        return None
    return [[digit == "1" for digit in task] for task in zip(*rows, strict=True)]


def _mean(values: Sequence[float | None], bounds: tuple[float, float]) -> Found | None:
    """Mean with the interval over seeds; no interval if all values are equal."""
    there = [v for v in values if v is not None]
    if not there:
        return None
    low, high = _over_seeds(there, bounds) if len(set(there)) > 1 else (None, None)
    return {"mean": float(np.mean(there)), "low": low, "high": high, "per_seed": list(values)}


def _over_seeds(values: Sequence[float], bounds: tuple[float, float]) -> tuple[float, float]:
    """The t interval, clipped to the bounds unless a score leaves them."""
    if min(values) < bounds[0] or max(values) > bounds[1]:
        return t_interval(values, CONFIDENCE)
    if bounds == UNIT:
        return bounded_interval(values, CONFIDENCE)
    low, high = t_interval(values, CONFIDENCE)
    return max(bounds[0], low), min(bounds[1], high)


def _bootstrap(done: Sequence[Found]) -> Found | None:
    outcomes = [c["outcomes"] for c in done]
    if not outcomes or any(o is None or len(o) != len(outcomes[0]) for o in outcomes):
        return None
    low, high = crossed_bootstrap(np.array(outcomes, float), CONFIDENCE, resamples=2000)
    return {"low": low, "high": high}


FORMAT = 1


class Results:
    """The state of a comparison. Finished cells are read once."""

    def __init__(self, plan: Plan, directory: Path, file: str, command: Sequence[str]) -> None:
        self.plan, self.directory, self.file, self.command = plan, directory, file, list(command)
        self._versions = versions()
        self._finished: dict[Path, Found] = {}

    def run_cells(
        self, wanted: Sequence[PlannedRun], processes: Processes, tell: Callable[[RunEvent], None]
    ) -> tuple[list[PlannedRun], Found, list[Path]]:
        """Run the wanted cells and rewrite all files whenever one ends. Returns (failed runs, data, plots)."""

        def heard(event: RunEvent) -> None:
            if event.kind in ("finished", "failed"):
                self.write()
            tell(event)

        self.gather()  # what is there already must fit in one table before more is added to it
        try:
            failed = run_cells(self.plan, wanted, self.directory, processes, heard)
        except KeyboardInterrupt:
            self.write()
            raise
        found = self.write()
        return failed, found, draw(found, self.directory / "plots")

    def gather(self) -> Found:
        """All data in the layout of comparison.json (docs/reference/comparison.md)."""
        plan = self.plan
        starts = {start.world: self._read(start, None) for start in plan.starts}
        order = {(cell.world, cell.method, cell.seed): cell for cell in plan.cells}
        places = product(plan.worlds, plan.methods, plan.seeds)
        cells = [self._read(order[place], starts.get(place[0])) for place in places]
        panels = {world: check_same_panel(world, _measured(world, cells, starts)) for world in plan.worlds}
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

    def _read(self, run: PlannedRun, started: Found | None) -> Found:
        if run.place in self._finished:
            return self._finished[run.place]
        if run.method == START:
            path = self.directory / run.place
            evaluations = _evaluations(path, status_of(path, run.iterations))
            newest = open_checkpoints(path).newest()
            found = {
                "run": run.place.as_posix(),
                "status": status_of(path, run.iterations),
                "error": failure_of(path),
                "command": _command(path),
                "seed": run.seed,
                "checkpoint": newest.path.name if newest else None,
                "evaluation": evaluations[-1] if evaluations else None,
            }
        else:
            found = read_cell(run, self.plan, self.directory, started)
        if found["status"] == "finished":
            self._finished[run.place] = found
        return found


def _measured(world: str, cells: Sequence[Found], starts: dict[str, Found]) -> dict[str, Found]:
    """Each run's newest evaluation."""
    measured = {c["run"]: c["evaluations"][-1] for c in cells if c["world"] == world and c["evaluations"]}
    start = starts.get(world)
    return measured | ({start["run"]: start["evaluation"]} if start and start["evaluation"] else {})


def _further_panels(world: str, cells: Sequence[Found]) -> list[str]:
    """Further panels of a world; raises if one name has two hashes."""
    names = list(dict.fromkeys(panel for c in cells if c["world"] == world for panel in c["further"]))
    for name in names:
        own = {c["run"]: c["further"].get(name, {}).get("final") for c in cells if c["world"] == world}
        check_same_panel(world, {run: evaluation for run, evaluation in own.items() if evaluation})
    return names


def _version_notes(cells: Sequence[Found]) -> list[str]:
    """Notes about cells made by different code versions."""
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
