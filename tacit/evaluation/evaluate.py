"""Play a panel with a policy, and say how it went."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tacit.core.method import Context
from tacit.core.protocols import Sampling
from tacit.core.seeds import derive
from tacit.core.types import Observation, Task, Trajectory, Transition
from tacit.evaluation.journal import Journal
from tacit.evaluation.panels import PANEL_SEED, Panel
from tacit.evaluation.scores import PanelScore, Prices, score_panel
from tacit.rollout.episodes import EpisodePlan, SamplingPolicy, rollout
from tacit.rollout.worlds import Broken, WorldPool

__all__ = ["PanelScore", "evaluate", "play_panel", "score_panel"]

BATCH = 256
"""episodes played side by side"""


def evaluate(
    panel: Panel,
    context: Context,
    worlds: WorldPool,
    policy: SamplingPolicy,
    sampling: Sampling,
    max_steps: int,
    seed: int = 0,
    repeats: int = 1,
    batch: int = BATCH,
    ks: Sequence[int] = (),
    prices: Prices | None = None,
) -> tuple[PanelScore, list[Trajectory]]:
    """Every task `repeats` times. An episode's randomness is its place in the panel and `seed`: batching changes nothing."""
    played = play_panel(panel, context, worlds, policy, sampling, max_steps, seed, repeats, batch)
    return score_panel(panel, played, sampling, seed, ks, prices), played


def play_panel(
    panel: Panel,
    context: Context,
    worlds: WorldPool,
    policy: SamplingPolicy,
    sampling: Sampling,
    max_steps: int,
    seed: int = 0,
    repeats: int = 1,
    batch: int = BATCH,
    journal: Journal | None = None,
    progress: Callable[[int], None] | None = None,
    settle: Callable[[Trajectory], Trajectory] | None = None,
) -> list[Trajectory]:
    """The panel's episodes in order, repeat after repeat.

    What the journal holds is not played again, and each batch is in it before the next begins. `progress` is told how many
    episodes are over. `settle` makes the last change to an episode before it is kept.
    """
    places = [(repeat, i) for repeat in range(repeats) for i in range(len(panel.tasks))]
    played = journal.read(panel, repeats) if journal else {}
    missing = [place for place in places if place not in played]
    report = progress or (lambda over: None)
    report(len(played))
    for start in range(0, len(missing), batch):
        chunk = missing[start : start + batch]
        plans = [EpisodePlan(panel.tasks[i], derive(PANEL_SEED, seed, i, repeat)) for repeat, i in chunk]
        watched = _Watched(worlds, len(played) + len(chunk), report)
        fresh = rollout(plans, context, watched, policy, sampling, max_steps)
        fresh = [settle(t) for t in fresh] if settle else fresh
        if journal:
            journal.write(list(zip(chunk, fresh, strict=True)))
        played |= dict(zip(chunk, fresh, strict=True))
        report(len(played))
    return [played[place] for place in places]


class _Watched:
    """A pool of worlds that tells how many episodes are over: those of earlier batches, and those that act no more."""

    def __init__(self, worlds: WorldPool, total: int, report: Callable[[int], None]) -> None:
        self._worlds, self._total, self._report = worlds, total, report
        self._running: int | None = None

    def reset(self, tasks: Sequence[Task]) -> list[Observation | Broken]:
        return self._worlds.reset(tasks)

    def step(self, actions: Sequence[tuple[int, str]]) -> list[Transition | Broken]:
        if len(actions) != self._running:
            self._running = len(actions)
            self._report(self._total - len(actions))
        return self._worlds.step(actions)

    def close(self) -> None:
        self._worlds.close()
