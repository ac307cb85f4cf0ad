"""Where a run stands: saved with every checkpoint, and told in the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit.core.protocols import Policy
from tacit.evaluation.scores import final_and_peak
from tacit.runs.directory import SUMMARY, Run, read_settings
from tacit.runs.files import write_json
from tacit.training.practice import Practice


@dataclass
class Progress:
    stage: str = ""
    step: int = 0
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    further: list[dict[str, Any]] = field(default_factory=list)
    """evaluations on the further panels"""
    drawn: dict[str, int] = field(default_factory=dict)
    """how far the walk through each world's tasks has come"""
    episodes: int = 0
    turns: int = 0
    generated_tokens: int = 0
    wall_s: float = 0.0
    stopped: str = ""
    """why practice or imitation ended before its last step: `callback` or `patience`"""

    def is_best(self, step: int) -> bool:
        """Whether practice has been measured at this very step, and never better."""
        scores = {e["step"]: e["success"] for e in self.evaluations if e["stage"] == "rl"}
        return step in scores and scores[step] >= max(scores.values())

    def best_before(self, patience: int) -> float | None:
        """The success that the last `patience` evaluations of practice have not surpassed; None where one has."""
        successes = [e["success"] for e in self.evaluations if e["stage"] == "rl"]
        best = successes.index(max(successes)) if successes else 0
        return successes[best] if len(successes) - 1 - best >= patience else None


def summarise(run: Run, progress: Progress, policy: Policy, practices: Sequence[Practice]) -> dict[str, Any]:
    """What a run came to, written to its directory."""
    evaluations, method = progress.evaluations, practices[0].method
    final, peak = final_and_peak(evaluations) if evaluations else ({}, {})
    panels = [practice.course.panel for practice in practices]
    summary = {
        "run": run.path.name,
        "world": ",".join(practice.name for practice in practices),
        "method": method.name,
        "settings": read_settings(run.path),
        "panel": " + ".join(panel.name for panel in panels),
        "panel_version": "+".join(dict.fromkeys(panel.version for panel in panels)),
        "panel_hash": "+".join(panel.hash for panel in panels),
        "success": {e["stage"]: e["success"] for e in evaluations},
        "final": final,
        "peak": peak,
        "evaluations": evaluations,
        "further": progress.further,
        "iterations": method.schedule.iterations,
        "stopped": progress.stopped,
        "episodes": progress.episodes,
        "turns": progress.turns,
        "generated_tokens": progress.generated_tokens,
        "wall_s": round(progress.wall_s, 1),
        "digest": policy.digest(),
    }
    write_json(run.path / SUMMARY, summary)
    return summary
