"""Play a panel with a policy, and say how it went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tacit.core.method import Context
from tacit.core.seeds import derive
from tacit.core.types import Task, Trajectory
from tacit.evaluation.journal import Journal, Place
from tacit.evaluation.panels import PANEL_SEED, Panel
from tacit.evaluation.rules import Rules
from tacit.evaluation.scores import PanelScore, score_panel
from tacit.rollout.episodes import EpisodePlan, SamplingPolicy, rollout
from tacit.rollout.worlds import WorldPool

BATCH = 256
"""episodes played side by side"""


class Route(Protocol):
    """Who plays which task."""

    def name(self, task: Task) -> str:
        """Whose task this is."""
        ...

    def player(self, name: str) -> tuple[Context, SamplingPolicy]:
        """Who that is, and what it reads; the one asked for before need not be there any more."""
        ...


@dataclass(frozen=True)
class Alone:
    """One player for all tasks."""

    context: Context
    policy: SamplingPolicy

    def name(self, task: Task) -> str:
        return ""

    def player(self, name: str) -> tuple[Context, SamplingPolicy]:
        return self.context, self.policy


def evaluate(
    panel: Panel, rules: Rules, worlds: WorldPool, context: Context, policy: SamplingPolicy
) -> tuple[PanelScore, list[Trajectory]]:
    """Play all of it, and score it."""
    played = play_panel(panel, rules, worlds, Alone(context, policy))
    return score_panel(panel, played, rules), played


def play_panel(
    panel: Panel,
    rules: Rules,
    worlds: WorldPool,
    route: Route,
    *,
    batch: int = BATCH,
    journal: Journal | None = None,
    progress: Callable[[int], None] | None = None,
    settle: Callable[[Trajectory], Trajectory] | None = None,
) -> list[Trajectory]:
    """The panel's episodes in order, repeat after repeat. An episode's randomness is its place in the panel, its repeat and the
    rules' seed: batching changes nothing, and two conditions meet the same luck.

    Each task is played by the player that `route` names, all of one player's before the next one's. What the journal holds is
    not played again, and each batch is in it before the next begins. `progress` is told how many episodes are over. `settle`
    makes the last change to an episode before it is kept.
    """
    places = [(repeat, i) for repeat in range(rules.repeats) for i in range(len(panel.tasks))]
    played = journal.read(panel, rules.repeats) if journal else {}
    missing = [place for place in places if place not in played]
    report = progress or (lambda over: None)
    report(len(played))
    for player, chunk in _chunks(missing, batch, [route.name(panel.tasks[i]) for _, i in missing]):
        context, policy = route.player(player)
        plans = [
            EpisodePlan(panel.tasks[i], derive(PANEL_SEED, rules.seed, i, repeat), rules.condition_of(panel.tasks[i]))
            for repeat, i in chunk
        ]

        def over(count: int, earlier: int = len(played)) -> None:
            report(earlier + count)

        fresh = rollout(plans, context, worlds, policy, rules.sampling, rules.max_steps, over=over)
        fresh = [settle(t) for t in fresh] if settle else fresh
        if journal:
            journal.write(list(zip(chunk, fresh, strict=True)))
        played |= dict(zip(chunk, fresh, strict=True))
    return [played[place] for place in places]


def _chunks(places: Sequence[Place], batch: int, players: Sequence[str]) -> Iterator[tuple[str, list[Place]]]:
    """(player, places to play) with at most `batch` places, the players in the order in which they come first."""
    for player in dict.fromkeys(players):
        own = [place for place, whose in zip(places, players, strict=True) if whose == player]
        for start in range(0, len(own), batch):
            yield player, own[start : start + batch]
