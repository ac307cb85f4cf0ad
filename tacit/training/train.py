"""A training run: imitation, then RL, with evaluations and checkpoints. A killed run resumes from its last checkpoint, with the
same results as an uninterrupted one."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from tacit.core.credit import Iteration
from tacit.core.errors import NonFiniteLoss, OutOfGPUMemory, TacitError
from tacit.core.method import Companion, Method, companions_of
from tacit.core.progress import format_duration, pluralize
from tacit.core.protocols import Learner, Policy
from tacit.core.types import PLAIN, Trajectory
from tacit.evaluation.behavior import describe_episode, repeated
from tacit.evaluation.evaluate import evaluate
from tacit.evaluation.panels import Panel, Rules, TaskCondition
from tacit.evaluation.scores import final_and_peak, over_worlds
from tacit.rollout.episodes import describe_completion, truncate
from tacit.rollout.worlds import describe_crashes, describe_overlong, first_crash, refuse_if_all_crashed
from tacit.runs.alarms import AlarmMonitor
from tacit.runs.directory import STAGES, SUMMARY, Run, code_version, read_settings
from tacit.runs.files import write_directory, write_json
from tacit.runs.trajectories import add_prompts, batch_records, iteration_records, trajectory_record, write_records
from tacit.training.demonstrations import Demonstrations
from tacit.training.imitation import collect_demonstrations, imitate
from tacit.training.loop import Collector, Loop
from tacit.training.reporting import Callback, Event, HeartbeatReporter, Reporter, RolloutStatus
from tacit.training.settings import TrainSettings
from tacit.training.setup import WorldSetup, evaluation_sampling, make_worlds

SFT_STEPS_PER_CHECKPOINT = 10
"""imitation steps that count as one iteration for `checkpoint_every`"""
NO_CREDIT = 1e-9
"""advantages up to this magnitude are rounding errors"""


@dataclass
class Progress:
    """The state of a run; saved with every checkpoint."""

    stage: str = ""
    step: int = 0
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    further: list[dict[str, Any]] = field(default_factory=list)
    """evaluations on further panels and conditions"""
    drawn: dict[str, int] = field(default_factory=dict)
    """training tasks drawn, by world"""
    episodes: int = 0
    turns: int = 0
    generated_tokens: int = 0
    wall_s: float = 0.0
    stopped: str = ""
    """why the run ended early: `callback` or `patience`"""


class Trainer:
    def __init__(
        self,
        run: Run,
        policy: Policy,
        setups: Sequence[WorldSetup],
        settings: TrainSettings,
        reporter: Reporter,
        other_policies: Mapping[str, Policy] | None = None,
        callbacks: Sequence[Callback] = (),
        same_start: Collection[str] = (),
    ) -> None:
        """`other_policies`: policies that companions train, by name; saved and restored with the main policy. `same_start`:
        those that start from the main policy's weights, after imitation if it demonstrates writing entries. `callbacks` receive
        every step and evaluation; one that returns True stops the run."""
        self.run, self.policy, self.setups = run, policy, setups
        # Endpoints have no weights to save.
        self.other_policies = {name: other for name, other in (other_policies or {}).items() if isinstance(other, Learner)}
        self._same_start = [name for name in self.other_policies if name in same_start]
        self.settings, self.reporter, self._callbacks = settings, HeartbeatReporter(reporter), tuple(callbacks)
        self.progress = Progress()
        self.watcher = AlarmMonitor(run.path)
        self._completion_shown = False
        self._start = time.monotonic()

    @property
    def method(self) -> Method:
        """The first world's method; all worlds share its name, schedule and losses."""
        return self.setups[0].method

    def train(self) -> dict[str, Any]:
        """Run all remaining stages; returns the summary."""
        self._restore()
        for setup in self.setups:
            if difference := setup.tasks.panel.difference():
                self.reporter.say(f"warning: {difference}")
            for note in setup.tasks.notes:
                self.reporter.say(note)
        with self.reporter, ExitStack() as resources:
            self.collectors: list[Collector] = []
            for setup in self.setups:
                method, worlds = setup.method, make_worlds(setup.world, setup.settings)
                for close in (worlds.close, *(companion.close for companion in method.companions)):
                    resources.callback(close)
                limits = (setup.max_tokens, setup.max_steps, setup.name if len(self.setups) > 1 else "", setup.share)
                self.collectors.append(Collector(method, setup.tasks.training, worlds, *limits))
            if self.progress.stage == "" and self.settings.evaluation.untrained:
                self._evaluate("untrained", 0)
                self._evaluate_further("untrained", 0)
            if self.settings.sft.imitates and self.progress.stage != "rl" and not self.progress.stopped:
                self._imitate()
            if self.method.schedule.iterations and not self.progress.stopped:
                self._train_rl()
        self._add_wall_time()
        return self._write_summary()

    def _notify(self, event: Event) -> None:
        for callback in self._callbacks:
            stop = callback(event)
            if stop is not None and not isinstance(stop, bool | np.bool_):
                raise TacitError(f"callback {callback!r} returned {stop!r}; return True to stop the run, otherwise None.")
            if stop and not self.progress.stopped:
                self.progress.stopped = "callback"
                self.reporter.say(f"stopped at {event.stage} {event.step} by a callback")

    # Imitation.

    def _imitate(self) -> None:
        settings, seed = self.settings.sft, self.settings.seed
        first = self.progress.step if self.progress.stage == "sft" else 0
        if not settings.epochs and first >= settings.steps:
            return
        several = len(self.setups) > 1
        self.reporter.set_status(lambda silence: f"imitation: still collecting, {format_duration(silence)}")
        demonstrations = Demonstrations.joined(
            [collect_demonstrations(setup, self.policy, seed, several, self.reporter.say) for setup in self.setups]
        )
        settings = settings.resolve_epochs(len(demonstrations))
        self.settings = replace(self.settings, sft=settings)
        if settings.epochs:
            self.reporter.say(f"imitation: {settings.epochs:g} epochs are {pluralize(settings.steps, 'step')}")
        self.reporter.stage("sft", settings.steps, first)
        every = max(1, self.settings.checkpoint_every * SFT_STEPS_PER_CHECKPOINT)
        self.reporter.set_status(lambda silence: f"sft: step {self.progress.step + 1} has taken {format_duration(silence)}")
        for step, metrics in imitate(self.policy, demonstrations, settings, seed, first):
            self.run.metrics.write("sft", step, metrics)
            self.reporter.step(step, metrics)
            self.progress.stage, self.progress.step = "sft", step
            self._notify(Event("step", "sft", step, settings.steps, metrics, self.run.path))
            if step == settings.steps or self.progress.stopped:
                self._evaluate("sft", step)
                self._evaluate_further("sft", step)
                self.save()
                return
            if step % every == 0:
                self.save()

    # Reinforcement learning: iterate, log, evaluate, checkpoint.

    def _train_rl(self) -> None:
        schedule = self.method.schedule
        first = self.progress.step if self.progress.stage == "rl" else 0
        if first == 0:
            imitated = self.run.checkpoints.newest()
            if imitated is not None and any(setup.settings.sft.entries for setup in self.setups):
                for name in self._same_start:  # imitation demonstrated writing entries
                    self.other_policies[name].load(imitated.policy)
                    self.other_policies[name].begin_stage()
            self.policy.begin_stage()
            if any("reference" in setup.method.needs for setup in self.setups):
                self.policy.freeze_reference()
        self.reporter.stage("rl", schedule.iterations, first)
        episodes, max_steps = schedule.groups * schedule.group_size, max(c.max_steps for c in self.collectors)
        drawn, overlap = dict(self.progress.drawn), bool(self.settings.overlap)
        loop = Loop(self.collectors, self.policy, self.settings.seed, schedule.iterations, drawn, overlap=overlap)
        loop.observer = lambda number: self._show_status(f"rl {number}", episodes, max_steps)
        self._stop_without_improvement()
        for step in range(first + 1, schedule.iterations + 1):
            if self.progress.stopped:
                return
            start = time.monotonic()
            try:
                done = loop.iterate(step)
            except NonFiniteLoss as error:
                raise self._save_failure(error, step) from error
            self._log(done, step, time.monotonic() - start)
            self.progress.stage, self.progress.step, self.progress.drawn = "rl", step, dict(loop.drawn_at_update)

            last = step == schedule.iterations or bool(self.progress.stopped)
            every = self.settings.evaluation.every
            evaluated = last or (every and step % every == 0)
            if evaluated:
                self._evaluate("rl", step)
                self._stop_without_improvement()
                if last or self.progress.stopped:
                    self._evaluate_further("rl", step)
            if evaluated or step % self.settings.checkpoint_every == 0:
                self.save()

    def _log(self, done: Iteration, step: int, seconds: float) -> None:
        metrics = dict(done.metrics)
        metrics["reward"] = float(np.mean(np.concatenate([r.outcomes_G() for r in done.rewards]))) if done.rewards else 0.0
        repeats = [r for g in done.played for t in g.trajectories for r in repeated(t)]
        metrics["repeated"] = float(np.mean(repeats)) if repeats else 0.0
        if done.credits:
            metrics["credited_groups"] = float(np.mean([np.any(np.abs(c.tokens_T) > NO_CREDIT) for c in done.credits]))
        metrics["seconds"] = seconds
        metrics["tokens_per_s"] = metrics.get("generated_tokens", 0.0) / seconds
        self.run.metrics.write("rl", step, metrics)
        self.reporter.step(step, metrics)
        self.reporter.set_status(None)

        episodes = [t for g in done.played for t in g.trajectories]
        text = next((s.completion.text for g in done.played for s in g.steps), "")
        examples = {"unparsed": repr(truncate(text)) if text else "", "crashed": first_crash(episodes)}
        for companion, _ in companions_of([collector.method for collector in self.collectors]):
            examples |= companion.examples
        for alarm in self.watcher.see(step, metrics, examples):
            self.reporter.say(f"warning at rl {step}: {alarm}")

        self.progress.episodes += len(episodes)
        self.progress.turns += sum(len(g.steps) for g in done.played)
        self.progress.generated_tokens += sum(t.completion_tokens for t in episodes)
        if self.settings.trajectories:
            self._write_trajectories("rl", step, *iteration_records(done))
        refuse_if_all_crashed(
            episodes, f"Iteration {step} has no data. Fix the world, then run `tacit train --resume {self.run.path}`."
        )
        self._notify(Event("step", "rl", step, self.method.schedule.iterations, metrics, self.run.path))

    def _stop_without_improvement(self) -> None:
        """Early stopping. Depends on the evaluations alone, so a resumed run stops at the same step."""
        patience = self.settings.evaluation.patience
        if not patience or self.progress.stopped:
            return
        successes = [e["success"] for e in self.progress.evaluations if e["stage"] == "rl"]
        best = successes.index(max(successes)) if successes else 0
        if len(successes) - 1 - best >= patience:
            self.progress.stopped = "patience"
            last = f"no improvement over {successes[best]:.1%} in the last {pluralize(patience, 'evaluation')}"
            self.reporter.say(f"stopped at rl {self.progress.step}: {last}")

    # Evaluation.

    def _evaluate(self, stage: str, step: int) -> None:
        """Evaluate on the run's panels. Does nothing if a world has only recorded episodes."""
        if not all(setup.world.playable for setup in self.setups):
            return
        scores, played = [], list[Trajectory]()
        for collector, setup in zip(self.collectors, self.setups, strict=True):
            score, episodes = self._play_panel(collector, setup, setup.tasks.panel, stage, step)
            scores.append(score)
            played += episodes
        self._write_trajectories(f"eval-{stage}", step, played)
        score = over_worlds(scores)
        self.progress.evaluations.append(score)
        for alarm in self.watcher.see_measured(self.progress.evaluations):
            self.reporter.say(f"warning at rl {step}: {alarm}")
        total = {"sft": self.settings.sft.steps, "rl": self.method.schedule.iterations}.get(stage, 0)
        self._notify(Event("evaluation", stage, step, total, score, self.run.path))

    def _evaluate_further(self, stage: str, step: int) -> None:
        """Evaluate on further panels and under the method's other conditions, at the end of a stage."""
        if not all(setup.world.playable for setup in self.setups):
            return
        for collector, setup in zip(self.collectors, self.setups, strict=True):
            own, prefix = setup.tasks.panel, f"{setup.name}-" if len(self.setups) > 1 else ""
            further = setup.tasks.further
            panels: list[tuple[str, Panel, TaskCondition]] = [(panel.tasks[0].split, panel, PLAIN) for panel in further]
            for name, condition in setup.method.conditions.evaluated.items():
                # Skip conditions that are plain for all tasks, as with an empty bank: plain is evaluated already.
                if any(condition(task) != PLAIN for task in own.tasks):
                    panels.append((name, own, condition))
            for name, panel, applied in panels:
                score, episodes = self._play_panel(collector, setup, panel, stage, step, applied)
                self.progress.further.append(score)
                self._write_trajectories(f"eval-{prefix}{name}-{stage}", step, episodes)

    def _play_panel(
        self, collector: Collector, setup: WorldSetup, panel: Panel, stage: str, step: int, condition: TaskCondition = PLAIN
    ) -> tuple[dict[str, Any], list[Trajectory]]:
        settings = setup.settings.evaluation
        sampling = evaluation_sampling(setup.settings, collector.max_tokens)
        max_steps = settings.max_steps or setup.world.max_steps
        rules = Rules(sampling, max_steps, self.settings.seed, settings.repeats, condition)
        status = self._show_status(f"{stage} {step} on {panel.name}", len(panel.tasks) * settings.repeats, max_steps)
        score, played = evaluate(panel, rules, collector.worlds, setup.method.context, self.policy, status)
        self.reporter.set_status(None)
        refuse_if_all_crashed(
            played, f"There is nothing to evaluate. Fix the world, then run `tacit train --resume {self.run.path}`."
        )
        for why in filter(None, (describe_crashes(played), describe_overlong(played))):
            self.reporter.say(f"warning at {stage} {step}: {why}")
        self.reporter.say(f"{stage} {step}: success {score} on {score.panel}")
        origin = {"world": setup.name, "fingerprint": self.policy.digest(), "code": code_version()}
        return {"stage": stage, "step": step, **score.to_json(), **origin}, played

    def _write_trajectories(
        self, name: str, step: int, played: Sequence[Trajectory], records: Sequence[dict[str, Any]] | None = None
    ) -> None:
        """Write the episodes, with the labels for report pages, so that these need not import the world."""
        if not self.settings.trajectories:
            return
        records = [trajectory_record(trajectory) for trajectory in played] if records is None else records
        worlds = {setup.name: setup.world for setup in self.setups}
        for trajectory, record in zip(played, records, strict=True):
            record["labels"] = describe_episode(trajectory, worlds.get(trajectory.task.world, self.setups[0].world))
        add_prompts(records, played)
        write_records(self.run.trajectories(name, step), records)

    def _show_status(self, what: str, episodes: int, max_steps: int) -> RolloutStatus:
        """Set the status line for rollouts. The first status line of a run shows the first completion instead."""
        status = RolloutStatus(what, episodes, max_steps, self.policy)

        def line(silence: float) -> str:
            if self._completion_shown or status.first is None:
                return status.line(silence)
            self._completion_shown = True
            return describe_completion("first completion", *status.first)

        self.reporter.set_status(line)
        return status

    # Checkpoints and the summary.

    def save(self) -> None:
        self._add_wall_time()
        state = {**asdict(self.progress), "settings": read_settings(self.run.path)}
        stage, step = self.progress.stage, self.progress.step
        self.run.checkpoints.save(stage, step, self.policy, state, beside=self.other_policies, companions=self._companions())

    def _restore(self) -> None:
        newest = self.run.checkpoints.newest()
        if newest is not None:
            state = newest.state()
            try:
                newest.load(self.policy, self.other_policies, self._companions() if newest.stage == "rl" else {})
            except OutOfGPUMemory:
                raise  # the checkpoint is fine
            except TacitError as error:
                raise TacitError(f"{error} To resume from an earlier checkpoint, delete {newest.path}.") from error
            names = [name for name in Progress.__dataclass_fields__ if name in state and name != "stopped"]
            self.progress = Progress(**{name: state[name] for name in names})
            self.reporter.say(f"resuming after {newest.stage} {newest.step}")
        elif any((self.run.path / "trajectories").glob("*")):
            self.reporter.say("there is no checkpoint yet: starting again from the beginning")
        kept = self.run.metrics.rewind(STAGES, self.progress.stage, self.progress.step)
        self.watcher.restore([record for record in kept if record["stage"] == "rl"], self.progress.evaluations)

    def _companions(self) -> dict[str, Companion]:
        """Companions by directory name in a checkpoint, prefixed with the world if there are several and it is not shared."""
        alone = len(self.setups) == 1
        return {
            companion.name if alone or len(worlds) > 1 else f"{self.setups[worlds[0]].name}/{companion.name}": companion
            for companion, worlds in companions_of([setup.method for setup in self.setups])
        }

    def _save_failure(self, error: NonFiniteLoss, step: int) -> NonFiniteLoss:
        """Save the batch and the policy that produced a non-finite loss."""
        directory = self.run.path / "failed"
        write_directory(directory / f"policy-{step:06d}", lambda path: self.policy.save(path / "policy"))
        if error.batch is not None:
            write_records(directory / f"batch-{step:06d}.jsonl.gz", batch_records(error.batch))
        return NonFiniteLoss(f"{error} The run stopped in iteration {step}; batch and policy are in {directory}.")

    def _add_wall_time(self) -> None:
        now = time.monotonic()
        self.progress.wall_s += now - self._start
        self._start = now

    def _write_summary(self) -> dict[str, Any]:
        progress, panels = self.progress, [setup.tasks.panel for setup in self.setups]
        final, peak = final_and_peak(progress.evaluations) if progress.evaluations else ({}, {})
        summary = {
            "run": self.run.path.name,
            "world": ",".join(setup.name for setup in self.setups),
            "method": self.method.name,
            "settings": read_settings(self.run.path),
            "panel": " + ".join(panel.name for panel in panels),
            "panel_version": "+".join(dict.fromkeys(panel.version for panel in panels)),
            "panel_hash": "+".join(panel.hash for panel in panels),
            "success": {e["stage"]: e["success"] for e in progress.evaluations},
            "final": final,
            "peak": peak,
            "evaluations": progress.evaluations,
            "further": progress.further,
            "iterations": self.method.schedule.iterations,
            "stopped": progress.stopped,
            "episodes": progress.episodes,
            "turns": progress.turns,
            "generated_tokens": progress.generated_tokens,
            "wall_s": round(progress.wall_s, 1),
            "digest": self.policy.digest(),
        }
        write_json(self.run.path / SUMMARY, summary)
        return summary
