"""Where a run's progress goes. The command line shows it live; plain lines are enough anywhere else."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO

from tacit.core.progress import EVERY_S, duration, heard
from tacit.rollout.episodes import RolloutProgress


class Reporter(Protocol):
    def stage(self, name: str, total: int, done: int) -> None:
        """A stage of `total` steps begins, `done` of them already behind it."""
        ...

    def step(self, step: int, metrics: dict[str, float]) -> None: ...

    def say(self, text: str) -> None: ...

    def now(self, text: str) -> None:
        """What goes on at this moment, where nothing else was said for a while."""
        ...

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
        self._say(f"{self._name} {step}/{self._total}  {describe(metrics)}  {duration(left)} left")

    def say(self, text: str) -> None:
        self._say(text)

    def now(self, text: str) -> None:
        self._say(text)

    def close(self) -> None:
        pass

    def _say(self, text: str) -> None:
        print(text, file=self._out, flush=True)


class Attended:
    """A reporter that is not silent for long: where nothing has been said for a while, it says what goes on."""

    def __init__(self, reporter: Reporter, every_s: float = EVERY_S) -> None:
        self._reporter, self._every_s, self._over = reporter, every_s, threading.Event()
        self._going_on: Callable[[float], str] | None = None
        self._heard = time.monotonic()
        self.stage, self.now, self.close = reporter.stage, reporter.now, reporter.close

    def step(self, step: int, metrics: dict[str, float]) -> None:
        self._heard = time.monotonic()
        self._reporter.step(step, metrics)

    def say(self, text: str) -> None:
        self._heard = time.monotonic()
        self._reporter.say(text)

    def going_on(self, line: Callable[[float], str] | None) -> None:
        """What to say from here on where it takes long, given the seconds of silence until then; None has nothing to say."""
        self._going_on = line

    def __enter__(self) -> Attended:
        self._over.clear()
        self._thread = threading.Thread(target=self._attend, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *broken: object) -> None:
        self._over.set()
        self._thread.join()

    def _attend(self) -> None:
        said = self._heard
        while not self._over.wait(max(0.01, max(said, self._heard) + self._every_s - time.monotonic())):
            now, going_on = time.monotonic(), self._going_on
            if now >= max(said, self._heard) + self._every_s:
                said = now
                if going_on is not None and not heard(self._reporter.now, going_on(now - self._heard)):
                    return


class Played(RolloutProgress):
    """What there is to say of episodes while they are played, and then while they are learned from."""

    def __init__(
        self, what: str, total: int, max_steps: int = 0, policy: Any = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(total, max_steps, policy, clock)
        self._what, self._ended = what, 0.0

    def on_end(self) -> None:
        self._ended = self._clock()

    def line(self, silence: float) -> str:
        if not self._ended:
            return f"{self._what}: {', '.join(self.status())}"
        return f"{self._what}: learning from {self.played}, {duration(self._clock() - self._ended)}"


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


# What a run tells whoever listens, and how it can be told to stop.


@dataclass(frozen=True)
class Event:
    """A step of imitation or an iteration of practice is over (`step`), or the policy was measured (`evaluation`)."""

    kind: Literal["step", "evaluation"]
    stage: str
    """sft or rl; of an evaluation also untrained"""
    step: int
    total: int
    """steps of the stage; 0 before the first"""
    metrics: Mapping[str, Any]
    """the numbers of the step, as metrics.jsonl has them, or of the evaluation, as summary.json has them"""
    run: Path
    """the run directory"""


Callback = Callable[[Event], bool | None]
"""True stops the run: it is measured, saved and summed up where it is, and can be resumed from there"""
