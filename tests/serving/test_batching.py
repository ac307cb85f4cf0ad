"""The batching thread: a failing scheduler fails only its own requests, and every request gets an answer."""

from __future__ import annotations

import asyncio
import json
import threading

import numpy as np
import pytest
from starlette.testclient import TestClient
from tokenizers import Tokenizer

from tacit.core.protocols import Request, Sampling
from tacit.core.types import Completion, HiddenState
from tacit.rollout.encoding import BatchScheduler
from tacit.serving.app import make_app
from tacit.serving.batching import MAX_IDLE_SCHEDULERS, BatchingThread
from tacit.serving.requests import RequestError
from tacit.serving.service import Service
from tacit.serving.sessions import wait_for_answer
from tacit.serving.settings import ServingSettings


class Echo:
    """A sampler that echoes the prompt. It waits for `held` and fails on negative prompts."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self.held.set()
        self.batches: list[int] = []
        self.schedulers = 0

    def open_scheduler(self, sampling: Sampling, hidden: HiddenState | None = None) -> BatchScheduler:
        self.schedulers += 1
        return BatchScheduler(self, sampling, hidden)

    def sample(self, requests, sampling, hidden=None) -> list[Completion]:
        self.batches.append(len(requests))
        self.held.wait(30)
        if any(request.prompt[0] < 0 for request in requests):
            raise RuntimeError("out of order")
        return [Completion(r.prompt, np.zeros(len(r.prompt)), str(r.prompt[0]), "stop") for r in requests]


def request(number: int) -> Request:
    return Request(np.array([number]), number)


def within(work) -> None:
    async def run() -> None:
        batching = BatchingThread()
        batching.start()
        await work(batching)
        await batching.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_requests_arriving_during_a_batch_form_the_next_batch() -> None:
    async def work(batching: BatchingThread) -> None:
        echo = Echo()
        echo.held.clear()
        first = asyncio.create_task(batching.sample(echo, Sampling(), request(0)))
        while not echo.batches:
            await asyncio.sleep(0.01)
        rest = [asyncio.create_task(batching.sample(echo, Sampling(), request(i))) for i in range(1, 20)]
        await asyncio.sleep(0.05)
        echo.held.set()
        assert [(await answer).text for answer in (first, *rest)] == [str(i) for i in range(20)]
        assert echo.batches == [1, 19]

    within(work)


def test_released_weights_refuse_their_waiting_requests_and_delay_no_others() -> None:
    async def work(batching: BatchingThread) -> None:
        one, two = Echo(), Echo()
        one.held.clear()
        first = asyncio.create_task(batching.sample(one, Sampling(), request(0)))
        while not one.batches:
            await asyncio.sleep(0.01)
        answers = asyncio.gather(
            *(batching.sample(maker, Sampling(), request(n)) for maker, n in ((one, 1), (two, 2))), return_exceptions=True
        )
        await asyncio.sleep(0.05)
        released = asyncio.create_task(batching.call(lambda: batching.pool.release(one)))
        await asyncio.sleep(0.05)
        one.held.set()
        lost, kept = await asyncio.wait_for(answers, 10)
        assert kept.text == "2" and (await first).text == "0"
        assert isinstance(lost, RequestError) and lost.status == 410
        await released

    within(work)


def test_failing_scheduler_does_not_affect_other_schedulers() -> None:
    async def work(batching: BatchingThread) -> None:
        good, bad = Echo(), Echo()
        failing = [batching.sample(bad, Sampling(), request(-1)), batching.sample(bad, Sampling(), request(1))]
        answers = await asyncio.gather(*failing, batching.sample(good, Sampling(), request(2)), return_exceptions=True)
        assert isinstance(answers[0], RuntimeError) and answers[2].text == "2"
        assert (await batching.sample(bad, Sampling(), request(3))).text == "3", "the next one gets its own scheduler"

    within(work)


def test_stopping_answers_all_requests() -> None:
    async def work(batching: BatchingThread) -> None:
        echo = Echo()
        echo.held.clear()
        answers = [asyncio.create_task(batching.sample(echo, Sampling(), request(i))) for i in range(3)]
        while not echo.batches:
            await asyncio.sleep(0.01)
        late = [asyncio.create_task(batching.sample(echo, Sampling(temperature=0.5), request(9)))]
        await asyncio.sleep(0.01)
        stopping = asyncio.create_task(batching.stop())
        await asyncio.sleep(0.01)
        echo.held.set()
        await stopping
        results = await asyncio.gather(*answers, *late, return_exceptions=True)
        assert all(isinstance(one, Completion) or (isinstance(one, RequestError) and one.status == 503) for one in results)
        assert isinstance(results[-1], RequestError)

    within(work)


@pytest.mark.slow
def test_stopping_does_not_wait_for_a_hanging_batch() -> None:
    async def work(batching: BatchingThread) -> None:
        echo = Echo()
        echo.held.clear()
        answer = asyncio.create_task(batching.sample(echo, Sampling(), request(0)))
        while not echo.batches:
            await asyncio.sleep(0.01)
        await asyncio.wait_for(batching.stop(), 10)
        late = asyncio.create_task(batching.sample(echo, Sampling(), request(1)))
        results = await asyncio.wait_for(asyncio.gather(answer, late, return_exceptions=True), 10)
        assert [type(one) for one in results] == [RequestError, RequestError] and {one.status for one in results} == {503}
        echo.held.set()

    within(work)


def test_panics_and_system_exit_do_not_end_the_thread() -> None:
    """A tokenizer regex that backtracks for too long panics, which `except Exception` does not catch."""
    split = {"type": "Split", "pattern": {"Regex": "a?" * 30 + "a" * 30}, "behavior": "Isolated", "invert": False}
    model = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
    tokenizer = Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": split, "model": model}))

    async def work(batching: BatchingThread) -> None:
        breaking = Echo()
        breaking.open_scheduler = lambda *arguments: exit(1)  # type: ignore[method-assign]
        for awaitable in (
            batching.call(lambda: tokenizer.encode("a" * 30)),
            batching.call(lambda: next(iter(()))),
            batching.sample(breaking, Sampling(), request(0)),
        ):
            with pytest.raises(RuntimeError, match=r"retry-limit|StopIteration|SystemExit"):
                await asyncio.wait_for(awaitable, 60)
        assert batching.alive and (await batching.sample(Echo(), Sampling(), request(1))).text == "1"

    within(work)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_dead_batching_thread_is_reported_and_fails_waiting_requests() -> None:
    async def work(batching: BatchingThread) -> None:
        echo = Echo()
        echo.held.clear()
        assert batching.alive
        answer = asyncio.create_task(batching.sample(echo, Sampling(), request(0)))
        while not echo.batches:
            await asyncio.sleep(0.01)
        batching.pool.watch = lambda rows: 1 / 0
        late = asyncio.create_task(batching.sample(echo, Sampling(), request(1)))
        await asyncio.sleep(0.01)
        echo.held.set()
        assert (await answer).text == "0"
        with pytest.raises(RequestError, match="ended with an error") as refused:
            await asyncio.wait_for(late, 10)
        assert refused.value.status == 500 and not batching.alive
        with pytest.raises(RequestError, match="ended with an error"):
            await asyncio.wait_for(batching.sample(echo, Sampling(), request(2)), 10)

    within(work)


def test_health_fails_without_a_batching_thread() -> None:
    service = Service([], ServingSettings())
    service.ready = True
    answer = TestClient(make_app(service, None), base_url="http://127.0.0.1").get("/health")
    assert (answer.status_code, answer.json()["status"]) == (503, "the batching thread has ended")


def test_too_many_or_too_slow_requests_are_refused() -> None:
    async def work(batching: BatchingThread) -> None:
        echo, settings = Echo(), ServingSettings(waiting=1, answer_s=0.2)
        echo.held.clear()

        def ask():
            return batching.sample(echo, Sampling(), request(1))

        slow = asyncio.create_task(wait_for_answer(ask, settings, batching))
        await asyncio.sleep(0.01)
        with pytest.raises(RequestError, match="1 requests are waiting for the model") as refused:
            await wait_for_answer(ask, settings, batching)
        assert refused.value.status == 429
        with pytest.raises(RequestError, match=r"no answer within 0\.2 s") as refused:
            await slow
        assert refused.value.status == 504 and batching.waiting == 0
        echo.held.set()
        assert (await wait_for_answer(ask, settings, batching)).text == "1"

    within(work)


def test_idle_schedulers_are_bounded() -> None:
    async def work(batching: BatchingThread) -> None:
        echo = Echo()
        for i in range(30):
            await batching.sample(echo, Sampling(temperature=i / 10), request(i))
        assert echo.schedulers == 30 and len(batching.pool) <= MAX_IDLE_SCHEDULERS + 1

    within(work)
