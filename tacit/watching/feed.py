"""The episodes of a run as they come: the newest recording turn by turn, and those before it in a line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError
from tacit.report.known import known_of
from tacit.report.numbers import is_number
from tacit.report.page import Live, render
from tacit.report.run_files import Episodes, Record, read_episodes, read_run
from tacit.report.viewer import choose, viewer

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
    episodes = _read(run, file, notices)
    shown = viewer([episodes] if episodes.records else [], known, most)
    return render("episodes", notices, live, name=f"{run.name}: {episodes.title}", shown=shown, what=str(file), **more)


def _newest(run: Path, notices: list[str]) -> list[tuple[str, Episodes]]:
    files = []
    for file in (run / "trajectories").glob(f"*{SUFFIX}"):
        name = file.name.removesuffix(SUFFIX)
        if name.rpartition("-")[2].isdigit():
            files.append((file.stat().st_mtime_ns, name, file))
    return [(name, _read(run, file, notices)) for _, name, file in sorted(files, reverse=True)[:RECORDINGS]]


def _read(run: Path, file: Path, notices: list[str]) -> Episodes:
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
