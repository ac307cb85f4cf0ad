"""What the runs of a comparison say: one plain table per cell, as comparison.json keeps it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.comparison.carry_out import LOG, failure_of, status_of
from tacit.comparison.plan import Plan, Planned
from tacit.core.errors import TacitError
from tacit.evaluation.curves import area, steps_to
from tacit.runs.directory import read_summary, saved_checkpoints
from tacit.runs.metrics import read_metrics

Found = dict[str, Any]
METRICS = "metrics.jsonl"
FROM_SUMMARY = ("iterations", "episodes", "turns", "generated_tokens", "wall_s", "digest")


def read_start(start: Planned, directory: Path) -> Found:
    path = directory / start.place
    evaluations = _evaluations(path, status_of(path, start.iterations))
    newest = saved_checkpoints(path).newest()
    return {
        "run": start.place.as_posix(),
        "status": status_of(path, start.iterations),
        "error": failure_of(path),
        "command": _command(path),
        "seed": start.seed,
        "checkpoint": newest.path.name if newest else None,
        "evaluation": evaluations[-1] if evaluations else None,
    }


def read_cell(cell: Planned, plan: Plan, directory: Path, started: Found | None) -> Found:
    """`started` is what the shared start says, where there is one."""
    path = directory / cell.place
    status = status_of(path, cell.iterations)
    finished = status == "finished"
    summary = read_summary(path) if finished else {}
    evaluations = _evaluations(path, status)
    practised = [e for e in evaluations if e["stage"] == "rl"]
    before = [e for e in evaluations if e["stage"] != "rl"]
    # A run that measured its own beginning is believed; else it began where the shared start ended.
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
        "practice": _practice(path, plan.metrics) if finished else {},
        "steps_to": [{"threshold": t, "step": steps_to(curve, t)} for t in plan.thresholds],
        "area": area(curve),
        "outcomes": _outcomes(final) if final else None,
        **{name: summary.get(name) for name in FROM_SUMMARY},
    }


def check_alike(world: str, measured: dict[str, Found]) -> Found | None:
    """The panel all evaluations of a world share, given by the run that made them; refused where there are two."""
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
    newest = saved_checkpoints(path).newest()
    return newest.state()["evaluations"] if newest else []


def _practice(path: Path, names: Sequence[str]) -> dict[str, list[list[float]]]:
    """name -> [iteration, value] wherever the run told it while it practised"""
    told = [record for record in read_metrics(path / METRICS) if record["stage"] == "rl"] if names else []
    return {name: [[r["step"], r[name]] for r in told if r.get(name) is not None] for name in names}


def _further(measured: Sequence[Found], start: Found | None, final: Found | None) -> dict[str, Found]:
    """By panel: what was measured there when the run began practising, and when it ended."""
    found: dict[str, Found] = {}
    for evaluation in measured:
        panel = found.setdefault(evaluation["panel"], {"start": None, "final": None})
        for name, own in (("start", start), ("final", final)):
            if own is not None and (own["stage"], own["step"]) == (evaluation["stage"], evaluation["step"]):
                panel[name] = evaluation
    return found


def _outcomes(final: Found) -> list[bool] | None:
    """Successes in panel order, repeats one after another; None in a run of a version that did not keep them."""
    outcomes = [digit == "1" for repeat in final.get("outcomes", ()) for digit in repeat]
    return outcomes if len(outcomes) == final["episodes"] else None


def _versions(path: Path) -> Found | None:
    try:
        return json.loads((path / "versions.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _command(path: Path) -> list[str] | None:
    """The first command of the run's log: what made it. Later ones went on with it."""
    try:
        with (path / LOG).open(encoding="utf-8", errors="replace") as file:
            return file.readline().removeprefix("$ ").split()
    except OSError:
        return None
