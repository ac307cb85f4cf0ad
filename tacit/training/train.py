"""A whole run: imitate, then practise, with evaluations and checkpoints between. Killed anywhere, it resumes exactly."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tacit.core.errors import NonFiniteLoss, TacitError
from tacit.core.iteration import Iteration
from tacit.core.method import Method
from tacit.core.protocols import Policy, Sampling
from tacit.core.types import Task
from tacit.core.world import Environment
from tacit.evaluation.behaviour import repeated
from tacit.evaluation.evaluate import evaluate
from tacit.evaluation.panels import Panel, choose_panel
from tacit.evaluation.rules import Rules
from tacit.evaluation.scores import final_and_peak
from tacit.rollout.workers import Workers
from tacit.rollout.worlds import InPlace, WorldPool
from tacit.runs.checkpoints import Checkpoint
from tacit.runs.directory import STAGES, SUMMARY, Run, code_version, read_settings
from tacit.runs.files import write_directory, write_json
from tacit.runs.records import batch_records, iteration_records, trajectory_record, write_records
from tacit.runs.watching import Watcher
from tacit.training.demonstrations import demonstrate
from tacit.training.loop import Loop
from tacit.training.reporting import Reporter
from tacit.training.settings import TrainSettings
from tacit.training.supervised import imitate

SFT_STEPS_PER_CHECKPOINT = 10
"""a supervised step is far cheaper than an iteration, so checkpoints come this much more rarely, counted in steps"""


@dataclass
class Progress:
    """Where a run stands; saved with every checkpoint."""

    stage: str = ""
    step: int = 0
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    further: list[dict[str, Any]] = field(default_factory=list)
    """evaluations on the further panels"""
    companions: list[dict[str, Any]] = field(default_factory=list)
    episodes: int = 0
    turns: int = 0
    generated_tokens: int = 0
    wall_s: float = 0.0


@dataclass(frozen=True)
class Course:
    """What a run trains on and what it is measured on."""

    tasks: Sequence[Task]
    panel: Panel
    further: tuple[Panel, ...] = ()
    """measured after each stage only"""

    @classmethod
    def of(cls, world: Environment, settings: TrainSettings) -> Course:
        """Found before anything is written, so that a world without its data costs nothing."""
        families, measured = settings.family_names, settings.evaluation
        panel = choose_panel(world, measured.split, measured.tasks, families, measured.panel)
        tasks = world.tasks_of(settings.split, settings.tasks, settings.seed, families)
        if not tasks:
            of = f" of {', '.join(families)}" if families else ""
            raise TacitError(f"split {settings.split!r} of world {world.name!r} has no tasks{of} here.")
        further = [
            choose_panel(world, split, count or world.panel_size(split, measured.tasks), families)
            for split, count in measured.further_panels
        ]
        return cls(tasks, panel, tuple(further))


class Trainer:
    """The stages of one run, over whatever policy, method and world it is given."""

    def __init__(
        self,
        run: Run,
        policy: Policy,
        method: Method,
        world: Environment,
        settings: TrainSettings,
        reporter: Reporter,
        course: Course | None = None,
    ) -> None:
        self.run, self.policy, self.method, self.world = run, policy, method, world
        self.settings, self.reporter = settings, reporter
        self.max_steps = settings.max_steps or world.max_steps
        self.max_tokens = completion_limit(settings, method, world)
        course = course or Course.of(world, settings)
        self.panel, self.further, self.tasks = course.panel, course.further, course.tasks
        self.progress = Progress()
        self.watcher = Watcher(run.path)
        self._began = time.monotonic()

    def train(self) -> dict[str, Any]:
        """Run what is left to run; returns the summary."""
        self._restore()
        if self.panel.difference():
            self.reporter.say(f"warning: {self.panel.difference()}")
        worlds = make_worlds(self.world, self.settings)
        try:
            if self.progress.stage == "" and self.settings.evaluation.untrained:
                self._evaluate(worlds, "untrained", 0, stage_over=True)
            if self.settings.sft.steps and self.progress.stage != "rl":
                self._imitate(worlds)
            if self.method.schedule.iterations:
                self._practise(worlds)
        finally:
            worlds.close()
        return self._summarise()

    def _imitate(self, worlds: WorldPool) -> None:
        settings = self.settings.sft
        if self.progress.stage == "sft" and self.progress.step >= settings.steps:
            return
        self.reporter.say(f"imitation: the expert plays {min(settings.tasks, len(self.tasks))} tasks")
        shown = demonstrate(
            self.world,
            self.tasks[: settings.tasks],
            self.method.context,
            self.policy,
            self.world.max_steps,
            settings.expert,
            settings.noise,
            self.settings.seed,
        )
        self.reporter.say(f"imitation: {shown}")
        first = self.progress.step if self.progress.stage == "sft" else 0
        self.reporter.stage("sft", settings.steps, first)
        every = max(1, self.settings.checkpoint_every * SFT_STEPS_PER_CHECKPOINT)
        for step, metrics in imitate(self.policy, shown, settings, self.settings.seed, first):
            self.run.metrics.write("sft", step, metrics)
            self.reporter.step(step, metrics)
            self.progress.stage, self.progress.step = "sft", step
            if step == settings.steps:
                self._evaluate(worlds, "sft", step, stage_over=True)
                self._save()
            elif step % every == 0:
                self._save()

    def _practise(self, worlds: WorldPool) -> None:
        schedule = self.method.schedule
        first = self.progress.step if self.progress.stage == "rl" else 0
        if first == 0 and self.method.needs_reference:
            self.policy.freeze_reference()
        self.reporter.stage("rl", schedule.iterations, first)
        loop = Loop(self.method, self.tasks, worlds, self.policy, self.max_tokens, self.max_steps, self.settings.seed)
        for step in range(first + 1, schedule.iterations + 1):
            began = time.monotonic()
            try:
                done = loop.iterate(step)
            except NonFiniteLoss as error:
                raise self._keep_evidence(error, step) from error
            self._count(done, step, time.monotonic() - began)
            self.progress.stage, self.progress.step = "rl", step
            self.progress.companions = [c.state() for c in self.method.companions]
            last = step == schedule.iterations
            every = self.settings.evaluation.every
            evaluated = last or (every and step % every == 0)
            if evaluated:
                self._evaluate(worlds, "rl", step, stage_over=last)
            if evaluated or step % self.settings.checkpoint_every == 0:
                saved = self._save()
                if self._is_best(step):
                    self.run.checkpoints.mark_best(saved)

    def _count(self, done: Iteration, step: int, seconds: float) -> None:
        metrics = dict(done.metrics)
        metrics["reward"] = float(np.mean(np.concatenate([r.outcomes_G() for r in done.rewards]))) if done.rewards else 0.0
        again = [r for g in done.played for t in g.trajectories for r in repeated(t)]
        metrics["repeated"] = float(np.mean(again)) if again else 0.0
        metrics["seconds"] = seconds
        metrics["tokens_per_s"] = metrics.get("generated_tokens", 0.0) / seconds
        self.run.metrics.write("rl", step, metrics)
        self.reporter.step(step, metrics)
        for alarm in self.watcher.see(step, metrics):
            self.reporter.say(f"warning at rl {step}: {alarm.message}")
        self.progress.episodes += sum(len(g) for g in done.played)
        self.progress.turns += sum(len(g.steps) for g in done.played)
        self.progress.generated_tokens += sum(t.completion_tokens for g in done.played for t in g.trajectories)
        if self.settings.trajectories:
            write_records(self.run.trajectories("rl", step), iteration_records(done))

    def _evaluate(self, worlds: WorldPool, stage: str, step: int, stage_over: bool) -> None:
        self.progress.evaluations.append(self._measure(worlds, self.panel, stage, step, "eval"))
        for panel in self.further if stage_over else ():
            self.progress.further.append(self._measure(worlds, panel, stage, step, f"eval-{panel.tasks[0].split}"))

    def _measure(self, worlds: WorldPool, panel: Panel, stage: str, step: int, kept_as: str) -> dict[str, Any]:
        chosen = self.settings.evaluation
        sampling, steps = evaluation_sampling(self.settings, self.max_tokens), chosen.max_steps or self.world.max_steps
        rules = Rules(sampling, steps, self.settings.seed, chosen.repeats)
        score, played = evaluate(panel, rules, worlds, self.method.context, self.policy)
        known = {"fingerprint": self.policy.digest(), "code": code_version()}
        self.reporter.say(f"{stage} {step}: success {score} on {score.panel}")
        if self.settings.trajectories:
            write_records(self.run.trajectories(f"{kept_as}-{stage}", step), map(trajectory_record, played))
        return {"stage": stage, "step": step, **score.to_json(), **known}

    def _is_best(self, step: int) -> bool:
        """Whether practice has been measured at this very step, and never better."""
        scores = {e["step"]: e["success"] for e in self.progress.evaluations if e["stage"] == "rl"}
        return step in scores and scores[step] >= max(scores.values())

    def _save(self) -> Checkpoint:
        self.progress.wall_s += time.monotonic() - self._began
        self._began = time.monotonic()
        state = {**asdict(self.progress), "settings": read_settings(self.run.path)}
        return self.run.checkpoints.save(self.progress.stage, self.progress.step, self.policy, state)

    def _restore(self) -> None:
        newest = self.run.checkpoints.newest()
        if newest is not None:
            state = newest.state()
            try:
                self.policy.load(newest.path / "policy")
            except TacitError as error:
                raise TacitError(f"{error} To resume from what was saved before it, delete {newest.path}.") from error
            self.progress = Progress(**{name: state[name] for name in Progress.__dataclass_fields__ if name in state})
            for companion, saved in zip(self.method.companions, self.progress.companions, strict=False):
                companion.load(saved)
            self.reporter.say(f"resuming after {newest.stage} {newest.step}")
            if self._is_best(newest.step):  # the killed process may not have got round to saying so
                self.run.checkpoints.mark_best(newest)
        kept = self.run.metrics.rewind(STAGES, self.progress.stage, self.progress.step)
        self.watcher.restore([record for record in kept if record["stage"] == "rl"])

    def _keep_evidence(self, error: NonFiniteLoss, step: int) -> NonFiniteLoss:
        """The batch and the policy that met, for whoever wants to know why."""
        place = self.run.path / "failed"
        write_directory(place / f"policy-{step:06d}", lambda path: self.policy.save(path / "policy"))
        if error.batch is not None:
            write_records(place / f"batch-{step:06d}.jsonl.gz", batch_records(error.batch))
        return NonFiniteLoss(f"{error} The run stopped at iteration {step}, no weight moved; batch and policy are in {place}.")

    def _summarise(self) -> dict[str, Any]:
        self.progress.wall_s += time.monotonic() - self._began
        evaluations = self.progress.evaluations
        final, peak = final_and_peak(evaluations)
        summary = {
            "run": self.run.path.name,
            "world": self.world.name,
            "method": self.method.name,
            "settings": read_settings(self.run.path),
            "panel": self.panel.name,
            "panel_version": self.panel.version,
            "panel_hash": self.panel.hash,
            "success": {e["stage"]: e["success"] for e in evaluations},
            "final": final,
            "peak": peak,
            "evaluations": evaluations,
            "further": self.progress.further,
            "iterations": self.method.schedule.iterations,
            "episodes": self.progress.episodes,
            "turns": self.progress.turns,
            "generated_tokens": self.progress.generated_tokens,
            "wall_s": round(self.progress.wall_s, 1),
            "digest": self.policy.digest(),
        }
        write_json(self.run.path / SUMMARY, summary)
        return summary


def make_worlds(world: Environment, settings: TrainSettings) -> WorldPool:
    processes = settings.workers or (4 if world.slow else 0)
    return (
        Workers(world.make, processes, settings.world_timeout_s) if processes else InPlace(world.make, settings.world_timeout_s)
    )


def completion_limit(settings: TrainSettings, method: Method, world: Environment) -> int:
    return settings.max_tokens or (world.action_tokens if method.context.style == "bare" else 512)


def evaluation_sampling(settings: TrainSettings, max_tokens: int) -> Sampling:
    chosen = settings.evaluation
    return Sampling(chosen.temperature, chosen.top_p, chosen.top_k, max_tokens)
