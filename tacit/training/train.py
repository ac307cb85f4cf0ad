"""A whole run: imitate, then practise, with evaluations and checkpoints between. Killed anywhere, it resumes exactly."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import numpy as np

from tacit.core.credit import Iteration
from tacit.core.errors import NonFiniteLoss, NoRoom, TacitError
from tacit.core.method import Companion, Method, companions_of
from tacit.core.progress import duration, number_of
from tacit.core.protocols import Policy
from tacit.evaluation.behaviour import repeated
from tacit.rollout.episodes import describe_completion
from tacit.rollout.worlds import first_crash, refuse_if_all_crashed
from tacit.runs.alarms import AlarmMonitor
from tacit.runs.checkpoints import Checkpoint
from tacit.runs.directory import STAGES, Run, read_settings
from tacit.runs.files import write_directory
from tacit.runs.trajectories import batch_records, iteration_records, write_records
from tacit.training.collect import Collector, WorldSetup, make_worlds
from tacit.training.demonstrations import Demonstrations
from tacit.training.imitation import Rounds, demonstrated, imitate, imitate_round
from tacit.training.loop import Loop, written_first
from tacit.training.progress import Measuring, Progress, summarise
from tacit.training.reporting import Attended, Callback, Event, Played, Reporter
from tacit.training.settings import TrainSettings

SFT_STEPS_PER_CHECKPOINT = 10
"""a supervised step is far cheaper than an iteration, so checkpoints come this much more rarely, counted in steps"""

NO_CREDIT = 1e-9
"""advantages no larger than this are rounding"""


class Trainer:
    """The stages of one run, over whatever policies, methods and worlds it is given."""

    def __init__(
        self,
        run: Run,
        policy: Policy,
        setups: Sequence[WorldSetup],
        settings: TrainSettings,
        reporter: Reporter,
        beside: Mapping[str, Policy] | None = None,
        callbacks: Sequence[Callback] = (),
        alike: Collection[str] = (),
    ) -> None:
        """`beside`: further policies by name, which companions train; they are saved and found again with this one. `alike`
        names those of them that begin as the trained one does: where it is shown how entries are written, after that.
        `callbacks` are told of every step and evaluation; one that returns True stops the run there."""
        self.run, self.policy, self.setups = run, policy, setups
        # an endpoint has no weights to save
        self.beside = {name: other for name, other in (beside or {}).items() if hasattr(other, "save")}
        self._alike = [name for name in self.beside if name in alike]
        self.settings, self.reporter, self._callbacks = settings, Attended(reporter), tuple(callbacks)
        self.progress = Progress()
        self.watcher = AlarmMonitor(run.path)
        self._shown = False
        self._began = time.monotonic()

    @property
    def method(self) -> Method:
        """What all worlds share: name, schedule, losses."""
        return self.setups[0].method

    def train(self) -> dict[str, Any]:
        """Run what is left to run; returns the summary."""
        self._restore()
        for setup in self.setups:
            if setup.tasks.panel.difference():
                self.reporter.say(f"warning: {setup.tasks.panel.difference()}")
            for note in setup.tasks.notes:
                self.reporter.say(note)
        with self.reporter, ExitStack() as open_worlds:
            self.collectors = [self._collector(setup, open_worlds) for setup in self.setups]
            self.measuring = Measuring(
                self.run, self.policy, self.setups, self.collectors, self.settings, self.reporter, self._watched
            )
            if self.progress.stage == "" and self.settings.evaluation.untrained:
                self._evaluate("untrained", 0)
                self._evaluate_further("untrained", 0)
            if self.settings.sft.all_steps and self.progress.stage != "rl" and not self.progress.stopped:
                self._imitate()
            if self.method.schedule.iterations and not self.progress.stopped:
                self._practise()
        self._add_up_time()
        return summarise(self.run, self.progress, self.policy, self.setups)

    def _tell(self, event: Event) -> None:
        for callback in self._callbacks:
            said = callback(event)
            if said is not None and not isinstance(said, bool | np.bool_):
                raise TacitError(
                    f"the callback {callback!r} returned {said!r}; it may return True, to stop the run, or nothing."
                )
            if said and not self.progress.stopped:
                self.progress.stopped = "callback"
                self.reporter.say(f"stopped at {event.stage} {event.step} by a callback")

    def _collector(self, setup: WorldSetup, open_worlds: ExitStack) -> Collector:
        worlds = make_worlds(setup.world, setup.settings)
        open_worlds.callback(worlds.close)
        for companion in setup.method.companions:
            if (close := getattr(companion, "close", None)) is not None:
                open_worlds.callback(close)
        several = len(self.setups) > 1
        return Collector(
            setup.method,
            setup.tasks.training,
            worlds,
            setup.max_tokens,
            setup.max_steps,
            setup.name if several else "",
            setup.share,
        )

    def _imitate(self) -> None:
        settings, seed = self.settings.sft, self.settings.seed
        first = self.progress.step if self.progress.stage == "sft" else 0
        if first >= settings.all_steps:
            return
        several = len(self.setups) > 1
        self.reporter.going_on(lambda silence: f"imitation: still at it, {duration(silence)}")
        shown = Demonstrations.joined(
            [demonstrated(setup, self.policy, seed, several, self.reporter.say) for setup in self.setups]
        )
        self.reporter.stage("sft", settings.all_steps, first)
        self._teach(imitate(self.policy, shown, settings, seed, first))
        rounds = Rounds(self.run, self.policy, self.setups, self.collectors, self.settings, self.reporter)
        relabelled: list[Demonstrations] = []
        for number in range(1, settings.rounds + 1):
            if self.progress.stopped:
                return
            fresh, metrics = rounds.relabelled(number, begun=first > settings.round_begins(number))
            relabelled.append(fresh)
            collected = Demonstrations.joined(relabelled)
            self._teach(imitate_round(self.policy, shown, collected, settings, seed, number, first), metrics)

    def _teach(self, steps: Iterable[tuple[int, dict[str, float]]], found: Mapping[str, float] | None = None) -> None:
        """Take steps of imitation, `found` with the metrics of the first; measured before each round and after the last."""
        settings = self.settings.sft
        every = max(1, self.settings.checkpoint_every * SFT_STEPS_PER_CHECKPOINT)
        ends = {settings.round_begins(number) for number in range(1, settings.rounds + 2)}
        self.reporter.going_on(lambda silence: f"sft: step {self.progress.step + 1} has taken {duration(silence)}")
        for step, metrics in steps:
            metrics, found = {**metrics, **(found or {})}, None
            self.run.metrics.write("sft", step, metrics)
            self.reporter.step(step, metrics)
            self.progress.stage, self.progress.step = "sft", step
            self._tell(Event("step", "sft", step, settings.all_steps, metrics, self.run.path))
            if step in ends or self.progress.stopped:
                self._evaluate("sft", step)
                self._evaluate_further("sft", step)
                self._save()
                if self.progress.stopped:
                    return
            elif step % every == 0:
                self._save()

    def _practise(self) -> None:
        schedule = self.method.schedule
        first = self.progress.step if self.progress.stage == "rl" else 0
        if first == 0:
            self._hand_on()
            self.policy.begin_stage()
            if any("reference" in setup.method.needs for setup in self.setups):
                self.policy.freeze_reference()
        self.reporter.stage("rl", schedule.iterations, first)
        loop = Loop(
            self.collectors,
            self.policy,
            self.settings.seed,
            schedule.iterations,
            dict(self.progress.drawn),
            lambda number: self._watched(
                f"rl {number}", schedule.groups * schedule.group_size, max(collector.max_steps for collector in self.collectors)
            ),
            bool(self.settings.overlap),
        )
        self._stop_if_no_better()
        for step in range(first + 1, schedule.iterations + 1):
            if self.progress.stopped:
                return
            began = time.monotonic()
            try:
                done = loop.iterate(step)
            except NonFiniteLoss as error:
                raise self._keep_evidence(error, step) from error
            self._count(done, step, time.monotonic() - began)
            self.progress.stage, self.progress.step, self.progress.drawn = "rl", step, dict(loop.learned)
            last = step == schedule.iterations or bool(self.progress.stopped)
            every = self.settings.evaluation.every
            evaluated = last or (every and step % every == 0)
            if evaluated:
                self._evaluate("rl", step)
                self._stop_if_no_better()
                if last or self.progress.stopped:
                    self._evaluate_further("rl", step)
            if evaluated or step % self.settings.checkpoint_every == 0:
                saved = self._save()
                if self.progress.is_best(step):
                    self.run.checkpoints.mark_best(saved)

    def _stop_if_no_better(self) -> None:
        """Early stopping follows from what was measured alone, so a killed run stops where it would have."""
        patience = self.settings.evaluation.patience
        if not patience or self.progress.stopped:
            return
        if (best := self.progress.best_before(patience)) is not None:
            self.progress.stopped = "patience"
            last = f"the last {number_of(patience, 'evaluation')} brought nothing above {best:.1%}"
            self.reporter.say(f"stopped at rl {self.progress.step}: {last}")

    def _count(self, done: Iteration, step: int, seconds: float) -> None:
        metrics = dict(done.metrics)
        metrics["reward"] = float(np.mean(np.concatenate([r.outcomes_G() for r in done.rewards]))) if done.rewards else 0.0
        again = [r for g in done.played for t in g.trajectories for r in repeated(t)]
        metrics["repeated"] = float(np.mean(again)) if again else 0.0
        if done.credits:
            metrics["credited_groups"] = float(np.mean([np.any(np.abs(c.tokens_T) > NO_CREDIT) for c in done.credits]))
        metrics["seconds"] = seconds
        metrics["tokens_per_s"] = metrics.get("generated_tokens", 0.0) / seconds
        self.run.metrics.write("rl", step, metrics)
        self.reporter.step(step, metrics)
        self.reporter.going_on(None)
        episodes = [t for g in done.played for t in g.trajectories]
        examples = {"unparsed": written_first(done.played), "crashed": first_crash(episodes)}
        for companion, _ in companions_of([collector.method for collector in self.collectors]):
            examples |= getattr(companion, "examples", {})
        for alarm in self.watcher.see(step, metrics, examples):
            self.reporter.say(f"warning at rl {step}: {alarm}")
        self.progress.episodes += sum(len(g) for g in done.played)
        self.progress.turns += sum(len(g.steps) for g in done.played)
        self.progress.generated_tokens += sum(t.completion_tokens for g in done.played for t in g.trajectories)
        if self.settings.trajectories:
            write_records(self.run.trajectories("rl", step), iteration_records(done))
        nothing = f"Nothing can be learned from iteration {step}. Mend the world, then go on with"
        refuse_if_all_crashed(episodes, f"{nothing} `tacit train --resume {self.run.path}`.")
        self._tell(Event("step", "rl", step, self.method.schedule.iterations, metrics, self.run.path))

    def _evaluate(self, stage: str, step: int) -> None:
        score = self.measuring.evaluated(stage, step)
        if score is None:
            return
        self.progress.evaluations.append(score)
        for alarm in self.watcher.see_measured(self.progress.evaluations):
            self.reporter.say(f"warning at rl {step}: {alarm}")
        total = {"sft": self.settings.sft.all_steps, "rl": self.method.schedule.iterations}.get(stage, 0)
        self._tell(Event("evaluation", stage, step, total, score, self.run.path))

    def _evaluate_further(self, stage: str, step: int) -> None:
        self.progress.further += self.measuring.further(stage, step)

    def _watched(self, what: str, episodes: int, max_steps: int) -> Played:
        played = Played(what, episodes, max_steps, self.policy)
        self.reporter.going_on(lambda silence: self._first_completion(played) or played.line(silence))
        return played

    def _first_completion(self, played: Played) -> str:
        """What the policy writes, once in a run that takes long: whoever waits for it wants to have seen it."""
        if self._shown or played.first is None:
            return ""
        self._shown = True
        return describe_completion("first completion", *played.first)

    def _add_up_time(self) -> None:
        self.progress.wall_s += time.monotonic() - self._began
        self._began = time.monotonic()

    def _save(self) -> Checkpoint:
        self._add_up_time()
        state = {**asdict(self.progress), "settings": read_settings(self.run.path)}
        return self.run.checkpoints.save(
            self.progress.stage, self.progress.step, self.policy, state, beside=self.beside, companions=self._companions()
        )

    def _companions(self) -> dict[str, Companion]:
        """By the name of their directory in a checkpoint; with several worlds each has its own, but for those they share."""
        alone = len(self.setups) == 1
        return {
            companion.name if alone or len(places) > 1 else f"{self.setups[places[0]].name}/{companion.name}": companion
            for companion, places in companions_of([setup.method for setup in self.setups])
        }

    def _restore(self) -> None:
        newest = self.run.checkpoints.newest()
        if newest is not None:
            state = newest.state()
            try:
                newest.load(self.policy, self.beside, self._companions() if newest.stage == "rl" else {})
            except NoRoom:
                raise  # the checkpoint is sound
            except TacitError as error:
                raise TacitError(f"{error} To resume from what was saved before it, delete {newest.path}.") from error
            known = [name for name in Progress.__dataclass_fields__ if name in state and name != "stopped"]
            self.progress = Progress(**{name: state[name] for name in known})
            self.reporter.say(f"resuming after {newest.stage} {newest.step}")
            if self.progress.is_best(newest.step):  # the killed process may not have got round to saying so
                self.run.checkpoints.mark_best(newest)
        kept = self.run.metrics.rewind(STAGES, self.progress.stage, self.progress.step)
        self.watcher.restore([record for record in kept if record["stage"] == "rl"], self.progress.evaluations)

    def _hand_on(self) -> None:
        """Entries were shown to the trained policy: whoever is to write them begins with what it has learned."""
        imitated = self.run.checkpoints.newest()
        if imitated is not None and any(setup.settings.sft.entries for setup in self.setups):
            for name in self._alike:
                self.beside[name].load(imitated.policy)
                self.beside[name].begin_stage()

    def _keep_evidence(self, error: NonFiniteLoss, step: int) -> NonFiniteLoss:
        """The batch and the policy that met, for whoever wants to know why."""
        place = self.run.path / "failed"
        write_directory(place / f"policy-{step:06d}", lambda path: self.policy.save(path / "policy"))
        if error.batch is not None:
            write_records(place / f"batch-{step:06d}.jsonl.gz", batch_records(error.batch))
        return NonFiniteLoss(f"{error} The run stopped in iteration {step}; batch and policy are in {place}.")
