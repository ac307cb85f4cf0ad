"""Learn to read: every token of every document, predicted from those before it.

L = −E[log π(token | the document so far)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.pretraining.shards import Corpus, batches
from tacit.training.supervised import cosine


@dataclass(frozen=True)
class PretrainingSettings:
    steps: int = 6000
    """optimiser steps"""
    rows: int = 512
    """documents per step"""
    lr: float = 3e-3
    """peak learning rate; warm-up then cosine to zero"""
    warmup: float = 0.03
    """share of the steps spent warming up"""
    seed: int = 0


def pretrain(
    learn: Callable[[Sequence[np.ndarray], float], Any],
    corpus: Corpus,
    settings: PretrainingSettings,
    report: Callable[[int, Any], None],
) -> None:
    """`learn(documents, lr)` takes one step and says its loss, which `report` hears with the step's number."""
    for step, rows in enumerate(batches(corpus, settings.rows, settings.steps, settings.seed)):
        report(step + 1, learn(rows, settings.lr * cosine(step, settings.steps, settings.warmup)))
