"""The batching thread, the only thread that uses the model, and the schedulers that it submits requests to.

Each module's weights have a scheduler per sampling setting. A request that arrives while a scheduler decodes joins its next
batch; no request waits for a timer. A completion does not depend on the other requests of its batch.
"""

from __future__ import annotations

import asyncio
import ctypes
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
from typing import Any, TypeVar

from tacit.core.protocols import Request, Sampling, Scheduler, SchedulingSampler
from tacit.core.types import Completion
from tacit.serving.requests import STOPPING, RequestError, gone

Handle = Callable[[asyncio.Future[Any]], None]  # runs on the batching thread; the future is answered by it, or later
Answers = Sequence[tuple[asyncio.Future[Any], Any, Exception | None]]  # (future, result, error)
MAX_IDLE_SCHEDULERS = 8  # idle schedulers to keep; otherwise every distinct sampling setting of a client would leave one


@dataclass(eq=False)
class _OpenScheduler:
    policy: SchedulingSampler
    scheduler: Scheduler
    waiting: dict[int, asyncio.Future[Completion]] = field(default_factory=dict)


class SchedulerPool:
    """The open schedulers, one per policy and sampling setting. For the batching thread only."""

    def __init__(self, deliver: Callable[[Answers], None], watch: Callable[[int], None]) -> None:
        """`watch` gets the number of running requests before each step of a scheduler."""
        self._deliver, self.watch = deliver, watch
        self._schedulers: dict[tuple[int, Sampling], _OpenScheduler] = {}

    def __len__(self) -> int:
        return len(self._schedulers)

    @property
    def busy(self) -> bool:
        return any(entry.waiting for entry in self._schedulers.values())

    def submit(
        self, policy: SchedulingSampler, sampling: Sampling, request: Request, answer: asyncio.Future[Completion]
    ) -> None:
        key = (id(policy), sampling)
        if key not in self._schedulers:
            self._schedulers[key] = _OpenScheduler(policy, policy.open_scheduler(sampling))
        entry = self._schedulers[key]
        entry.waiting[entry.scheduler.submit(request)] = answer

    def step(self) -> None:
        """Run each busy scheduler until it finishes something, then close all but the newest idle ones."""
        for key, entry in [(key, entry) for key, entry in self._schedulers.items() if entry.waiting]:
            self.watch(len(entry.waiting))
            try:
                finished = entry.scheduler.wait()
            except BaseException as error:  # only this scheduler's requests are affected
                self._drop(key, _as_exception(error))
            else:
                self._deliver([(entry.waiting.pop(number), completion, None) for number, completion in finished])
        for key in [key for key, entry in self._schedulers.items() if not entry.waiting][:-MAX_IDLE_SCHEDULERS]:
            self._drop(key)

    def close(self) -> None:
        for key in list(self._schedulers):
            self._drop(key)

    def release(self, policy: SchedulingSampler) -> None:
        """Close the schedulers of weights that are about to be unloaded."""
        removed = gone("the module was removed while it was generating; begin a new session.")
        for key in [key for key, entry in self._schedulers.items() if entry.policy is policy]:
            self._drop(key, removed)

    def _drop(self, key: tuple[int, Sampling], error: Exception | None = None) -> None:
        """`error`: the answer to its requests."""
        entry = self._schedulers.pop(key)
        entry.scheduler.close()
        if error is not None and entry.waiting:
            self._deliver([(answer, None, error) for answer in entry.waiting.values()])


# Worker threads for slow calls and for third-party code. They are daemons, so they block neither the event loop nor the exit of
# the process.

Result = TypeVar("Result")


def _as_exception(error: BaseException) -> Exception:
    """An Exception that a future can hold. It wraps StopIteration and what would end the server: sys.exit() in a tracker, or a
    panic in a tokenizer's Rust code."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(repr(error))


THREAD_PREFIX = "tacit"
MAX_HUNG = 4  # threads of one worker that could not be interrupted
EXIT_S = 1.0  # how long `exit_process` waits for threads


class WorkerThread:
    """A daemon thread that runs one call after another. (An executor's threads would delay the exit of the process.)

    It starts with the first call, because `Thread.start` waits for the GIL: under attack, starting 60 in one turn of the event
    loop took 0.5 s.
    """

    def __init__(self, name: str) -> None:
        """`name` is for error messages."""
        self._name, self.hung = name, list[threading.Thread]()
        self._inbox: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None
        self._since: float | None = None  # when the current call began

    async def do(self, work: Callable[[], Result], limit_s: float) -> Result:
        """Run `work` and return its result. A call that takes longer than `limit_s` raises (status 504) and is interrupted;
        another thread runs the next call."""
        if len(self.hung) >= MAX_HUNG and all(thread.is_alive() for thread in self.hung):
            raise RequestError(503, f"{self._name} hangs; replace it, or restart the server.")
        answer = asyncio.wrap_future(self._submit(work))
        try:
            await asyncio.wait([answer], timeout=limit_s)
        finally:
            answer.cancel()
        if not answer.cancelled():
            return answer.result()
        if self._since is not None and time.monotonic() - self._since > limit_s / 2:
            self._replace()
        raise RequestError(504, f"{self._name} did not answer within {limit_s:g} s.")

    def close(self, final_call: Callable[[], Any] = lambda: None) -> None:
        """End the thread after all submitted calls and then `final_call`."""
        self._submit(final_call)
        self._inbox.put(None)

    def _submit(self, work: Callable[[], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        self._inbox.put((work, answer))
        if self.thread is None:
            self._start()
        return answer

    def _start(self) -> None:
        self._since = None
        self.thread = threading.Thread(target=self._run, name=f"{THREAD_PREFIX} worker", daemon=True)
        self.thread.start()

    def _replace(self) -> None:
        """Start a new thread and raise SystemExit in the hung one. Python code ends at once, native code when it returns."""
        hung = self.thread
        self._start()
        self.hung = [thread for thread in (*self.hung, hung) if thread is not None and thread.is_alive()]
        if hung is not None and hung.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(hung.ident), ctypes.py_object(SystemExit))

    def _run(self) -> None:
        result: Any = None
        while (item := self._inbox.get()) is not None:
            work, answer = item
            if not answer.set_running_or_notify_cancel():
                continue
            self._since = time.monotonic()
            error: Exception | None = None
            try:
                result = work()
            except BaseException as raised:
                error = _as_exception(raised)
            if self.thread is not threading.current_thread():  # this thread hung and was replaced
                return
            self._since = None
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)
            del item, work, answer  # otherwise kept in memory until the next call
            result = error = None


async def run_in_thread(work: Callable[[], Result], limit_s: float) -> Result:
    worker = WorkerThread("the server")
    try:
        return await worker.do(work, limit_s)
    finally:
        worker.close()


def exit_process(status: int) -> int:
    """Return `status`, or exit at once if a worker thread still hangs in the model or in a world.

    A daemon thread that is killed inside native code at interpreter shutdown can crash the process.
    """
    deadline = time.monotonic() + EXIT_S
    for thread in [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_PREFIX)]:
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return status


THREAD_ENDED = "the batching thread ended with an error; restart the server."
STOP_S = 1.0  # how long to wait for a running model step when the server stops


class BatchingThread:
    """`sample` and `call` are for the event loop in which `start` ran. Most private methods run on the thread."""

    def __init__(self, watch: Callable[[int], None] = lambda rows: None) -> None:
        """`watch` gets the number of running requests before each step of a scheduler."""
        self.pool = SchedulerPool(self._deliver, watch)
        self._inbox: queue.SimpleQueue[tuple[asyncio.Future[Any], Handle] | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.thread: threading.Thread | None = None
        self._dead = False
        self._unanswered: set[asyncio.Future[Any]] = set()

    @property
    def waiting(self) -> int:
        """number of unanswered requests"""
        return len(self._unanswered)

    @property
    def alive(self) -> bool:
        return self.thread is not None and not self._dead

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.thread = threading.Thread(target=self._run, name=f"{THREAD_PREFIX} model", daemon=True)
        self.thread.start()

    async def stop(self) -> None:
        """Refuse all pending requests (503). A model step cannot be interrupted; one longer than STOP_S keeps running."""
        if self.thread is not None:
            self._inbox.put(None)
            await run_in_thread(partial(self.thread.join, STOP_S), 2 * STOP_S)
            self.thread = None
            self._refuse_all(RequestError(503, STOPPING))

    async def sample(self, policy: SchedulingSampler, sampling: Sampling, request: Request) -> Completion:
        return await self._submit(lambda answer: self.pool.submit(policy, sampling, request, answer))

    async def call(self, work: Callable[[], Result]) -> Result:
        """Run `work`, which uses the model in another way, between two batches."""
        return await self._submit(lambda answer: self._deliver([(answer, work(), None)]))

    async def _submit(self, handle: Handle) -> Any:
        if self._loop is None or self.thread is None:
            raise RequestError(503, STOPPING)
        if self._dead:
            raise RequestError(500, THREAD_ENDED)
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._unanswered.add(answer)
        try:
            self._inbox.put((answer, handle))
            return await answer
        finally:
            self._unanswered.discard(answer)

    def _run(self) -> None:
        try:
            while self._read_inbox(wait=not self.pool.busy):
                self.pool.step()
        except BaseException:
            assert self._loop is not None
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._refuse_all, RequestError(500, THREAD_ENDED), True)
            raise

    def _refuse_all(self, error: RequestError, dead: bool = False) -> None:
        self._dead = self._dead or dead
        _resolve([(answer, None, error) for answer in self._unanswered])

    def _read_inbox(self, wait: bool) -> bool:
        """Handle everything that has arrived. False: stop."""
        while True:
            try:
                item = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            if item is None:
                self.pool.close()
                return False
            answer, handle = item
            if answer.cancelled():
                continue
            try:
                handle(answer)
            except BaseException as error:
                self._deliver([(answer, None, _as_exception(error))])

    def _deliver(self, answers: Answers) -> None:
        """Deliver all answers with one call, because waking the event loop is expensive."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(_resolve, answers)


def _resolve(answers: Answers) -> None:
    for answer, result, error in answers:
        if answer.done():  # the client has gone
            continue
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)
