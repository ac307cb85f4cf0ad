"""Evaluations in the middle of a run: on its own panel, on further ones, and under other conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tacit.core.method import measured_under
from tacit.core.protocols import Policy
from tacit.core.types import PLAIN, Trajectory
from tacit.evaluation.evaluate import evaluate
from tacit.evaluation.panels import Panel
from tacit.evaluation.rules import Rules, Told
from tacit.evaluation.scores import over_worlds
from tacit.rollout.crashes import describe_crashes, refuse_if_all_crashed
from tacit.runs.directory import Run, code_version
from tacit.runs.records import trajectory_record, write_records
from tacit.training.playground import Playground
from tacit.training.practice import Practice, evaluation_sampling
from tacit.training.reporting import Attended, Played
from tacit.training.settings import TrainSettings

Scores = list[dict[str, Any]]


class Measuring:
    def __init__(
        self,
        run: Run,
        policy: Policy,
        practices: Sequence[Practice],
        playgrounds: Sequence[Playground],
        settings: TrainSettings,
        reporter: Attended,
        watched: Callable[[str, int, int], Played],
    ) -> None:
        """`watched`: who tells of an evaluation while it is played, by its name, its episodes and their longest."""
        self._run, self._policy, self._settings, self._reporter, self._watched = run, policy, settings, reporter, watched
        # a record of somebody's work alone is no world to be measured in
        measured = all(practice.world.playable for practice in practices)
        self._places = list(zip(playgrounds, practices, strict=True)) if measured else []

    def evaluated(self, stage: str, step: int) -> dict[str, Any] | None:
        """The score on the run's own panel, over all its worlds; None where there is none to play in."""
        scores, played = [], []
        for ground, practice in self._places:
            score, episodes = self._measure(ground, practice, practice.course.panel, stage, step)
            scores.append(score)
            played += episodes
        if not scores:
            return None
        self._record(f"eval-{stage}", step, played)
        return over_worlds(scores)

    def further(self, stage: str, step: int) -> Scores:
        """On the further panels and under further conditions, once the stage is over."""
        scores: Scores = []
        for ground, practice in self._places:
            where = f"{practice.name}-" if len(self._places) > 1 else ""
            others: list[tuple[str, Panel, Told]] = [(panel.tasks[0].split, panel, PLAIN) for panel in practice.course.further]
            own = practice.course.panel
            for name, told in measured_under(practice.method).items():
                if any(told(task) != PLAIN for task in own.tasks):  # else it would be measured twice, as with an empty bank
                    others.append((name, own, told))
            for name, panel, condition in others:
                score, episodes = self._measure(ground, practice, panel, stage, step, condition)
                scores.append(score)
                self._record(f"eval-{where}{name}-{stage}", step, episodes)
        return scores

    def _record(self, kept_as: str, step: int, played: Sequence[Trajectory]) -> None:
        if self._settings.trajectories:
            write_records(self._run.trajectories(kept_as, step), map(trajectory_record, played))

    def _measure(
        self, ground: Playground, practice: Practice, panel: Panel, stage: str, step: int, condition: Told = PLAIN
    ) -> tuple[dict[str, Any], list[Trajectory]]:
        chosen = practice.settings.evaluation
        sampling, steps = (
            evaluation_sampling(practice.settings, ground.max_tokens),
            chosen.max_steps or practice.world.max_steps,
        )
        rules = Rules(sampling, steps, self._settings.seed, chosen.repeats, condition)
        onlooker = self._watched(f"{stage} {step} on {panel.name}", len(panel.tasks) * chosen.repeats, steps)
        score, played = evaluate(panel, rules, ground.worlds, practice.method.context, self._policy, onlooker)
        self._reporter.going_on(None)
        remedy = f"There is nothing to measure. Mend the world, then go on with `tacit train --resume {self._run.path}`."
        refuse_if_all_crashed(played, remedy)
        if crashes := describe_crashes(played):
            self._reporter.say(f"warning at {stage} {step}: {crashes}")
        known = {"world": practice.name, "fingerprint": self._policy.digest(), "code": code_version()}
        self._reporter.say(f"{stage} {step}: success {score} on {score.panel}")
        return {"stage": stage, "step": step, **score.to_json(), **known}, played
