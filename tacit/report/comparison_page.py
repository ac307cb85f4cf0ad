"""The page of a comparison."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from tacit.report.assembly import headline, page
from tacit.report.charts import Chart, Point, Series, draw
from tacit.report.comparison_episodes import comparison_viewer
from tacit.report.comparison_files import Comparison, read_comparison, table_of
from tacit.report.comparison_parts import learning, missing, results, runs, thresholds
from tacit.report.conduct import conduct, prompt_series
from tacit.report.episodes import MOST_TRAJECTORIES
from tacit.report.known import Known
from tacit.report.markup import Child, Markup, join, tag
from tacit.report.numbers import count
from tacit.report.provenance import code_version, flag, flat, shown
from tacit.report.run_files import EVALUATIONS, Episodes, Record, newest_episodes
from tacit.report.tables import Column, pairs, table

PER_RUN = (("seed",), ("out",), ("method", "name"))
"""settings that differ from run to run by the nature of a comparison"""


def comparison_page(
    path: Path,
    known_of: Callable[[Record], Known] | None = None,
    beside: Path | None = None,
    most_trajectories: int = MOST_TRAJECTORIES,
) -> str:
    """HTML of the comparison in `path`. `known_of` tells what is known of a run with these settings; `beside` is the directory
    the page will lie in, from which its links lead."""
    found = read_comparison(path)
    notices = [*found.notices, *missing(found)]
    known_of = known_of or (lambda settings: Known())
    behaved = _behaviour(found, known_of, notices)
    sections = [
        ("results", "Results", results(found)),
        ("curves", "Learning curves", learning(found)),
        ("thresholds", "Steps to thresholds", thresholds(found)),
        ("behaviour", "Behaviour", behaved),
        ("trajectories", "Trajectories", comparison_viewer(found, known_of, most_trajectories, notices)),
        ("runs", "Runs", runs(found, beside or path)),
        ("compared", "What was compared", _provenance(found)),
    ]
    name = str(found.found.get("name") or path.resolve().name)
    return page(f"{name}: a comparison", _header(found, name), list(dict.fromkeys(notices)), sections)


def _header(found: Comparison, name: str) -> list[Child]:
    finished = sum(cell["status"] == "finished" for cell in found.cells)
    complete = finished == len(found.cells)
    state = tag("span", "complete" if complete else "not complete", cls=f"state {'good' if complete else 'warn'}")
    what = f"{', '.join(found.methods)} in {', '.join(found.worlds)}"
    numbers = [
        ("methods", count(len(found.methods)), f"against {found.baseline}"),
        ("worlds", count(len(found.worlds)), ""),
        ("seeds", count(len(found.seeds)), ", ".join(found.seeds)),
        ("runs finished", f"{finished} / {len(found.cells)}", ""),
    ]
    said = str(found.found.get("description") or "").strip()
    lead = tag("p", what, " ", state, cls="lead")
    return [
        tag("p", "Tacit comparison", cls="kind"),
        tag("h1", name),
        lead,
        tag("p", said) if said else None,
        headline(numbers),
    ]


def _behaviour(found: Comparison, known_of: Callable[[Record], Known], notices: list[str]) -> Markup:
    """Per world: a column per method, over the last recorded evaluations of its seeds taken together."""
    parts: list[Child] = []
    for world in found.worlds:
        columns = [e for method in found.methods if (e := _pooled(found, world, method, notices)) is not None]
        if not columns:
            parts.append(tag("p", f"{world}: no trajectories were recorded, so behaviour cannot be told.", cls="quiet"))
            continue
        settings = next(
            (c["settings"] for c in found.cells if c["world"] == world and isinstance(c.get("settings"), Mapping)), None
        )
        known = known_of(settings) if settings is not None else Known()
        # As lines alone: the bands of several methods hide them and each other.
        series = [Series(e.title, [Point(p.x, p.y) for p in prompt_series(e).points], found.colour(e.title)) for e in columns]
        parts.append(tag("h3", world))
        own = list(known.notices)
        parts.append(conduct(columns, known, own))
        notices += [f"{world}: {notice}" for notice in own]
        if any(len(s.points) > 1 for s in series):
            chart = Chart("Prompt tokens by turn", series, "turn", floor=0.0, note="mean of the episodes that come so far")
            parts.append(tag("div", draw(chart), cls="charts large"))
    lead = "Over the episodes of each method's last recorded evaluations, its seeds taken together."
    return join([tag("p", lead, cls="quiet"), *parts])


def _pooled(found: Comparison, world: str, method: str, notices: list[str]) -> Episodes | None:
    records: list[Record] = []
    for cell in found.cells_of(world, method):
        place = found.path / str(cell.get("run") or "")
        if cell["status"] == "finished" and place.is_dir():
            for episodes in newest_episodes(place, EVALUATIONS, notices):
                records += episodes.records
    return Episodes("", 0, records, method) if records else None


def _provenance(found: Comparison) -> Markup:
    said, versions = found.found, found.found.get("versions")
    command = said.get("command")
    rows: list[tuple[Child, Child]] = [("file", tag("code", said.get("file") or "?")), ("directory", tag("code", found.path))]
    if isinstance(command, list):
        rows.insert(1, ("command", tag("code", shlex.join(map(str, command)))))
    if isinstance(versions, Mapping):
        rows += [("code", code_version(versions)), ("machine", str(versions.get("machine", "?")))]
    for world, start in table_of(said.get("starts")).items():
        if isinstance(start, Mapping):
            rows.append(
                (f"start in {world}", f"{start.get('checkpoint') or 'none'}, seed {start.get('seed')}: {start.get('run')}")
            )
    return join([pairs(rows), _differences(found)])


def _differences(found: Comparison) -> Markup | None:
    """Settings that are not the same for all methods of a world, by the first run of each."""
    parts: list[Child] = []
    for world in found.worlds:
        told = {}
        for method in found.methods:
            cells = found.cells_of(world, method)
            settings = next((c["settings"] for c in cells if isinstance(c.get("settings"), Mapping)), None)
            if settings is not None:
                told[method] = flat(settings)
        places = dict.fromkeys(place for settings in told.values() for place in settings if place not in PER_RUN)
        rows = []
        for place in places:
            values = [settings.get(place, _ABSENT) for settings in told.values()]
            if any(value != values[0] for value in values):
                rows.append([tag("code", flag(place)), *("" if v is _ABSENT else shown(v) for v in values)])
        if rows:
            columns = [Column("setting", False), *(Column(method, False) for method in told)]
            parts.append(
                table(columns, rows, f"Settings that differ between the methods in {world}; empty: the method has none")
            )
    return join(parts) if parts else None


_ABSENT = object()
