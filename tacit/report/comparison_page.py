"""The page of a comparison: results, learning curves, thresholds and behavior per world, and links to the runs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from tacit.config.values import flatten
from tacit.core.errors import TacitError
from tacit.core.progress import pluralize
from tacit.evaluation.plots import Arrivals, Point, Series, Spread, mean_series
from tacit.report.page import draw_arrivals, draw_chart, draw_spreads, format_count, is_number, render
from tacit.report.run_files import (
    COMPARISON,
    EVALUATIONS,
    Comparison,
    Episodes,
    Record,
    as_mapping,
    list_mappings,
    newest_episodes,
    read_comparison,
)
from tacit.report.run_page import (
    CODE,
    build_behavior,
    compare_settings,
    describe_versions,
    prompt_series,
    render_run,
)
from tacit.report.sections import MAX_TRAJECTORIES, compare_diagnostics, embed_episodes
from tacit.runs.directory import SETTINGS, find_runs
from tacit.runs.files import write_text

LEAD = Markup(
    "{} of {}, from the first finished run of every method: tasks of its last evaluation, starting with those that only some "
    "methods won, and the training episode in which credit differs most. "
    '<code class="whole">--runs</code> writes a page of every run, with more episodes.'
)


def build_comparison_viewer(comparison: Comparison, most: int, notices: list[str]) -> dict[str, Any]:
    """Values for the viewer, at most `most` episodes, the same number per world. First a task that about half of the methods
    won, played by every method; then a training episode of each method; then another such task. The episodes of a method come
    from the last evaluation and the last training iteration of its first finished run."""
    chosen: list[tuple[str, Record]] = []
    total = 0
    for world in comparison.worlds:
        measured: list[tuple[str, dict[str, Record]]] = []
        practice: list[tuple[str, Record]] = []
        for method in comparison.methods:
            cells = [c for c in comparison.cells_of(world, method, finished=True) if comparison.run_directory(c).is_dir()]
            for cell in cells[:1]:
                name = f"{world} / {method} / {cell.get('seed')}"
                for episodes in newest_episodes(comparison.run_directory(cell), EVALUATIONS, notices):
                    own = {r["task"]: r for r in reversed(episodes.records)}
                    measured.append((f"{name}, {episodes.title}", dict(reversed(own.items()))))
                    total += len(episodes.records)
                for episodes in newest_episodes(comparison.run_directory(cell), ("rl",), notices):
                    practice.append((f"{name}, {episodes.title}", max(episodes.records, key=_spread)))
                    total += len(episodes.records)

        def divided(task: str, measured: list[tuple[str, dict[str, Record]]] = measured) -> int:
            won = [own[task]["success"] for _, own in measured if task in own]
            return min(sum(won), len(won) - sum(won))

        tasks = sorted(dict.fromkeys(task for _, own in measured for task in own), key=divided, reverse=True)[:2]
        by_task = [[(title, own[task]) for title, own in measured if task in own] for task in tasks]
        chosen += [*chain(*by_task[:1]), *practice, *chain(*by_task[1:])][: -(-most // len(comparison.worlds))]
    if not total:
        return {"lead": "No trajectories were recorded, or none can be read."}
    chosen = chosen[:most]
    lead = LEAD.format(pluralize(len(chosen), "episode"), format_count(total))
    return {"lead": lead, "data": embed_episodes(chosen) if chosen else None}


def _spread(record: Record) -> float:
    """Largest minus smallest credit of its steps; -1 without credit."""
    credits = [turn["credit"] for turn in record["turns"] if is_number(turn.get("credit"))]
    return max(credits) - min(credits) if credits else -1.0


STATUS_WORDS = {"failed": "failed", "unfinished": "was interrupted", "missing": "has not started"}
MAX_NAMED = 3  # missing runs of a world with a notice each; more share one notice
PER_RUN = (("seed",), ("out",), ("method", "name"))  # settings that every run of a comparison has of its own


def render_comparison(path: Path, most_trajectories: int = MAX_TRAJECTORIES, beside: Path | None = None) -> str:
    """HTML of the comparison in `path`. Links are relative to `beside`, the directory of the page."""
    comparison = read_comparison(path)
    notices = [*comparison.notices, *describe_missing(comparison)]
    parts: dict[str, Any] = {
        "worlds": [build_world(comparison, world, notices) for world in comparison.worlds],
        "shown": build_comparison_viewer(comparison, most_trajectories, notices),
        "runs": [(cell, link_run(comparison, cell, beside or path)) for cell in comparison.cells],
        "compared": _compared(comparison),
        "description": str(comparison.record.get("description") or "").strip(),
        "last": str(comparison.record.get("outcome") or "").partition(":")[2],
    }
    finished, planned = sum(cell["status"] == "finished" for cell in comparison.cells), len(comparison.cells)
    headline = [
        ("methods", len(comparison.methods), f"against {comparison.baseline}"),
        ("worlds", len(comparison.worlds), ""),
        ("seeds", len(comparison.seeds), ", ".join(comparison.seeds)),
        ("runs finished", f"{finished} / {planned}", ""),
    ]
    name, done = str(comparison.record.get("name") or path.resolve().name), ("complete", finished == planned)
    what = f"{', '.join(comparison.methods)} in {', '.join(comparison.worlds)}"
    return render("comparison", notices, name=name, what=what, done=done, headline=headline, comparison=comparison, **parts)


def build_world(comparison: Comparison, world: str, notices: list[str]) -> dict[str, Any]:
    rows, curves = [row for row in comparison.rows if row["world"] == world], mean_curves(comparison, world)
    reached = [e["threshold"] for row in rows for e in list_mappings(row.get("steps_to")) if is_number(e.get("threshold"))]
    levels = list(dict.fromkeys(reached))
    behaved, reading = _behavior(comparison, world, notices)
    note = "line: mean over seeds; thin: each seed"
    if not all(comparison.cells_of(world, line.name, finished=True) for line in curves):
        note += "; unfinished runs for methods without a finished one"
    learning = draw_chart(f"Success on the panel, {world}", curves, note=note, share=True, marks=True) if curves else None
    return {
        "name": world, "panel": as_mapping(comparison.record.get("panels")).get(world), "rows": rows, "curves": curves,
        "picture": _picture(comparison, world, rows), "learning": learning, "behaved": behaved,
        "arrivals": list(filter(None, (_arrivals(comparison, world, level) for level in levels))), "levels": levels,
        "reading": reading, "differences": _differences(comparison, world),
        "step_credit": compare_diagnostics(comparison, world, notices),
    }  # fmt: skip


def mean_curves(comparison: Comparison, world: str) -> list[Series]:
    """One line per method: the mean over its finished seeds, or over all seeds if none has finished."""
    lines = []
    for method in comparison.methods:
        cells = comparison.cells_of(world, method, finished=True) or comparison.cells_of(world, method)
        lines.append(mean_series(method, list(filter(None, map(_curve, cells))), comparison.color(method)))
    return [line for line in lines if line.points]


def describe_missing(comparison: Comparison) -> list[str]:
    """A sentence for each run or start that has not finished."""
    notices = []
    for world in comparison.worlds:
        cells = [cell for cell in comparison.cells if cell["world"] == world]
        if cells and all(cell["status"] == "missing" for cell in cells):
            notices.append(f"No run of {world} has started ({pluralize(len(cells), 'run')}).")
            continue
        absent: dict[str, list[str]] = {}
        for cell in cells:
            if cell["status"] == "missing":
                absent.setdefault(cell["method"], []).append(str(cell.get("seed")))
        if together := sum(map(len, absent.values())) > MAX_NAMED:
            names = "; ".join(f"{method} (seed {', '.join(seeds)})" for method, seeds in absent.items())
            notices.append(f"{world}: {sum(map(len, absent.values()))} runs have not started: {names}.")
        for cell in cells:
            if cell["status"] != "finished" and not (together and cell["status"] == "missing"):
                why = "".join(f": {line}" for line in str(cell.get("error") or "").strip().splitlines()[-1:])
                place, state = f"{world} / {cell['method']} / seed {cell.get('seed')}", cell["status"]
                notices.append(f"{place} {STATUS_WORDS.get(state, state)}{why}.")
    for world, start in as_mapping(comparison.record.get("starts")).items():
        if (status := as_mapping(start).get("status")) not in (None, "finished"):
            why = f": {start['error']}" if start.get("error") else ""
            notices.append(f"The shared start of {world} is {status}{why}.")
    return notices


def link_run(comparison: Comparison, cell: Record, beside: Path) -> str:
    """Link to a run's page or directory, relative to `beside`; "" if the run does not exist."""
    place = comparison.run_directory(cell)
    if not place.is_dir():
        return ""
    own = place / PAGE
    relative = Path(os.path.relpath((own if own.is_file() else place).resolve(), beside.resolve())).as_posix()
    # Quoted, so that a directory name cannot act as a URL with a scheme.
    return quote(relative if own.is_file() else f"{relative}/")


def _picture(comparison: Comparison, world: str, rows: Sequence[Record]) -> Markup | str:
    lines = []
    for row in rows:
        final = as_mapping(row.get("final"))
        mean, low, high, seeds = (final.get(name) for name in ("mean", "low", "high", "per_seed"))
        if is_number(mean) and is_number(low) and is_number(high):
            each = [value for value in (seeds if isinstance(seeds, list) else ()) if is_number(value)]
            lines.append(Spread(row["method"], mean, low, high, each, comparison.color(row["method"])))
    note = "dot: mean over seeds; line: 95% interval; small marks: seeds"
    return draw_spreads(f"Final success in {world}", lines, note) if lines else ""


def _arrivals(comparison: Comparison, world: str, level: float) -> Markup | None:
    rows, last = [], 0.0
    for method in comparison.methods:
        cells = comparison.cells_of(world, method, finished=True)
        entered = [e.get("step") for c in cells for e in list_mappings(c.get("steps_to")) if e.get("threshold") == level]
        if steps := [step if is_number(step) else None for step in entered]:
            rows.append(Arrivals(method, steps, comparison.color(method)))
            last = max([last, *(step for cell in cells for step in _curve(cell)), *filter(None, steps)])
    return draw_arrivals(f"First evaluation at {100 * level:g}% or above", rows, last) if rows else None


def _behavior(comparison: Comparison, world: str, notices: list[str]) -> tuple[dict[str, Any] | None, Markup | None]:
    """(behavior table, chart of prompt lengths) with a column or line per method, pooled over the last recorded evaluation of
    each seed; None where nothing is recorded."""
    pooled: list[Episodes] = []
    for method in comparison.methods:
        places = map(comparison.run_directory, comparison.cells_of(world, method, finished=True))
        newest = [e for place in places if place.is_dir() for e in newest_episodes(place, EVALUATIONS, notices)]
        if newest:
            pooled.append(Episodes("", 0, [record for episodes in newest for record in episodes.records], method))
    if not pooled:
        return None, None
    own: list[str] = []
    tables = build_behavior(pooled, own)
    notices += [f"{world}: {notice}" for notice in own]
    # Without bands: those of several methods would cover the lines.
    lines = [Series(e.title, [Point(p.x, p.y) for p in prompt_series(e).points], comparison.color(e.title)) for e in pooled]
    if max(len(line.points) for line in lines) < 2:
        return tables, None
    return tables, draw_chart("Prompt tokens by turn", lines, "turn", "mean of the episodes that reach the turn", floor=0.0)


def _differences(comparison: Comparison, world: str) -> list[list[str]]:
    """Settings in which the first runs of the methods differ: a row of titles, then a row per setting."""
    columns = {}
    for method in comparison.methods:
        settings = [c["settings"] for c in comparison.cells_of(world, method) if isinstance(c.get("settings"), Mapping)]
        if settings:
            columns[method] = flatten(settings[0])
    return [["setting", *columns], *compare_settings(list(columns.values()), PER_RUN)]


def _curve(cell: Record) -> dict[float, float]:
    known = [e for e in list_mappings(cell.get("curve")) if is_number(e.get("step")) and is_number(e.get("success"))]
    return {e["step"]: e["success"] for e in known}


def _compared(comparison: Comparison) -> list[tuple[str, str]]:
    document = comparison.record
    rows: list[tuple[str, str]] = [("file", CODE.format(document.get("file") or "?"))]
    if isinstance(document.get("command"), list):
        rows.append(("command", CODE.format(shlex.join(map(str, document["command"])))))
    rows += [("directory", CODE.format(comparison.path)), *describe_versions(as_mapping(document.get("versions")))]
    for world, start in as_mapping(document.get("starts")).items():
        of = as_mapping(start)
        rows.append((f"start in {world}", f"{of.get('checkpoint') or 'none'}, seed {of.get('seed')}: {of.get('run')}"))
    return rows


PAGE = "report.html"  # of a run or a comparison


def write_report(path: Path, out: Path, most_trajectories: int = MAX_TRAJECTORIES, runs: bool = False) -> Iterator[Path]:
    """Write the page and yield its path. With `runs`, first write the pages of a comparison's runs, which its page links."""
    if not (path / SETTINGS).is_file() and not (path / COMPARISON).is_file():
        raise make_missing_error(path)
    if not out.parent.is_dir():
        raise TacitError(
            f"cannot write {out.name}: the directory {out.parent} does not exist; create it, or choose another --out."
        )
    if runs and not (path / COMPARISON).is_file():
        raise TacitError(f"--runs is for comparisons, but {path} has no {COMPARISON}.")
    if runs:
        comparison = read_comparison(path)
        for cell in comparison.cells:
            run = comparison.run_directory(cell)
            if (run / SETTINGS).is_file():
                yield from write_report(run, run / PAGE, most_trajectories)
    is_run = (path / SETTINGS).is_file()
    write_text(out, render_run(path, most_trajectories) if is_run else render_comparison(path, most_trajectories, out.parent))
    yield out


def make_missing_error(path: Path) -> TacitError:
    if path.is_file():
        return TacitError(f"{path} is a file; name a run (runs/NAME) or the directory of a comparison.")
    if not path.is_dir():
        return TacitError(f"{path} does not exist; name a run (runs/NAME) or the directory of a comparison.")
    inside = find_runs(path)
    hint = f"It contains runs: {', '.join(inside)}; name one of them." if inside else "`tacit train` creates runs."
    return TacitError(f"{path} is neither a run nor a comparison: it has no {SETTINGS} and no {COMPARISON}. {hint}")
