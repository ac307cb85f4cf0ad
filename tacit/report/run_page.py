"""The page of one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tacit.report.assembly import headline, page
from tacit.report.conduct import alarms, conduct, reading_load
from tacit.report.curves import curves
from tacit.report.episodes import MOST_TRAJECTORIES, viewer
from tacit.report.known import Known
from tacit.report.markup import Child, join, tag
from tacit.report.measures import evaluations, families, final
from tacit.report.measures import headline as scores
from tacit.report.numbers import count, duration, is_number
from tacit.report.provenance import provenance
from tacit.report.run_files import EVALUATIONS, Episodes, Record, RunFiles, newest_episodes, read_run


def run_page(path: Path, known_of: Callable[[Record], Known] | None = None, most_trajectories: int = MOST_TRAJECTORIES) -> str:
    """HTML of the run in `path`. What is broken or missing there is said on the page; the rest is shown. `known_of` tells what
    is known of a run with these settings."""
    run = read_run(path)
    known = known_of(run.settings) if known_of else Known()
    notices = [*run.notices, *known.notices]
    measured = newest_episodes(path, EVALUATIONS, notices)
    practised = newest_episodes(path, ("rl",), notices)
    before = [] if len(run.evaluations) < 2 else _first_evaluation(path, measured, notices)
    recent = [*measured, *practised]
    what = conduct([*before, *recent], known, notices)
    name = path.resolve().name
    sections = [
        ("run", "What was run", provenance(run, known.defaults)),
        ("evaluations", "Evaluations", join([evaluations(run), families(measured[0] if measured else None, final(run))])),
        ("alarms", "Alarms", alarms(run)),
        ("curves", "Learning curves", curves(run)),
        ("behaviour", "Behaviour", join([what, reading_load(recent)])),
        ("trajectories", "Trajectories", viewer(recent, known, most_trajectories)),
    ]
    # A file may be read for several sections: each complaint is said once.
    return page(f"{name}: a run", _header(run, name), list(dict.fromkeys(notices)), sections)


def _first_evaluation(path: Path, measured: Sequence[Episodes], notices: list[str]) -> list[Episodes]:
    """The earliest recorded evaluation, to compare the newest with."""
    for stage in EVALUATIONS:
        found = newest_episodes(path, (stage,), notices)
        if found and not any((e.stage, e.step) == (found[0].stage, found[0].step) for e in measured):
            return found
    return []


def _header(run: RunFiles, name: str) -> list[Child]:
    settings, summary = run.settings, run.summary or {}
    method = settings.get("method")
    method = method.get("name") if isinstance(method, dict) else method
    what = f"{method} in {settings.get('world')}, model {settings.get('model')}, seed {settings.get('seed')}"
    numbers = scores(run)
    if is_number(summary.get("episodes")):
        numbers.append(
            ("practised", f"{count(summary['episodes'])} episodes", f"{count(summary.get('generated_tokens'))} tokens")
        )
    if is_number(summary.get("wall_s")):
        numbers.append(("time", duration(summary["wall_s"]), f"{count(summary.get('turns'))} turns"))
    state = tag("span", "finished", cls="state good") if run.finished else tag("span", "not finished", cls="state warn")
    return [tag("p", "Tacit run", cls="kind"), tag("h1", name), tag("p", what, " ", state, cls="lead"), headline(numbers)]
