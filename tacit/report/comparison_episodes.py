"""Which trajectories the page of a comparison embeds: the same tasks by every method, and what each of them practised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from tacit.report.comparison_files import Comparison
from tacit.report.known import Known, known_of
from tacit.report.numbers import count, is_number
from tacit.report.run_files import EVALUATIONS, Episodes, Record, newest_episodes
from tacit.report.viewer import Chosen, embedded


@dataclass(frozen=True)
class Player:
    """The first finished run of a method in a world."""

    name: str
    known: Known
    measured: Episodes | None
    practised: Episodes | None

    def chosen(self, episodes: Episodes | None, record: Record) -> Chosen:
        return f"{self.name}, {episodes.title if episodes else ''}", record, self.known.scenes.get(record["task"])


def comparison_viewer(found: Comparison, most: int, notices: list[str]) -> dict[str, Any]:
    """By the first finished run of every method; every world has the same share of the page."""
    worlds = [players_of(found, world, notices) for world in found.worlds]
    total = sum(len(e.records) for players in worlds for p in players for e in (p.measured, p.practised) if e is not None)
    if not total:
        return {"lead": "No trajectories were recorded, or none can be read."}
    chosen = [episode for players in worlds for episode in wanted(players)[: -(-most // len(worlds))]][:most]
    lead = Markup(
        "{} episodes of {}, by the first finished run of every method: tasks of its last evaluation, those first that some "
        "methods won and others lost, and the practice in which credit differs most. "
        '<code class="whole">--runs</code> writes a page of every run, with more.'
    ).format(len(chosen), count(total))
    return {"lead": lead, "data": embedded(chosen) if chosen else None}


def players_of(found: Comparison, world: str, notices: list[str]) -> list[Player]:
    players = []
    for method in found.methods:
        for cell in [c for c in found.cells_of(world, method, finished=True) if found.place(c).is_dir()][:1]:
            newest = [next(iter(newest_episodes(found.place(cell), s, notices)), None) for s in (EVALUATIONS, ("rl",))]
            name = f"{world} / {method} / {cell.get('seed')}"
            players.append(Player(name, known_of(cell.get("settings")) if any(newest) else Known(), *newest))
    return players


def wanted(players: Sequence[Player]) -> list[Chosen]:
    """Most wanted first: a task on which the methods differ by every one of them, practice of each, another such task."""
    first, *second = [
        [p.chosen(p.measured, record) for p in players for record in _of_task(p.measured, task)]
        for task in telling_tasks(players)[:2]
    ] or [[]]
    practice = [p.chosen(p.practised, max(p.practised.records, key=_spread)) for p in players if p.practised]
    return [*first, *practice, *(episode for own in second for episode in own)]


def telling_tasks(players: Sequence[Player]) -> list[str]:
    """The tasks of the last evaluations: first those that about half of the methods won, in the order they were played."""
    outcomes: dict[str, list[bool]] = {}
    for player in players:
        played = {r["task"]: r for r in reversed(player.measured.records)} if player.measured else {}
        for task in reversed(played):
            outcomes.setdefault(task, []).append(played[task]["success"])
    return sorted(outcomes, key=lambda task: -min(sum(outcomes[task]), len(outcomes[task]) - sum(outcomes[task])))


def _of_task(episodes: Episodes | None, task: str) -> list[Record]:
    return [record for record in episodes.records if record["task"] == task][:1] if episodes else []


def _spread(record: Record) -> float:
    """How much the credit of its steps differs."""
    credits = [turn["credit"] for turn in record["turns"] if is_number(turn.get("credit"))]
    return max(credits) - min(credits) if credits else -1.0
