"""The experience manager: what stands between those who play, the bank and the extractor.

    search     at the beginning of an episode: one entry near its task                     readers never wait
    submit     at its end: the episode is to be distilled                                  a queue
    work       the extractor distils what is queued, and its operations are applied        under the bank's writer lock
    merge      now and then: entries in chunks, each chunk's result carried into the next

In order (`background=False`) everything happens in one thread, when it is asked for: the same run does the same every time.
With `background=True` one thread distils while episodes are played, and the queue is bounded: whoever is too fast waits.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tacit.companions.experience.bank import Bank, Refused, checked
from tacit.companions.experience.embedding import Embedding, Remembered
from tacit.companions.experience.entries import Call, Entry, Origin
from tacit.companions.experience.extractor import Distilled, Extractor
from tacit.companions.experience.retrieval import Diversity, retrieve
from tacit.core.errors import TacitError
from tacit.core.moment import Moment
from tacit.core.types import Trajectory

TOGETHER = 32
"""episodes distilled in one go"""
CHUNK = 5
"""entries merged in one call"""


@dataclass(frozen=True)
class Request:
    """R = (τ, g, o, m): an episode, and the entry that guided it."""

    trajectory: Trajectory
    entry: int | None
    moment: Moment
    place: str


class Manager:
    def __init__(
        self,
        bank: Bank,
        embedding: Embedding,
        extractor: Extractor,
        diversity: Diversity | None = None,
        background: bool = False,
        waiting: int = 1024,
    ) -> None:
        """`waiting`: episodes that may wait to be distilled in the background; whoever brings another one waits, too. In order
        as many as there are: nobody else could take one out."""
        self.bank, self.extractor, self.diversity = bank, extractor, diversity or Diversity()
        self.embedding = Remembered(embedding)
        self.counts = Counter[str]()
        self.last_refusal = ""
        self.search_seconds: list[float] = []
        self._queue: queue.Queue[Request | None] = queue.Queue(waiting if background else 0)
        self._bringing = threading.Lock()
        self._closed = self._leaving = False
        self._failure: BaseException | None = None
        self.background = background
        self._thread = threading.Thread(target=self._serve, name="experience", daemon=True) if background else None
        if self._thread is not None:
            self._thread.start()

    def search(self, queries: Sequence[str], step: int, count: bool = True) -> list[Entry | None]:
        """One entry for each query."""
        began = time.perf_counter()
        found = retrieve(self.bank, self.embedding, queries, step, self.diversity, count)
        self.search_seconds.append(time.perf_counter() - began)
        return found

    def submit(self, request: Request) -> None:
        with self._bringing:  # whoever is let in stands in the queue before its end does
            if self._closed:
                raise TacitError("the experience manager is closed: nobody would distil this episode.")
            self._queue.put(request)

    @property
    def waiting(self) -> list[Request]:
        """What is queued, in order; only for whoever knows that nobody works on it now."""
        return [request for request in self._queue.queue if request is not None]

    def work(self) -> None:
        """Distil what is queued. In the background that happens by itself; then this says what went wrong there, if it did."""
        if self._thread is None:
            while batch := self._take():
                self._distil(batch)
        elif self._failure is not None:
            raise TacitError(f"distilling experience failed: {self._failure}") from self._failure

    def finish(self) -> None:
        """Wait until everything queued is distilled."""
        if self._thread is not None:
            self._queue.join()
        self.work()

    def close(self) -> None:
        """Finish, and stop: nothing queued is lost."""
        self._stop()
        self.work()

    def abandon(self, patience_s: float = 10.0) -> None:
        """Stop: what is being distilled is waited for a while, what is queued is left, and whatever went wrong is nobody's
        business any more."""
        self._leaving = True
        while self._take():  # room for the end of the queue
            pass
        self._stop(patience_s)

    def _stop(self, patience_s: float | None = None) -> None:
        with self._bringing:
            if not self._closed and self._thread is not None:
                self._queue.put(None)
            self._closed = True
        if self._thread is not None:
            self._thread.join(patience_s)

    def merge(self, moment: Moment, chunk: int = CHUNK) -> None:
        """Go through the whole bank, `chunk` entries at a time together with what the last chunk became."""
        carried: list[int] = []
        for number, first in enumerate(range(0, len(ids := list(self.bank.entries)), chunk)):
            wanted = [i for i in (*carried, *ids[first : first + chunk]) if i in self.bank.entries]
            if len(wanted) < 2:
                carried = wanted
                continue
            texts = [self.bank.entries[i].text for i in wanted]
            merged, call = self.extractor.merge(texts, moment, f"merge/{number}")
            if call is None:
                self.refused("a merge that cannot be used, or that does not fit into the extractor's context")
            carried = (wanted if call is None else self._put_merged(wanted, texts, merged, call, moment))[-chunk:]
        self.counts["merges"] += 1

    def _put_merged(
        self, old: Sequence[int], before: Sequence[str], after: Sequence[str], call: Call | None, moment: Moment
    ) -> list[int]:
        """Entries that stay as they are stay themselves, with all that is known of them."""
        stays = {text: i for i, text in zip(old, before, strict=True) if text in after}
        fresh = [text for text in dict.fromkeys(after) if text not in stays]
        gone = [i for i in old if i not in stays.values()]
        if not fresh and not gone:
            return list(old)
        origin = merged_origin([self.bank.entries[i].origin for i in old], moment.iteration, gone)
        try:
            vectors = self.embedding([checked(text) for text in fresh])
            made = self.bank.replace(gone, [(t, v, origin, call) for t, v in zip(fresh, vectors, strict=True)], "merged")
        except Refused as error:
            self.refused(str(error))
            return list(old)
        return [*stays.values(), *(entry.id for entry in made)]

    def _take(self) -> list[Request]:
        batch: list[Request] = []
        while len(batch) < TOGETHER:
            try:
                request = self._queue.get_nowait()
            except queue.Empty:
                break
            if request is not None:
                batch.append(request)
        return batch

    def _serve(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first, *self._take_until_end()]
            try:
                if not self._leaving:
                    self._distil([request for request in batch if request is not None])
            except BaseException as error:  # told to whoever plays, the next time they come by
                self._failure = error
            for _ in batch:
                self._queue.task_done()
            if None in batch:
                break
        else:
            self._queue.task_done()

    def _take_until_end(self) -> list[Request | None]:
        batch: list[Request | None] = []
        while len(batch) < TOGETHER - 1 and None not in batch:
            try:
                batch.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return batch

    def _distil(self, batch: Sequence[Request]) -> None:
        by_moment: dict[Moment, list[Request]] = {}
        for request in batch:
            by_moment.setdefault(request.moment, []).append(request)
        for moment, requests in by_moment.items():
            texts = [self._text(request.entry) for request in requests]
            asked = [(request.trajectory, text) for request, text in zip(requests, texts, strict=True)]
            for request, distilled in zip(requests, self.extractor.distil(asked, moment, requests[0].place), strict=True):
                self._apply(request, distilled)

    def _text(self, entry: int | None) -> str:
        known = self.bank.entries.get(entry) if entry is not None else None
        return known.text if known else ""

    def _apply(self, request: Request, distilled: Distilled) -> None:
        if distilled.problem:
            self.refused(distilled.problem)
            return
        trajectory, step = request.trajectory, request.moment.iteration
        task = trajectory.task
        for operation in distilled.operations:
            if operation.kind == "return":
                self.counts["returned"] += 1
                continue
            entry = request.entry
            old = [entry] if operation.kind == "update" and entry is not None and entry in self.bank.entries else []
            origin = Origin(
                task.world,
                task.family,
                task.id,
                trajectory.seed,
                trajectory.success,
                step,
                operation.kind,
                tuple(old),
            )
            try:
                (vector_D,) = self.embedding([checked(operation.text)])
                self.bank.replace(old, [(operation.text, vector_D, origin, distilled.call)], "updated")
                self.counts["updated" if old else "added"] += 1
            except Refused as error:
                self.refused(str(error))

    def refused(self, why: str) -> None:
        self.counts["refused"] += 1
        self.last_refusal = why


def merged_origin(origins: Sequence[Origin], step: int, gone: Sequence[int]) -> Origin:
    """Of the first, as far as all come from there: what was made of several worlds belongs to none of them."""
    first = origins[0]
    alike = {name: all(getattr(o, name) == getattr(first, name) for o in origins) for name in ("world", "family")}
    if not alike["world"]:
        return Origin(step=step, operation="merge", made_from=tuple(gone))
    family = first.family if alike["family"] else ""
    return replace(first, family=family, step=step, operation="merge", made_from=tuple(gone), call=None)
