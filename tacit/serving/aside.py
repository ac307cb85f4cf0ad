"""Work that takes long, or never comes back, beside the event loop: in threads that hold up neither it nor the end of all."""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

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
