"""Where a run stands: saved with every checkpoint, and told in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit.core.method import measured_under
from tacit.core.protocols import Policy
from tacit.core.types import PLAIN, Trajectory
from tacit.evaluation.evaluate import evaluate
from tacit.evaluation.panels import Panel, Rules, Told
from tacit.evaluation.scores import final_and_peak, over_worlds
from tacit.rollout.worlds import describe_crashes, refuse_if_all_crashed
from tacit.runs.directory import SUMMARY, Run, code_version, read_settings
from tacit.runs.files import write_json
from tacit.runs.trajectories import trajectory_record, write_records
from tacit.training.collect import Collector, WorldSetup, evaluation_sampling
from tacit.training.reporting import Attended, Played
from tacit.training.settings import TrainSettings


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


def summarise(run: Run, progress: Progress, policy: Policy, setups: Sequence[WorldSetup]) -> dict[str, Any]:
    """What a run came to, written to its directory."""
    evaluations, method = progress.evaluations, setups[0].method
    final, peak = final_and_peak(evaluations) if evaluations else ({}, {})
    panels = [setup.tasks.panel for setup in setups]
    summary = {
        "run": run.path.name,
        "world": ",".join(setup.name for setup in setups),
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


# Evaluations in the middle of a run: on its own panel, on further ones, and under other conditions.

Scores = list[dict[str, Any]]


class Measuring:
    def __init__(
        self,
        run: Run,
        policy: Policy,
        setups: Sequence[WorldSetup],
        collectors: Sequence[Collector],
        settings: TrainSettings,
        reporter: Attended,
        watched: Callable[[str, int, int], Played],
    ) -> None:
        """`watched`: who tells of an evaluation while it is played, by its name, its episodes and their longest."""
        self._run, self._policy, self._settings, self._reporter, self._watched = run, policy, settings, reporter, watched
        # a record of somebody's work alone is no world to be measured in
        measured = all(setup.world.playable for setup in setups)
        self._places = list(zip(collectors, setups, strict=True)) if measured else []

    def evaluated(self, stage: str, step: int) -> dict[str, Any] | None:
        """The score on the run's own panel, over all its worlds; None where there is none to play in."""
        scores, played = [], []
        for collector, setup in self._places:
            score, episodes = self._measure(collector, setup, setup.tasks.panel, stage, step)
            scores.append(score)
            played += episodes
        if not scores:
            return None
        self._record(f"eval-{stage}", step, played)
        return over_worlds(scores)

    def further(self, stage: str, step: int) -> Scores:
        """On the further panels and under further conditions, once the stage is over."""
        scores: Scores = []
        for collector, setup in self._places:
            where = f"{setup.name}-" if len(self._places) > 1 else ""
            others: list[tuple[str, Panel, Told]] = [(panel.tasks[0].split, panel, PLAIN) for panel in setup.tasks.further]
            own = setup.tasks.panel
            for name, told in measured_under(setup.method).items():
                if any(told(task) != PLAIN for task in own.tasks):  # else it would be measured twice, as with an empty bank
                    others.append((name, own, told))
            for name, panel, condition in others:
                score, episodes = self._measure(collector, setup, panel, stage, step, condition)
                scores.append(score)
                self._record(f"eval-{where}{name}-{stage}", step, episodes)
        return scores

    def _record(self, kept_as: str, step: int, played: Sequence[Trajectory]) -> None:
        if self._settings.trajectories:
            write_records(self._run.trajectories(kept_as, step), map(trajectory_record, played))

    def _measure(
        self, collector: Collector, setup: WorldSetup, panel: Panel, stage: str, step: int, condition: Told = PLAIN
    ) -> tuple[dict[str, Any], list[Trajectory]]:
        chosen = setup.settings.evaluation
        sampling, steps = (
            evaluation_sampling(setup.settings, collector.max_tokens),
            chosen.max_steps or setup.world.max_steps,
        )
        rules = Rules(sampling, steps, self._settings.seed, chosen.repeats, condition)
        observer = self._watched(f"{stage} {step} on {panel.name}", len(panel.tasks) * chosen.repeats, steps)
        score, played = evaluate(panel, rules, collector.worlds, setup.method.context, self._policy, observer)
        self._reporter.going_on(None)
        remedy = f"There is nothing to measure. Mend the world, then go on with `tacit train --resume {self._run.path}`."
        refuse_if_all_crashed(played, remedy)
        if crashes := describe_crashes(played):
            self._reporter.say(f"warning at {stage} {step}: {crashes}")
        known = {"world": setup.name, "fingerprint": self._policy.digest(), "code": code_version()}
        self._reporter.say(f"{stage} {step}: success {score} on {score.panel}")
        return {"stage": stage, "step": step, **score.to_json(), **known}, played
