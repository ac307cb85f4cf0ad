"""Supervised training: imitate demonstrations turn by turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from tacit.core.credit import Batch
from tacit.core.progress import pluralize
from tacit.core.protocols import Learner, Tokenizer
from tacit.core.seeds import derive
from tacit.losses.surrogates import Imitation
from tacit.rollout.worlds import TimedExpert, TimedWorld
from tacit.training.demonstrations import Demonstrations, ask_questions, demonstrate, demonstrate_notes
from tacit.training.recordings import imitate_recordings
from tacit.training.settings import SupervisedSettings
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
        batch = Batch.imitation([demonstrations.prompts[i] for i in rows], [demonstrations.completions[i] for i in rows])
        lr = settings.lr * cosine(step, settings.steps, settings.warmup)
        yield step + 1, {**learner.update(batch, (Imitation(),), lr), "lr": lr}


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
