"""Supervised training: imitate demonstrations turn by turn, then rounds of DAgger relabeling."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tacit.core.credit import Batch
from tacit.core.progress import pluralize
from tacit.core.protocols import Learner, Policy, Sampling, Tokenizer
from tacit.core.seeds import derive
from tacit.losses.surrogates import Imitation
from tacit.rollout.worlds import TimedExpert, TimedWorld
from tacit.runs.directory import Run
from tacit.runs.trajectories import trajectory_record, write_records
from tacit.training.demonstrations import (
    Demonstrations,
    ask_questions,
    demonstrate,
    demonstrate_notes,
    load_relabeled,
    make_samples,
    play_round,
    relabel,
    save_relabeled,
)
from tacit.training.loop import Collector
from tacit.training.recordings import imitate_recordings
from tacit.training.reporting import HeartbeatReporter, RolloutStatus
from tacit.training.settings import SupervisedSettings, TrainSettings
from tacit.training.setup import WorldSetup


def cosine(step: int, steps: int, warmup: float) -> float:
    """Fraction of the peak learning rate at `step` (from 0): linear warm-up, then a half cosine to zero."""
    warm = max(1, round(warmup * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def order(samples: int, step: int, batch: int, seed: int) -> np.ndarray:
    """Row indices of a step: shuffled epochs over the data. Depends on the step alone, so a resumed run continues exactly."""
    batch = min(batch, samples)
    per_epoch = max(1, samples // batch)
    epoch, place = divmod(step, per_epoch)
    shuffled = np.random.default_rng(derive(seed, "sft", epoch)).permutation(samples)
    return shuffled[place * batch : (place + 1) * batch]


def imitate(
    learner: Learner, demonstrations: Demonstrations, settings: SupervisedSettings, seed: int, first: int = 0
) -> Iterator[tuple[int, dict[str, float]]]:
    """Train on demonstrations from step `first`; yields (step, metrics)."""
    for step in range(first, settings.steps):
        rows = order(len(demonstrations), step, settings.batch, seed)
        yield step + 1, _update(learner, [(demonstrations, rows)], settings.lr * cosine(step, settings.steps, settings.warmup))


def imitate_round(
    learner: Learner,
    demonstrations: Demonstrations,
    relabelled: Demonstrations,
    settings: SupervisedSettings,
    seed: int,
    number: int,
    first: int = 0,
) -> Iterator[tuple[int, dict[str, float]]]:
    """Train DAgger round `number` (from 1), from step `first` of the stage. `round_share` of each batch is relabeled turns."""
    begin, own_seed = settings.round_begins(number), derive(seed, "round", number)
    fresh = round(settings.round_share * settings.batch)
    for step in range(max(first, begin), begin + settings.round_steps):
        parts = [(relabelled, fresh), (demonstrations, settings.batch - fresh)]
        rows = [(part, order(len(part), step - begin, count, own_seed)) for part, count in parts if count]
        yield step + 1, _update(learner, rows, settings.lr * cosine(step - begin, settings.round_steps, settings.warmup))


def _update(learner: Learner, rows: Sequence[tuple[Demonstrations, np.ndarray]], lr: float) -> dict[str, float]:
    prompts = [part.prompts[i] for part, chosen in rows for i in chosen]
    completions = [part.completions[i] for part, chosen in rows for i in chosen]
    return {**learner.update(Batch.imitation(prompts, completions), (Imitation(),), lr), "lr": lr}


def collect_demonstrations(
    setup: WorldSetup, tokenizer: Tokenizer, seed: int, several: bool, say: Callable[[str], None]
) -> Demonstrations:
    """Demonstrations of one world: from a file of recorded episodes, or played by the world's expert."""
    settings, world, context = setup.settings.sft, setup.world, setup.method.context
    if settings.from_:
        families = setup.settings.family_names
        demonstrations, notes = imitate_recordings(
            Path(settings.from_), world, setup.tasks.training, context, tokenizer, settings.tasks, families
        )
        for note in notes:
            say(f"imitation: {note}")
        say(f"imitation: {demonstrations}")
        return demonstrations
    tasks, limit_s = setup.tasks.training[: settings.tasks], setup.settings.world_timeout_s
    experts = {name: partial(TimedExpert, make, limit_s) for name, make in world.experts.items()}
    world = replace(world, make=partial(TimedWorld, world.make, limit_s), experts=experts)
    say(f"imitation: the expert plays {pluralize(len(tasks), 'task')}{f' of {world.name}' if several else ''}")
    longest = max(world.max_steps, setup.max_steps)
    demonstrations = demonstrate(
        world, tasks, context, tokenizer, longest, settings.expert, settings.noise, seed, settings.renamed
    )
    renamed = f", including {settings.renamed} copies of each with other names" if settings.renamed else ""
    say(f"imitation: {demonstrations}{renamed}")
    if settings.questions:
        answers = ask_questions(world, setup.tasks.training, context, tokenizer, settings.questions, seed)
        say(f"imitation: {len(answers)} answers to questions about {pluralize(settings.questions, 'episode')} of random play")
        demonstrations = Demonstrations.joined([demonstrations, answers])
    if settings.noted or settings.step_notes or settings.entries:
        more = demonstrate_notes(world, tasks, context, tokenizer, longest, settings, seed)
        say(f"imitation: {pluralize(len(more), 'sample')} of using notes and writing entries")
        demonstrations = Demonstrations.joined([demonstrations, more])
    return demonstrations


def relabel_round(
    number: int,
    resumed: bool,
    run: Run,
    policy: Policy,
    setups: Sequence[WorldSetup],
    collectors: Sequence[Collector],
    settings: TrainSettings,
    reporter: HeartbeatReporter,
) -> tuple[Demonstrations, dict[str, float]]:
    """DAgger round `number` (from 1): the policy plays, the expert relabels every turn. Returns the samples and metrics.

    A resumed round is read from its file, since the policy that played it no longer exists."""
    begin = settings.sft.round_begins(number)
    file = run.path / "relabelled" / f"{begin:06d}.npz"
    if resumed:
        return load_relabeled(file), {}
    parts, records, metrics = [], list[dict[str, Any]](), dict[str, float]()
    for collector, setup in zip(collectors, setups, strict=True):
        chosen, schedule, context, name = setup.settings.sft, setup.method.schedule, setup.method.context, collector.name
        pool, start = setup.tasks.training, chosen.tasks + (number - 1) * chosen.round_tasks  # after the demonstrated tasks
        tasks = [pool[(start + i) % len(pool)] for i in range(chosen.round_tasks)]
        sampling = Sampling(temperature=schedule.temperature, top_p=schedule.top_p, max_tokens=collector.max_tokens)
        seed = derive(settings.seed, "relabel", number, name)
        status = RolloutStatus(f"round {number}", len(tasks), collector.max_steps, policy)
        reporter.set_status(status.line)
        played = play_round(tasks, seed, context, collector.worlds, policy, sampling, collector.max_steps, status)
        relabelled = relabel(setup.world, played, chosen.expert, setup.settings.world_timeout_s)
        parts.append(make_samples(relabelled, context, policy))
        for trajectory, advice in zip(relabelled.played, relabelled.advice, strict=True):
            record = trajectory_record(trajectory)
            for turn, action in zip(record["turns"], advice, strict=False):
                turn["expert"] = action
            records.append(record)
        success, turns = relabelled.won / len(relabelled.played), float(len(relabelled.turns))
        own = {"relabel_agreement": relabelled.agreement, "relabel_success": success, "relabel_turns": turns}
        metrics |= {f"{name}/{k}" if name else k: value for k, value in own.items()}
        reporter.say(f"round {number}{f' in {name}' if name else ''}: {relabelled}")
    fresh = Demonstrations.joined(parts)
    save_relabeled(fresh, file)
    if settings.trajectories:
        write_records(run.trajectories("relabel", begin), records)
    return fresh, metrics
