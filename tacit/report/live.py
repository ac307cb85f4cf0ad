"""Live pages of runs. A run may not have started, may be changing, or may have been removed. Nothing here writes to a run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tacit.config.values import flatten
from tacit.core.errors import TacitError
from tacit.core.progress import pluralize
from tacit.evaluation.plots import Series
from tacit.report.comparison_page import make_missing_error
from tacit.report.page import DASH, Live, draw_chart, is_number, render
from tacit.report.run_files import COMPARISON, Episodes, RunFiles, find_defaults, read_episodes, read_run
from tacit.report.run_page import (
    ALL,
    CHARTED,
    STAGE_TITLES,
    build_headline,
    compare_settings,
    group_metrics,
    group_panels,
    panel_points,
    setting_name,
)
from tacit.report.sections import build_viewer, choose_episodes
from tacit.runs.directory import SETTINGS, UNSTARTED_FILES
from tacit.runs.trajectories import RECORDED, parse_recording_name

FOLDERS = ("evaluations/*.json", "trajectories/*.jsonl.gz", "checkpoints/*/state.json", "experience/bank.sqlite*")
PAGE_FILES = ("*.json", "*.jsonl", *FOLDERS)  # files that pages are made from


@dataclass(frozen=True)
class WatchedRun:
    path: Path
    name: str  # the end of its path that is unique among the watched runs

    @property
    def has_started(self) -> bool:
        return (self.path / SETTINGS).is_file()

    def get_stamp(self) -> tuple[str, float | None]:
        """A stamp that changes with any of PAGE_FILES, and the time of the last change in seconds since 1970."""
        seen = []
        for file in sorted({file for pattern in PAGE_FILES for file in self.path.glob(pattern)}):
            with suppress(OSError):  # just replaced or removed
                state = file.stat()
                seen.append((str(file.relative_to(self.path)), state.st_size, state.st_mtime_ns))
        digest = hashlib.sha256(repr((self.path.is_dir(), seen)).encode()).hexdigest()[:16]
        return digest, max((written for _, _, written in seen), default=0) / 1e9 or None

    def describe_absence(self) -> tuple[str, str]:
        """(heading, sentence) for a directory without a run."""
        if not self.path.is_dir():
            return "Not started", f"There is no directory {self.path}. The run appears here as soon as it starts."
        return "Starting", f"{self.path} has no {SETTINGS} yet. The run appears here as soon as it has written it."


def find_watched_runs(paths: Sequence[Path]) -> list[WatchedRun]:
    """The distinct runs. Paths that cannot become a run are errors."""
    distinct = list(dict.fromkeys(path.absolute() for path in paths))
    for path in distinct:
        if (path / SETTINGS).is_file() or not path.exists():
            continue
        if not path.is_dir():
            raise TacitError(f"{path} is a file; name the directory of a run (runs/NAME).")
        if (path / COMPARISON).is_file():
            runs = sorted(str(file.parent.relative_to(path)) for file in path.glob(f"runs/**/{SETTINGS}"))
            named = f" Name some of its runs instead: {', '.join(runs[:5])}." if runs else ""
            raise TacitError(f"{path} is a comparison; `tacit report {path}` shows it.{named}")
        if any(not own.name.endswith(".tmp") and own.name not in UNSTARTED_FILES for own in path.iterdir()):
            raise make_missing_error(path)
    return [WatchedRun(path, name) for path, name in zip(distinct, _names(distinct), strict=True)]


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


# The episode feed: the newest recording turn by turn, earlier ones as one line each

MAX_EPISODES, MAX_RECORDINGS, MAX_TURNS = 8, 12, 60  # shown of the newest recording, of the run, and of an episode


def build_feed(run: Path, link: str, max_episodes: int, notices: list[str]) -> dict[str, Any]:
    """Values for the episode feed. `link`: URL of the recordings' pages. `max_episodes`: of such a page; it
    decides the episodes' numbers there."""
    files = sorted(
        ((file.stat().st_mtime_ns, file.name.removesuffix(RECORDED), file) for file in find_recordings(run)), reverse=True
    )
    recordings, newest = [], None
    for _, name, file in files[:MAX_RECORDINGS]:
        if (episodes := _read_feed(run, file, notices)).records:
            newest = newest or episodes
            turns, won = [len(r["turns"]) for r in episodes.records], sum(r["success"] for r in episodes.records)
            counts = {"won": won, "played": len(turns), "turns": sum(turns) / len(turns)}
            recordings.append({"title": episodes.title, "link": f"{link}/{name}", **counts})
    if newest is None:
        return {"episodes": []}
    entries = []
    for number, (_, record) in enumerate(choose_episodes([newest], max_episodes)[:MAX_EPISODES], start=1):
        entries.append({
            "link": f"{recordings[0]['link']}#episode={number}",
            "success": record["success"],
            "goal": str(record.get("goal") or record["task"])[:200],
            "turns": list(map(_mark, record["turns"][:MAX_TURNS])),
        })  # fmt: skip
    return {**recordings[0], "episodes": entries, "earlier": recordings[1:]}


def find_recordings(run: Path) -> list[Path]:
    return [file for file in (run / "trajectories").glob(f"*{RECORDED}") if parse_recording_name(file) and file.is_file()]


def render_recording(run: Path, name: str, max_episodes: int, live: Live, **more: Any) -> str:
    file, files = run / "trajectories" / f"{name}{RECORDED}", read_run(run)
    notices = list(files.notices)
    episodes = _read_feed(run, file, notices)
    viewed = build_viewer([episodes] if episodes.records else [], max_episodes)
    notices += find_defaults(files.settings)[1]
    return render("episodes", notices, live, name=f"{run.name}: {episodes.title}", shown=viewed, what=str(file), **more)


def _read_feed(run: Path, file: Path, notices: list[str]) -> Episodes:
    state = file.stat()
    episodes, problems = _read_cached(run, file, state.st_mtime_ns, state.st_size)
    notices.extend(problems)
    return episodes


@lru_cache(maxsize=4 * MAX_RECORDINGS)
def _read_cached(run: Path, file: Path, written: int, size: int) -> tuple[Episodes, tuple[str, ...]]:
    """Recordings are written atomically, so one read per version is enough."""
    notices: list[str] = []
    stage, step = parse_recording_name(file) or ("", 0)
    return Episodes(stage, step, read_episodes(run, file, notices)), tuple(notices)


def _mark(turn: Mapping[str, Any]) -> tuple[str, str]:
    """(CSS classes, tooltip) of a turn's mark"""
    credit = turn.get("credit")
    label, style = [str(turn["action"])[:80]], []
    if is_number(credit) and credit:
        style.append("plus" if credit > 0 else "minus")
        label.append(f"credit {credit:+.3f}")
    if not (turn["valid"] and turn["effective"]):
        style.append("hollow")
        label.append("refused" if turn["valid"] else "invalid")
    return " ".join(style), ", ".join(label)


# Several runs side by side: progress, charts with a line per run, and episodes

NAMED_SETTINGS = ("world", "method", "model", "seed")
LoadedRun = tuple[WatchedRun, RunFiles | None, str]  # (run, its files or None, error)


def render_overview(runs: Sequence[WatchedRun], links: Sequence[str], max_episodes: int, live: Live) -> str:
    loaded: list[LoadedRun] = []
    for run in runs:
        try:
            loaded.append((run, read_run(run.path), "") if run.has_started else (run, None, run.describe_absence()[1]))
        except TacitError as error:
            loaded.append((run, None, str(error)))
    notices = [f"{run.name}: {why}" for run, _, why in loaded if why]
    notices += [f"{run.name}: {notice}" for run, files, _ in loaded if files for notice in files.notices]
    pairs = list(zip(runs, links, strict=True))
    feeds = [
        (r.name, link, build_feed(r.path, f"{link}/episodes", max_episodes, notices)) for r, link in pairs if r.has_started
    ]
    columns = [_column(files) for _, files, _ in loaded]
    titles = dict.fromkeys(title for column in columns for title in column)
    return render(
        "watch",
        notices,
        live,
        title=pluralize(len(runs), "run"),
        name=pluralize(len(runs), "run"),
        what=f"{sum(files is not None and files.finished for _, files, _ in loaded)} finished",
        names=[Markup('<a href="{}">{}</a>').format(link, run.name) for run, link in pairs],
        rows=[(title, *(column.get(title, DASH) for column in columns)) for title in titles],
        curves=_curves(loaded),
        feeds=feeds,
        differences=compare_settings([flatten(files.settings) if files else {} for _, files, _ in loaded]),
    )


def _column(files: RunFiles | None) -> dict[str, str]:
    if files is None:
        return {"state": "not started"}
    state = files.ending if files.finished else f"at {files.last_step}" if files.last_step else "started"
    column = {"state": state, **{key: setting_name(files.settings, key) for key in NAMED_SETTINGS}}
    for label, number, more in build_headline(group_panels(files)):
        column[label.removesuffix(", not final")] = f"{number} {more}"
    if files.alarms:
        column["alarms"] = ", ".join(alarm["name"].replace("_", " ") for alarm in files.alarms)
    return column


def _curves(runs: Sequence[LoadedRun]) -> dict[str, list[Markup]]:
    """Stage -> charts: success on the panel, then the CHARTED metrics, with a line per run. If a chart has one line, its title
    names the run."""
    started = [(run.name, i, files) for i, (run, files, _) in enumerate(runs) if files is not None]
    charts: dict[str, list[Markup]] = {}

    def draw(stage: str, title: str, lines: Sequence[Series], word: str, **scale: Any) -> None:
        if lines:
            title = title if len(lines) > 1 else f"{title}, {lines[0].name}"
            charts.setdefault(STAGE_TITLES[stage], []).append(draw_chart(title, lines, word, **scale))

    panels = [(name, i, panel) for name, i, files in started for panel in group_panels(files)[:1] if panel.training]
    lines = [Series(name, panel_points(panel), i) for name, i, panel in panels]
    draw("rl", "Success on the panel", lines, "iteration", share=True, marks=True)
    for stage in STAGE_TITLES:
        own = [(name, i, group_metrics([r for r in files.metrics if r["stage"] == stage])) for name, i, files in started]
        for chart in CHARTED:
            (metric,) = chart.metrics.values()
            whole = [(name, i, line) for name, i, metrics in own for line in metrics.get(metric, ()) if line.name == ALL]
            lines = [replace(line, name=name, color=i) for name, i, line in whole]
            draw(stage, chart.title, lines, "iteration" if stage == "rl" else "step", **chart.scale)
    return charts
