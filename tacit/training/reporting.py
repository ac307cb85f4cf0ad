"""Progress reports of a run: plain lines, or the live display of the command line; and events for callbacks."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO

from tacit.core.progress import EVERY_S, format_duration, try_say
from tacit.rollout.episodes import RolloutProgress


class Reporter(Protocol):
    def stage(self, name: str, total: int, done: int) -> None:
        """A stage of `total` steps begins, of which `done` are already done."""
        ...

    def step(self, step: int, metrics: dict[str, float]) -> None: ...

    def say(self, text: str) -> None: ...

    def now(self, text: str) -> None:
        """Show a status line."""
        ...

    def close(self) -> None: ...


class PlainReporter:
    """One line per step, at most one every `interval_s`, and always the last step of a stage."""

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
        self.say(f"{self._name} {step}/{self._total}  {'  '.join(format_metrics(metrics))}  {format_duration(left)} left")

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def now(self, text: str) -> None:
        self.say(text)

    def close(self) -> None: ...


class HeartbeatReporter:
    """Wraps a reporter; sends a status line whenever nothing was reported for `every_s` seconds."""

    def __init__(self, reporter: Reporter, every_s: float = EVERY_S) -> None:
        self._reporter, self._every_s, self._over = reporter, every_s, threading.Event()
        self._status: Callable[[float], str] | None = None
        self._last = time.monotonic()
        self.stage, self.now, self.close = reporter.stage, reporter.now, reporter.close

    def step(self, step: int, metrics: dict[str, float]) -> None:
        self._last = time.monotonic()
        self._reporter.step(step, metrics)

    def say(self, text: str) -> None:
        self._last = time.monotonic()
        self._reporter.say(text)

    def set_status(self, line: Callable[[float], str] | None) -> None:
        """`line` makes the status line from the seconds of silence; None sends nothing."""
        self._status = line

    def __enter__(self) -> HeartbeatReporter:
        self._over.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *broken: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        sent = self._last
        while not self._over.wait(max(0.01, max(sent, self._last) + self._every_s - time.monotonic())):
            now, status = time.monotonic(), self._status
            if now >= max(sent, self._last) + self._every_s:
                sent = now
                if status is not None and not try_say(self._reporter.now, status(now - self._last)):
                    return


class RolloutStatus(RolloutProgress):
    """Status line of rollouts, then of the update."""

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
        return f"{self._what}: learning from {self.played} for {format_duration(self._clock() - self._ended)}"


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


def format_metrics(metrics: dict[str, float]) -> list[str]:
    """`label value` for each metric in SHOWN; crashes only if there are any."""
    return [
        f"{label} {form.format(metrics[key])}"
        for key, (label, form) in SHOWN.items()
        if key in metrics and (metrics[key] or key != "crashed")
    ]


@dataclass(frozen=True)
class Event:
    """An imitation step or an RL iteration ended (`step`), or the policy was evaluated (`evaluation`)."""

    kind: Literal["step", "evaluation"]
    stage: str
    """sft or rl; for an evaluation also untrained"""
    step: int
    total: int
    """steps of the stage; 0 before the first"""
    metrics: Mapping[str, Any]
    """metrics of the step, as in metrics.jsonl, or of the evaluation, as in summary.json"""
    run: Path


Callback = Callable[[Event], bool | None]
"""Return True to stop the run. It is then evaluated, saved and summarized, and can be resumed."""
