"""Run a comparison, and write comparison.json, table.md and table.csv from the runs so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tacit.comparison.pages import csv_text, draw, markdown
from tacit.comparison.plan import START, Plan, PlannedRun
from tacit.comparison.run import LOG, Processes, RunEvent, failure_of, run_cells, status_of
from tacit.core.errors import TacitError
from tacit.core.files import read_json
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
from tacit.runs.directory import open_checkpoints, read_metrics, read_summary, versions
from tacit.runs.files import write_json, write_text

Record = dict[str, Any]  # a part of comparison.json
FORMAT = 1
CONFIDENCE = 0.95
UNIT_RANGE = (0.0, 1.0)
FROM_SUMMARY = ("iterations", "episodes", "turns", "generated_tokens", "wall_s", "digest")

# Reading runs: one dict per cell, as in comparison.json.


def read_cell(cell: PlannedRun, plan: Plan, directory: Path, started: Record | None) -> Record:
    """The data of a run, in the layout of comparison.json. `started`: the cell of the shared start, if the world has one."""
    path = directory / cell.subdirectory
    common = _read_run(cell, path)
    evaluations, finished = common["evaluations"], common["status"] == "finished"
    summary = read_summary(path) if finished else {}
    during_rl = [e for e in evaluations if e["stage"] == "rl"]
    before = [e for e in evaluations if e["stage"] != "rl"]
    # A run's own first evaluation, or the shared start's last.
    start = (before[-1] if before else started["evaluation"] if started else None) if cell.learns else None
    final = evaluations[-1] if finished and evaluations else None
    points = ([{**start, "step": 0}] if start else []) + during_rl
    curve = [(p["step"], p["success"]) for p in points]
    further: dict[str, Record] = {}
    for evaluation in summary.get("further", ()):
        panel = further.setdefault(evaluation["panel"], {"start": None, "final": None})
        for name, own in (("start", start), ("final", final)):
            if own is not None and (own["stage"], own["step"]) == (evaluation["stage"], evaluation["step"]):
                panel[name] = evaluation
    records = [r for r in read_metrics(path / "metrics.jsonl") if r["stage"] == "rl"] if finished and plan.metrics else []
    outcomes = [digit == "1" for repeat in (final or {}).get("outcomes", ()) for digit in repeat]
    try:
        code_versions = read_json(path / "versions.json")
    except (OSError, ValueError):
        code_versions = None
    return {
        "world": cell.world,
        "method": cell.method,
        **common,
        "settings": cell.with_start(directory),
        "versions": code_versions,
        "start": start,
        "final": final,
        "peak": max(during_rl or evaluations, key=lambda e: e["success"]) if final and cell.learns else None,
        "further": further,
        "curve": [{"step": p["step"], "success": p["success"], "score": p["score"]} for p in points],
        "practice": {n: [[r["step"], r[n]] for r in records if r.get(n) is not None] for n in plan.metrics} if finished else {},
        "steps_to": [{"threshold": t, "step": steps_to(curve, t)} for t in plan.thresholds],
        "area": area(curve),
        # successes in panel order, repeat after repeat
        "outcomes": outcomes if final and len(outcomes) == final["episodes"] else None,
        **{name: summary.get(name) for name in FROM_SUMMARY},
    }


def _read_run(run: PlannedRun, path: Path) -> Record:
    status = status_of(path, run.iterations)
    if status == "finished":
        evaluations = read_summary(path)["evaluations"]
    else:
        newest = open_checkpoints(path).newest()
        evaluations = newest.state()["evaluations"] if newest else []
    try:
        with (path / LOG).open(encoding="utf-8", errors="replace") as file:
            command = file.readline().removeprefix("$ ").split()  # the first command; later ones resumed the run
    except OSError:
        command = None
    return {
        "seed": run.seed,
        "run": run.subdirectory.as_posix(),
        "status": status,
        "error": failure_of(path),
        "command": command,
        "evaluations": evaluations,
    }


def check_same_panel(world: str, measured: dict[str, Record]) -> Record | None:
    """The panel shared by all evaluations of a world; raises if there are two."""
    if not measured:
        return None
    (other, one), *rest = measured.items()
    for run, evaluation in rest:
        for key, what in (("panel_hash", "panels"), ("episodes", "numbers of episodes"), ("sampling", "ways of sampling")):
            if one[key] != evaluation[key]:
                raise TacitError(
                    f"world {world!r} was evaluated on two different {what}, which cannot share a table: {one['panel']} "
                    f"with {key} {one[key]} in {other}, and {evaluation['panel']} with {key} {evaluation[key]} in {run}. Move "
                    "the runs made with the old settings away and compare again."
                )
    return {"name": one["panel"], "hash": one["panel_hash"], "episodes": one["episodes"]}


# The table: each method over its seeds, and against the first method.


def last_evaluations(evaluations: Sequence[Record], count: int) -> list[Record]:
    """The evaluations whose mean is a run's outcome: the last `count` in RL, or the very last if RL has none."""
    return [e for e in evaluations if e["stage"] == "rl"][-count:] or list(evaluations[-1:])


def mean_success(evaluations: Sequence[Record]) -> float:
    return float(np.mean([e["success"] for e in evaluations]))


def compare_runs(ours: Sequence[Sequence[Record]], theirs: Sequence[Sequence[Record]]) -> Record:
    """Compare two methods by the evaluations of their runs, paired by seed and task: both play the same tasks with the same
    seeds.

    The outcome of a run is its mean success over its evaluations. With one evaluation per run, `p` is an exact McNemar test
    over seeds × tasks. Several evaluations repeat the tasks, so `p` is then a sign-flip test over tasks' mean differences.
    """
    differences = [mean_success(a) - mean_success(b) for a, b in zip(ours, theirs, strict=True)]
    difference = _mean(differences, (-1.0, 1.0)) or {}
    won = lost = p = None
    ours_T, theirs_T = (outcomes_by_task([e for run in side for e in run]) for side in (ours, theirs))
    if ours_T is not None and theirs_T is not None:
        won, lost, p = mcnemar(*([x for outcomes in tries for x in outcomes] for tries in (ours_T, theirs_T)))
        gaps_T = [[x - y for x, y in zip(*both, strict=True)] for both in zip(ours_T, theirs_T, strict=True)]
        if max(map(len, ours)) > 1:
            p = sign_flip([float(np.mean(gaps)) for gaps in gaps_T])
        # Report the union of the intervals over seeds (None with one seed) and over tasks.
        low, high = paired_interval_over_tasks(gaps_T, CONFIDENCE)
        difference["low"] = low if difference["low"] is None else min(difference["low"], low)
        difference["high"] = high if difference["high"] is None else max(difference["high"], high)
    p_seeds = sign_flip(differences) if len(differences) > 1 else None
    return {
        "difference": difference,
        "won": won,
        "lost": lost,
        "p": p,
        "p_holm": None,
        "p_seeds": p_seeds,
        "p_seeds_holm": None,
    }


def make_table(
    cells: Sequence[Record], worlds: Sequence[str], methods: Sequence[str], thresholds: Sequence[float], outcome: int = 1
) -> list[Record]:
    """One row per world and method; methods are compared by the mean of their last `outcome` evaluations. p-values are
    Holm-corrected over all rows."""
    rows = []
    for world in worlds:
        by_method = {m: [c for c in cells if (c["world"], c["method"]) == (world, m)] for m in methods}
        theirs = {c["seed"]: c for c in by_method[methods[0]] if c["final"] is not None}
        for method, planned in by_method.items():
            finished = [c for c in planned if c["final"] is not None]
            row = _row(finished, thresholds, outcome)
            row = {"world": world, "method": method, "seeds": [c["seed"] for c in finished],
                   "missing": [c["seed"] for c in planned if c not in finished], **row, "against": None}  # fmt: skip
            pairs = [(c, theirs[c["seed"]]) for c in finished if c["seed"] in theirs] if method != methods[0] else []
            if pairs:
                sides = ([last_evaluations(c["evaluations"], outcome) for c in side] for side in zip(*pairs, strict=True))
                row["against"] = {"method": methods[0], "seeds": [a["seed"] for a, _ in pairs], **compare_runs(*sides)}
            rows.append(row)
    for name in ("p", "p_seeds"):
        comparisons = [row["against"] for row in rows if row["against"] and row["against"][name] is not None]
        for against, corrected in zip(comparisons, holm([a[name] for a in comparisons]), strict=True):
            against[f"{name}_holm"] = corrected
    return rows


def _row(finished: Sequence[Record], thresholds: Sequence[float], outcome: int) -> Record:
    finals = [c["final"] for c in finished]
    steps = [[reached["step"] for reached in c["steps_to"]] for c in finished if c["curve"]]
    outcomes = [c["outcomes"] for c in finished]
    bootstrap = None
    if outcomes and not any(o is None or len(o) != len(outcomes[0]) for o in outcomes):
        low, high = crossed_bootstrap(np.array(outcomes, float), CONFIDENCE, resamples=2000)
        bootstrap = {"low": low, "high": high}
    return {
        "start": _share([c["start"] for c in finished]),
        "final": _share(finals),
        "outcome": _share_of_runs([last_evaluations(c["evaluations"], outcome) for c in finished]) if outcome > 1 else None,
        "peak": _share([c["peak"] for c in finished]),
        "further": {
            panel: {end: _share([c["further"].get(panel, {}).get(end) for c in finished]) for end in ("start", "final")}
            for panel in dict.fromkeys(panel for c in finished for panel in c["further"])
        },
        "score": _mean([e["score"] for e in finals], UNIT_RANGE),
        "success_length": _mean([e["success_steps"] if e["successes"] else None for e in finals], (0.0, math.inf)),
        "invalid": _mean([e["invalid"] for e in finals], UNIT_RANGE),
        "ineffective": _mean([e["ineffective"] for e in finals], UNIT_RANGE),
        "area": _mean([c["area"] for c in finished], UNIT_RANGE),
        "bootstrap": bootstrap,
        "steps_to": [
            {
                "threshold": threshold,
                "reached": sum(s[i] is not None for s in steps),
                "of": len(steps),
                "median": median_steps_to([s[i] for s in steps]),
            }
            for i, threshold in enumerate(thresholds)
        ],
    }  # fmt: skip


def _share(evaluations: Sequence[Record | None]) -> Record | None:
    """Success over seeds, one evaluation each; None if one is missing."""
    return _share_of_runs([[e] for e in evaluations if e is not None]) if None not in evaluations else None


def _share_of_runs(runs: Sequence[Sequence[Record]]) -> Record | None:
    """Mean success over runs, each the mean of its evaluations, with an interval; None without runs."""
    if not runs:
        return None
    # Seeds that share one evaluated start have one measurement, not several.
    distinct = list({tuple(map(id, run)): run for run in runs}.values())
    shares, tries_T = [mean_success(run) for run in distinct], outcomes_by_task([e for run in distinct for e in run])
    p, episodes = float(np.mean(shares)), float(distinct[0][0]["episodes"])
    if tries_T is not None:  # else the episodes of one seed
        episodes = effective_episodes([sum(tries) / len(tries) for tries in tries_T], p * (1 - p), sum(map(len, tries_T)))
    low, high = share_interval(shares, episodes, CONFIDENCE)
    per_seed = [mean_success(run) for run in runs]
    return {"mean": float(np.mean(per_seed)), "low": low, "high": high, "per_seed": per_seed}


def outcomes_by_task(evaluations: Sequence[Record]) -> list[list[bool]] | None:
    """Each task's outcomes over seeds, evaluations and repeats; None if an evaluation has none."""
    rows = [repeat for e in evaluations for repeat in e.get("outcomes", ())]
    if any(sum(map(len, e.get("outcomes", ()))) != e["episodes"] for e in evaluations):
        return None
    return [[digit == "1" for digit in task] for task in zip(*rows, strict=True)]


def _mean(values: Sequence[float | None], bounds: tuple[float, float]) -> Record | None:
    """Mean with the t interval over seeds, clipped to `bounds` unless a value lies outside. No interval if all values are
    equal; None if there are no values."""
    present = [v for v in values if v is not None]
    if not present:
        return None
    low: float | None = None
    high: float | None = None
    if len(set(present)) > 1:
        inside = bounds[0] <= min(present) and max(present) <= bounds[1]
        low, high = (bounded_interval if inside and bounds == UNIT_RANGE else t_interval)(present, CONFIDENCE)
        low, high = (max(bounds[0], low), min(bounds[1], high)) if inside else (low, high)
    return {"mean": float(np.mean(present)), "low": low, "high": high, "per_seed": list(values)}


class Results:
    """The state of a comparison. Finished cells are read once."""

    def __init__(self, plan: Plan, directory: Path, file: str, command: Sequence[str]) -> None:
        self.plan, self.directory, self.file, self.command = plan, directory, file, list(command)
        self._versions = versions()
        self._finished: dict[Path, Record] = {}

    def run_cells(
        self, wanted: Sequence[PlannedRun], processes: Processes, report: Callable[[RunEvent], None]
    ) -> tuple[list[PlannedRun], Record, list[Path]]:
        """Run the wanted cells and rewrite all files whenever one ends. Returns (failed runs, data, plots)."""

        def on_event(event: RunEvent) -> None:
            if event.kind in ("finished", "failed"):
                self.write()
            report(event)

        self.gather()  # raises before any run starts if the existing runs cannot share a table
        try:
            failed = run_cells(self.plan, wanted, self.directory, processes, on_event)
        except KeyboardInterrupt:
            self.write()
            raise
        record = self.write()
        return failed, record, draw(record, self.directory / "plots")

    def gather(self) -> Record:
        """All data in the layout of comparison.json (docs/reference/comparison.md)."""
        plan = self.plan
        starts = {start.world: self._read(start, None) for start in plan.starts}
        order = {(cell.world, cell.method, cell.seed): cell for cell in plan.cells}
        keys = product(plan.worlds, plan.methods, plan.seeds)
        cells = [self._read(order[key], starts.get(key[0])) for key in keys]
        panels, further = {}, {}
        for world in plan.worlds:
            world_cells = [c for c in cells if c["world"] == world]
            measured = {c["run"]: c["evaluations"][-1] for c in world_cells if c["evaluations"]}
            if (start := starts.get(world)) and start["evaluation"]:
                measured[start["run"]] = start["evaluation"]
            if (panel := check_same_panel(world, measured)) is not None:
                panels[world] = panel
            further[world] = list(dict.fromkeys(panel for c in world_cells for panel in c["further"]))
            for name in further[world]:
                finals = {c["run"]: c["further"].get(name, {}).get("final") for c in world_cells}
                check_same_panel(world, {run: evaluation for run, evaluation in finals.items() if evaluation})
        table = make_table(cells, plan.worlds, plan.methods, plan.thresholds, plan.outcome)
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
            "baseline": plan.methods[0],
            "thresholds": list(plan.thresholds),
            "outcome": f"mean:{plan.outcome}" if plan.outcome > 1 else "last",
            "metrics": list(plan.metrics),
            "confidence": CONFIDENCE,
            "complete": all(cell["status"] == "finished" for cell in cells),
            "notes": [*plan.notes, *_version_notes(cells)],
            "differences": {world: list(map(asdict, listed)) for world, listed in plan.differences.items()},
            "panels": panels,
            "further": further,
            "starts": starts,
            "cells": cells,
            "table": table,
        }

    def write(self) -> Record:
        record = self.gather()
        self.directory.mkdir(parents=True, exist_ok=True)
        write_json(self.directory / "comparison.json", record)
        write_text(self.directory / "table.md", markdown(record))
        write_text(self.directory / "table.csv", csv_text(record))
        return record

    def _read(self, run: PlannedRun, started: Record | None) -> Record:
        if run.subdirectory in self._finished:
            return self._finished[run.subdirectory]
        if run.method == START:
            record = _read_run(run, self.directory / run.subdirectory)
            evaluations = record.pop("evaluations")
            newest = open_checkpoints(self.directory / run.subdirectory).newest()
            record |= {
                "checkpoint": newest.path.name if newest else None,
                "evaluation": evaluations[-1] if evaluations else None,
            }
        else:
            record = read_cell(run, self.plan, self.directory, started)
        if record["status"] == "finished":
            self._finished[run.subdirectory] = record
        return record


def _version_notes(cells: Sequence[Record]) -> list[str]:
    """Notes about cells made by different code versions."""
    runs_by_version: dict[str, list[str]] = {}
    for cell in cells:
        if cell["versions"]:
            git = cell["versions"].get("git") or {}
            changed = " with changes" if git.get("changed") else ""
            version = f"tacit {cell['versions']['tacit']} {git.get('commit', '')[:10]}{changed}".strip()
            runs_by_version.setdefault(version, []).append(f"{cell['world']}/{cell['method']}/{cell['seed']}")
    if len(runs_by_version) < 2:
        return []
    summary = "; ".join(f"{version}: {len(runs)} runs, the first {runs[0]}" for version, runs in runs_by_version.items())
    return [f"the runs were made by different versions of the code ({summary})."]
