"""The parts of a comparison's page: the table, curves, steps to thresholds, behaviour, and every run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tacit.report.charts import Chart, Point, Series, draw, side_by_side
from tacit.report.comparison_files import Comparison, entries, table_of
from tacit.report.forest import Row, forest
from tacit.report.markup import Child, Markup, join, tag
from tacit.report.measures import success_of
from tacit.report.numbers import MINUS, NOTHING, count, duration, is_number, percent, plain, probability, short
from tacit.report.reaching import Seeds, reaching
from tacit.report.run_files import Record, is_score
from tacit.report.tables import Column, folded, table

SIGNIFICANT = 0.05
STATUS_WORDS = {"failed": "failed", "unfinished": "stopped half way", "missing": "was never begun"}
STATUS_STYLE = {"finished": "good", "failed": "bad", "unfinished": "warn", "missing": "warn"}


def results(found: Comparison) -> Markup:
    """A picture and a table per world. Intervals stand under their means."""
    parts: list[Child] = []
    for world in found.worlds:
        rows = found.rows_of(world)
        panel = table_of(found.found.get("panels")).get(world)
        parts.append(tag("h3", world))
        if isinstance(panel, Mapping):
            told = f"Panel {panel.get('name')}, hash {panel.get('hash')}, {count(panel.get('episodes'))} episodes per run"
            parts.append(tag("p", told, cls="quiet"))
        if not rows:
            parts.append(tag("p", "Nothing to compare here yet.", cls="quiet"))
            continue
        known = [(r, m) for r in rows if (m := _measure(r.get("final"))) is not None]
        lines = [Row(str(r["method"]), *_triple(m), _seeds(m), found.colour(str(r["method"]))) for r, m in known]
        parts.append(forest(f"Final success in {world}", lines, "dot: mean over seeds; line: 95% interval; small marks: seeds"))
        parts.append(_results_table(found, rows))
    parts.append(tag("p", _legend(found), cls="quiet"))
    return join(parts)


def learning(found: Comparison) -> Markup:
    charts, tables = [], []
    for world in found.worlds:
        series = [s for method in found.methods if (s := mean_curve(found, world, method)) is not None]
        if series:
            note = (
                ""
                if all(_finished(found, world, s.name) for s in series)
                else "unfinished runs count where nothing is finished"
            )
            chart = Chart(
                f"Success on the panel, {world}",
                series,
                share=True,
                marks=True,
                band="line: mean over seeds; band: lowest to highest seed",
                note=note,
            )
            charts.append(draw(chart))
            tables.append(_curve_table(world, series))
    if not charts:
        return tag("p", "No run has been measured while it practised.", cls="quiet")
    return join([tag("div", charts, cls="charts large"), folded("Values as tables", tables)])


def mean_curve(found: Comparison, world: str, method: str) -> Series | None:
    """Over the finished seeds (over whatever there is, where none is), at the steps all of them were measured at."""
    cells = found.cells_of(world, method)
    finished = [c for c in cells if c["status"] == "finished"]
    curves = [curve for c in finished or cells if (curve := _curve(c))]
    shared = set.intersection(*(set(curve) for curve in curves)) if curves else set()
    points = []
    for step in sorted(shared):
        values = [curve[step] for curve in curves]
        points.append(Point(step, sum(values) / len(values), min(values), max(values)))
    return Series(method, points, found.colour(method)) if points else None


def thresholds(found: Comparison) -> Markup | None:
    """The first measured iteration at or above each threshold, and the mean height of the curve."""
    parts: list[Child] = []
    for world in found.worlds:
        rows = found.rows_of(world)
        levels = list(dict.fromkeys(e["threshold"] for r in rows for e in _levels(r)))
        if not levels:
            continue
        body = []
        for row in rows:
            by_level = {e["threshold"]: e for e in _levels(row)}
            body.append(
                [row["method"], *(_reached(by_level.get(level)) for level in levels), _measured(row.get("area"), percent)]
            )
        columns = [Column("method", False), *(Column(f"≥\N{NO-BREAK SPACE}{100 * level:g}%") for level in levels)]
        columns.append(Column("mean height of the curve", note="area under the success curve over its iterations"))
        parts.append(tag("h3", world))
        parts.append(side_by_side([picture for level in levels if (picture := _reaching(found, world, level)) is not None]))
        parts.append(table(columns, body, "Median iteration of the first evaluation at or above the threshold"))
    if not parts:
        return None
    told = (
        "A dot is a finished seed. Under the iteration: how many seeds got there. One that never did counts as later than all."
    )
    return join([*parts, tag("p", told, cls="quiet")])


def _reaching(found: Comparison, world: str, level: float) -> Markup | None:
    rows, last = [], 0.0
    for method in found.methods:
        cells = [c for c in found.cells_of(world, method) if c["status"] == "finished"]
        entered = [e for c in cells for e in entries(c.get("steps_to")) if e.get("threshold") == level]
        steps = [e["step"] if is_number(e.get("step")) else None for e in entered]
        if steps:
            rows.append(Seeds(method, steps, found.colour(method)))
            last = max([last, *(step for c in cells for step in _curve(c)), *(s for s in steps if s is not None)])
    return reaching(f"First evaluation at {100 * level:g}% or above", rows, last) if rows else None


def runs(found: Comparison, beside: Path) -> Markup:
    """Every cell with its state; links lead from the page's own place, `beside`."""
    rows: list[list[Child]] = []
    for cell in found.cells:
        final, peak = cell.get("final"), cell.get("peak")
        status = str(cell["status"])
        rows.append(
            [
                _link(found, cell, beside),
                tag("span", status, cls=STATUS_STYLE.get(status, "warn")),
                _score(final),
                _score(peak),
                count(cell.get("episodes")),
                count(cell.get("generated_tokens")),
                duration(cell.get("wall_s")),
            ]
        )
    columns = [
        Column("run", False),
        Column("state", False),
        Column("final"),
        Column("peak"),
        Column("episodes"),
        Column("tokens"),
    ]
    return table(
        [*columns, Column("time")], rows, "Links open the run's directory, or its own report where one has been written"
    )


def missing(found: Comparison) -> list[str]:
    """Sentences about what is not there."""
    told = []
    for world in found.worlds:
        cells = [cell for cell in found.cells if cell["world"] == world]
        if cells and all(cell["status"] == "missing" for cell in cells):
            told.append(f"Nothing of {world} was ever begun ({len(cells)} runs).")
    begun = [cell for cell in found.cells if not any(line.startswith(f"Nothing of {cell['world']} was") for line in told)]
    for cell in begun:
        if cell["status"] != "finished":
            place = f"{cell['world']} / {cell['method']} / seed {cell.get('seed')}"
            why = f": {str(cell['error']).strip().splitlines()[-1]}" if str(cell.get("error") or "").strip() else ""
            told.append(f"{place} {STATUS_WORDS.get(cell['status'], cell['status'])}{why}.")
    for world, start in table_of(found.found.get("starts")).items():
        if isinstance(start, Mapping) and start.get("status") not in (None, "finished"):
            why = f": {start['error']}" if start.get("error") else ""
            told.append(f"The run that every cell of {world} starts from is {start['status']}{why}.")
    return told


def _levels(row: Record) -> list[Record]:
    return [e for e in entries(row.get("steps_to")) if is_number(e.get("threshold"))]


def _results_table(found: Comparison, rows: Sequence[Record]) -> Markup:
    body: list[list[Child]] = []
    for row in rows:
        against: Any = row.get("against") if isinstance(row.get("against"), Mapping) else {}
        seeds: Any = row.get("seeds") if isinstance(row.get("seeds"), list) else []
        body.append(
            [
                [row["method"], tag("div", "baseline", cls="quiet") if row["method"] == found.baseline else None],
                *(_measured(row.get(name), percent, bold=name == "final") for name in ("final", "peak", "start")),
                _measured(against.get("difference"), _points),
                f"{count(against.get('won'))} : {count(against.get('lost'))}" if is_number(against.get("won")) else NOTHING,
                _tested(against.get("p_holm")),
                _tested(against.get("p_seeds_holm")),
                f"{len(seeds)} / {len(found.seeds)}",
                _measured(row.get("score"), lambda v: plain(v, 3)),
                _measured(row.get("success_length"), plain),
                _measured(row.get("invalid"), percent),
                _measured(row.get("ineffective"), percent),
            ]
        )
    columns = [Column("method", False), Column("final"), Column("peak"), Column("start"), Column("Δ final, points")]
    columns += [Column("won : lost"), Column("p, these agents"), Column("p, new seeds"), Column("seeds"), Column("score")]
    columns += [Column("steps of a success"), Column("invalid"), Column("ineffective")]
    return table(columns, body)


def _legend(found: Comparison) -> str:
    base = found.baseline
    return (
        f"Means over seeds, with 95% intervals below them. Start: before practice. Final: after the last iteration. Peak: "
        f"each seed's best evaluation, chosen after the fact and so always flattering. Δ: final success minus {base}'s, paired "
        f"by seed. Won : lost counts the episodes that only this method, or only {base}, succeeded in. p, these agents: exact "
        f"McNemar test over seeds × tasks. p, new seeds: sign-flip test over seeds, for training again. Both are corrected for "
        f"all comparisons on this page (Holm), and bold below 0.05."
    )


def _curve(cell: Record) -> dict[float, float]:
    return {
        e["step"]: e["success"] for e in entries(cell.get("curve")) if is_number(e.get("step")) and is_number(e.get("success"))
    }


def _finished(found: Comparison, world: str, method: str) -> bool:
    return any(c["status"] == "finished" for c in found.cells_of(world, method))


def _curve_table(world: str, series: Sequence[Series]) -> Markup:
    steps = sorted({p.x for s in series for p in s.points})
    rows: list[list[Child]] = []
    for step in steps:
        at = [next((p for p in s.points if p.x == step), None) for s in series]
        rows.append([short(step), *(percent(p.y) if p else NOTHING for p in at)])
    return table([Column("iteration"), *(Column(s.name) for s in series)], rows, f"Mean success over seeds, {world}")


def _measure(value: Any) -> Record | None:
    return value if isinstance(value, Mapping) and is_number(value.get("mean")) else None


def _triple(measure: Record) -> tuple[float, float, float]:
    mean = measure["mean"]
    low, high = measure.get("low"), measure.get("high")
    return mean, low if is_number(low) else mean, high if is_number(high) else mean


def _seeds(measure: Record) -> list[float]:
    said = measure.get("per_seed")
    return [v for v in said if is_number(v)] if isinstance(said, list) else []


def _measured(value: Any, show: Any, bold: bool = False) -> Child:
    measure = _measure(value)
    if measure is None:
        return NOTHING
    low, high = measure.get("low"), measure.get("high")
    mean = tag("b", show(measure["mean"])) if bold else show(measure["mean"])
    if not (is_number(low) and is_number(high)):
        return mean
    return [mean, tag("div", f"[{show(low).rstrip('%')}, {show(high).rstrip('%')}]", cls="quiet")]


def _points(difference: float) -> str:
    """A difference of shares in percentage points, always with its sign."""
    return f"{'+' if difference > 0 else MINUS if difference < 0 else ''}{abs(100 * difference):.1f}"


def _tested(p: Any) -> Child:
    return tag("b", probability(p)) if is_number(p) and p < SIGNIFICANT else probability(p)


def _reached(entry: Record | None) -> Child:
    if entry is None:
        return NOTHING
    median = short(entry.get("median")) if is_number(entry.get("median")) else "not reached"
    return [median, tag("div", f"{count(entry.get('reached'))} of {count(entry.get('of'))}", cls="quiet")]


def _score(evaluation: Any) -> str:
    return percent(success_of(evaluation)) if isinstance(evaluation, Mapping) and is_score(evaluation) else NOTHING


def _link(found: Comparison, cell: Record, beside: Path) -> Child:
    name = f"{cell['world']} / {cell['method']} / {cell.get('seed')}"
    place = cell.get("run")
    if not isinstance(place, str) or not (found.path / place).is_dir():
        return name
    own = Path(place) / "report.html"
    target = own if (found.path / own).is_file() else Path(place)
    relative = Path(os.path.relpath((found.path / target).resolve(), beside.resolve())).as_posix()
    # Quoted, so that no name of a directory can be read as an address of another kind.
    return tag("a", name, href=quote(relative if target == own else f"{relative}/"))
