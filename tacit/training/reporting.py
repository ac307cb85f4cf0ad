"""Where a run's progress goes. The command line shows it live; plain lines are enough anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from tacit.core.types import Completion, Trajectory
from tacit.rollout.onlookers import Onlooker


class Reporter(Protocol):
    def stage(self, name: str, total: int, done: int) -> None:
        """A stage of `total` steps begins, `done` of them already behind it."""
        ...

    def step(self, step: int, metrics: dict[str, float]) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


class PlainReporter:
    """One line per step or so; no more often than every `interval_s`, but always the last of a stage."""

    def __init__(self, out: TextIO = sys.stdout, interval_s: float = 5.0) -> None:
        self._out, self._interval_s = out, interval_s
        self._name, self._total, self._done, self._began, self._last = "", 0, 0, 0.0, 0.0

    def stage(self, name: str, total: int, done: int) -> None:
        self._name, self._total, self._done, self._began = name, total, done, time.monotonic()
        self._last = 0.0

    def step(self, step: int, metrics: dict[str, float]) -> None:
        now = time.monotonic()
        if now - self._last < self._interval_s and step < self._total:
            return
        self._last = now
        left = (now - self._began) / max(1, step - self._done) * (self._total - step)
        self._say(f"{self._name} {step}/{self._total}  {describe(metrics)}  {left:.0f} s left")

    def say(self, text: str) -> None:
        self._say(text)

    def close(self) -> None:
        pass

    def _say(self, text: str) -> None:
        print(text, file=self._out, flush=True)


class Played(Onlooker):
    """Says now and then how far episodes have come, where they take so long that somebody may wonder."""

    def __init__(
        self, reporter: Reporter, what: str, total: int, every_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reporter, self._what, self._total, self._every_s, self._clock = reporter, what, total, every_s, clock
        self._over = self._turns = self._tokens = 0
        self._began = self._said = clock()

    def turn(self, completion: Completion, valid: bool) -> None:
        self._turns += 1
        self._tokens += len(completion.tokens)
        now = self._clock()
        if now - self._said >= self._every_s:
            self._said = now
            speed = self._tokens / (now - self._began)
            self._reporter.say(
                f"{self._what}: {self._over} of {self._total} episodes are over, {self._turns} turns, {speed:.3g} tok/s"
            )

    def over(self, place: int, trajectory: Trajectory) -> None:
        self._over += 1


SHOWN = {
    "success": ("success", "{:.1%}"),
    "reward": ("reward", "{:.2f}"),
    "steps": ("steps", "{:.1f}"),
    "valid": ("valid", "{:.0%}"),
    "crashed": ("crashed", "{:.0f}"),
    "loss": ("loss", "{:.4f}"),
    "entropy": ("entropy", "{:.2f}"),
    "grad_norm": ("grad", "{:.2f}"),
    "tokens_per_s": ("tok/s", "{:.0f}"),
}


def describe(metrics: dict[str, float]) -> str:
    """The handful of numbers a person watches."""
    return "  ".join(chunks(metrics))


def chunks(metrics: dict[str, float]) -> list[str]:
    """`label value` for each number worth watching; crashes only where there are any."""
    return [
        f"{label} {form.format(metrics[key])}"
        for key, (label, form) in SHOWN.items()
        if key in metrics and (metrics[key] or key != "crashed")
    ]
