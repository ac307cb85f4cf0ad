"""The thread that gathers: a scheduler that fails fails its own, and nobody waits for what will not come."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest
from starlette.testclient import TestClient

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
    """Writes its prompt back; `held` until it may, and breaks where a prompt says so."""

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


def test_what_comes_in_meanwhile_is_one_batch() -> None:
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


class Both:
    """Two adapters over one engine, which writes with both at once and says who was to write."""

    def __init__(self) -> None:
        self.echo, self.asked = Echo(), 0

    def open_shared_scheduler(self, sampling: Sampling) -> Both:
        self.asked += 1
        self._scheduler, self._adapters = self.echo.open_scheduler(sampling), {}
        return self

    def submit(self, request: Request, adapter: str | None = None) -> int:
        request_id = self._scheduler.submit(request)
        self._adapters[request_id] = adapter
        return request_id

    def wait(self) -> list[tuple[int, Completion]]:
        return [
            (request_id, replace(done, text=f"{self._adapters[request_id]} {done.text}"))
            for request_id, done in self._scheduler.wait()
        ]

    def close(self) -> None:
        self._scheduler.close()


class Adapter(Echo):
    """One of them; it may have a scheduler of its own, which is not asked for."""

    def __init__(self, engine: Both, name: str) -> None:
        super().__init__()
        self.engine, self.name = engine, name


async def begun(batching: BatchingThread) -> tuple[Both, Adapter, Adapter, asyncio.Task[Completion]]:
    """Two adapters of an engine that is held in the middle of the first one's request 0, so that others gather."""
    engine = Both()
    one, two = Adapter(engine, "one"), Adapter(engine, "two")
    engine.echo.held.clear()
    first = asyncio.create_task(batching.sample(one, Sampling(), request(0)))
    while not engine.echo.batches:
        await asyncio.sleep(0.01)
    return engine, one, two, first


def test_adapters_of_one_engine_are_written_in_one_batch() -> None:
    async def work(batching: BatchingThread) -> None:
        engine, one, two, first = await begun(batching)
        rest = [asyncio.create_task(batching.sample((one, two)[i % 2], Sampling(), request(i))) for i in range(1, 20)]
        await asyncio.sleep(0.05)
        engine.echo.held.set()
        expected = [f"{('one', 'two')[i % 2]} {i}" for i in range(20)]
        assert [(await answer).text for answer in (first, *rest)] == expected
        assert engine.echo.batches == [1, 19] and engine.asked == 1 and one.schedulers == two.schedulers == 0
        await batching.call(lambda: batching.release(one))
        assert (await batching.sample(two, Sampling(), request(7))).text == "two 7" and engine.asked == 1

    within(work)


def test_where_one_adapter_breaks_the_others_are_written_without_it() -> None:
    async def work(batching: BatchingThread) -> None:
        engine, one, two, first = await begun(batching)
        rest = [batching.sample(maker, Sampling(), request(n)) for maker, n in ((one, 1), (two, -1), (one, 2), (two, 3))]
        answers = asyncio.gather(*rest, return_exceptions=True)
        await asyncio.sleep(0.05)
        engine.echo.held.set()
        assert (await first).text == "one 0"
        kept, broken, also, lost = await answers
        assert (kept.text, also.text) == ("1", "2") and isinstance(broken, RuntimeError) and isinstance(lost, RuntimeError)
        assert (one.schedulers, two.schedulers) == (1, 1)
        assert (await batching.sample(two, Sampling(), request(4))).text

    within(work)


def test_who_was_parted_is_written_together_again_but_for_the_one_at_fault() -> None:
    async def work(batching: BatchingThread) -> None:
        engine, one, two, first = await begun(batching)
        rest = [batching.sample(maker, Sampling(), request(n)) for maker, n in ((one, 1), (two, -1))]
        answers = asyncio.gather(first, *rest, return_exceptions=True)
        await asyncio.sleep(0.05)
        engine.echo.held.set()
        assert isinstance((await answers)[2], RuntimeError)
        assert (await batching.sample(one, Sampling(), request(5))).text == "one 5", "by the shared scheduler"
        with pytest.raises(RuntimeError):
            await batching.sample(two, Sampling(), request(-2))
        assert engine.echo.batches[-1] == 1 and engine.asked == 2, "two has its own scheduler while it breaks it"
        assert (await batching.sample(two, Sampling(), request(6))).text == "6"
        assert (await batching.sample(two, Sampling(), request(7))).text == "two 7", "and none any more once it did not"
        assert await batching.call(lambda: len(batching._pool)) == 1

    within(work)


def test_parted_under_a_load_that_never_ends_they_come_together_again() -> None:
    async def work(batching: BatchingThread) -> None:
        engine, one, two, first = await begun(batching)
        rest = [batching.sample(maker, Sampling(), request(n)) for maker, n in ((one, 1), (two, -1))]
        answers = asyncio.gather(first, *rest, return_exceptions=True)
        await asyncio.sleep(0.05)
        one.held.clear()  # its own scheduler stays busy
        engine.echo.held.set()
        while not one.batches:
            await asyncio.sleep(0.01)
        joined = asyncio.create_task(batching.sample(one, Sampling(), request(5)))
        await asyncio.sleep(0.05)
        one.held.set()
        assert (await joined).text == "one 5" and (await answers)[1].text == "1"

    within(work)


def test_weights_that_are_given_up_answer_who_waits_for_them_and_hold_up_nobody_else() -> None:
    async def work(batching: BatchingThread) -> None:
        engine, one, two, first = await begun(batching)
        alone = Echo()
        asked = [batching.sample(maker, Sampling(), request(n)) for maker, n in ((one, 1), (two, 2), (alone, 3))]
        answers = asyncio.gather(*asked, return_exceptions=True)
        await asyncio.sleep(0.05)
        calls = asyncio.gather(*(batching.call(lambda maker=maker: batching.release(maker)) for maker in (one, alone)))
        await asyncio.sleep(0.05)
        engine.echo.held.set()
        lost, kept, also_lost = await asyncio.wait_for(answers, 10)
        assert kept.text == "two 2" and (await first).text == "one 0"
        assert all(isinstance(error, RequestError) and error.status == 410 for error in (lost, also_lost))
        await calls

    within(work)


def test_a_scheduler_that_breaks_takes_nobody_elses_answer_along() -> None:
    async def work(batching: BatchingThread) -> None:
        good, bad = Echo(), Echo()
        asked = [batching.sample(bad, Sampling(), request(-1)), batching.sample(bad, Sampling(), request(1))]
        answers = await asyncio.gather(*asked, batching.sample(good, Sampling(), request(2)), return_exceptions=True)
        assert isinstance(answers[0], RuntimeError) and answers[2].text == "2"
        assert (await batching.sample(bad, Sampling(), request(3))).text == "3", "the next one gets its own scheduler"

    within(work)


def test_stopping_answers_everybody() -> None:
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
        told = await asyncio.gather(*answers, *late, return_exceptions=True)
        assert all(isinstance(one, Completion) or (isinstance(one, RequestError) and one.status == 503) for one in told)
        assert isinstance(told[-1], RequestError)

    within(work)


@pytest.mark.slow
def test_stopping_does_not_wait_for_a_pass_without_end() -> None:
    async def work(batching: BatchingThread) -> None:
        echo = Echo()
        echo.held.clear()
        answer = asyncio.create_task(batching.sample(echo, Sampling(), request(0)))
        while not echo.batches:
            await asyncio.sleep(0.01)
        await asyncio.wait_for(batching.stop(), 10)
        late = asyncio.create_task(batching.sample(echo, Sampling(), request(1)))
        told = await asyncio.wait_for(asyncio.gather(answer, late, return_exceptions=True), 10)
        assert [type(one) for one in told] == [RequestError, RequestError] and {one.status for one in told} == {503}
        echo.held.set()

    within(work)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_is_known_and_leaves_nobody_waiting() -> None:
    async def work(batching: BatchingThread) -> None:
        echo = Echo()
        echo.held.clear()
        assert batching.alive
        answer = asyncio.create_task(batching.sample(echo, Sampling(), request(0)))
        while not echo.batches:
            await asyncio.sleep(0.01)
        batching._pool._watch = lambda rows: 1 / 0
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


def test_health_says_that_nobody_asks_the_model() -> None:
    service = Service([], ServingSettings())
    service.ready = True
    answer = TestClient(make_app(service, None), base_url="http://127.0.0.1").get("/health")
    assert (answer.status_code, answer.json()["status"]) == (503, "the batching thread has ended")


def test_too_many_and_too_slow_are_refused() -> None:
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


def test_ways_of_sampling_do_not_pile_up() -> None:
    async def work(batching: BatchingThread) -> None:
        echo = Echo()
        for i in range(30):
            await batching.sample(echo, Sampling(temperature=i / 10), request(i))
        assert echo.schedulers == 30 and len(batching._pool) <= MAX_IDLE_SCHEDULERS + 1

    within(work)
