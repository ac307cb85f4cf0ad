"""The driver's side of one sampling server. No wait is without a limit; whoever is gone, or late, has died."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.protocols import Sampling
from tacit.engines.sharded.driver.group import LOOK_S, eventually
from tacit.engines.sharded.driver.handover import TOLERANCE, Handed, apart
from tacit.engines.sharded.driver.launching import Launcher, Started
from tacit.engines.sharded.messages import Line, Lost, caller, written
from tacit.engines.sharded.servers.orders import Delivery, Opening, Order

GREEDY = Sampling(temperature=0.0, max_tokens=1)
ROOM = "that it has memory for what it is given: --engine.server-memory"


class Died(Exception):
    """A server is gone, or did not answer in time; its words say how."""

    def __init__(self, server: Server, how: str):
        super().__init__(how)
        self.server = server


class Server:
    def __init__(self, number: int, launcher: Launcher, opening: Opening, start_timeout_s: float, timeout_s: float):
        self.number, self._launcher, self._opening = number, launcher, opening
        self.start_timeout_s, self.timeout_s = start_timeout_s, timeout_s
        self.under_way: dict[int, Order] = {}
        self.finished: list[Delivery] = []
        """what has been heard and not been fetched yet"""
        self.deaths = 0
        """in a row, without anything finished in between"""
        self._heard = 0.0
        """when it last said something, or was given something to do"""
        self.met = False
        """it has met the first rank, to take weights from it"""
        self._line: Line | None = None
        self._started: Started | None = None

    def __str__(self) -> str:
        return f"server {self.number} ({self._started.name if self._started else 'not started'})"

    def launch(self) -> None:
        """Have its process started; `arrive` waits for it, so that many can start at once."""
        self._key, self._deadline = secrets.token_bytes(32), time.monotonic() + self.start_timeout_s
        self._door = socket.create_server((self._launcher.host, 0), backlog=1)
        self.met = False
        self._started = self._launcher.start(self.number, (self._launcher.host, self._door.getsockname()[1]), self._key)

    def arrive(self) -> None:
        """Wait until it has loaded the model."""
        with closing(self._door):
            while (called := caller(self._door, self._key, LOOK_S, max(0.1, self._left()))) is None:
                if (how := self._process.ended()) is not None:
                    raise Died(self, how)
                if self._left() < 0:
                    raise Died(self, "it was waited for until the limit of --engine.start_timeout_s")
        self._line = called[1]
        try:
            self._ask("open", self._opening, limit_s=self._left(), setting="start_timeout_s")
        except TacitError as error:  # no vLLM there, no memory for the model
            raise Died(self, str(error)) from error

    def give(self, handed: Handed, probes: Sequence[np.ndarray]) -> None:
        """Have it take over weights, and refuse it where it then does not have those of the ranks."""
        if handed.direct is not None:
            handed.direct.give(self, handed.member, handed.version)
        elif handed.path:
            try:
                self.ask("load", handed.member, handed.version, handed.path)
            except TacitError as error:
                raise TacitError(f"{error}. See that it reaches --engine.exchange, as the ranks do, and {ROOM}.") from error
        orders = [Order(-1 - i, handed.member, tuple(probe.tolist()), 0, 1, GREEDY) for i, probe in enumerate(probes)]
        self.add(orders)
        deadline, found = time.monotonic() + self.timeout_s, dict[int, Delivery]()
        while len(found) < len(orders):
            self._hear(deadline, "probes of its weights", "timeout_s")
            found |= {delivery.ticket: delivery for delivery in self.finished if delivery.ticket < 0}
        self.finished = [delivery for delivery in self.finished if delivery.ticket >= 0]
        said = [(found[order.ticket].tokens[0], found[order.ticket].logprobs[0]) for order in orders]
        gap, version = apart(handed, said), found[-1].version
        if gap > TOLERANCE[self._opening.dtype] or version != handed.version:
            raise TacitError(
                f"{self} has other weights than the ranks: what it says of a token is {gap:.3g} from what they say of it "
                f"(versions {version} and {handed.version}). See that all read the same {self._opening.checkpoint} and "
                f"the same --engine.exchange, and that its vLLM computes in {self._opening.dtype}."
            )

    def add(self, orders: Sequence[Order]) -> None:
        """Have these written."""
        self.under_way |= {order.ticket: order for order in orders}
        self._send("add", list(orders))

    def forget(self, tickets: Sequence[int]) -> None:
        mine = [ticket for ticket in tickets if self.under_way.pop(ticket, None) is not None]
        if mine:
            self._send("forget", mine)

    @property
    def connection(self) -> Any:
        return self._open_line.connection

    def hear(self) -> None:
        """Take what it says. Only once there is something to hear."""
        try:
            kind, told = self._open_line.receive()
        except Lost as error:
            raise self._gone(error) from error
        self._took(kind, told)

    def look(self) -> None:
        """Whether it still lives, and says something in time."""
        if self._process.ended() is not None:
            raise self._gone(None)
        if self.under_way and time.monotonic() > self._heard + self.timeout_s:
            raise Died(self, f"{len(self.under_way)} completions were waited for, until the limit of --engine.timeout_s")

    def stop(self) -> None:
        """End it at once. What was under way is kept, to be asked for again."""
        self.under_way = {ticket: order for ticket, order in self.under_way.items() if ticket >= 0}
        if self._line is not None:
            self._line.close()
        if self._started is not None:
            self._started.stop()

    def last_words(self) -> str:
        words = self._started.last_words() if self._started else ""
        return f" Its last words: {words}" if words else ""

    def ask(self, what: str, *arguments: Any, meanwhile: Callable[[], str] | None = None) -> None:
        """As every question is asked; `meanwhile` somebody else does his part of it, and says what went wrong there."""
        self._ask(what, *arguments, limit_s=self.timeout_s, meanwhile=meanwhile)

    def _ask(
        self,
        what: str,
        *arguments: Any,
        limit_s: float,
        setting: str = "timeout_s",
        meanwhile: Callable[[], str] | None = None,
    ) -> None:
        self._send(what, *arguments)
        if meanwhile is not None and (wrong := meanwhile()):
            raise Died(self, eventually(self._process.ended) or f"it was not to be reached in {what!r}: {wrong}")
        deadline = time.monotonic() + limit_s
        while (said := self._hear(deadline, repr(what), setting)) is None:
            pass
        fine, answer = said
        if not fine:
            raise TacitError(f"{self} failed in {what!r}: {answer[1]}") from answer[0]

    def _send(self, what: str, *arguments: Any) -> None:
        self._heard = time.monotonic()
        try:
            self._open_line.limit(self.timeout_s)
            self._open_line.send(written((what, arguments)))
        except Lost as error:
            raise self._gone(error) from error

    def _hear(self, deadline: float, what: str, setting: str) -> Any:
        """Wait for what it says next: None where that was completions, else its answer."""
        while not wait([self.connection], timeout=LOOK_S):
            if self._process.ended() is not None:
                raise self._gone(None)
            if time.monotonic() > deadline:
                raise Died(self, f"it was waited for in {what}, until the limit of --engine.{setting}")
        try:
            kind, told = self._open_line.receive()
        except Lost as error:
            raise self._gone(error) from error
        return told if kind == "answer" else self._took(kind, told)

    def _took(self, kind: str, told: Any) -> None:
        assert kind == "written", kind
        self._heard = time.monotonic()
        mine = [delivery for delivery in told if self.under_way.pop(delivery.ticket, None) is not None]
        self.finished += mine
        if any(delivery.ticket >= 0 for delivery in mine):
            self.deaths = 0

    def _gone(self, error: BaseException | None) -> Died:
        return Died(self, eventually(self._process.ended) or f"its line broke off ({type(error).__name__}: {error})")

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    @property
    def _process(self) -> Started:
        assert self._started is not None
        return self._started

    @property
    def _open_line(self) -> Line:
        assert self._line is not None
        return self._line
