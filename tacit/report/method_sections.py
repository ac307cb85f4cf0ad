"""Who was compared with whom, and how each step's credit was found, by iteration (BiPACE's Table 1, Figure 3, Tables L.2, L.3).

A cluster is what a step was compared with: steps of an equal observation (GiGPO), an equal history (HGPO, at depth 1), or a
near state (BiGPO, BiPACE). `tacit/credit/diagnostics.py` counts them; runs of methods without clusters have nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tacit.companions.dictionary.companion import FILE, History, SkillDictionary
from tacit.companions.experience.files import BANK_FILE, read_bank
from tacit.companions.experience.retrieval import Order, rank_entries
from tacit.core.errors import TacitError
from tacit.evaluation.plots import Point, Series, mean_series
from tacit.report.charts import draw, thinned
from tacit.report.page import is_number, percent, short
from tacit.report.run_files import Comparison, Record, read_metrics, read_table
from tacit.runs.checkpoints import COMPANIONS
from tacit.runs.directory import open_checkpoints

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


# What hindsight's skills did (OPID's Figures 7 and 8), by iteration; and at a turn, what it was told and each token's shift.
#
# Runs of methods without skills have nothing here.

CHARTS = (
    Diagnostic("Skill shift per token, magnitude", {"": "skill_shift/magnitude"}, FROM_ZERO),
    Diagnostic("λ · shift per token, magnitude", {"": "skill_shift/credit_magnitude"}, FROM_ZERO),
    Diagnostic("Episode credit per token, magnitude", {"": "episode_credit_magnitude"}, FROM_ZERO),
    Diagnostic("Critical steps per episode", {"": "hindsight/critical_steps"}, FROM_ZERO),
    Diagnostic("Seconds waited for hindsight", {"": "hindsight/seconds_waited"}, FROM_ZERO),
)
FIELDS = ("skills", "shift_by_token")
"""of a recorded turn; `skill_shift`, their sum, is a number like others"""


def skill_charts(found: dict[str, list[Series]], word: str) -> list[Markup]:
    """Of the metrics of a run, which are taken out of `found`; none where it has no skills."""
    return run_charts(found, word, CHARTS) if any(name.startswith("skill_shift/") for name in found) else []


def taught(turn: Record, kept: Callable[[Any], int]) -> dict[str, Any]:
    """The skills of a turn and its tokens with their shifts, for the script; `kept` gives a text its number."""
    lessons, tokens = (turn.get(name) for name in FIELDS)
    told: dict[str, Any] = {}
    if isinstance(lessons, list) and lessons and all(isinstance(lesson, Mapping) and lesson for lesson in lessons):
        told["skills"] = [[str(where), kept(text)] for lesson in lessons for where, text in lesson.items()]
    if isinstance(tokens, list) and tokens and all(map(_is_shift, tokens)):
        told["shift_by_token"] = [[kept(word), shift] for word, shift in tokens]
    return told


def _is_shift(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and is_number(entry[1])


# Both tracks of a run with an experience bank, by iteration (Complementary RL), and the entries that stood out in it.
#
# Runs without a bank have nothing here.

HALVES = {"guided": "experience/success_guided", "free": "experience/success_free"}
ALONE: dict[str, tuple[str, dict[str, Any]]] = {
    "experience/extractor_reward": ("Reward of the extractor's entries", {}),
    "experience/entries": ("Entries in the bank", {"floor": 0.0}),
    "experience/merges": ("Merges so far", {"floor": 0.0}),
    "experience/search_ms": ("Search of a group, ms", {"floor": 0.0}),
}
MOST_ENTRIES = 5
LONGEST = 400
"""characters of an entry on the page"""


def experience_charts(found: dict[str, list[Series]], word: str) -> list[Markup]:
    """Of the metrics of a run, which are taken out of `found`: the two halves in one chart for each world, then the others."""
    charts = []
    halves = {name: found.pop(metric) for name, metric in HALVES.items() if metric in found}
    worlds = list(dict.fromkeys(line.name for lines in halves.values() for line in lines))
    for world in worlds:
        own = {name: line for name, lines in halves.items() for line in lines if line.name == world}
        title = "Success with an entry and without" if len(worlds) == 1 else f"Success guided and free, {world}"
        charts.append(
            draw(title, [replace(s, name=name, colour=i) for i, (name, s) in enumerate(own.items())], word, share=True)
        )
    for metric, (title, scale) in ALONE.items():
        if metric in found:
            charts.append(draw(title, found.pop(metric), word, **scale))
    return charts


def standing_out(run: Path, notices: list[str]) -> dict[str, Sequence[tuple[Any, ...]]] | None:
    """Title -> rows (entry, won, lost, where it came from, text), of the entries whose readers won or lost most."""
    path = run / BANK_FILE
    if not path.is_file():
        return None
    try:
        bank = read_bank(path)
    except TacitError as error:
        notices.append(str(error))
        return None
    try:
        orders: dict[str, Order] = {"Most useful entries": "useful", "Most harmful entries": "harmful"}
        several = len({entry.origin.world for entry in bank.entries.values()} - {""}) > 1
        return {
            title: [_row(*pair, several) for pair in rank_entries(bank, order)[:MOST_ENTRIES]]
            for title, order in orders.items()
        }
    finally:
        bank.close()


def _row(entry: Any, usage: Any, several: bool) -> tuple[Any, ...]:
    """A task's name need not say its world, which is said where the bank has entries from several."""
    world, place = entry.origin.world, entry.origin.task or entry.origin.operation
    place = f"{world}: {place.removeprefix(f'{world}/')}" if several and world else place
    text = entry.text if len(entry.text) <= LONGEST else f"{entry.text[: LONGEST - 1]}…"
    return entry.id, usage.wins, usage.losses, place, text


# The phrases that a run's skill dictionary holds, by the newest checkpoint that has one (ReuseRL).
#
# Runs of methods without a dictionary have nothing here.

MOST_PHRASES = 20


def phrases_of(run: Path, notices: list[str]) -> dict[str, Sequence[tuple[Any, ...]]]:
    """Title -> rows (phrase, uses, since, share of E-steps), those used most first; one table for each world that has one."""
    for checkpoint in reversed(open_checkpoints(run).all()):
        home = checkpoint.path / COMPANIONS
        if files := sorted(home.glob(f"**/{SkillDictionary.name}/{FILE}")):
            told: dict[str, Sequence[tuple[Any, ...]]] = {}
            for file in files:
                world = str(file.parent.parent.relative_to(home)).removeprefix(".")
                title = f"{f'{world}: p' if world else 'P'}hrases as of {checkpoint.path.name}"
                told[title] = _rows(read_table(file, notices), notices)
            return told
    return {}


def _rows(state: Any, notices: list[str]) -> list[tuple[Any, ...]]:
    try:
        standing = History.load(state["history"]).standing()[:MOST_PHRASES]
        return [(" › ".join(map(str, p["phrase"])), p["uses"], p["since"], percent(p["present"])) for p in standing]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        notices.append(f"{FILE} of the newest checkpoint cannot be read ({type(error).__name__}: {error}).")
        return []
