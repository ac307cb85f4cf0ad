"""The thread that gathers: a desk that fails fails its own, and nobody waits for what will not come."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from tacit.core.protocols import Request, Sampling
from tacit.core.types import Completion
from tacit.rollout.desks import BatchDesk
from tacit.serving.gathering import IDLE_DESKS, Gathering
from tacit.serving.refusals import Refused
from tacit.serving.returning import Returning
from tacit.serving.sessions import answer_in_time
from tacit.serving.settings import ServingSettings


class Echo:
    """Writes its prompt back; `held` until it may, and breaks where a prompt says so."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self.held.set()
        self.batches: list[int] = []
        self.desks = 0

    def desk(self, sampling: Sampling, layer: int | None = None) -> BatchDesk:
        self.desks += 1
        return BatchDesk(self, sampling, layer)

    def sample(self, requests, sampling, layer=None) -> list[Completion]:
        self.batches.append(len(requests))
        self.held.wait(30)
        if any(request.prompt[0] < 0 for request in requests):
            raise RuntimeError("out of order")
        return [Completion(r.prompt, np.zeros(len(r.prompt)), str(r.prompt[0]), "stop") for r in requests]


def request(number: int) -> Request:
    return Request(np.array([number]), number)


def within(work) -> None:
    async def run() -> None:
        gathering = Gathering()
        gathering.start()
        await work(gathering)
        await gathering.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_what_comes_in_meanwhile_is_one_batch() -> None:
    async def work(gathering: Gathering) -> None:
        echo = Echo()
        echo.held.clear()
        first = asyncio.create_task(gathering.sample(echo, Sampling(), request(0)))
        while not echo.batches:
            await asyncio.sleep(0.01)
        rest = [asyncio.create_task(gathering.sample(echo, Sampling(), request(i))) for i in range(1, 20)]
        await asyncio.sleep(0.05)
        echo.held.set()
        assert [(await answer).text for answer in (first, *rest)] == [str(i) for i in range(20)]
        assert echo.batches == [1, 19]

    within(work)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def returned(clock: Clock, count: int, after_s: float) -> Returning:
    """So many were answered and were all back after a while, a few times over; then they are answered once more."""
    desk = Returning(clock)
    for _ in range(30):
        desk.answered(count, 0)
        clock.now += after_s
        for _ in range(count):
            desk.came()
    desk.answered(count, 0)
    return desk


def test_a_desk_waits_for_those_who_come_straight_back_and_for_nobody_else() -> None:
    clock = Clock()
    desk = returned(clock, 8, 0.01)
    clock.now += 0.002
    desk.came()
    assert desk.worth_waiting_s(1) == pytest.approx(0.02, rel=0.1), "seven are away, who take 10 ms"
    for _ in range(6):
        desk.came()
    assert desk.worth_waiting_s(7) == 0, "one more is not worth it"
    desk = returned(clock, 8, 0.01)
    clock.now += 0.03
    desk.came()
    assert desk.worth_waiting_s(1) == 0, "they will not come any more"
    desk = returned(clock, 8, 0.2)
    clock.now += 0.002
    desk.came()
    assert desk.worth_waiting_s(1) == 0, "they take their time"
    desk = returned(clock, 1, 0.01)
    clock.now += 0.01
    desk.came()
    assert desk.worth_waiting_s(1) == 0, "nobody else is there"


def test_sessions_that_come_straight_back_are_answered_together() -> None:
    """Twelve that ask again as soon as they are answered, a little apart: without waiting they would stay apart for good."""

    async def work(gathering: Gathering) -> None:
        echo = Echo()

        async def session(number: int) -> None:
            await asyncio.sleep(0.004 * number)
            for turn in range(12):
                assert (await gathering.sample(echo, Sampling(), request(100 * number + turn))).text == str(100 * number + turn)
                await asyncio.sleep(0.01)

        await asyncio.gather(*map(session, range(12)))
        late = echo.batches[len(echo.batches) // 2 :]
        assert sum(echo.batches) == 144 and sum(late) / len(late) > 6, echo.batches

    within(work)


def test_a_desk_that_breaks_takes_nobody_elses_answer_along() -> None:
    async def work(gathering: Gathering) -> None:
        good, bad = Echo(), Echo()
        asked = [gathering.sample(bad, Sampling(), request(-1)), gathering.sample(bad, Sampling(), request(1))]
        answers = await asyncio.gather(*asked, gathering.sample(good, Sampling(), request(2)), return_exceptions=True)
        assert isinstance(answers[0], RuntimeError) and answers[2].text == "2"
        assert (await gathering.sample(bad, Sampling(), request(3))).text == "3", "the next one gets a desk of its own"

    within(work)


def test_stopping_answers_everybody() -> None:
    async def work(gathering: Gathering) -> None:
        echo = Echo()
        echo.held.clear()
        answers = [asyncio.create_task(gathering.sample(echo, Sampling(), request(i))) for i in range(3)]
        while not echo.batches:
            await asyncio.sleep(0.01)
        late = [asyncio.create_task(gathering.sample(echo, Sampling(temperature=0.5), request(9)))]
        await asyncio.sleep(0.01)
        stopping = asyncio.create_task(gathering.stop())
        await asyncio.sleep(0.01)
        echo.held.set()
        await stopping
        told = await asyncio.gather(*answers, *late, return_exceptions=True)
        assert all(isinstance(one, Completion) or (isinstance(one, Refused) and one.status == 503) for one in told)
        assert isinstance(told[-1], Refused)

    within(work)


def test_too_many_and_too_slow_are_refused() -> None:
    async def work(gathering: Gathering) -> None:
        echo, settings = Echo(), ServingSettings(waiting=1, answer_s=0.2)
        echo.held.clear()

        def ask():
            return gathering.sample(echo, Sampling(), request(1))

        slow = asyncio.create_task(answer_in_time(ask, settings, gathering))
        await asyncio.sleep(0.01)
        with pytest.raises(Refused, match="1 requests wait for the model") as refused:
            await answer_in_time(ask, settings, gathering)
        assert refused.value.status == 429
        with pytest.raises(Refused, match=r"no answer within 0\.2 s") as refused:
            await slow
        assert refused.value.status == 504 and gathering.waiting == 0
        echo.held.set()
        assert (await answer_in_time(ask, settings, gathering)).text == "1"

    within(work)


def test_ways_of_sampling_do_not_pile_up() -> None:
    async def work(gathering: Gathering) -> None:
        echo = Echo()
        for i in range(30):
            await gathering.sample(echo, Sampling(temperature=i / 10), request(i))
        assert echo.desks == 30 and len(gathering._desks) <= IDLE_DESKS + 1

    within(work)
