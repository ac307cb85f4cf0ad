"""The page of a comparison: results, curves, steps to thresholds and behaviour world by world, and the way to every run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from tacit.core.progress import number_of
from tacit.evaluation.plots import Arrivals, Point, Series, Spread, mean_series
from tacit.report.charts import arrivals, draw, spreads
from tacit.report.method_sections import comparison_parts
from tacit.report.page import count, interval, is_number, percent, render
from tacit.report.run_files import (
    EVALUATIONS,
    Comparison,
    Episodes,
    Known,
    Record,
    entries,
    known_of,
    newest_episodes,
    read_comparison,
    table_of,
)
from tacit.report.run_page import CODE, conduct, differing, flag, flat, made_by, prompt_series, shown
from tacit.report.viewer import MOST_TRAJECTORIES, Chosen, embedded

# Which trajectories the page of a comparison embeds: the same tasks by every method, and what each of them practised.

PRACTICE = ("rl",)
LEAD = Markup(
    "{} of {}, by the first finished run of every method: tasks of its last evaluation, those first that some methods "
    "won and others lost, and the practice in which credit differs most. "
    '<code class="whole">--runs</code> writes a page of every run, with more.'
)


@dataclass(frozen=True)
class Played:
    """The last evaluation, or the last practice, of the first finished run of a method in a world."""

    title: str
    known: Known
    stages: Sequence[str]
    records: Sequence[Record]

    def chosen(self, record: Record) -> Chosen:
        return self.title, record, self.known.scenes.get(record["task"])


def comparison_viewer(found: Comparison, most: int, notices: list[str]) -> dict[str, Any]:
    """Every world has the same share of the page."""
    worlds = [played_in(found, world, notices) for world in found.worlds]
    total = sum(len(p.records) for played in worlds for p in played)
    if not total:
        return {"lead": "No trajectories were recorded, or none can be read."}
    chosen = [episode for played in worlds for episode in wanted(played)[: -(-most // len(worlds))]][:most]
    return {"lead": LEAD.format(number_of(len(chosen), "episode"), count(total)), "data": embedded(chosen) if chosen else None}


def played_in(found: Comparison, world: str, notices: list[str]) -> list[Played]:
    played = []
    for method in found.methods:
        for cell in [c for c in found.cells_of(world, method, finished=True) if found.place(c).is_dir()][:1]:
            name, known = f"{world} / {method} / {cell.get('seed')}", known_of(cell.get("settings"))
            for stages in (EVALUATIONS, PRACTICE):
                newest = newest_episodes(found.place(cell), stages, notices)
                played += [Played(f"{name}, {episodes.title}", known, stages, episodes.records) for episodes in newest]
    return played


def wanted(played: Sequence[Played]) -> list[Chosen]:
    """Most wanted first: a task by every method, one that about half of them won; practice of each; another such task."""
    measured = [(p, {r["task"]: r for r in reversed(p.records)}) for p in played if p.stages == EVALUATIONS]

    def divided(task: str) -> int:
        won = [own[task]["success"] for _, own in measured if task in own]
        return min(sum(won), len(won) - sum(won))

    tasks = dict.fromkeys(record["task"] for p, _ in measured for record in p.records)
    telling = sorted(tasks, key=divided, reverse=True)[:2]
    first, *second = [[p.chosen(own[task]) for p, own in measured if task in own] for task in telling] or [[]]
    practice = [p.chosen(max(p.records, key=_spread)) for p in played if p.stages == PRACTICE]
    return [*first, *practice, *chain(*second)]


def _spread(record: Record) -> float:
    """How much the credit of its steps differs."""
    credits = [turn["credit"] for turn in record["turns"] if is_number(turn.get("credit"))]
    return max(credits) - min(credits) if credits else -1.0


STATUS_WORDS = {"failed": "failed", "unfinished": "stopped half way", "missing": "was never begun"}
MOST_NAMED = 3
"""runs of a world that were never begun and are told one by one; more are told in one sentence"""
PER_RUN = (("seed",), ("out",), ("method", "name"))
"""settings that differ from run to run by the nature of a comparison"""


def comparison_page(path: Path, most_trajectories: int = MOST_TRAJECTORIES, beside: Path | None = None) -> str:
    """HTML of the comparison in `path`; `beside` is the directory the page will lie in, from which its links lead."""
    found = read_comparison(path)
    notices = [*found.notices, *missing(found)]
    parts: dict[str, Any] = {
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
    name, done = str(found.found.get("name") or path.resolve().name), ("complete", finished == planned)
    what = f"{', '.join(found.methods)} in {', '.join(found.worlds)}"
    return render("comparison", notices, name=name, what=what, done=done, headline=headline, found=found, **parts)


def world_parts(found: Comparison, world: str, notices: list[str]) -> dict[str, Any]:
    """Everything the page says of one world, by the names the template has for it."""
    rows, curves = [row for row in found.rows if row["world"] == world], mean_curves(found, world)
    reached = [e["threshold"] for row in rows for e in entries(row.get("steps_to")) if is_number(e.get("threshold"))]
    levels = list(dict.fromkeys(reached))
    behaved, reading = _behaviour(found, world, notices)
    note = "line: mean over seeds; thin: each seed"
    if not all(found.cells_of(world, line.name, finished=True) for line in curves):
        note += "; unfinished runs count where nothing is finished"
    learning = draw(f"Success on the panel, {world}", curves, note=note, share=True, marks=True) if curves else None
    return {
        "name": world, "panel": table_of(found.found.get("panels")).get(world), "rows": rows, "curves": curves,
        "picture": _picture(found, world, rows), "learning": learning, "behaved": behaved,
        "arrivals": list(filter(None, (_arrivals(found, world, level) for level in levels))), "levels": levels,
        "reading": reading, "differences": _differences(found, world),
        "step_credit": comparison_parts(found, world, notices), "grids": _grids(found, world),
    }  # fmt: skip


def mean_curves(found: Comparison, world: str) -> list[Series]:
    """By method, over its finished seeds; over whatever there is, where none has finished."""
    lines = []
    for method in found.methods:
        cells = found.cells_of(world, method, finished=True) or found.cells_of(world, method)
        lines.append(mean_series(method, list(filter(None, map(_curve, cells))), found.colour(method)))
    return [line for line in lines if line.points]


def missing(found: Comparison) -> list[str]:
    """Sentences about what is not there."""
    told = []
    for world in found.worlds:
        cells = [cell for cell in found.cells if cell["world"] == world]
        if cells and all(cell["status"] == "missing" for cell in cells):
            told.append(f"Nothing of {world} was ever begun ({number_of(len(cells), 'run')}).")
            continue
        absent: dict[str, list[str]] = {}
        for cell in cells:
            if cell["status"] == "missing":
                absent.setdefault(cell["method"], []).append(str(cell.get("seed")))
        if together := sum(map(len, absent.values())) > MOST_NAMED:
            names = "; ".join(f"{method} (seed {', '.join(seeds)})" for method, seeds in absent.items())
            told.append(f"Of {world}, {sum(map(len, absent.values()))} runs were never begun: {names}.")
        for cell in cells:
            if cell["status"] != "finished" and not (together and cell["status"] == "missing"):
                why = "".join(f": {line}" for line in str(cell.get("error") or "").strip().splitlines()[-1:])
                place, state = f"{world} / {cell['method']} / seed {cell.get('seed')}", cell["status"]
                told.append(f"{place} {STATUS_WORDS.get(state, state)}{why}.")
    for world, start in table_of(found.found.get("starts")).items():
        if (status := table_of(start).get("status")) not in (None, "finished"):
            why = f": {start['error']}" if start.get("error") else ""
            told.append(f"The run that every cell of {world} starts from is {status}{why}.")
    return told


def link(found: Comparison, cell: Record, beside: Path) -> str:
    """Where a cell's own page or directory is, seen from `beside`; nothing where neither is."""
    place = found.place(cell)
    if not place.is_dir():
        return ""
    own = place / "report.html"
    relative = Path(os.path.relpath((own if own.is_file() else place).resolve(), beside.resolve())).as_posix()
    # Quoted, so that no name of a directory can be read as an address of another kind.
    return quote(relative if own.is_file() else f"{relative}/")


def _picture(found: Comparison, world: str, rows: Sequence[Record]) -> Markup | str:
    lines = []
    for row in rows:
        final = table_of(row.get("final"))
        mean, low, high, seeds = (final.get(name) for name in ("mean", "low", "high", "per_seed"))
        if is_number(mean) and is_number(low) and is_number(high):
            each = [value for value in (seeds if isinstance(seeds, list) else ()) if is_number(value)]
            lines.append(Spread(row["method"], mean, low, high, each, found.colour(row["method"])))
    note = "dot: mean over seeds; line: 95% interval; small marks: seeds"
    return spreads(f"Final success in {world}", lines, note) if lines else ""


def _grids(found: Comparison, world: str) -> list[tuple[str, list[str], list[list[str]]]]:
    """(panel, titles, rows) of each: success as the comparison's file arranges its methods."""
    told = []
    for grid in entries(table_of(found.found.get("grids")).get(world)):
        rows = []
        for row in entries(grid.get("rows")):
            measures = [table_of(m) for m in (row["measures"] if isinstance(row.get("measures"), list) else ())]
            ends = [interval([m.get("low"), m.get("high")]) for m in measures]
            rows.append([str(row.get("name")), *(f"{percent(m.get('mean'))} {e}" for m, e in zip(measures, ends, strict=True))])
        titles = grid["columns"] if isinstance(grid.get("columns"), list) else []
        told.append((str(grid.get("panel")), ["", *map(str, titles)], rows))
    return told


def _arrivals(found: Comparison, world: str, level: float) -> Markup | None:
    rows, last = [], 0.0
    for method in found.methods:
        cells = found.cells_of(world, method, finished=True)
        entered = [e.get("step") for c in cells for e in entries(c.get("steps_to")) if e.get("threshold") == level]
        if steps := [step if is_number(step) else None for step in entered]:
            rows.append(Arrivals(method, steps, found.colour(method)))
            last = max([last, *(step for cell in cells for step in _curve(cell)), *filter(None, steps)])
    return arrivals(f"First evaluation at {100 * level:g}% or above", rows, last) if rows else None


def _behaviour(found: Comparison, world: str, notices: list[str]) -> tuple[dict[str, Any] | None, Markup | None]:
    """A column per method, over the last recorded evaluations of its seeds taken together; and what they had to read."""
    pooled: list[Episodes] = []
    for method in found.methods:
        places = map(found.place, found.cells_of(world, method, finished=True))
        newest = [e for place in places if place.is_dir() for e in newest_episodes(place, EVALUATIONS, notices)]
        if newest:
            pooled.append(Episodes("", 0, [record for episodes in newest for record in episodes.records], method))
    if not pooled:
        return None, None
    known = known_of(next((c.get("settings") for c in found.cells if c["world"] == world), None))
    own = list(known.notices)
    told = conduct(pooled, known, own)
    notices += [f"{world}: {notice}" for notice in own]
    # As lines alone: the bands of several methods hide them and each other.
    lines = [Series(e.title, [Point(p.x, p.y) for p in prompt_series(e).points], found.colour(e.title)) for e in pooled]
    if max(len(line.points) for line in lines) < 2:
        return told, None
    return told, draw("Prompt tokens by turn", lines, "turn", "mean of the episodes that come so far", floor=0.0)


def _differences(found: Comparison, world: str) -> list[list[str]]:
    """Settings that are not the same for all methods, by the first run of each: a row of titles, then a row for each."""
    told = {}
    for method in found.methods:
        said = [c["settings"] for c in found.cells_of(world, method) if isinstance(c.get("settings"), Mapping)]
        if said:
            told[method] = {place: shown(value) for place, value in flat(said[0]).items() if place not in PER_RUN}
    first = next(iter(told.values()), {})
    places = dict.fromkeys(place for own in told.values() for place in [*differing(first, own), *differing(own, first)])
    rows = [[CODE.format(flag(place)), *(own.get(place, "") for own in told.values())] for place in places]
    return [["setting", *told], *rows]


def _curve(cell: Record) -> dict[float, float]:
    known = [e for e in entries(cell.get("curve")) if is_number(e.get("step")) and is_number(e.get("success"))]
    return {e["step"]: e["success"] for e in known}


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
