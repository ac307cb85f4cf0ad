"""All that is asked of the model, gathered into batches by the one thread that touches it.

Requests go to the engine's schedulers: one per sampling setting where the engine batches several adapters together, else one
per set of weights and sampling setting. Requests that arrive while a scheduler decodes join its next batch.
So a batch is whatever came in meanwhile, and nobody waits for a clock. A completion depends on its request alone, so what a
session is answered does not depend on who else asked.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from tacit.core.protocols import Request, Sampling, Scheduler
from tacit.core.types import Completion
from tacit.serving.requests import STOPPING, Refused, gone

# The schedulers at which the model's thread hands in what is asked, and who waits at each. All of it is for that thread alone.
#
# An engine that batches several adapters has one shared scheduler for them; other weights have their own. Where a shared
# scheduler breaks, its requests are retried one adapter at a time, so that only those of the weights at fault are lost.

Answers = Sequence[tuple[asyncio.Future[Any], Any, Exception | None]]
"""(whose, what, or why not)"""
IDLE_SCHEDULERS = 8
"""schedulers that are kept though nobody waits at them; whoever samples in a way of their own should not leave one each"""


class SchedulerFactory(Protocol):
    def open_scheduler(self, sampling: Sampling, layer: int | None = None) -> Scheduler: ...


class SharedScheduler(Scheduler, Protocol):
    def submit(self, request: Request, adapter: str | None = None) -> int: ...


class Shared(Protocol):
    def open_shared_scheduler(self, sampling: Sampling) -> SharedScheduler | None: ...


@runtime_checkable
class Sharing(Protocol):
    """A maker that is one of several over one engine."""

    engine: Shared
    name: str


@dataclass(frozen=True, eq=False)
class Ask:
    maker: SchedulerFactory
    sampling: Sampling
    request: Request
    answer: asyncio.Future[Completion]


@dataclass(eq=False)
class _Busy:
    """A scheduler and who waits at it."""

    owner: SchedulerFactory | Shared
    scheduler: Scheduler
    waiting: dict[int, Ask] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Place:
    """Where one maker's requests are handed in."""

    maker: SchedulerFactory
    busy: _Busy
    submit: Callable[[Request], int]


class Schedulers:
    def __init__(self, deliver: Callable[[Answers], None], watch: Callable[[int], None]) -> None:
        """`watch` is told how many requests were under way whenever a scheduler goes on."""
        self._deliver, self._watch = deliver, watch
        self._schedulers: dict[tuple[int, Sampling], _Busy] = {}
        self._places: dict[tuple[int, Sampling], _Place] = {}
        self._at_fault: set[int] = set()
        """makers that broke a scheduler by themselves: each has schedulers of its own until one of them holds"""

    def __len__(self) -> int:
        return len(self._schedulers)

    @property
    def busy(self) -> bool:
        return any(scheduler.waiting for scheduler in self._schedulers.values())

    def take(self, ask: Ask) -> None:
        try:
            self._hand_in(ask, self._place(ask.maker, ask.sampling))
        except Exception as error:
            self._deliver([(ask.answer, None, error)])

    def go_on(self) -> None:
        """Each until something is finished at it."""
        for scheduler in [scheduler for scheduler in self._schedulers.values() if scheduler.waiting]:
            self._go_on(scheduler)
        self._close_idle()

    def close(self) -> None:
        for scheduler in list(self._schedulers.values()):
            self._drop(scheduler)

    def forget(self, maker: SchedulerFactory) -> None:
        """Close the schedulers of weights that are about to be given up."""
        given_up = gone("the module was taken off while it was thinking; begin again with what is in its place.")
        for scheduler in list(self._schedulers.values()):
            asked = list(scheduler.waiting.values())
            if scheduler.owner is maker or any(ask.maker is maker for ask in asked):
                self._drop(scheduler)
                self._deliver([(ask.answer, None, given_up) for ask in asked if ask.maker is maker])
                for ask in (ask for ask in asked if ask.maker is not maker):
                    self.take(ask)  # elsewhere, from its first token
        self._at_fault.discard(id(maker))
        self._places = {key: place for key, place in self._places.items() if place.maker is not maker}

    def _place(self, maker: SchedulerFactory, sampling: Sampling) -> _Place:
        if (place := self._places.get((id(maker), sampling))) is None:
            place = self._places[id(maker), sampling] = self._find_place(maker, sampling)
        return place

    def _find_place(self, maker: SchedulerFactory, sampling: Sampling) -> _Place:
        if isinstance(maker, Sharing) and id(maker) not in self._at_fault:
            busy = self._schedulers.get((id(maker.engine), sampling))
            if busy is None and (shared := maker.engine.open_shared_scheduler(sampling)) is not None:
                busy = self._open(maker.engine, sampling, shared)
            if busy is not None:
                return _Place(maker, busy, partial(cast(SharedScheduler, busy.scheduler).submit, adapter=maker.name))
        return self._own_place(maker, sampling)

    def _own_place(self, maker: SchedulerFactory, sampling: Sampling) -> _Place:
        busy = self._schedulers.get((id(maker), sampling)) or self._open(maker, sampling, maker.open_scheduler(sampling))
        return _Place(maker, busy, busy.scheduler.submit)

    @staticmethod
    def _hand_in(ask: Ask, place: _Place) -> None:
        place.busy.waiting[place.submit(ask.request)] = ask

    def _open(self, owner: SchedulerFactory | Shared, sampling: Sampling, scheduler: Scheduler) -> _Busy:
        busy = self._schedulers[id(owner), sampling] = _Busy(owner, scheduler)
        return busy

    def _go_on(self, scheduler: _Busy) -> None:
        self._watch(len(scheduler.waiting))
        try:
            finished = scheduler.scheduler.wait()
        except Exception as error:  # theirs alone: other schedulers have their own rows
            lost = list(scheduler.waiting.values())
            scheduler.waiting.clear()
            self._drop(scheduler)
            if len({id(ask.maker) for ask in lost}) > 1:
                self._part(lost)
            else:
                self._at_fault.update(id(ask.maker) for ask in lost)
                self._deliver([(ask.answer, None, error) for ask in lost])
            return
        if id(scheduler.owner) in self._at_fault:
            self._at_fault.discard(id(scheduler.owner))
            self._places = {key: place for key, place in self._places.items() if place.maker is not scheduler.owner}
        self._deliver([(scheduler.waiting.pop(request_id).answer, completion, None) for request_id, completion in finished])

    def _part(self, asked: Sequence[Ask]) -> None:
        """A shared scheduler broke and one adapter may be at fault: resubmit each request to its adapter's own scheduler."""
        for ask in asked:
            try:
                self._hand_in(ask, self._own_place(ask.maker, ask.sampling))
            except Exception as error:
                self._deliver([(ask.answer, None, error)])

    def _close_idle(self) -> None:
        """All but a few, and every one that nobody will come to any more: those that had been parted."""
        if not (idle := [scheduler for scheduler in self._schedulers.values() if not scheduler.waiting]):
            return
        places = {id(place.busy) for place in self._places.values()}
        kept = [scheduler for scheduler in idle if id(scheduler) in places][-IDLE_SCHEDULERS:]
        for scheduler in idle:
            if scheduler not in kept:
                self._drop(scheduler)

    def _drop(self, scheduler: _Busy) -> None:
        scheduler.scheduler.close()
        self._schedulers = {key: other for key, other in self._schedulers.items() if other is not scheduler}
        self._places = {key: place for key, place in self._places.items() if place.busy is not scheduler}


# Work that takes long, or never comes back, beside the event loop: in threads that hold up neither it nor the end of all.

Result = TypeVar("Result")
OURS = "tacit"
"""how the names of a server's threads begin"""
LAST_S = 1.0


class Aside:
    """One thread, which does one thing after another."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        # Threads of an executor are waited for when the process ends, however long they take.
        threading.Thread(target=self._work, name=f"{OURS} aside", daemon=True).start()

    async def do(self, work: Callable[[], Result]) -> Result:
        return await asyncio.wrap_future(self._hand_in(work))

    def close(self, last: Callable[[], Any] = lambda: None) -> None:
        """Once all that was handed in is done, and `last` after it."""
        self._hand_in(last)
        self._inbox.put(None)

    def _hand_in(self, work: Callable[[], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        self._inbox.put((work, answer))
        return answer

    def _work(self) -> None:
        while (item := self._inbox.get()) is not None:
            work, answer = item
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(work())
            except BaseException as error:
                answer.set_exception(error)


async def aside(work: Callable[[], Result]) -> Result:
    """Once, in a thread of its own."""
    once = Aside()
    try:
        return await once.do(work)
    finally:
        once.close()


def leave(status: int) -> int:
    """At the end of everything. A thread that has not come back by now, from a pass of the model or somebody's world, would be
    torn out of it, and take the process's good end along."""
    deadline = time.monotonic() + LAST_S
    for thread in [thread for thread in threading.enumerate() if thread.name.startswith(OURS)]:
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return status


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
        self._schedulers = Schedulers(self._deliver, watch)
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

    async def sample(self, maker: SchedulerFactory, sampling: Sampling, request: Request) -> Completion:
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
            if not self._take_in(wait=not self._schedulers.busy):
                return
            self._schedulers.go_on()

    def _take_in(self, wait: bool) -> bool:
        """Everything that has arrived; False where it is time to stop."""
        while True:
            try:
                item = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            if item is None:
                self._schedulers.close()
                return False
            if item.answer.cancelled():
                continue
            if isinstance(item, Ask):
                self._schedulers.take(item)
                continue
            try:
                self._deliver([(item.answer, item.work(), None)])
            except Exception as error:
                self._deliver([(item.answer, None, error)])

    def forget(self, maker: SchedulerFactory) -> None:
        """Close the schedulers of weights that are about to be given up. On the model's thread: `call` it."""
        self._schedulers.forget(maker)

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
