"""All that is asked of the model, gathered into batches by the one thread that touches it.

Requests are handed in at the engine's desks: one for each way of sampling, where the engine writes with several adapters at
once, else one for each set of weights and way of sampling. While a desk writes, others arrive; they join when it next looks up.
So a batch is whatever came in meanwhile, and nobody waits for a clock. A completion depends on its request alone, so what a
session is answered does not depend on who else asked.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from tacit.core.protocols import Request, Sampling
from tacit.core.types import Completion
from tacit.serving.aside import OURS, aside
from tacit.serving.desks import Answers, Ask, DeskMaker, Desks
from tacit.serving.refusals import STOPPING, Refused

Result = TypeVar("Result")
DEAD = "the thread that asks the model has ended by a mistake; start the server again."
STOP_S = 1.0
"""for a pass of the model to come to its end once the server stops"""


@dataclass(frozen=True, eq=False)
class _Call:
    work: Callable[[], Any]
    answer: asyncio.Future[Any]


class Gathering:
    """`sample` and `call` are for the event loop it was started in; the rest is its own thread's."""

    def __init__(self, watch: Callable[[int], None] = lambda rows: None) -> None:
        """`watch` is told how many requests were under way whenever the model goes on."""
        self._desks = Desks(self._deliver, watch)
        self._inbox: queue.SimpleQueue[Ask | _Call | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._dead = False
        self._unanswered: set[asyncio.Future[Any]] = set()

    @property
    def waiting(self) -> int:
        """requests that have no answer yet"""
        return len(self._unanswered)

    @property
    def alive(self) -> bool:
        return self._thread is not None and not self._dead

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name=f"{OURS} model", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """What is under way is given up. A pass of the model cannot be broken off: one that takes long is left behind."""
        if self._thread is not None:
            self._inbox.put(None)
            await aside(partial(self._thread.join, STOP_S))
            self._thread = None
            self._refuse_all(Refused(503, STOPPING))

    async def sample(self, maker: DeskMaker, sampling: Sampling, request: Request) -> Completion:
        return await self._answered(lambda answer: Ask(maker, sampling, request, answer))

    async def call(self, work: Callable[[], Result]) -> Result:
        """Something else that touches the model: between two batches, on its thread."""
        return await self._answered(lambda answer: _Call(work, answer))

    async def _answered(self, made: Callable[[asyncio.Future[Any]], Ask | _Call]) -> Any:
        if self._loop is None or self._thread is None:
            raise Refused(503, STOPPING)
        if self._dead:
            raise Refused(500, DEAD)
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._unanswered.add(answer)
        try:
            self._inbox.put(made(answer))
            return await answer
        finally:
            self._unanswered.discard(answer)

    def _work(self) -> None:
        try:
            self._gather()
        except BaseException:
            assert self._loop is not None
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._died)
            raise

    def _died(self) -> None:
        self._dead = True
        self._refuse_all(Refused(500, DEAD))

    def _refuse_all(self, refusal: Refused) -> None:
        _settle([(answer, None, refusal) for answer in self._unanswered])

    def _gather(self) -> None:
        while True:
            if not self._take_in(wait=not self._desks.busy):
                return
            self._desks.go_on()

    def _take_in(self, wait: bool) -> bool:
        """Everything that has arrived; False where it is time to stop."""
        while True:
            try:
                item = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            if item is None:
                self._desks.close()
                return False
            if item.answer.cancelled():
                continue
            if isinstance(item, Ask):
                self._desks.take(item)
                continue
            try:
                self._deliver([(item.answer, item.work(), None)])
            except Exception as error:
                self._deliver([(item.answer, None, error)])

    def forget(self, maker: DeskMaker) -> None:
        """Close the desks of weights that are about to be given up. On the model's thread: `call` it."""
        self._desks.forget(maker)

    def _deliver(self, answers: Answers) -> None:
        """All at once: waking the event loop costs more than what it is told."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop was closed under way; nobody is left to be told
            self._loop.call_soon_threadsafe(_settle, answers)


def _settle(answers: Answers) -> None:
    for answer, result, error in answers:
        if answer.done():  # whoever asked has gone
            continue
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)
