"""Live pages: runs that may not have started, may be written to right now, or may be gone. Nothing here writes to a run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tacit.core.errors import TacitError
from tacit.core.progress import pluralize
from tacit.evaluation.plots import Series
from tacit.report.charts import draw_chart
from tacit.report.page import DASH, Live, is_number, render
from tacit.report.run_files import COMPARISON, Episodes, Record, RunFiles, find_defaults, read_episodes, read_run
from tacit.report.run_page import (
    ALL,
    CHARTED,
    STAGE_TITLES,
    build_headline,
    flag_name,
    flatten_settings,
    group_metrics,
    group_panels,
    panel_points,
    render_value,
    setting_name,
)
from tacit.report.viewer import build_viewer, choose_episodes
from tacit.report.write import make_missing_error
from tacit.runs.directory import SETTINGS, UNSTARTED_FILES
from tacit.runs.trajectories import RECORDED, parse_recording_name

PAGE_FILES = (
    "*.json",
    "*.jsonl",
    "evaluations/*.json",
    "trajectories/*.jsonl.gz",
    "checkpoints/*/state.json",
    "experience/bank.sqlite*",
)
"""files that pages are made from"""


@dataclass(frozen=True)
class WatchedRun:
    path: Path
    name: str
    """the end of its path that is unique among the watched runs"""

    @property
    def has_started(self) -> bool:
        return (self.path / SETTINGS).is_file()

    def get_stamp(self) -> tuple[str, float | None]:
        """A stamp that changes with any of PAGE_FILES, and the time of the last change in seconds since 1970."""
        seen = sorted(_states(self.path))
        digest = hashlib.sha256(repr((self.path.is_dir(), seen)).encode()).hexdigest()[:16]
        return digest, max((written for _, _, written in seen), default=0) / 1e9 or None

    def describe_absence(self) -> tuple[str, str]:
        """(heading, sentence) for a directory without a run."""
        if not self.path.is_dir():
            return "Not started", f"There is no directory {self.path}. The run appears here as soon as it starts."
        return "Starting", f"{self.path} has no {SETTINGS} yet. The run appears here as soon as it has written it."


def find_watched_runs(paths: Sequence[Path]) -> list[WatchedRun]:
    """The distinct runs. Paths that cannot become a run are errors."""
    distinct = list(dict.fromkeys(path.expanduser().absolute() for path in paths))
    for path in distinct:
        _check_path(path)
    return [WatchedRun(path, name) for path, name in zip(distinct, _names(distinct), strict=True)]


def _check_path(path: Path) -> None:
    if (path / SETTINGS).is_file() or not path.exists():
        return
    if not path.is_dir():
        raise TacitError(f"{path} is a file; name the directory of a run (runs/NAME).")
    if (path / COMPARISON).is_file():
        runs = sorted(str(file.parent.relative_to(path)) for file in path.glob(f"runs/**/{SETTINGS}"))
        named = f" Name some of its runs instead: {', '.join(runs[:5])}." if runs else ""
        raise TacitError(f"{path} is a comparison; `tacit report {path}` shows it.{named}")
    if any(not own.name.endswith(".tmp") and own.name not in UNSTARTED_FILES for own in path.iterdir()):
        raise make_missing_error(path)


def _names(paths: Sequence[Path]) -> list[str]:
    """
    >>> _names([Path("/a/seed/0"), Path("/b/seed/0"), Path("/b/one")])
    ['a/seed/0', 'b/seed/0', 'one']
    """

    def ending(path: Path, depth: int) -> str:
        return "/".join(path.parts[-depth:])

    names = []
    for path in paths:
        depths = range(1, len(path.parts) + 1)
        unique = (d for d in depths if [ending(other, d) for other in paths].count(ending(path, d)) == 1)
        names.append(ending(path, next(unique, len(path.parts))))
    return names


def _states(path: Path) -> Iterator[tuple[str, int, int]]:
    for pattern in PAGE_FILES:
        for file in path.glob(pattern):
            try:
                state = file.stat()
            except OSError:  # just replaced or removed
                continue
            yield str(file.relative_to(path)), state.st_size, state.st_mtime_ns


# The episode feed: the newest recording turn by turn, earlier ones as one line each

STRIPS, RECORDINGS, MAX_TURNS = 8, 12, 60
"""episodes shown of the newest recording, recordings, and turns per episode"""


def build_feed(run: Path, link: str, most: int, notices: list[str]) -> dict[str, Any]:
    """`link` is the URL of the recordings' pages. `most` is their maximum number of episodes; it determines episode numbers."""
    found = [(name, e) for name, e in _newest(run, notices) if e.records]
    if not found:
        return {"strips": []}
    first, newest = found[0]
    address = f"{link}/{first}"
    strips = [
        _strip(record, f"{address}#episode={number}")
        for number, (_, record) in enumerate(choose_episodes([newest], most)[:STRIPS], start=1)
    ]
    return {
        "title": newest.title,
        "link": address,
        "strips": strips,
        **_outcomes(newest),
        "earlier": [{"title": e.title, "link": f"{link}/{name}", **_outcomes(e)} for name, e in found[1:]],
    }


def find_recordings(run: Path) -> list[Path]:
    return [file for file in (run / "trajectories").glob(f"*{RECORDED}") if parse_recording_name(file) and file.is_file()]


def render_recording(run: Path, name: str, most: int, live: Live, **more: Any) -> str:
    """The page with the episodes of one recording."""
    file = run / "trajectories" / f"{name}{RECORDED}"
    files = read_run(run)
    notices = list(files.notices)
    episodes = _read_feed(run, file, notices)
    viewed = build_viewer([episodes] if episodes.records else [], most)
    notices += find_defaults(files.settings)[1]
    return render("episodes", notices, live, name=f"{run.name}: {episodes.title}", shown=viewed, what=str(file), **more)


def _newest(run: Path, notices: list[str]) -> list[tuple[str, Episodes]]:
    files = []
    for file in find_recordings(run):
        files.append((file.stat().st_mtime_ns, file.name.removesuffix(RECORDED), file))
    return [(name, _read_feed(run, file, notices)) for _, name, file in sorted(files, reverse=True)[:RECORDINGS]]


def _read_feed(run: Path, file: Path, notices: list[str]) -> Episodes:
    state = file.stat()
    episodes, found = _read_cached(run, file, state.st_mtime_ns, state.st_size)
    notices.extend(found)
    return episodes


@lru_cache(maxsize=4 * RECORDINGS)
def _read_cached(run: Path, file: Path, written: int, size: int) -> tuple[Episodes, tuple[str, ...]]:
    """Recordings are written atomically, so one read per version is enough."""
    notices: list[str] = []
    stage, step = parse_recording_name(file) or ("", 0)
    return Episodes(stage, step, read_episodes(run, file, notices)), tuple(notices)


def _outcomes(episodes: Episodes) -> dict[str, Any]:
    turns = [len(record["turns"]) for record in episodes.records]
    won = sum(record["success"] for record in episodes.records)
    return {"won": won, "played": len(turns), "turns": sum(turns) / len(turns)}


def _strip(record: Record, link: str) -> dict[str, Any]:
    turns: Sequence[Mapping[str, Any]] = record["turns"]
    goal = str(record.get("goal") or record["task"])
    return {"link": link, "success": record["success"], "goal": goal[:200], "turns": list(map(_mark, turns[:MAX_TURNS]))}


def _mark(turn: Mapping[str, Any]) -> tuple[str, str]:
    """(CSS classes, tooltip) of a turn's mark"""
    credit = turn.get("credit")
    label, style = [str(turn["action"])[:80]], []
    if is_number(credit) and credit:
        style.append("plus" if credit > 0 else "minus")
        label.append(f"credit {credit:+.3f}")
    if not (turn["valid"] and turn["effective"]):
        style.append("hollow")
        label.append("refused" if turn["valid"] else "not understood")
    return " ".join(style), ", ".join(label)


# Several runs side by side: progress, charts with a line per run, and episodes

NAMED_SETTINGS = ("world", "method", "model", "seed")
Found = tuple[WatchedRun, RunFiles | None, str]
"""(run, its files or None, error)"""


def render_overview(runs: Sequence[WatchedRun], links: Sequence[str], most: int, live: Live) -> str:
    found = [(run, *_read(run)) for run in runs]
    notices = [f"{run.name}: {why}" for run, _, why in found if why]
    notices += [f"{run.name}: {said}" for run, files, _ in found if files for said in files.notices]
    feeds = [
        (run.name, link, build_feed(run.path, f"{link}/episodes", most, notices))
        for run, link in zip(runs, links, strict=True)
        if run.has_started
    ]
    finished = sum(files is not None and files.finished for _, files, _ in found)
    return render(
        "watch",
        notices,
        live,
        title=pluralize(len(runs), "run"),
        name=pluralize(len(runs), "run"),
        what=f"{finished} finished",
        names=[Markup('<a href="{}">{}</a>').format(link, run.name) for run, link in zip(runs, links, strict=True)],
        rows=_rows(found),
        curves=_curves(found),
        feeds=feeds,
        differences=_differences(found),
    )


def _read(run: WatchedRun) -> tuple[RunFiles | None, str]:
    if not run.has_started:
        return None, run.describe_absence()[1]
    try:
        return read_run(run.path), ""
    except TacitError as error:
        return None, str(error)


def _rows(found: Sequence[Found]) -> list[tuple[Any, ...]]:
    """Table rows with a column per run."""
    columns = [_column(files) for _, files, _ in found]
    titles = list(dict.fromkeys(title for column in columns for title in column))
    return [(title, *(column.get(title, DASH) for column in columns)) for title in titles]


def _column(files: RunFiles | None) -> dict[str, str]:
    if files is None:
        return {"state": "not started"}
    state = files.ending if files.finished else f"at {files.last_step}" if files.last_step else "started"
    told = {"state": state, **{key: setting_name(files.settings, key) for key in NAMED_SETTINGS}}
    told |= {
        label.removesuffix(", not final"): f"{number} {more}" for label, number, more in build_headline(group_panels(files))
    }
    if files.alarms:
        told["alarms"] = ", ".join(alarm["name"].replace("_", " ") for alarm in files.alarms)
    return told


def _curves(found: Sequence[Found]) -> dict[str, list[Markup]]:
    """Stage -> charts: success on the panel, then the CHARTED metrics, with a line per run."""
    there = [(run.name, i, files) for i, (run, files, _) in enumerate(found) if files is not None]
    told: dict[str, list[Markup]] = {}
    panels = [
        Series(name, panel_points(panel), i) for name, i, files in there for panel in group_panels(files)[:1] if panel.training
    ]
    if panels:
        told[STAGE_TITLES["rl"]] = [draw_chart(_title("Success on the panel", panels), panels, share=True, marks=True)]
    for stage, title in STAGE_TITLES.items():
        lines = [(name, i, group_metrics([r for r in files.metrics if r["stage"] == stage])) for name, i, files in there]
        for metric, (reading, scale) in CHARTED.items():
            own = [
                replace(line, name=name, colour=i)
                for name, i, metrics in lines
                for line in metrics.get(metric, ())
                if line.name == ALL
            ]
            if own:
                word = "iteration" if stage == "rl" else "step"
                told.setdefault(title, []).append(draw_chart(_title(reading, own), own, word, **scale))
    return told


def _title(reading: str, lines: Sequence[Series]) -> str:
    """A chart does not name its only line, so the title does."""
    return reading if len(lines) > 1 else f"{reading}, {lines[0].name}"


def _differences(found: Sequence[Found]) -> list[tuple[Any, ...]]:
    told = [flatten_settings(files.settings) if files else {} for _, files, _ in found]
    there = [t for t in told if t]
    places = dict.fromkeys(place for t in there for place in t if place != ("out",))
    differing = [place for place in places if any(t.get(place) != there[0].get(place) for t in there)]
    return [
        (Markup("<code>{}</code>").format(flag_name(place)), *(render_value(t[place]) if place in t else "" for t in told))
        for place in differing
    ]
