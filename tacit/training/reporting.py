"""Where a run's progress goes. The command line shows it live; plain lines are enough anywhere else."""

from __future__ import annotations

import sys
import time
from typing import Protocol, TextIO


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
