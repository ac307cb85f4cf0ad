"""Progress, live in a terminal: a bar for the stage, the numbers a person watches, and evaluations above."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tacit.cli.terminal import say
from tacit.core.amounts import duration
from tacit.training.reporting import PlainReporter, Reporter, chunks

RECENT = 20
"""steps over which the time left is estimated"""


def make_reporter(console: Console) -> Reporter:
    """Live where there is a terminal to redraw, plain lines everywhere else."""
    return LiveReporter(console) if can_redraw(console) else PlainReporter(cast(TextIO, console.file))


def can_redraw(console: Console) -> bool:
    return console.is_terminal and os.environ.get("TERM") != "dumb"


class LiveReporter:
    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._name, self._total, self._step = "", 0, 0
        self._metrics: dict[str, float] = {}
        self._now = ""
        self._ticks: deque[tuple[int, float]] = deque(maxlen=RECENT + 1)
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, transient=True)
        self._live.start()

    def stage(self, name: str, total: int, done: int) -> None:
        self._name, self._total, self._step, self._metrics = name, total, done, {}
        self._now = ""
        self._ticks.clear()
        self._ticks.append((done, self._clock()))

    def step(self, step: int, metrics: dict[str, float]) -> None:
        now = self._clock()
        last_step, last_time = self._ticks[-1] if self._ticks else (step - 1, now)
        # A supervised stage counts its tokens but not its speed.
        if "tokens_per_s" not in metrics and "tokens" in metrics and now > last_time:
            metrics = {**metrics, "tokens_per_s": metrics["tokens"] * (step - last_step) / (now - last_time)}
        self._step, self._metrics, self._now = step, metrics, ""
        self._ticks.append((step, now))
        self._live.refresh()

    def say(self, text: str) -> None:
        self._now = ""
        say(self._console, text, style="yellow" if text.startswith("warning") else "")

    def now(self, text: str) -> None:
        self._now = text
        self._live.refresh()

    def close(self) -> None:
        self._live.stop()

    def seconds_left(self) -> float | None:
        """The pace of the last steps, evaluations among them included; None before the first."""
        if len(self._ticks) < 2 or self._ticks[-1][0] == self._ticks[0][0]:
            return None
        (first, began), (last, now) = self._ticks[0], self._ticks[-1]
        return max(0.0, (now - began) / (last - first) * (self._total - last) - (self._clock() - now))

    def _render(self) -> RenderableType:
        left, width = self.seconds_left(), self._console.width
        now = pack(self._now.split(", "), width) if self._now else []
        if not self._name:
            return _lines(now)
        counts = [f"{self._step}/{self._total}", *([f"{duration(left)} left"] if left is not None else [])]
        numbers = chunks(self._metrics)
        room = width - len(self._name) - len("  ".join(counts)) - 4
        if room < 10:  # a bar that has no room is left out; the numbers are not
            return _lines([*pack([self._name, *counts, *numbers], width), *now])
        bar = ProgressBar(total=max(1, self._total), completed=self._step, width=min(room, 40))
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_row(Text(self._name, style="bold"), bar, Text("  ".join(counts), no_wrap=True))
        return Group(line, _lines([*pack(numbers, width), *now]))


def _lines(lines: Sequence[str]) -> RenderableType:
    return Group(*(Text(line, no_wrap=True) for line in lines))


def pack(parts: Sequence[str], width: int) -> list[str]:
    """Parts on as few lines as they need. A line breaks between parts and never inside one."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(part)
    return lines
