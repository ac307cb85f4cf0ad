"""How far episodes have come, for whoever waits for them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from tacit.core.amounts import duration, number_of
from tacit.core.types import Completion, Trajectory
from tacit.rollout.onlookers import Onlooker

LATE_S = 3.0
"""after so long it is said which world is being waited for"""

SHOWN_CHARACTERS = 300
"""of a completion that is shown"""


class Tally(Onlooker):
    """Counts episodes, turns and tokens, and estimates what is left."""

    def __init__(
        self, episodes: int, max_steps: int = 0, policy: Any = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`policy` may say what it has `written_tokens` by now."""
        self._episodes, self._max_steps, self._policy, self._clock = episodes, max_steps, policy, clock
        self._began = clock()
        self._before, self._over, self._turns, self._turns_of_over, self._tokens = 0, 0, 0, 0, 0
        self._written_before = self._written()
        self._worlds: object = None
        self.first: tuple[Completion, bool] | None = None
        """what was written first, and whether it parsed"""

    def begun(self, before: int) -> None:
        """So many episodes were played earlier."""
        self._before, self._began = before, self._clock()

    def begins(self, worlds: object) -> None:
        self._worlds = worlds

    def turn(self, completion: Completion, valid: bool) -> None:
        self._turns += 1
        self._tokens += len(completion.tokens)
        if self.first is None and completion.finish != "unusable":
            self.first = (completion, valid)

    def over(self, place: int, trajectory: Trajectory) -> None:
        self._over += 1
        self._turns_of_over += len(trajectory)

    @property
    def played(self) -> str:
        """`31 turns`"""
        return number_of(self._turns, "turn")

    def parts(self) -> list[str]:
        """`2 of 4 episodes`, `31 turns`, `210 tok/s`, `about 3 min 20 s left`"""
        spent, over = self._clock() - self._began, self._before + self._over
        # Where groups are selected by what came out, more may be played than were planned.
        found = [f"{over} of {number_of(self._episodes, 'episode')}" if over <= self._episodes else number_of(over, "episode")]
        found.append(self.played)
        if (written := max(self._written() - self._written_before, self._tokens)) and spent > 0:
            found.append(f"{written / spent:.3g} tok/s")
        if not self._turns:
            found.append(f"waiting for the first answer, {duration(spent)}")
        elif left := self._time_left(spent):
            found.append(left)
        late = getattr(self._worlds, "late", None)
        return [*found, str(late)] if late is not None and late.seconds >= LATE_S else found

    def _time_left(self, spent: float) -> str:
        """As if a turn ended its episode as often as it has until now; none goes on past its limit. The mean length of what is
        over would say too little: the short ones are over first."""
        under_way = self._episodes - self._before - self._over
        if under_way <= 0 or not (self._over or self._max_steps):
            return ""
        limit = self._max_steps - (self._turns - self._turns_of_over) / under_way if self._max_steps else math.inf
        each = min(self._turns / self._over, limit) if self._over else limit
        return f"{'about' if self._over else 'at most'} {duration(spent / self._turns * under_way * each)} left"

    def _written(self) -> int:
        return getattr(self._policy, "written_tokens", 0)


def describe_completion(what: str, completion: Completion, valid: bool) -> str:
    text = completion.text if len(completion.text) <= SHOWN_CHARACTERS else f"{completion.text[:SHOWN_CHARACTERS]} …"
    parses = "" if valid else ", which does not parse"
    cut = ", cut off at the longest completion" if completion.finish == "length" else ""
    return f"{what}, of {number_of(len(completion.tokens), 'token')}{parses}{cut}: {text!r}"
