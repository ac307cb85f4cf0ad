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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeVar

from tacit.companions.experience.bank import MAX_ENTRY_CHARS, Bank, Call, Entry, EntryRejected, Origin, validate_text
from tacit.companions.experience.extractor import Distillation, Extractor, Style, render_critic_prompt, strip_thinking
from tacit.companions.experience.retrieval import CachedEmbedding, Diversity, Embedding, retrieve
from tacit.core.errors import TacitError
from tacit.core.progress import is_unicode
from tacit.core.protocols import Policy, Request, Sampling
from tacit.core.seeds import derive
from tacit.core.types import IterationInfo, Task, Trajectory
from tacit.prompts.search_and_ask import ENTRY, Told

DISTILL_BATCH = 32
"""episodes distilled in one go"""
MERGE_CHUNK = 5
"""entries merged in one call"""


@dataclass(frozen=True)
class DistillRequest:
    """R = (τ, g, o, m): an episode, and the entry that guided it."""

    trajectory: Trajectory
    entry: int | None
    info: IterationInfo
    place: str


class ExperienceManager:
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
        self.embedding = CachedEmbedding(embedding)
        self.counts = Counter[str]()
        self.last_refusal = ""
        self.search_seconds: list[float] = []
        self._queue: queue.Queue[DistillRequest | None] = queue.Queue(waiting if background else 0)
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

    def submit(self, request: DistillRequest) -> None:
        with self._bringing:  # whoever is let in stands in the queue before its end does
            if self._closed:
                raise TacitError("the experience manager is closed: nobody would distil this episode.")
            self._queue.put(request)

    @property
    def waiting(self) -> list[DistillRequest]:
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

    def merge(self, info: IterationInfo, chunk: int = MERGE_CHUNK) -> None:
        """Go through the whole bank, `chunk` entries at a time together with what the last chunk became."""
        carried: list[int] = []
        for number, first in enumerate(range(0, len(ids := list(self.bank.entries)), chunk)):
            wanted = [i for i in (*carried, *ids[first : first + chunk]) if i in self.bank.entries]
            if len(wanted) < 2:
                carried = wanted
                continue
            texts = [self.bank.entries[i].text for i in wanted]
            merged, call = self.extractor.merge(texts, info, f"merge/{number}")
            if call is None:
                self.refused("a merge that cannot be used, or that does not fit into the extractor's context")
            carried = (wanted if call is None else self._put_merged(wanted, texts, merged, call, info))[-chunk:]
        self.counts["merges"] += 1

    def _put_merged(
        self, old: Sequence[int], before: Sequence[str], after: Sequence[str], call: Call | None, info: IterationInfo
    ) -> list[int]:
        """Entries that stay as they are stay themselves, with all that is known of them."""
        stays = {text: i for i, text in zip(old, before, strict=True) if text in after}
        fresh = [text for text in dict.fromkeys(after) if text not in stays]
        gone = [i for i in old if i not in stays.values()]
        if not fresh and not gone:
            return list(old)
        origin = merge_origins([self.bank.entries[i].origin for i in old], info.iteration, gone)
        try:
            vectors = self.embedding([validate_text(text) for text in fresh])
            made = self.bank.replace(gone, [(t, v, origin, call) for t, v in zip(fresh, vectors, strict=True)], "merged")
        except EntryRejected as error:
            self.refused(str(error))
            return list(old)
        return [*stays.values(), *(entry.id for entry in made)]

    def _take(self) -> list[DistillRequest]:
        batch: list[DistillRequest] = []
        while len(batch) < DISTILL_BATCH:
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

    def _take_until_end(self) -> list[DistillRequest | None]:
        batch: list[DistillRequest | None] = []
        while len(batch) < DISTILL_BATCH - 1 and None not in batch:
            try:
                batch.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return batch

    def _distil(self, batch: Sequence[DistillRequest]) -> None:
        by_iteration: dict[IterationInfo, list[DistillRequest]] = {}
        for request in batch:
            by_iteration.setdefault(request.info, []).append(request)
        for info, requests in by_iteration.items():
            texts = [self._text(request.entry) for request in requests]
            asked = [(request.trajectory, text) for request, text in zip(requests, texts, strict=True)]
            for request, distilled in zip(requests, self.extractor.distil(asked, info, requests[0].place), strict=True):
                self._apply(request, distilled)

    def _text(self, entry: int | None) -> str:
        known = self.bank.entries.get(entry) if entry is not None else None
        return known.text if known else ""

    def _apply(self, request: DistillRequest, distilled: Distillation) -> None:
        if distilled.problem:
            self.refused(distilled.problem)
            return
        trajectory, step = request.trajectory, request.info.iteration
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
                (vector_D,) = self.embedding([validate_text(operation.text)])
                self.bank.replace(old, [(operation.text, vector_D, origin, distilled.call)], "updated")
                self.counts["updated" if old else "added"] += 1
            except EntryRejected as error:
                self.refused(str(error))

    def refused(self, why: str) -> None:
        self.counts["refused"] += 1
        self.last_refusal = why


def merge_origins(origins: Sequence[Origin], step: int, gone: Sequence[int]) -> Origin:
    """Of the first, as far as all come from there: what was made of several worlds belongs to none of them."""
    first = origins[0]
    alike = {name: all(getattr(o, name) == getattr(first, name) for o in origins) for name in ("world", "family")}
    if not alike["world"]:
        return Origin(step=step, operation="merge", made_from=tuple(gone))
    family = first.family if alike["family"] else ""
    return replace(first, family=family, step=step, operation="merge", made_from=tuple(gone), call=None)


# The query desk: many ask, each for themselves; they are answered in batches (§3.2.2).
#
#     ask     hand in a query, get a future                                                   from any thread
#     gather  until B queries wait, or t_max has passed since the first of them came          one worker at a time
#     search  the batch, embedded with what is known already taken from memory                W workers beside each other
#
# A batch that cannot be searched tells those who asked for it, and nobody else. Closing answers whoever has asked before.
#
# `InOrder` is the same in one thread: queries wait until somebody wants an answer, and are then searched as they came.

Answer = TypeVar("Answer")


class QueryQueue(Generic[Answer]):
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

    def __enter__(self) -> QueryQueue[Answer]:
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


class SyncQueryQueue(Generic[Answer]):
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
    def __init__(self, desk: SyncQueryQueue[Answer]) -> None:
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


# search_and_ask: the question of an agent in mid-episode, answered from the bank (§3.2.2).
#
#     q'  what the agent asks            ──► desk: batches of B, or whatever came within t_max
#     m   the nearest entry, by Eq. 6    ◄── bank
#     the answer                         ◄── π_φ(q', m): what m means for whoever asks; or m itself
#
# Asking leaves no trace: what was found counts once the episode is over and is trained on. So an evaluation may ask, too.


@dataclass(frozen=True)
class QuerySettings:
    """How questions are answered. Defaults are the paper's."""

    refined: bool = True
    """by the extractor, for the one who asks; else with the entry as it stands"""
    batch: int = 16
    """B"""
    wait_s: float = 0.001
    """t_max"""
    workers: int = 4
    """W"""


class QueryAnswerer:
    """In a background of threads where the manager has one, else in order."""

    def __init__(self, manager: ExperienceManager, settings: QuerySettings) -> None:
        self._manager, self._settings = manager, settings
        self.step, self.seed = 1, 0
        """the iteration that is being played, and the seed of its run"""
        self.desk: QueryQueue[Told] | SyncQueryQueue[Told] = (
            QueryQueue(self._answer, settings.batch, settings.wait_s, settings.workers)
            if manager.background
            else SyncQueryQueue(self._answer, settings.batch)
        )

    def ask(self, question: str) -> Future[Told]:
        return self.desk.ask(question)

    def _answer(self, questions: Sequence[str]) -> list[Told]:
        manager = self._manager
        found = retrieve(manager.bank, manager.embedding, questions, self.step, manager.diversity, count=False)
        told = {i: Told(entry.text, entry.id) for i, entry in enumerate(found) if entry is not None}
        if self._settings.refined and told:
            asked = [(questions[i], each.text) for i, each in told.items()]
            seeds = [derive(self.seed, "advice", self.step, each.entry or 0, questions[i]) for i, each in told.items()]
            for (i, each), advice in zip(list(told.items()), manager.extractor.advise(asked, seeds), strict=True):
                if advice:
                    told[i] = Told(advice, each.entry)
                else:  # the entry itself is better than nothing
                    manager.refused("advice that says nothing")
        return [told.get(i, Told()) for i in range(len(questions))]


def queried_entries(trajectory: Trajectory) -> list[int]:
    """The entries that were found for its questions, in order."""
    return [int(step.signals[ENTRY]) for step in trajectory.steps if ENTRY in step.signals]


# Actor-critic (§B.1): the actor is asked whether an entry is to guide it, before it begins.
#
#     accept          the entry as it is           s_c = 1
#     refine: …       in the actor's own words     s_c = 0.5
#     reject          the agent plays without      s_c = 0
#     r̃(m) = s_c(m) + r(m)                         (8)      r(m) = ±1 by the outcome; a rejected entry had no outcome: r̃ = 0
#
# It is told how often it has succeeded on tasks of the kind. What cannot be read leaves the entry as it is, and nobody vouches
# for it: s_c = 0. Its answers are not trained.

Verdict = Literal["accept", "refine", "reject", "unread"]
SCORES: Mapping[Verdict, float] = {"accept": 1.0, "refine": 0.5, "reject": 0.0, "unread": 0.0}


@dataclass
class Critic:
    style: Style
    max_tokens: int = 64
    temperature: float = 1.0
    wins: dict[str, list[int]] = field(default_factory=dict)
    """family -> [episodes won, episodes played] without or with an entry"""

    def weigh(self, policy: Policy, task: Task, entries: Sequence[Entry], seed: int) -> list[tuple[Verdict, str]]:
        """(verdict, the note to play by) for each entry."""
        asked = [render_critic_prompt(task.goal, entry.text, self.rate(task), self.style) for entry in entries]
        prompts = [policy.encode_prompt(text) for text in asked]
        fits = [i for i, prompt in enumerate(prompts) if len(prompt) + self.max_tokens <= policy.context_limit]
        requests = [Request(prompts[i], derive(seed, "critic", i)) for i in fits]
        answers = policy.sample(requests, Sampling(self.temperature, max_tokens=self.max_tokens)) if requests else []
        said = dict(zip(fits, (answer.text for answer in answers), strict=True))
        return [parse_verdict(said.get(i, ""), entry.text) for i, entry in enumerate(entries)]

    def rate(self, task: Task) -> float:
        """r̄_θ: the share of this family's episodes that were won so far; 0 before the first."""
        won, played = self.wins.get(task.family, [0, 0])
        return won / max(1, played)

    def saw(self, trajectory: Trajectory) -> None:
        own = self.wins.setdefault(trajectory.task.family, [0, 0])
        own[0] += int(trajectory.success)
        own[1] += 1


def parse_verdict(answer: str, entry: str) -> tuple[Verdict, str]:
    lines = strip_thinking(answer).strip().splitlines()
    word, _, rest = (lines[0] if lines else "").partition(":")
    match word.strip().lower():
        case "accept":
            return "accept", entry
        case "refine" if rest.strip() and is_unicode(rest):
            return "refine", rest.strip()[:MAX_ENTRY_CHARS]
        case "reject":
            return "reject", ""
    return "unread", entry


def critic_reward(verdict: Verdict, won: bool) -> float:
    """r̃(m) of one member."""
    return 0.0 if verdict == "reject" else SCORES[verdict] + (1.0 if won else -1.0)
