"""What there is to look at while a panel is played: episodes and turns, tokens a second, how long it may take, what a
completion looks like, and what an endpoint is being asked again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from tacit.cli.progress import can_redraw, pack
from tacit.cli.terminal import say
from tacit.core.waiting import heard
from tacit.rollout.tally import Tally, describe_completion

LINE_EVERY_S = 5.0
"""between lines where there is no terminal to redraw; none for what is over sooner"""


class EvalProgress(Tally):
    """A bar in a terminal; elsewhere a line every few seconds, whether or not anything has happened since."""

    def __init__(
        self,
        console: Console,
        episodes: int,
        max_steps: int = 0,
        policy: Any = None,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = LINE_EVERY_S,
    ) -> None:
        """`policy` may also say its `trouble`."""
        super().__init__(episodes, max_steps, policy, clock)
        self._console = console
        self._shown = False
        self._live = None
        if can_redraw(console):
            self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, transient=True)
            self._live.start()
        self._closed = threading.Event()
        self._ticker = threading.Thread(target=self._tick, args=(every_s,), daemon=True)
        self._ticker.start()

    def close(self) -> None:
        self._closed.set()
        self._ticker.join()
        if self._live:
            self._live.stop()

    def _trouble(self) -> str:
        return getattr(self._policy, "trouble", "")

    def _tick(self, every_s: float) -> None:
        while not self._closed.wait(every_s):
            lines = []
            if self.first is not None and not self._shown:
                self._shown = True
                lines.append(describe_completion("first completion", *self.first))
            if not self._live:
                trouble = f"; {self._trouble()}" if self._trouble() else ""
                lines.append(f"eval: {', '.join(self.parts())}{trouble}")
            if not all(heard(partial(say, self._console), line) for line in lines):
                return

    def _render(self) -> RenderableType:
        width = self._console.width
        lines = [Text(line, no_wrap=True) for line in pack([*self.parts(), *filter(None, [self._trouble()])], width)]
        bar = ProgressBar(total=max(1, self._episodes), completed=self._before + self._over, width=min(width - 6, 40))
        return Group(bar, *lines) if width >= 16 else Group(*lines)
