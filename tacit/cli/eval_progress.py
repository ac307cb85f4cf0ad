"""What there is to look at while a panel is played: episodes and turns, tokens a second, how long it may take, what a
completion looks like, and what an endpoint is being asked again."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from tacit.cli.progress import can_redraw, pack
from tacit.cli.terminal import duration, say
from tacit.core.types import Completion, Trajectory
from tacit.rollout.onlookers import Onlooker

LINE_EVERY_S = 5.0
"""between lines where there is no terminal to redraw; none for what is over sooner"""
SHOWN_CHARACTERS = 300
"""of the first completion"""


class EvalProgress(Onlooker):
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
        """`policy` may say what it has `written_tokens` by now, and its `trouble`."""
        self._console, self._episodes, self._max_steps, self._policy, self._clock = console, episodes, max_steps, policy, clock
        self._began = clock()
        self._before, self._over, self._turns, self._turns_of_over, self._tokens = 0, 0, 0, 0, 0
        self._first: tuple[Completion, bool] | None = None
        self._shown = False
        self._written_before = self._written()
        self._live = None
        if can_redraw(console):
            self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, transient=True)
            self._live.start()
        self._closed = threading.Event()
        self._ticker = threading.Thread(target=self._tick, args=(every_s,), daemon=True)
        self._ticker.start()

    def begun(self, before: int) -> None:
        """So many episodes were played earlier."""
        self._before, self._began = before, self._clock()

    def turn(self, completion: Completion, valid: bool) -> None:
        self._turns += 1
        self._tokens += len(completion.tokens)
        if self._first is None and completion.finish != "unusable":
            self._first = (completion, valid)

    def over(self, place: int, trajectory: Trajectory) -> None:
        self._over += 1
        self._turns_of_over += len(trajectory)

    def close(self) -> None:
        self._closed.set()
        self._ticker.join()
        if self._live:
            self._live.stop()

    def parts(self) -> list[str]:
        """`2 of 4 episodes`, `31 turns`, `210 tok/s`, `about 3 min 20 s left`"""
        spent = self._clock() - self._began
        found = [f"{self._before + self._over} of {self._episodes} episodes", f"{self._turns} turns"]
        if (written := max(self._written() - self._written_before, self._tokens)) and spent > 0:
            found.append(f"{written / spent:.3g} tok/s")
        if not self._turns:
            found.append(f"waiting for the first answer, {duration(spent)}")
        elif left := self._time_left(spent):
            found.append(left)
        return found

    def _time_left(self, spent: float) -> str:
        """As if a turn ended its episode as often as it has until now; none goes on past its limit. The mean length of what is
        over would say too little: the short ones are over first."""
        under_way = self._episodes - self._before - self._over
        if not under_way or not (self._over or self._max_steps):
            return ""
        limit = self._max_steps - (self._turns - self._turns_of_over) / under_way if self._max_steps else math.inf
        each = min(self._turns / self._over, limit) if self._over else limit
        return f"{'about' if self._over else 'at most'} {duration(spent / self._turns * under_way * each)} left"

    def _written(self) -> int:
        return getattr(self._policy, "written_tokens", 0)

    def _trouble(self) -> str:
        return getattr(self._policy, "trouble", "")

    def _tick(self, every_s: float) -> None:
        while not self._closed.wait(every_s):
            if self._first is not None and not self._shown:
                self._shown = True
                say(self._console, describe_completion("first completion", *self._first))
            if not self._live:
                trouble = f"; {self._trouble()}" if self._trouble() else ""
                say(self._console, f"eval: {', '.join(self.parts())}{trouble}")

    def _render(self) -> RenderableType:
        width = self._console.width
        lines = [Text(line, no_wrap=True) for line in pack([*self.parts(), *filter(None, [self._trouble()])], width)]
        bar = ProgressBar(total=max(1, self._episodes), completed=self._before + self._over, width=min(width - 6, 40))
        return Group(bar, *lines) if width >= 16 else Group(*lines)


def describe_completion(what: str, completion: Completion, valid: bool) -> str:
    text = completion.text if len(completion.text) <= SHOWN_CHARACTERS else f"{completion.text[:SHOWN_CHARACTERS]} …"
    parses = "" if valid else ", which does not parse"
    cut = ", cut off at the longest completion" if completion.finish == "length" else ""
    return f"{what}, of {len(completion.tokens)} tokens{parses}{cut}: {text!r}"
