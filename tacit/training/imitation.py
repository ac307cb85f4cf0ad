"""The supervised stage: imitate the expert's actions, turn by turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tacit.core.credit import Batch
from tacit.core.progress import number_of
from tacit.core.protocols import Learner, Policy, Sampling, Tokenizer
from tacit.core.seeds import derive
from tacit.losses.regularizers import Imitation
from tacit.rollout.worlds import TimedExpert, TimedWorld
from tacit.runs.directory import Run
from tacit.runs.trajectories import write_records
from tacit.training.collect import Collector, WorldSetup
from tacit.training.demonstrations import (
    Demonstrations,
    Relabelled,
    demonstrate,
    keep,
    kept,
    play_round,
    relabel,
    samples,
    scribed,
    tasks_of_round,
)
from tacit.training.recordings import imitate_recordings
from tacit.training.reporting import Attended, Played
from tacit.training.settings import SupervisedSettings, TrainSettings


def cosine(step: int, steps: int, warmup: float) -> float:
    """Share of the peak learning rate at `step` (from 0): linear warm-up, then half a cosine down to zero."""
    warm = max(1, round(warmup * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def order(samples: int, step: int, batch: int, seed: int) -> np.ndarray:
    """Rows of step `step`: passes over the data, each in an order of its own. A function of the step alone, so that a
    resumed run reads on where the killed one stopped."""
    batch = min(batch, samples)
    per_pass = max(1, samples // batch)
    epoch, place = divmod(step, per_pass)
    shuffled = np.random.default_rng(derive(seed, "sft", epoch)).permutation(samples)
    return shuffled[place * batch : (place + 1) * batch]


def imitate(
    learner: Learner, shown: Demonstrations, settings: SupervisedSettings, seed: int, first: int = 0
) -> Iterator[tuple[int, dict[str, float]]]:
    """Train from step `first` on; yields (step, metrics) after each."""
    for step in range(first, settings.steps):
        rows = order(len(shown), step, settings.batch, seed)
        yield step + 1, _learn(learner, [(shown, rows)], settings.lr * cosine(step, settings.steps, settings.warmup))


def imitate_round(
    learner: Learner,
    shown: Demonstrations,
    relabelled: Demonstrations,
    settings: SupervisedSettings,
    seed: int,
    number: int,
    first: int = 0,
) -> Iterator[tuple[int, dict[str, float]]]:
    """Round `number` (from 1), from step `first` of the stage on: of each batch a share was relabelled, the rest shown."""
    begin, own = settings.round_begins(number), derive(seed, "round", number)
    fresh = round(settings.round_share * settings.batch)
    for step in range(max(first, begin), begin + settings.round_steps):
        parts = [(relabelled, fresh), (shown, settings.batch - fresh)]
        rows = [(part, order(len(part), step - begin, count, own)) for part, count in parts if count]
        yield step + 1, _learn(learner, rows, settings.lr * cosine(step - begin, settings.round_steps, settings.warmup))


def _learn(learner: Learner, rows: Sequence[tuple[Demonstrations, np.ndarray]], lr: float) -> dict[str, float]:
    prompts = [shown.prompts[i] for shown, chosen in rows for i in chosen]
    completions = [shown.completions[i] for shown, chosen in rows for i in chosen]
    return {**learner.update(Batch.imitation(prompts, completions), (Imitation(),), lr), "lr": lr}


# What a run imitates: what an expert or a file shows, and in rounds what the expert says of the policy's own play.


def demonstrated(
    setup: WorldSetup, tokenizer: Tokenizer, seed: int, several: bool, say: Callable[[str], None]
) -> Demonstrations:
    """What is shown in one world, before the policy plays."""
    settings, world, context = setup.settings.sft, setup.world, setup.method.context
    if settings.from_:
        families = setup.settings.family_names
        shown, notes = imitate_recordings(
            Path(settings.from_), world, setup.tasks.training, context, tokenizer, settings.tasks, families
        )
        for note in notes:
            say(f"imitation: {note}")
        say(f"imitation: {shown}")
        return shown
    tasks, limit_s = setup.tasks.training[: settings.tasks], setup.settings.world_timeout_s
    experts = {name: partial(TimedExpert, make, limit_s) for name, make in world.experts.items()}
    world = replace(world, make=partial(TimedWorld, world.make, limit_s), experts=experts)
    say(f"imitation: the expert plays {number_of(len(tasks), 'task')}{f' of {world.name}' if several else ''}")
    shown = demonstrate(world, tasks, context, tokenizer, world.max_steps, settings.expert, settings.noise, seed)
    say(f"imitation: {shown}")
    if settings.noted or settings.step_notes or settings.entries:
        more = scribed(world, tasks, context, tokenizer, world.max_steps, settings, seed)
        say(f"imitation: and {number_of(len(more), 'sample')} of how notes are read and entries written")
        shown = Demonstrations.joined([shown, more])
    return shown


@dataclass(frozen=True)
class Rounds:
    """The rounds of relabelling of one run."""

    run: Run
    policy: Policy
    setups: Sequence[WorldSetup]
    collectors: Sequence[Collector]
    settings: TrainSettings
    reporter: Attended

    def relabelled(self, number: int, begun: bool) -> tuple[Demonstrations, dict[str, float]]:
        """What round `number` (from 1) adds, and its metrics. One that had `begun` before the run was killed is read again: the
        policy that played it is not there any more."""
        begin = self.settings.sft.round_begins(number)
        place = self.run.path / "relabelled" / f"{begin:06d}.npz"
        if begun:
            return kept(place), {}
        parts, records, metrics = [], list[dict[str, Any]](), dict[str, float]()
        for collector, setup in zip(self.collectors, self.setups, strict=True):
            relabelled = self._play(number, collector, setup)
            parts.append(samples(relabelled, setup.method.context, self.policy))
            records += relabelled.records()
            metrics |= {f"{collector.name}/{k}" if collector.name else k: value for k, value in relabelled.metrics().items()}
            self.reporter.say(f"round {number}{f' in {collector.name}' if collector.name else ''}: {relabelled}")
        fresh = Demonstrations.joined(parts)
        keep(fresh, place)
        if self.settings.trajectories:
            write_records(self.run.trajectories("relabel", begin), records)
        return fresh, metrics

    def _play(self, number: int, collector: Collector, setup: WorldSetup) -> Relabelled:
        chosen, schedule, context = setup.settings.sft, setup.method.schedule, setup.method.context
        tasks = tasks_of_round(setup.tasks.training, chosen.tasks, number, chosen.round_tasks)
        sampling = Sampling(temperature=schedule.temperature, top_p=schedule.top_p, max_tokens=collector.max_tokens)
        seed = derive(self.settings.seed, "relabel", number, collector.name)
        observer = Played(f"round {number}", len(tasks), collector.max_steps, self.policy)
        self.reporter.going_on(observer.line)
        played = play_round(tasks, seed, context, collector.worlds, self.policy, sampling, collector.max_steps, observer)
        return relabel(setup.world, played, chosen.expert, setup.settings.world_timeout_s)
