"""A run that may not have begun, may be written to this moment, or may be gone by now. It is only ever read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tacit.core.errors import TacitError
from tacit.core.progress import number_of
from tacit.evaluation.plots import Series
from tacit.report.charts import draw
from tacit.report.page import NOTHING, Live, is_number, render
from tacit.report.run_files import COMPARISON, Episodes, Record, RunFiles, known_of, read_episodes, read_run
from tacit.report.run_page import (
    ALL,
    READINGS,
    STAGE_TITLES,
    flag,
    flat,
    headline,
    lines_of,
    measured_points,
    name_of,
    panels_of,
    shown,
)
from tacit.report.viewer import choose, viewer
from tacit.report.writing import neither
from tacit.runs.directory import SETTINGS, UNSTARTED_FILES

READ = (
    "*.json",
    "*.jsonl",
    "evaluations/*.json",
    "trajectories/*.jsonl.gz",
    "checkpoints/*/state.json",
    "experience/bank.sqlite*",
)
"""what pages are made of"""


@dataclass(frozen=True)
class Watched:
    path: Path
    name: str
    """of the directory, and as much of what it lies in as tells it from the others"""

    @property
    def begun(self) -> bool:
        return (self.path / SETTINGS).is_file()

    def look(self) -> tuple[str, float | None]:
        """A stamp that changes with any file that pages are made of; and when one was last written, in seconds since 1970."""
        seen = sorted(_states(self.path))
        digest = hashlib.sha256(repr((self.path.is_dir(), seen)).encode()).hexdigest()[:16]
        return digest, max((written for _, _, written in seen), default=0) / 1e9 or None

    def absence(self) -> tuple[str, str]:
        """What to say where there is no run: (heading, sentence)."""
        if not self.path.is_dir():
            return "Not begun", f"There is no directory {self.path} yet, or no longer. The run is shown as soon as it begins."
        return "Beginning", f"{self.path} has no {SETTINGS} yet. The run is shown as soon as it has written what it was told."


def watched(paths: Sequence[Path]) -> list[Watched]:
    """One of each; what cannot become a run is refused."""
    places = list(dict.fromkeys(path.expanduser().absolute() for path in paths))
    for path in places:
        _check(path)
    return [Watched(path, name) for path, name in zip(places, _names(places), strict=True)]


def _check(path: Path) -> None:
    if (path / SETTINGS).is_file() or not path.exists():
        return
    if not path.is_dir():
        raise TacitError(f"{path} is a file; name the directory of a run (runs/NAME).")
    if (path / COMPARISON).is_file():
        runs = sorted(str(file.parent.relative_to(path)) for file in path.glob(f"runs/**/{SETTINGS}"))
        named = f" Name some of its runs instead: {', '.join(runs[:5])}." if runs else ""
        raise TacitError(f"{path} is a comparison; `tacit report {path}` shows it.{named}")
    if any(not own.name.endswith(".tmp") and own.name not in UNSTARTED_FILES for own in path.iterdir()):
        raise neither(path)


def _names(places: Sequence[Path]) -> list[str]:
    """
    >>> _names([Path("/a/seed/0"), Path("/b/seed/0"), Path("/b/one")])
    ['a/seed/0', 'b/seed/0', 'one']
    """

    def ending(path: Path, depth: int) -> str:
        return "/".join(path.parts[-depth:])

    names = []
    for path in places:
        depths = range(1, len(path.parts) + 1)
        alone = (d for d in depths if [ending(other, d) for other in places].count(ending(path, d)) == 1)
        names.append(ending(path, next(alone, len(path.parts))))
    return names


def _states(path: Path) -> Iterator[tuple[str, int, int]]:
    for pattern in READ:
        for file in path.glob(pattern):
            try:
                state = file.stat()
            except OSError:  # replaced or cleared away this moment
                continue
            yield str(file.relative_to(path)), state.st_size, state.st_mtime_ns


# The episodes of a run as they come: the newest recording turn by turn, and those before it in a line each.

STRIPS, RECORDINGS, MOST_TURNS = 8, 12, 60
"""episodes of the newest recording, recordings, and turns of an episode that are shown"""
SUFFIX = ".jsonl.gz"


def feed_of(run: Path, link: str, most: int, notices: list[str]) -> dict[str, Any]:
    """`link` is where the pages of recordings are, and `most` how many episodes those have, which gives them their numbers."""
    found = [(name, e) for name, e in _newest(run, notices) if e.records]
    if not found:
        return {"strips": []}
    first, newest = found[0]
    address = f"{link}/{first}"
    strips = [
        _strip(record, f"{address}#episode={number}")
        for number, (_, record) in enumerate(choose([newest], most)[:STRIPS], start=1)
    ]
    return {
        "title": newest.title,
        "link": address,
        "strips": strips,
        **_outcomes(newest),
        "earlier": [{"title": e.title, "link": f"{link}/{name}", **_outcomes(e)} for name, e in found[1:]],
    }


def recording_page(run: Path, name: str, most: int, live: Live, **more: Any) -> str:
    """The episodes of one recording, to be read step by step."""
    file = run / "trajectories" / f"{name}{SUFFIX}"
    if not file.is_file():
        raise TacitError(f"there is no recording {name!r} in {run}.")
    files = read_run(run)
    known, notices = known_of(files.settings), list(files.notices)
    episodes = _read_feed(run, file, notices)
    shown = viewer([episodes] if episodes.records else [], known, most)
    return render("episodes", notices, live, name=f"{run.name}: {episodes.title}", shown=shown, what=str(file), **more)


def _newest(run: Path, notices: list[str]) -> list[tuple[str, Episodes]]:
    files = []
    for file in (run / "trajectories").glob(f"*{SUFFIX}"):
        name = file.name.removesuffix(SUFFIX)
        if name.rpartition("-")[2].isdigit():
            files.append((file.stat().st_mtime_ns, name, file))
    return [(name, _read_feed(run, file, notices)) for _, name, file in sorted(files, reverse=True)[:RECORDINGS]]


def _read_feed(run: Path, file: Path, notices: list[str]) -> Episodes:
    state = file.stat()
    episodes, said = _kept(run, file, state.st_mtime_ns, state.st_size)
    notices.extend(said)
    return episodes


@lru_cache(maxsize=4 * RECORDINGS)
def _kept(run: Path, file: Path, written: int, size: int) -> tuple[Episodes, tuple[str, ...]]:
    """A recording is written in one move, so it is read once."""
    notices: list[str] = []
    stage, _, step = file.name.removesuffix(SUFFIX).rpartition("-")
    return Episodes(stage, int(step), read_episodes(run, file, notices)), tuple(notices)


def _outcomes(episodes: Episodes) -> dict[str, Any]:
    turns = [len(record["turns"]) for record in episodes.records]
    won = sum(record["success"] for record in episodes.records)
    return {"won": won, "played": len(turns), "turns": sum(turns) / len(turns)}


def _strip(record: Record, link: str) -> dict[str, Any]:
    turns: Sequence[Mapping[str, Any]] = record["turns"]
    goal = str(record.get("goal") or record["task"])
    return {"link": link, "success": record["success"], "goal": goal[:200], "turns": list(map(_mark, turns[:MOST_TURNS]))}


def _mark(turn: Mapping[str, Any]) -> tuple[str, str]:
    """(how the mark of a turn looks, what it says)"""
    credit = turn.get("credit")
    told, style = [str(turn["action"])[:80]], []
    if is_number(credit) and credit:
        style.append("plus" if credit > 0 else "minus")
        told.append(f"credit {credit:+.3f}")
    if not (turn["valid"] and turn["effective"]):
        style.append("hollow")
        told.append("refused" if turn["valid"] else "not understood")
    return " ".join(style), ", ".join(told)


# Several runs side by side: how far each has come, a line for each in every chart, and their episodes.

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
