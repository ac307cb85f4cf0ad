"""The query desk: many ask, each for themselves; they are answered in batches (§3.2.2).

    ask     hand in a query, get a future                                                   from any thread
    gather  until B queries wait, or t_max has passed since the first of them came          one worker at a time
    search  the batch, embedded with what is known already taken from memory                W workers beside each other

A batch that cannot be searched tells those who asked for it, and nobody else. Closing answers whoever has asked before.

`InOrder` is the same in one thread: queries wait until somebody wants an answer, and are then searched as they came.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from tacit.core.errors import TacitError

Answer = TypeVar("Answer")


class Desk(Generic[Answer]):
    """`search` answers a list of queries, in order. Defaults are the paper's: B = 16, t_max = 1 ms, W = 4."""

    def __init__(
        self,
        search: Callable[[Sequence[str]], Sequence[Answer]],
        size: int = 16,
        wait_s: float = 0.001,
        workers: int = 4,
        waiting: int = 4096,
    ) -> None:
        """`waiting`: queries that may wait; whoever brings another one waits, too."""
        self._search, self._size, self._wait_s = search, size, wait_s
        self._queue: queue.Queue[tuple[str, Future[Answer]] | None] = queue.Queue(waiting)
        self._asking, self._gathering = threading.Lock(), threading.Lock()
        self._closed = False
        self.batches: list[int] = []
        """how many queries went together, batch by batch"""
        self._workers = [threading.Thread(target=self._work, name=f"search-{i}", daemon=True) for i in range(workers)]
        for worker in self._workers:
            worker.start()

    def ask(self, query: str) -> Future[Answer]:
        future: Future[Answer] = Future()
        with self._asking:  # whoever is let in stands in the queue before its end does
            if self._closed:
                raise TacitError("the query desk is closed.")
            self._queue.put((query, future))
        return future

    def close(self) -> None:
        """Answer what was asked, and stop."""
        self._end()
        for worker in self._workers:
            worker.join()

    def abandon(self, patience_s: float = 10.0) -> None:
        """Stop: what is being searched is waited for a while, whoever else waits is told that nobody will answer."""
        while True:
            try:
                asked = self._queue.get_nowait()
            except queue.Empty:
                break
            if asked is not None:
                asked[1].cancel()
        self._end()
        until = time.monotonic() + patience_s
        for worker in self._workers:
            worker.join(max(0.0, until - time.monotonic()))

    def _end(self) -> None:
        with self._asking:
            self._closed = True
            self._queue.put(None)

    def __enter__(self) -> Desk[Answer]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while batch := self._gather():
            _answer(self._search, [(query, future) for query, future in batch if future.set_running_or_notify_cancel()])

    def _gather(self) -> list[tuple[str, Future[Answer]]]:
        """The next batch; empty when the desk is closed and nobody waits any more."""
        batch: list[tuple[str, Future[Answer]]] = []
        with self._gathering:
            until = None
            while len(batch) < self._size:
                try:
                    asked = self._queue.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
                except queue.Empty:
                    break
                if asked is None:
                    self._queue.put(None)  # the others have to see it, too
                    break
                until = until or time.monotonic() + self._wait_s
                batch.append(asked)
            if batch:
                self.batches.append(len(batch))
        return batch


class InOrder(Generic[Answer]):
    """The same without a thread or a clock: who is answered together depends on the order of asking alone."""

    def __init__(self, search: Callable[[Sequence[str]], Sequence[Answer]], size: int = 16) -> None:
        self._search, self._size = search, size
        self._waiting: list[tuple[str, Future[Answer]]] = []

    def ask(self, query: str) -> Future[Answer]:
        future = _Awaited(self)
        self._waiting.append((query, future))
        return future

    def answer_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for first in range(0, len(waiting), self._size):
            _answer(self._search, waiting[first : first + self._size])

    def close(self) -> None:
        self.answer_all()

    def abandon(self, patience_s: float = 0.0) -> None:
        """What nobody has waited for is not answered any more."""
        self._waiting = []


class _Awaited(Future[Answer]):
    def __init__(self, desk: InOrder[Answer]) -> None:
        super().__init__()
        self._desk = desk

    def result(self, timeout: float | None = None) -> Answer:
        self._desk.answer_all()
        return super().result(timeout)


def _answer(search: Callable[[Sequence[str]], Sequence[Answer]], batch: Sequence[tuple[str, Future[Answer]]]) -> None:
    if not batch:
        return
    try:
        found = search([query for query, _ in batch])
        for (_, future), answer in zip(batch, found, strict=True):
            future.set_result(answer)
    except BaseException as error:  # told to those who asked
        for _, future in batch:
            if not future.done():
                future.set_exception(error)
