"""Sampling from the extractor in the background: for several threads at once, and during its updates."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from tacit.core.errors import TacitError
from tacit.core.protocols import PinnedSampler, Policy, Request, Sampling
from tacit.core.types import Completion
from tacit.rollout.encoding import open_scheduler


@dataclass(eq=False)
class SamplingJob:
    """Requests of one caller, and their completions so far."""

    requests: Sequence[Request]
    future: Future[tuple[list[Completion], int]] = field(default_factory=Future)
    """the completions, and after how many updates they were sampled"""
    done: dict[int, Completion] = field(default_factory=dict)


class SamplingThread:
    """Samples for several threads in one batch, which requests join while it is decoded. No caller holds a lock meanwhile.

    An engine that can (`PinnedSampler`) samples from a copy of the weights while an update changes them. The copy is renewed
    after the update, once the requests under way have ended. With any other engine, sampling and updates take turns.
    """

    def __init__(self, policy: Policy, sampling: Sampling, count_updates: Callable[[], int]) -> None:
        self._policy, self._sampling, self._count_updates = policy, sampling, count_updates
        self._pinned: PinnedSampler | None = policy if isinstance(policy, PinnedSampler) else None
        """the policy, if it can sample during an update"""
        self._inbox: queue.Queue[SamplingJob | None] = queue.Queue()
        self._asking, self._weights = threading.Lock(), threading.Lock()
        """`_weights` is held while an update changes the weights, and while they are read"""
        self._may_sample = threading.Event()
        self._may_sample.set()
        self._closed = False
        self._copy, self._version = ExitStack(), -1
        self._thread = threading.Thread(target=self._run, name="extractor", daemon=True)
        self._thread.start()

    def sample(self, requests: Sequence[Request]) -> tuple[list[Completion], int]:
        job = SamplingJob(requests)
        with self._asking:  # the end marker must come after the last job
            if self._closed:
                raise TacitError("the extractor has stopped.")
            self._inbox.put(job)
        return job.future.result()

    def run_update(self, update: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
        if self._pinned is None:
            self._may_sample.clear()
        with self._weights:
            try:
                return update()
            finally:
                self._may_sample.set()

    def close(self, patience_s: float = 10.0) -> None:
        """Cancel queued jobs, wait a while for those under way, and stop."""
        with self._asking:
            self._closed = True
        while (job := self._take()) is not None:
            job.future.cancel()
        self._inbox.put(None)
        self._thread.join(patience_s)

    def _run(self) -> None:
        while (job := self._inbox.get()) is not None:
            self._may_sample.wait()
            try:
                if self._pinned is not None and self._renew_copy(self._pinned):
                    self._sample_until_idle(job)
                else:
                    with self._weights:
                        self._version = self._count_updates()
                        self._sample_until_idle(job)
            except BaseException as error:  # raised in the callers' threads
                if not job.future.done():
                    job.future.set_exception(error)
        self._copy.close()

    def _renew_copy(self, policy: PinnedSampler) -> bool:
        """Sample from the newest weights, unless they are being updated; the first time, wait for that. False if the policy
        cannot be pinned after all: a sharded one without servers."""
        is_first = self._version < 0
        if self._version != self._count_updates() and self._weights.acquire(blocking=is_first):
            try:
                self._copy.close()
                self._copy.enter_context(policy.pin_weights())
                self._version = self._count_updates()
            except TacitError:
                self._pinned = None
            finally:
                self._weights.release()
        return self._pinned is not None

    def _sample_until_idle(self, first: SamplingJob) -> None:
        job: SamplingJob | None = first
        under_way: dict[int, tuple[SamplingJob, int]] = {}
        with closing(open_scheduler(self._policy, self._sampling, None)) as scheduler:
            try:
                while job is not None or under_way:
                    while job is not None:
                        under_way |= {scheduler.submit(request): (job, i) for i, request in enumerate(job.requests)}
                        job = self._next_job()
                    for request_id, completion in scheduler.wait():
                        owner, i = under_way.pop(request_id)
                        owner.done[i] = completion
                        if len(owner.done) == len(owner.requests):
                            owner.future.set_result(([owner.done[k] for k in range(len(owner.requests))], self._version))
                    job = self._next_job()
            except BaseException as error:  # raised in the callers' threads
                for owner in {owner for owner, _ in under_way.values()}:
                    owner.future.set_exception(error)
                raise

    def _next_job(self) -> SamplingJob | None:
        """The next job that can join the batch; none while the weights are to change."""
        renewing = self._pinned is not None and self._version != self._count_updates()
        return None if renewing or self._closed or not self._may_sample.is_set() else self._take()

    def _take(self) -> SamplingJob | None:
        try:
            job = self._inbox.get_nowait()
        except queue.Empty:
            return None
        if job is None:
            self._inbox.put(None)  # the end marker, for `_run`
        return job
