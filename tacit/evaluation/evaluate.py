"""Play a panel with a policy, and say how it went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tacit.core.method import Context
from tacit.core.protocols import Sampling
from tacit.core.seeds import derive
from tacit.core.types import StopReason, Trajectory
from tacit.evaluation.intervals import wilson
from tacit.evaluation.panels import PANEL_SEED, Panel
from tacit.rollout.episodes import EpisodePlan, SamplingPolicy, rollout
from tacit.rollout.worlds import WorldPool


@dataclass(frozen=True)
class PanelScore:
    """What one panel said about one policy. Counts are episodes; a crashed world counts as a failure and is reported."""

    panel: str
    panel_hash: str
    episodes: int
    successes: int
    score: float
    """mean graded outcome"""
    steps: float
    """mean turns per episode"""
    success_steps: float
    """mean turns per successful episode"""
    invalid: float
    """share of turns whose completion did not parse"""
    ineffective: float
    """share of turns whose action the world refused"""
    prompt_tokens: float
    """mean per turn"""
    completion_tokens: float
    """mean per turn"""
    crashed: int
    sampling: dict[str, Any]
    seed: int

    @property
    def success(self) -> float:
        return self.successes / self.episodes if self.episodes else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.successes, self.episodes)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "success": self.success, "interval": list(self.interval)}

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.success:.1f}% [{100 * low:.1f}, {100 * high:.1f}] of {self.episodes} episodes"


def evaluate(
    panel: Panel,
    context: Context,
    worlds: WorldPool,
    policy: SamplingPolicy,
    sampling: Sampling,
    max_steps: int,
    seed: int = 0,
    repeats: int = 1,
    batch: int = 256,
) -> tuple[PanelScore, list[Trajectory]]:
    """Every task `repeats` times. An episode's randomness is its place in the panel and `seed`: batching changes nothing."""
    plans = [EpisodePlan(t, derive(PANEL_SEED, seed, i, r)) for r in range(repeats) for i, t in enumerate(panel.tasks)]
    played: list[Trajectory] = []
    for start in range(0, len(plans), batch):
        played += rollout(plans[start : start + batch], context, worlds, policy, sampling, max_steps)
    return score_panel(panel, played, sampling, seed), played


def score_panel(panel: Panel, played: Sequence[Trajectory], sampling: Sampling, seed: int) -> PanelScore:
    steps = [step for t in played for step in t.steps]
    return PanelScore(
        panel=panel.name,
        panel_hash=panel.hash,
        episodes=len(played),
        successes=sum(t.success for t in played),
        score=_mean([t.score for t in played]),
        steps=_mean([len(t) for t in played]),
        success_steps=_mean([len(t) for t in played if t.success]),
        invalid=_mean([not s.valid for s in steps]),
        ineffective=_mean([not s.effective for s in steps]),
        prompt_tokens=_mean([len(s.prompt_tokens) for s in steps]),
        completion_tokens=_mean([len(s.completion.tokens) for s in steps]),
        crashed=sum(t.stop in (StopReason.WORLD_ERROR, StopReason.WORLD_HANG) for t in played),
        sampling=asdict(sampling),
        seed=seed,
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
