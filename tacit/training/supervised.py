"""The supervised stage: imitate the expert's actions, turn by turn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tacit.core.batch import Batch
from tacit.core.protocols import Learner
from tacit.core.seeds import derive
from tacit.losses.imitation import Imitation
from tacit.training.demonstrations import Demonstrations
from tacit.training.settings import SupervisedSettings


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
