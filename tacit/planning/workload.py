"""The work of one iteration: episodes, turns and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tacit.core.errors import TacitError

Turns = np.ndarray
"""[T, 2] of one episode: prompt and completion tokens per turn"""


@dataclass(frozen=True, eq=False)
class Workload:
    """`episodes` per iteration, drawn at random from the `measured` ones."""

    episodes: int
    measured: tuple[Turns, ...]
    world_s: float = 0.0
    """seconds of one world step"""
    driver_s: float = 0.0
    """seconds of the driver per turn: render and encode the prompt, parse the answer"""
    source: str = "as told"
    """where the measured episodes come from"""

    def __post_init__(self) -> None:
        if self.episodes < 1 or not self.measured or not all(len(turns) for turns in self.measured):
            raise TacitError(
                f"a workload of {self.episodes} episodes like {len(self.measured)} measured ones has nothing to do."
            )
        if min(self.world_s, self.driver_s) < 0:
            raise TacitError(
                f"neither a world's step ({self.world_s} s) nor the driver's part ({self.driver_s} s) can be negative."
            )

    @cached_property
    def _sums(self) -> tuple[int, int, int]:
        """turns, prompt tokens and completion tokens of the measured episodes"""
        prompts, completions = np.concatenate(self.measured).sum(0)
        return sum(map(len, self.measured)), int(prompts), int(completions)

    @property
    def turns(self) -> float:
        """mean turns of an episode"""
        return self._sums[0] / len(self.measured)

    @property
    def prompt(self) -> float:
        """mean prompt tokens of a turn"""
        return self._sums[1] / self._sums[0]

    @property
    def completion(self) -> float:
        """mean completion tokens of a turn"""
        return self._sums[2] / self._sums[0]

    @property
    def tokens(self) -> float:
        """prompt and completion tokens of an iteration, if no prefix is shared"""
        return self.episodes * (self._sums[1] + self._sums[2]) / len(self.measured)

    @property
    def longest_row(self) -> int:
        """most tokens of one turn"""
        return max(int(turns.sum(1).max()) for turns in self.measured)

    @property
    def longest_episode(self) -> int:
        return max(map(len, self.measured))

    @property
    def longest_of_all(self) -> int:
        """turns of the longest of `episodes` draws (median): the measured quantile 1 − 1 / N"""
        return int(np.quantile([len(turns) for turns in self.measured], 1 - 1 / self.episodes, method="higher"))

    @property
    def driving_s(self) -> float:
        """the driver's part of a rollout"""
        return self.episodes * self.turns * self.driver_s


def uniform(episodes: int, turns: int, prompt: int, completion: int, world_s: float = 0.0) -> Workload:
    """Equal episodes with equal turns."""
    if min(turns, prompt, completion) < 1:
        raise TacitError(f"turns, prompt and completion tokens must be at least 1, not {turns}, {prompt} and {completion}.")
    return Workload(episodes, (np.tile([prompt, completion], (turns, 1)),), world_s)


def stretched(
    workload: Workload, turns: float = 0.0, prompt: float = 0.0, completion: float = 0.0, most_turns: int = 0
) -> Workload:
    """The measured distribution scaled to other means (0 keeps a mean), cut at `most_turns`."""
    if min(turns, prompt, completion) < 0:
        raise TacitError(f"means of {turns} turns, {prompt} and {completion} tokens must not be negative.")
    lengths = np.array([len(episode) for episode in workload.measured])
    wanted = _lengths(lengths, turns, most_turns) if turns else lengths

    def like(episode: Turns, count: int) -> Turns:
        made = episode[np.arange(count) * len(episode) // count].copy()
        for column, (wanted, mean) in enumerate(((prompt, workload.prompt), (completion, workload.completion))):
            if wanted:
                made[:, column] = np.maximum(1, np.rint(made[:, column] * (wanted / mean)))
        return made

    return replace(workload, measured=tuple(map(like, workload.measured, wanted.tolist())))


def _lengths(lengths: np.ndarray, mean: float, most: int) -> np.ndarray:
    """Lengths scaled by one factor and cut at `most`, with the closest possible mean."""
    if most and mean > most:
        raise TacitError(f"episodes of {mean:g} turns on average cannot be: this world ends them after {most}.")

    def times(factor: float) -> np.ndarray:
        made = np.maximum(1, np.rint(lengths * factor)).astype(np.int64)
        return np.minimum(made, most) if most else made

    low, high = 0.0, mean * len(lengths)  # even an episode of one turn among longer ones gets there
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if times(middle).mean() < mean else (low, middle)
    return times(high)


def from_records(records: Sequence[dict[str, Any]], episodes: int, source: str) -> Workload:
    """From trajectory records (`tacit/runs/trajectories.py`)."""
    measured = tuple(
        np.array([[max(1, turn["prompt_tokens"]), max(1, turn["tokens"])] for turn in record["turns"]], np.int64)
        for record in records
        if record.get("turns")
    )
    if not measured:
        raise TacitError(f"{source} has no episode with a turn to measure.")
    return Workload(episodes, measured, source=source)
