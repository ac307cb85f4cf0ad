"""Who was compared with whom, and how each step's credit was found, by iteration (BiPACE's Table 1, Figure 3, Tables L.2, L.3).

A cluster is what a step was compared with: steps of an equal observation (GiGPO), an equal history (HGPO, at depth 1), or a
near state (BiGPO, BiPACE). `tacit/credit/diagnostics.py` counts them; runs of methods without clusters have nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from tacit.evaluation.pictures import Point, Series, mean_series
from tacit.report.charts import draw, thinned
from tacit.report.comparison_files import Comparison
from tacit.report.numbers import is_number, percent, short
from tacit.report.run_files import Record, read_metrics

SHARE, FROM_ZERO = {"share": True, "floor": 0.0}, {"floor": 0.0}
MOST_POINTS = 60
"""of a line of a comparison, which has many charts of many lines"""


@dataclass(frozen=True)
class Diagnostic:
    """One chart of a run: a line for each of its metrics."""

    title: str
    metrics: Mapping[str, str]
    """what the line is called -> the metric"""
    scale: Mapping[str, Any]

    def titles(self) -> dict[str, str]:
        """metric -> what a chart or a column of it alone is called"""
        return {metric: f"{self.title}, {name}" if name else self.title for name, metric in self.metrics.items()}


DIAGNOSTICS = (
    Diagnostic("Singletons", {"of clusters": "parts_singleton", "of steps": "parts_singleton_steps"}, SHARE),
    Diagnostic("Steps per cluster", {"": "parts_mean_size"}, FROM_ZERO),
    Diagnostic("Matched pairs", {"": "parts_pairs"}, FROM_ZERO),
    Diagnostic("Largest cluster of a group", {"": "parts_largest"}, SHARE),
    Diagnostic("Branch", {"PACE": "pace_used", "leave one out": "pace_leave_one_out", "zero": "pace_zero"}, SHARE),
    Diagnostic("Actions per cluster", {"": "pace_keys_per_part"}, FROM_ZERO),
    Diagnostic("Clusters of several actions", {"": "pace_parts_contrasted"}, SHARE),
    Diagnostic("Actions that could be read", {"": "pace_parsed"}, SHARE),
)


def run_charts(found: dict[str, list[Series]], word: str, wanted: Sequence[Diagnostic] = DIAGNOSTICS) -> list[Markup]:
    """Of the metrics of a run, which are taken out of `found`. Those that never move are left there, to be told in words."""
    charts = []
    for diagnostic in wanted:
        there = {name: found[metric] for name, metric in diagnostic.metrics.items() if metric in found}
        if not any(_moves(line) for lines in there.values() for line in lines):
            continue
        for metric in diagnostic.metrics.values():
            found.pop(metric, None)
        if len(diagnostic.metrics) == 1:  # a line for each world
            (lines,) = there.values()
            charts.append(draw(diagnostic.title, lines, word, **diagnostic.scale))
            continue
        worlds = list(dict.fromkeys(line.name for lines in there.values() for line in lines))
        for world in worlds:  # a chart for each world
            own = {name: s for name, lines in there.items() for s in lines if s.name == world}
            title = diagnostic.title if len(worlds) == 1 else f"{diagnostic.title}, {world}"
            lines = [replace(line, name=name, colour=i) for i, (name, line) in enumerate(own.items())]
            charts.append(draw(title, lines, word, **diagnostic.scale))
    return charts


def comparison_parts(found: Comparison, world: str, notices: list[str]) -> dict[str, Any] | None:
    """A chart for each metric with a line for each method that has it, the mean over its seeds; and the means over all
    iterations as a table: titles, then a row for each method."""
    recorded = {method: _recorded(found, world, method, notices) for method in found.methods}
    charts, columns = [], {}
    for diagnostic in DIAGNOSTICS:
        for metric, title in diagnostic.titles().items():
            lines = [
                replace(mean_series(method, curves, found.colour(method)), each=())
                for method, runs in recorded.items()
                if (curves := [curve for run in runs if (curve := _curve(run, metric))])
            ]
            if lines := [line for line in lines if line.points]:
                show = percent if diagnostic.scale is SHARE else short
                columns[title] = {line.name: show(sum(p.y for p in line.points) / len(line.points)) for line in lines}
                if any(map(_moves, lines)):
                    charts.append(_chart(title, lines, diagnostic.scale))
    if not columns:
        return None
    methods = [method for method in found.methods if any(method in values for values in columns.values())]
    rows = [[method, *(values.get(method, "–") for values in columns.values())] for method in methods]
    return {"charts": charts, "titles": ["method", *columns], "rows": rows}


def _chart(title: str, lines: Sequence[Series], scale: Mapping[str, Any]) -> Markup:
    drawn = [replace(line, points=thinned(line.points, MOST_POINTS)) for line in lines]
    merged = max(-(-len(line.points) // MOST_POINTS) for line in lines)
    notes = [lines[0].name] if len(lines) == 1 else []
    notes += [f"each point is the mean of {merged} neighbours"] if merged > 1 else []
    return draw(title, drawn, note="; ".join(notes), **scale)


def _recorded(found: Comparison, world: str, method: str, notices: list[str]) -> list[Sequence[Record]]:
    """The iterations of its finished runs; of whatever there is, where none has finished."""
    cells = found.cells_of(world, method, finished=True) or found.cells_of(world, method)
    places = [place for place in map(found.place, cells) if place.is_dir()]
    return [[r for r in read_metrics(place, notices) if r["stage"] == "rl"] for place in places]


def _curve(records: Sequence[Record], metric: str) -> dict[float, float]:
    return {r["step"]: r[metric] for r in records if is_number(r.get(metric))}


def _moves(line: Series) -> bool:
    first: Point = line.points[0]
    return len(line.points) == 1 or any(p.y != first.y for p in line.points)
