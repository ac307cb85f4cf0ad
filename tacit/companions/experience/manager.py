"""The experience manager, which connects agents, bank and extractor; queries during an episode; and the critic.

With `background=True` (§3.1) distilling, training and merging have a thread each, questions have W, and the extractor samples
for all of them at once (`SamplingThread`). They do not block each other or the rollouts.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tacit.companions.experience.bank import MAX_ENTRY_CHARS, Bank, Call, Entry, EntryRejected, Origin, Usage, validate_text
from tacit.companions.experience.extractor import Distilled, Extractor, Style, find_cut, render_critic_prompt, strip_thinking
from tacit.companions.experience.retrieval import CachedEmbedding, Diversity, Embedding, Query, Scope, retrieve, scope_key
from tacit.core.errors import TacitError
from tacit.core.progress import is_unicode
from tacit.core.protocols import Policy, Request, Sampling
from tacit.core.seeds import derive
from tacit.core.types import IterationInfo, Task, Trajectory
from tacit.prompts.search_and_ask import ENTRY, SearchResult

DISTILL_BATCH = 32  # episodes distilled at once
MERGE_CHUNK = 5  # entries merged per extractor call


@dataclass(frozen=True)
class DistillRequest:
    """R = (τ, g, o, m): an episode, and the entry that guided it."""

    trajectory: Trajectory
    entry: int | None
    info: IterationInfo
    key: str  # of the episode; seeds the sampling


class ExperienceManager:
    def __init__(
        self,
        bank: Bank,
        embedding: Embedding,
        extractor: Extractor,
        diversity: Diversity | None = None,
        background: bool = False,
        queue_size: int = 1024,
        merge_scope: Scope = "world",
    ) -> None:
        """`queue_size`: capacity of the background queue; unbounded without a background thread."""
        self.bank, self.extractor, self.diversity, self.merge_scope = bank, extractor, diversity or Diversity(), merge_scope
        extractor.background = background
        self.embedding = CachedEmbedding(embedding)
        self.counts = Counter[str]()
        self.last_refusal = ""
        self.search_seconds: list[float] = []
        self._queue: queue.Queue[DistillRequest | None] = queue.Queue(queue_size if background else 0)
        self._submit_lock = threading.Lock()
        self.closed = self._abandoned = False
        self._failure: BaseException | None = None
        self._jobs: dict[str, threading.Thread] = {}  # training and merging in the background, by name
        self._training_metrics: dict[str, float] = {}
        self.background = background
        self.thread = threading.Thread(target=self._run, name="experience", daemon=True) if background else None
        if self.thread is not None:
            self.thread.start()

    def search(self, queries: Sequence[Query], step: int, count: bool = True) -> list[Entry | None]:
        start_time = time.perf_counter()
        self.bank.refresh()
        results = retrieve(self.bank, self.embedding, queries, step, self.diversity, count)
        self.search_seconds.append(time.perf_counter() - start_time)
        return results

    def submit(self, request: DistillRequest) -> None:
        with self._submit_lock:  # the end marker must come after the last request
            if self.closed:
                raise TacitError("the experience manager is closed: this episode cannot be distilled.")
            self._queue.put(request)

    def work(self) -> None:
        """Distill queued episodes. With a background thread, only raise its error, if any."""
        if self.thread is None:
            while batch := self._take_batch():
                self._distill(batch)
        elif self._failure is not None:
            raise TacitError(f"the experience extractor failed in the background: {self._failure}") from self._failure

    def finish(self) -> None:
        """Wait until all queued episodes are distilled and training and merging have ended."""
        if self.thread is not None:
            self._queue.join()
        for job in self._jobs.values():
            job.join()
        self.work()

    def learn(self, usage: Callable[[int], Usage], step: int) -> dict[str, float]:
        """Train the extractor on full batches and return metrics. In the background, those of the last finished training."""

        def train() -> None:
            self._training_metrics, trained = self.extractor.learn(usage, step)
            self.bank.record("trained", trained, step)

        self.start("train", train)
        metrics, self._training_metrics = self._training_metrics, {}
        return {**metrics, "experience/buffer": float(len(self.extractor.buffer))}

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Run a job now or, in the background, in its own thread. Skipped while a job of this name is running."""
        if not self.background:
            return work()

        def run() -> None:
            try:
                work()
            except BaseException as error:  # raised by the next `work`
                self._failure = error

        if name not in self._jobs or not self._jobs[name].is_alive():
            self._jobs[name] = threading.Thread(target=run, name=f"experience-{name}", daemon=True)
            self._jobs[name].start()

    def abandon(self, timeout_s: float = 10.0) -> None:
        """Stop without distilling queued episodes. Waits a limited time for the current batch, and ignores errors."""
        self._abandoned = True
        while self._take_batch():  # makes room for the end marker
            pass
        self.extractor.close()
        with self._submit_lock:
            if not self.closed and self.thread is not None:
                self._queue.put(None)
            self.closed = True
        for thread in (*([self.thread] if self.thread else ()), *self._jobs.values()):
            thread.join(timeout_s)

    def merge(self, info: IterationInfo, chunk: int = MERGE_CHUNK) -> None:
        """Merge all entries of each world (`merge_scope`), `chunk` at a time with the result of the previous chunk."""
        scopes: dict[tuple[str, ...], list[int]] = {}
        for entry in list(self.bank.entries.values()):
            key = scope_key(self.merge_scope, entry.origin.world, entry.origin.family)
            scopes.setdefault(key, []).append(entry.id)
        number = 0
        for ids in scopes.values():
            merged_ids: list[int] = []
            for first in range(0, len(ids), chunk):
                by_id = {i: self.bank.entries.get(i) for i in (*merged_ids, *ids[first : first + chunk])}
                live = {i: entry for i, entry in by_id.items() if entry is not None}
                if len(live) > 1 and not self._abandoned:
                    merged_ids = self._merge_chunk(live, info, number)[-chunk:]
                else:
                    merged_ids = list(live)
                number += 1
        self.counts["merges"] += 1

    def _merge_chunk(self, old: Mapping[int, Entry], info: IterationInfo, number: int) -> list[int]:
        """Returns the resulting ids. Entries whose text is unchanged keep their id and history."""
        merged, call = self.extractor.merge([entry.text for entry in old.values()], info, f"merge/{number}")
        if call is None:
            self.count_refusal("a merge that is unusable, or does not fit in the extractor's context")
            return list(old)
        if any(i not in self.bank.entries for i in old):  # updated or removed during the merge
            self.count_refusal("a merge of entries that have changed meanwhile")
            return [i for i in old if i in self.bank.entries]
        kept = {entry.text: i for i, entry in old.items() if entry.text in merged}
        new_texts = [text for text in dict.fromkeys(merged) if text not in kept]
        replaced = [i for i in old if i not in kept.values()]
        if not new_texts and not replaced:
            return list(old)
        origin = merge_origins([entry.origin for entry in old.values()], info.iteration, replaced)
        try:
            vectors = self.embedding([validate_text(text) for text in new_texts])
            replacements = self.bank.replace(
                replaced, [(t, v, origin, call) for t, v in zip(new_texts, vectors, strict=True)], "merged"
            )
        except EntryRejected as error:
            self.count_refusal(str(error))
            return list(old)
        return [*kept.values(), *(entry.id for entry in replacements)]

    def _take_batch(self, max_requests: int = DISTILL_BATCH) -> list[DistillRequest | None]:
        batch: list[DistillRequest | None] = []
        with suppress(queue.Empty):
            while len(batch) < max_requests and None not in batch:
                batch.append(self._queue.get_nowait())
        return batch

    def _run(self) -> None:
        batch: list[DistillRequest | None] = []
        while None not in batch:
            batch = [self._queue.get()]
            batch += self._take_batch(DISTILL_BATCH - 1) if batch[0] is not None else []
            try:
                if not self._abandoned:
                    self._distill(batch)
            except BaseException as error:  # raised by the next `work`
                self._failure = error
            for _ in batch:
                self._queue.task_done()

    def _distill(self, batch: Sequence[DistillRequest | None]) -> None:
        by_iteration: dict[IterationInfo, list[DistillRequest]] = {}
        for request in batch:
            if request is not None:
                by_iteration.setdefault(request.info, []).append(request)
        for info, requests in by_iteration.items():
            guides = [self.bank.entries.get(request.entry or 0) for request in requests]
            episodes = [(request.trajectory, old.text if old else "") for request, old in zip(requests, guides, strict=True)]
            for request, distilled in zip(requests, self.extractor.distill(episodes, info, requests[0].key), strict=True):
                self._apply(request, distilled)

    def _apply(self, request: DistillRequest, distilled: Distilled) -> None:
        operations, call, problem = distilled
        if problem:
            self.count_refusal(problem)
            return
        trajectory, task, entry = request.trajectory, request.trajectory.task, request.entry
        for operation in operations:
            if operation.kind == "return":
                self.counts["returned"] += 1
                continue
            old = [entry] if operation.kind == "update" and entry is not None and entry in self.bank.entries else []
            details = (trajectory.seed, trajectory.success, request.info.iteration, operation.kind, tuple(old))
            origin = Origin(task.world, task.family, task.id, *details)
            try:
                (vector_D,) = self.embedding([validate_text(operation.text)])
                self.bank.replace(old, [(operation.text, vector_D, origin, call)], "updated")
                self.counts["updated" if old else "added"] += 1
            except EntryRejected as error:
                self.count_refusal(str(error))

    def count_refusal(self, reason: str) -> None:
        self.counts["refused"] += 1
        self.last_refusal = reason


def merge_origins(origins: Sequence[Origin], step: int, replaced: Sequence[int]) -> Origin:
    """The common world and family of merged entries; "" where they differ."""
    common: dict[str, Any] = {"step": step, "operation": "merge", "made_from": tuple(replaced), "call": None}
    if len({origin.world for origin in origins}) > 1:
        return Origin(**common)
    family = origins[0].family if len({origin.family for origin in origins}) == 1 else ""
    return replace(origins[0], family=family, **common)


class QueryQueue:
    """Batches queries from any thread (§3.2.2): a worker gathers until B queries are queued or t_max has passed since the
    first, then calls `search` on them. W workers search in parallel. A failed batch raises for its own queries only. Defaults
    are the paper's: B = 16, t_max = 1 ms, W = 4.

    With `workers=0` there are no threads and no clock: batches depend on the order of queries alone, and are searched when a
    result is requested.
    """

    def __init__(
        self,
        search: Callable[[Sequence[Query]], Sequence[SearchResult]],
        size: int = 16,
        wait_s: float = 0.001,
        workers: int = 4,
        queue_size: int = 4096,
    ) -> None:
        """`queue_size`: capacity of the queue; `ask` blocks when it is full."""
        self._search, self._size, self._wait_s = search, size, wait_s
        self._queue: queue.Queue[tuple[Query, Future[SearchResult]] | None] = queue.Queue(queue_size if workers else 0)
        self._submit_lock, self._gather_lock = threading.Lock(), threading.Lock()
        self.closed = False
        self._workers = [threading.Thread(target=self.answer_all, name=f"search-{i}", daemon=True) for i in range(workers)]
        for worker in self._workers:
            worker.start()

    def ask(self, query: Query) -> Future[SearchResult]:
        future: Future[SearchResult] = Future() if self._workers else _LazyFuture(self.answer_all)
        with self._submit_lock:  # the end marker must come after the last query
            if self.closed:
                raise TacitError("the query queue is closed.")
            self._queue.put((query, future))
        return future

    def answer_all(self) -> None:
        """Search batch after batch. A worker stops when the queue is closed, other threads when it is empty."""
        while (self._workers or not self._queue.empty()) and (batch := self._gather()):
            batch = [(query, future) for query, future in batch if future.set_running_or_notify_cancel()]
            try:
                answers = self._search([query for query, _ in batch]) if batch else ()
                for (_, future), answer in zip(batch, answers, strict=True):
                    future.set_result(answer)
            except BaseException as error:  # raised by future.result
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)

    def abandon(self, timeout_s: float = 10.0) -> None:
        """Cancel queued queries, wait a limited time for running searches, and stop."""
        with suppress(queue.Empty):
            while True:
                if (query := self._queue.get_nowait()) is not None:
                    query[1].cancel()
        with self._submit_lock:
            self.closed = True
            self._queue.put(None)
        deadline = time.monotonic() + timeout_s
        for worker in self._workers:
            worker.join(max(0.0, deadline - time.monotonic()))

    def _gather(self) -> list[tuple[Query, Future[SearchResult]]]:
        """The next batch; empty once the queue is closed and drained."""
        batch: list[tuple[Query, Future[SearchResult]]] = []
        with self._gather_lock:
            deadline = None if self._workers else 0.0
            while len(batch) < self._size:
                try:
                    query = self._queue.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
                except queue.Empty:
                    break
                if query is None:
                    self._queue.put(None)  # for the other workers
                    break
                deadline = time.monotonic() + self._wait_s if deadline is None else deadline
                batch.append(query)
        return batch


class _LazyFuture(Future[SearchResult]):
    def __init__(self, answer_all: Callable[[], None]) -> None:
        super().__init__()
        self._answer_all = answer_all

    def done(self) -> bool:
        self._answer_all()
        return super().done()

    def result(self, timeout: float | None = None) -> SearchResult:
        self._answer_all()
        return super().result(timeout)


@dataclass(frozen=True)
class QuerySettings:
    """How questions during an episode are answered. Defaults are the paper's."""

    refined: bool = True  # the extractor applies the entry to the question; otherwise the answer is the entry's text
    batch: int = 16  # B
    wait_s: float = 0.001  # t_max
    workers: int = 4  # W


class QueryAnswerer:
    """search_and_ask (§3.2.2): the nearest entry m for a question q' (Eq. 6), refined by the extractor π_φ(q', m) or as it is.

    Uses threads if the manager has a background thread. Records nothing: retrievals count when the episode is trained on, so an
    evaluation may ask, too.
    """

    def __init__(self, manager: ExperienceManager, settings: QuerySettings) -> None:
        self._manager, self._settings = manager, settings
        self.step, self.seed = 1, 0
        self.refinements: dict[tuple[int, str], Call] = {}  # (entry, question) -> the call that refined it, in this iteration
        workers = settings.workers if manager.background else 0
        self.queries = QueryQueue(self._answer, settings.batch, settings.wait_s, workers)

    def ask(self, question: str, task: Task) -> Future[SearchResult]:
        seed = derive(self.seed, "question", self.step, question)
        return self.queries.ask(Query(question, task.world, task.family, seed))

    def _answer(self, questions: Sequence[Query]) -> list[SearchResult]:
        manager = self._manager
        entries = retrieve(manager.bank, manager.embedding, questions, self.step, manager.diversity, count=False)
        answers = {i: SearchResult(entry.text, entry.id) for i, entry in enumerate(entries) if entry is not None}
        if self._settings.refined and answers:
            pairs = [(questions[i].text, result.text) for i, result in answers.items()]
            seeds = [derive(self.seed, "advice", self.step, r.entry or 0, questions[i].text) for i, r in answers.items()]
            for (i, result), (advice, call) in zip(list(answers.items()), manager.extractor.advise(pairs, seeds), strict=True):
                if advice and call and result.entry is not None:
                    answers[i] = SearchResult(advice, result.entry)
                    self.refinements[result.entry, questions[i].text] = call
                else:  # keep the entry itself
                    manager.count_refusal("empty advice")
        return [answers.get(i, SearchResult()) for i in range(len(questions))]


def queried_entries(trajectory: Trajectory) -> list[int]:
    """The entries retrieved for an episode's questions, in order."""
    return [int(step.signals[ENTRY]) for step in trajectory.steps if ENTRY in step.signals]


Verdict = Literal["accept", "refine", "reject", "unread"]
SCORES: Mapping[Verdict, float] = {"accept": 1.0, "refine": 0.5, "reject": 0.0, "unread": 0.0}


@dataclass
class Critic:
    """Actor-critic (§B.1): before an episode, the actor accepts, refines or rejects its entry.

        accept          the entry as it is           s_c = 1
        refine: …       in the actor's own words     s_c = 0.5
        reject          play without the entry       s_c = 0
        r̃(m) = s_c(m) + r(m)                         (8)      r(m) = ±1 by the outcome; a rejected entry had no outcome: r̃ = 0

    The prompt has the actor's success rate on the task family. An unreadable answer keeps the entry with s_c = 0. The actor is
    not trained on these answers.
    """

    style: Style
    max_tokens: int = 64
    temperature: float = 1.0
    wins: dict[str, list[int]] = field(default_factory=dict)
    """family -> [episodes won, episodes played] without or with an entry"""

    def judge(self, policy: Policy, task: Task, entries: Sequence[Entry], seed: int) -> list[tuple[Verdict, str]]:
        """(verdict, the note to play with) for each entry."""
        questions = [render_critic_prompt(task.goal, entry.text, self.rate(task), self.style) for entry in entries]
        prompts = [policy.encode_prompt(text) for text in questions]
        max_tokens = min(self.max_tokens, policy.context_limit // 2)
        fits = [i for i, prompt in enumerate(prompts) if len(prompt) + max_tokens <= policy.context_limit]
        requests = [Request(prompts[i], derive(seed, "critic", i)) for i in fits]
        answers = policy.sample(requests, Sampling(self.temperature, max_tokens=max_tokens)) if requests else []
        replies = {i: "" if find_cut(answer, "") else answer.text for i, answer in zip(fits, answers, strict=True)}
        return [parse_verdict(replies.get(i, ""), entry.text) for i, entry in enumerate(entries)]

    def rate(self, task: Task) -> float:
        """r̄_θ: success rate on this task family so far; 0 before the first episode."""
        won, played = self.wins.get(task.family, [0, 0])
        return won / max(1, played)

    def record(self, trajectory: Trajectory) -> None:
        won_and_played = self.wins.setdefault(trajectory.task.family, [0, 0])
        won_and_played[0] += int(trajectory.success)
        won_and_played[1] += 1


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
    """r̃(m) for one episode."""
    return 0.0 if verdict == "reject" else SCORES[verdict] + (1.0 if won else -1.0)
