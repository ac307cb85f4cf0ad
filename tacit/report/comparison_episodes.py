"""Which trajectories the page of a comparison embeds: the same tasks by every method, and what each of them practised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
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

    def chosen(self, episodes: Episodes, record: Record) -> Chosen:
        return f"{self.name}, {episodes.title}", record, self.known.scenes.get(record["task"])


def comparison_viewer(found: Comparison, most: int, notices: list[str]) -> dict[str, Any]:
    """Per world, by the first finished run of every method: a task on which they differ, an episode of practice with its
    credit, and another such task; as many as the page may have, in this order."""
    worlds = [players_of(found, world, notices) for world in found.worlds]
    total = sum(len(e.records) for ps in worlds for p in ps for e in (p.measured, p.practised) if e is not None)
    if not total:
        return {"lead": "No trajectories were recorded, or none can be read."}
    rounds = zip_longest(*map(rounds_of, worlds), fillvalue=())
    wanted = [(number, episode) for one in rounds for number, own in enumerate(one) for episode in own][:most]
    lead = Markup(
        "{} episodes of {}, by the first finished run of every method: tasks of its last evaluation, those first that some "
        "methods won and others lost, and the practice in which credit differs most. "
        '<code class="whole">--runs</code> writes a page of every run, with more.'
    ).format(len(wanted), count(total))
    chosen = [episode for _, episode in sorted(wanted, key=lambda entry: entry[0])]
    return {"lead": lead, "data": embedded(chosen) if chosen else None}


def players_of(found: Comparison, world: str, notices: list[str]) -> list[Player]:
    players = []
    for method in found.methods:
        for cell in [c for c in found.cells_of(world, method, finished=True) if found.place(c).is_dir()][:1]:
            newest = [next(iter(newest_episodes(found.place(cell), s, notices)), None) for s in (EVALUATIONS, ("rl",))]
            name = f"{world} / {method} / {cell.get('seed')}"
            players.append(Player(name, known_of(cell.get("settings")) if any(newest) else Known(), *newest))
    return players


def rounds_of(players: Sequence[Player]) -> list[list[Chosen]]:
    """Lists to take from, most wanted first: a task by every method, practice of every method, another task."""
    first, *second = [
        [p.chosen(p.measured, r) for p in players if p.measured and (r := _of_task(p.measured, task)) is not None]
        for task in telling_tasks(players)[:2]
    ] or [[]]
    practice = [p.chosen(p.practised, max(p.practised.records, key=_spread)) for p in players if p.practised]
    return [first, practice, *second]


def telling_tasks(players: Sequence[Player]) -> list[str]:
    """The tasks of the last evaluations: first those that about half of the methods won, in the order they were played."""
    outcomes: dict[str, list[bool]] = {}
    for player in players:
        played = {r["task"]: r for r in reversed(player.measured.records)} if player.measured else {}
        for task in reversed(played):
            outcomes.setdefault(task, []).append(played[task]["success"])
    return sorted(outcomes, key=lambda task: -min(sum(outcomes[task]), len(outcomes[task]) - sum(outcomes[task])))


def _of_task(episodes: Episodes, task: str) -> Record | None:
    return next((record for record in episodes.records if record["task"] == task), None)


def _spread(record: Record) -> float:
    """How much the credit of its steps differs."""
    credits = [turn["credit"] for turn in record["turns"] if is_number(turn.get("credit"))]
    return max(credits) - min(credits) if credits else -1.0
