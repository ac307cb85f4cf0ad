"""Several runs side by side: how far each has come, a line for each in every chart, and their episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from tacit.core.amounts import number_of
from tacit.core.errors import TacitError
from tacit.evaluation.pictures import Series
from tacit.report.charts import draw
from tacit.report.learning_curves import ALL, READINGS, STAGE_TITLES, lines_of, measured_points
from tacit.report.measures import headline, panels_of
from tacit.report.numbers import NOTHING
from tacit.report.page import Live, render
from tacit.report.provenance import flag, flat, name_of, shown
from tacit.report.run_files import RunFiles, read_run
from tacit.watching.feed import feed_of
from tacit.watching.watched import Watched

NAMED = ("world", "method", "model", "seed")
Found = tuple[Watched, RunFiles | None, str]
"""a run, its files where they can be read, and else why not"""


def overview_page(runs: Sequence[Watched], links: Sequence[str], most: int, live: Live) -> str:
    found = [(run, *_read(run)) for run in runs]
    notices = [f"{run.name}: {why}" for run, _, why in found if why]
    notices += [f"{run.name}: {said}" for run, files, _ in found if files for said in files.notices]
    feeds = [
        (run.name, link, feed_of(run.path, f"{link}/episodes", most, notices))
        for run, link in zip(runs, links, strict=True)
        if run.begun
    ]
    finished = sum(files is not None and files.finished for _, files, _ in found)
    return render(
        "watch",
        notices,
        live,
        title=number_of(len(runs), "run"),
        name=number_of(len(runs), "run"),
        what=f"{finished} finished",
        names=[Markup('<a href="{}">{}</a>').format(link, run.name) for run, link in zip(runs, links, strict=True)],
        rows=_rows(found),
        curves=_curves(found),
        feeds=feeds,
        differences=_differences(found),
    )


def _read(run: Watched) -> tuple[RunFiles | None, str]:
    if not run.begun:
        return None, run.absence()[1]
    try:
        return read_run(run.path), ""
    except TacitError as error:
        return None, str(error)


def _rows(found: Sequence[Found]) -> list[tuple[Any, ...]]:
    """One for each thing that can be said of a run, with a column for each run."""
    columns = [_column(files) for _, files, _ in found]
    titles = list(dict.fromkeys(title for column in columns for title in column))
    return [(title, *(column.get(title, NOTHING) for column in columns)) for title in titles]


def _column(files: RunFiles | None) -> dict[str, str]:
    if files is None:
        return {"state": "not begun"}
    state = files.ending if files.finished else f"has come to {files.come_to}" if files.come_to else "has begun"
    told = {"state": state, **{key: name_of(files.settings, key) for key in NAMED}}
    told |= {label.removesuffix(", not final"): f"{number} {more}" for label, number, more in headline(panels_of(files))}
    if files.alarms:
        told["alarms"] = ", ".join(alarm["name"].replace("_", " ") for alarm in files.alarms)
    return told


def _curves(found: Sequence[Found]) -> dict[str, list[Markup]]:
    """Stage -> charts: success on the panel, then what READINGS names, with a line for each run that has it."""
    there = [(run.name, i, files) for i, (run, files, _) in enumerate(found) if files is not None]
    told: dict[str, list[Markup]] = {}
    panels = [
        Series(name, measured_points(panel), i) for name, i, files in there for panel in panels_of(files)[:1] if panel.training
    ]
    if panels:
        told[STAGE_TITLES["rl"]] = [draw(_title("Success on the panel", panels), panels, share=True, marks=True)]
    for stage, title in STAGE_TITLES.items():
        lines = [(name, i, lines_of([r for r in files.metrics if r["stage"] == stage])) for name, i, files in there]
        for metric, (reading, scale) in READINGS.items():
            own = [
                replace(line, name=name, colour=i)
                for name, i, metrics in lines
                for line in metrics.get(metric, ())
                if line.name == ALL
            ]
            if own:
                word = "iteration" if stage == "rl" else "step"
                told.setdefault(title, []).append(draw(_title(reading, own), own, word, **scale))
    return told


def _title(reading: str, lines: Sequence[Series]) -> str:
    """A line that is alone in its chart has no name there."""
    return reading if len(lines) > 1 else f"{reading}, {lines[0].name}"


def _differences(found: Sequence[Found]) -> list[tuple[Any, ...]]:
    told = [flat(files.settings) if files else {} for _, files, _ in found]
    there = [t for t in told if t]
    places = dict.fromkeys(place for t in there for place in t if place != ("out",))
    differing = [place for place in places if any(t.get(place) != there[0].get(place) for t in there)]
    return [
        (Markup("<code>{}</code>").format(flag(place)), *(shown(t[place]) if place in t else "" for t in told))
        for place in differing
    ]
