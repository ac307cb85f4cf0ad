"""Shared parts of the worlds' task lists: splits by hash, seeded order, panel hashes, and task families from goal texts."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.types import Task


def split_by_digest(name: str) -> str:
    """The split of a name by its hash: 80% `train`, 10% `test`, 10% `hard`; the same on every machine."""
    tenth = zlib.crc32(name.encode()) % 10
    return "test" if tenth == 8 else "hard" if tenth == 9 else "train"


def shuffle_key(seed: int, task_id: str) -> bytes:
    """Sort key for a seeded random order. Adding or removing ids does not reorder the others."""
    return hashlib.sha256(f"{seed}:{task_id}".encode()).digest()


def parse_panels(table: str) -> Mapping[str, Mapping[int, str]]:
    """split -> number of tasks -> panel hash, from lines of the form `split  16:hash 128:hash`."""
    rows = (line.split() for line in table.strip().splitlines())
    return {split: {int(count): digest for count, digest in (cell.split(":") for cell in cells)} for split, *cells in rows}


def take_distinct(drawn: Iterable[Task], count: int, key: Callable[[Task], Hashable] = attrgetter("id")) -> list[Task]:
    """The first `count` tasks with distinct keys; draws only as many as it needs."""
    distinct: dict[Hashable, Task] = {}
    tasks = iter(drawn)
    while len(distinct) < count:
        task = next(tasks)
        distinct.setdefault(key(task), task)
    return list(distinct.values())


def describe_failures(failures: Sequence[str]) -> str:
    """`, 7 could not be read:` and the first five reasons, one per line; empty if nothing failed."""
    if not failures:
        return ""
    lines = "\n".join(f"  {failure}" for failure in failures[:5])
    more = f"\n  … and {len(failures) - 5} more" if len(failures) > 5 else ""
    return f", {len(failures)} could not be read:\n{lines}{more}"


_PREFIX = re.compile(r"your task is to:?\s*", re.IGNORECASE)


def normalize_goal(goal: str) -> str:
    """The goal with single spaces and without `Your task is to`, for comparison."""
    return _PREFIX.sub("", " ".join(goal.split()), count=1)


class GoalClassifier:
    """Predicts the label (family) of a goal: logistic regression on its words and pairs of words, trained on examples.

    `accuracy` is measured on every fourth example, held out; then the classifier is trained on all examples.
    """

    MIN_ACCURACY, MIN_PROBABILITY = 0.98, 0.8
    STEPS, RATE, DECAY = 80, 5.0, 1e-4

    def __init__(self, examples: Iterable[tuple[str, str]]) -> None:
        """`examples` are (goal, label)."""
        pairs = list(dict.fromkeys((normalize_goal(goal).lower(), label) for goal, label in examples))
        self._fit([pair for number, pair in enumerate(pairs) if number % 4])
        correct = [self._probabilities(goal)[0][1] == label for goal, label in pairs[::4]] if self._labels else [False]
        self.accuracy = sum(correct) / len(correct)
        self._fit(pairs)

    def _fit(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Full-batch gradient descent on the mean cross-entropy."""
        counts = Counter(feature for goal, _ in pairs for feature in self._words_and_bigrams(goal))
        self._index = {feature: i for i, feature in enumerate(sorted(f for f, n in counts.items() if n > 1))}
        self._labels = sorted({label for _, label in pairs})
        if not pairs:
            return
        rows_NF = np.stack([self._encode(goal) for goal, _ in pairs])
        targets_NL = np.eye(len(self._labels), dtype=np.float32)[[self._labels.index(label) for _, label in pairs]]
        self._weights_FL = np.zeros((rows_NF.shape[1], len(self._labels)), np.float32)
        for _ in range(self.STEPS):
            gradient = rows_NF.T @ (_softmax(rows_NF @ self._weights_FL) - targets_NL) / len(pairs)
            self._weights_FL -= self.RATE * (gradient + self.DECAY * self._weights_FL)

    def _words_and_bigrams(self, goal: str) -> set[str]:
        words = re.findall(r"[a-z]+|\d+", goal)
        return {*words, *map(" ".join, pairwise(words))}

    def _encode(self, goal: str) -> np.ndarray:
        row = np.zeros(len(self._index) + 1, np.float32)
        row[[self._index[feature] for feature in self._words_and_bigrams(goal) if feature in self._index]] = 1.0
        row[-1] = 1.0
        return row

    def _probabilities(self, goal: str) -> list[tuple[float, str]]:
        """(probability, label), the most probable first."""
        probabilities = _softmax(self._encode(goal) @ self._weights_FL)
        return sorted(zip(probabilities.tolist(), self._labels, strict=True), reverse=True)

    def classify(self, goal: str) -> str:
        """The label. Raises TacitError if the classifier is too inaccurate or this prediction too uncertain."""
        if not self._labels or self.accuracy < self.MIN_ACCURACY:
            raise TacitError(
                f"the goal texts do not determine which of {', '.join(self._labels) or 'the families'} they belong to "
                f"({self.accuracy:.0%} of held-out examples classified correctly)"
            )
        (probability, label), *others = self._probabilities(normalize_goal(goal).lower())
        if others and probability < self.MIN_PROBABILITY:
            raise TacitError(f"goal {goal[:80]!r} could be {label} ({probability:.0%}) or {others[0][1]}")
        return label


def _softmax(scores: np.ndarray) -> np.ndarray:
    exp = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exp / exp.sum(axis=-1, keepdims=True)
