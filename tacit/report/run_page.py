"""The page of one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.report.conduct import by_world, conduct, reading_load
from tacit.report.experience import standing_out
from tacit.report.known import known_of
from tacit.report.learning_curves import stages_of
from tacit.report.measures import condition_of, conditions_of, headline, moment, panels_of
from tacit.report.numbers import counted, duration
from tacit.report.page import Live, render
from tacit.report.phrases import phrases_of
from tacit.report.provenance import name_of, provenance
from tacit.report.run_files import EVALUATIONS, Record, RunFiles, newest_episodes, read_run
from tacit.report.viewer import MOST_TRAJECTORIES, viewer
from tacit.runs.directory import SUMMARY


def run_page(
    path: Path, most_trajectories: int = MOST_TRAJECTORIES, live: Live | None = None, said: Sequence[str] = (), **more: Any
) -> str:
    """HTML of the run in `path`. What is broken or missing there is said on the page; the rest is shown. A page that follows
    the run is `live`, and may be told `more`; `said` is what is wrong elsewhere."""
    run = read_run(path)
    known = known_of(run.settings)
    notices = [*([] if live else unfinished(run)), *run.notices, *said, *known.notices]
    measured = by_world(newest_episodes(path, EVALUATIONS, notices), known)
    recent = [*measured, *by_world(newest_episodes(path, ("rl",), notices), known)]
    first = next((found for stage in EVALUATIONS if (found := newest_episodes(path, (stage,), notices))), [])
    before = [episodes for episodes in by_world(first, known) if episodes.title not in [e.title for e in measured]]
    panels = panels_of(run)
    parts = {
        "panels": panels,
        "alarms": [(alarm["step"], alarm["name"].replace("_", " "), _told(alarm)) for alarm in run.alarms],
        "stages": stages_of(run.metrics, panels),
        "phrases": phrases_of(path, notices),
        "standing_out": standing_out(path, notices),
        "behaved": conduct([*before, *recent], known, notices) if recent else None,
        "reading": reading_load(recent),
        "shown": viewer(recent, known, most_trajectories),
        **provenance(run, known.defaults),
    }
    method, world, model = (name_of(run.settings, key) for key in ("method", "world", "model"))
    what = f"{method} in {', '.join(world.split(','))}, model {model}, seed {run.settings.get('seed')}"
    spent, done = run.summary, (run.ending, run.finished)
    told = [
        ("practised", counted(spent.get("episodes"), "episode"), counted(spent.get("generated_tokens"), "token")),
        ("time", duration(spent.get("wall_s")), counted(spent.get("turns"), "turn")),
    ]
    top = [*headline(panels), *(told if run.finished else [])]
    functions = {"conditions_of": conditions_of, "condition_of": condition_of, "moment": moment}
    told_too = {"name": path.resolve().name, "what": what, "done": done, "headline": top, **parts, **functions, **more}
    return render("run", notices, live, **told_too)


def unfinished(run: RunFiles) -> list[str]:
    if (run.path / SUMMARY).exists():
        return []
    done = f": it has come to {run.come_to}" if run.come_to else ""
    so_far = f"Below is what it has written so far; `tacit train --resume {run.path}` continues it."
    return [f"This run has not finished{done}. {so_far}"]


def _told(alarm: Record) -> str:
    example = alarm.get("example")
    return f"{alarm['message']}. This is one: {example}" if example and isinstance(example, str) else alarm["message"]
