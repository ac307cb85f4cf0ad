"""Which trajectories the page of a comparison embeds: the same tasks by every method, and what each of them practised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from markupsafe import Markup

from tacit.core.amounts import number_of
from tacit.report.comparison_files import Comparison
from tacit.report.known import Known, known_of
from tacit.report.numbers import count, is_number
from tacit.report.run_files import EVALUATIONS, Record, newest_episodes
from tacit.report.viewer import Chosen, embedded

PRACTICE = ("rl",)
LEAD = Markup(
    "{} of {}, by the first finished run of every method: tasks of its last evaluation, those first that some methods "
    "won and others lost, and the practice in which credit differs most. "
    '<code class="whole">--runs</code> writes a page of every run, with more.'
)


@dataclass(frozen=True)
class Played:
    """The last evaluation, or the last practice, of the first finished run of a method in a world."""

    title: str
    known: Known
    stages: Sequence[str]
    records: Sequence[Record]

    def chosen(self, record: Record) -> Chosen:
        return self.title, record, self.known.scenes.get(record["task"])


def comparison_viewer(found: Comparison, most: int, notices: list[str]) -> dict[str, Any]:
    """Every world has the same share of the page."""
    worlds = [played_in(found, world, notices) for world in found.worlds]
    total = sum(len(p.records) for played in worlds for p in played)
    if not total:
        return {"lead": "No trajectories were recorded, or none can be read."}
    chosen = [episode for played in worlds for episode in wanted(played)[: -(-most // len(worlds))]][:most]
    return {"lead": LEAD.format(number_of(len(chosen), "episode"), count(total)), "data": embedded(chosen) if chosen else None}


def played_in(found: Comparison, world: str, notices: list[str]) -> list[Played]:
    played = []
    for method in found.methods:
        for cell in [c for c in found.cells_of(world, method, finished=True) if found.place(c).is_dir()][:1]:
            name, known = f"{world} / {method} / {cell.get('seed')}", known_of(cell.get("settings"))
            for stages in (EVALUATIONS, PRACTICE):
                newest = newest_episodes(found.place(cell), stages, notices)
                played += [Played(f"{name}, {episodes.title}", known, stages, episodes.records) for episodes in newest]
    return played


def wanted(played: Sequence[Played]) -> list[Chosen]:
    """Most wanted first: a task by every method, one that about half of them won; practice of each; another such task."""
    measured = [(p, {r["task"]: r for r in reversed(p.records)}) for p in played if p.stages == EVALUATIONS]

    def divided(task: str) -> int:
        won = [own[task]["success"] for _, own in measured if task in own]
        return min(sum(won), len(won) - sum(won))

    tasks = dict.fromkeys(record["task"] for p, _ in measured for record in p.records)
    telling = sorted(tasks, key=divided, reverse=True)[:2]
    first, *second = [[p.chosen(own[task]) for p, own in measured if task in own] for task in telling] or [[]]
    practice = [p.chosen(max(p.records, key=_spread)) for p in played if p.stages == PRACTICE]
    return [*first, *practice, *chain(*second)]


def _spread(record: Record) -> float:
    """How much the credit of its steps differs."""
    credits = [turn["credit"] for turn in record["turns"] if is_number(turn.get("credit"))]
    return max(credits) - min(credits) if credits else -1.0
