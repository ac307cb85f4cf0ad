"""Worlds in worker processes: same results as in-process worlds, and a failure costs only its own episode.

Starting a process is slow, so there are few tests here and each checks a lot.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from scripted import ScriptedPolicy, stumble_through_countdown
from small_worlds import Corridor, Signs, corridor

from tacit.core.protocols import Sampling
from tacit.core.simulator import Served
from tacit.core.types import StopReason
from tacit.prompts.history import History
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.workers import MAX_FAILED_STARTS, MAX_IN_FLIGHT, WorkerPool
from tacit.rollout.worlds import InProcessPool, WorldFailure
from tacit.worlds import get_environment

COUNTDOWN = get_environment("countdown")


def test_worker_pool_equals_in_process_pool():
    context = History(COUNTDOWN.wording("terse"), turns=1, style="bare")
    plans = [EpisodePlan(task, i) for i, task in enumerate(COUNTDOWN.tasks("train", 5, 0))]

    def play(pool):
        try:
            # two rollouts: a pool is reused for different numbers of episodes
            return [
                [(t.stop, t.final, [(s.observation, s.action, s.effective) for s in t.steps]) for t in played]
                for played in (
                    rollout(part, context, pool, ScriptedPolicy(stumble_through_countdown), Sampling(), 10)
                    for part in (plans, plans[:3])
                )
            ]
        finally:
            pool.close()

    assert play(WorkerPool(COUNTDOWN.make, 2, 60.0)) == play(InProcessPool(COUNTDOWN.make))


@pytest.mark.quick_cases(1)
def test_failing_worlds_do_not_affect_others_on_their_worker():
    """One worker runs all episodes; the failing ones are in the middle."""
    tasks = [corridor(4), corridor(4, "exit", 1), corridor(3), corridor(4, "hang", 2), corridor(4, "raise", 1), corridor(4)]
    tasks.append(corridor(4, "quit"))
    context = History(Signs(), turns=None, style="bare")
    policy = ScriptedPolicy(lambda prompt, seed: "forward")
    pool = WorkerPool(Corridor, 1, 1.0)
    try:
        played = rollout([EpisodePlan(t, i) for i, t in enumerate(tasks)], context, pool, policy, Sampling(), 10)
    finally:
        pool.close()
    assert [(t.stop, len(t)) for t in played] == [
        (StopReason.SUCCESS, 4),
        (StopReason.WORLD_ERROR, 1),
        (StopReason.SUCCESS, 3),
        (StopReason.WORLD_HANG, 2),
        (StopReason.WORLD_ERROR, 1),
        (StopReason.SUCCESS, 4),
        (StopReason.WORLD_ERROR, 0),
    ]
    assert played[1].detail == "its process died (exit code 7)"
    assert played[3].detail == "no answer within 1 s"
    assert played[4].detail.startswith("RuntimeError: the floor gave way (small_worlds.py, line")
    assert played[6].detail.startswith("SystemExit: no more today (small_worlds.py, line"), "the worker lives on"
    # the others see what an undisturbed world shows: they are restored by replaying their actions
    assert [s.observation.text for s in played[5].steps] == [f"place {n} of 4" for n in range(4)]


def interrupted(workers, limit_s):
    raise KeyboardInterrupt


def test_answers_of_interrupted_episodes_are_discarded():
    pool = WorkerPool(Corridor, 1, 60.0)
    try:
        pool.reset([corridor(5, "slow", 0), corridor(6)])
        wait, pool.launcher.wait = pool.launcher.wait, interrupted
        with pytest.raises(KeyboardInterrupt):
            pool.step([(0, "forward"), (1, "forward")])
        pool.launcher.wait = wait
        assert [a.text for a in pool.reset([corridor(7)])] == ["place 0 of 7"]
        assert [a.observation.text for a in pool.step([(0, "forward")])] == ["place 1 of 7"]
    finally:
        pool.close()


class Noting(Corridor):
    """Creates a file when it is closed."""

    def __init__(self, folder):
        self._folder = folder

    def close(self):
        (Path(self._folder) / "closed").touch()


@pytest.mark.slow
def test_worker_survives_hang_in_reset_and_closes_its_worlds(tmp_path):
    pool = WorkerPool(partial(Noting, str(tmp_path)), 1, timeout_s=1.0)
    first = pool.reset([corridor(2), corridor(2, "hang_in_reset"), corridor(2)])
    assert [getattr(a, "text", None) or a.reason for a in first] == ["place 0 of 2", StopReason.WORLD_HANG, "place 0 of 2"]
    answers = pool.step([(0, "forward"), (2, "forward")])
    assert [a.observation.text for a in answers] == ["place 1 of 2"] * 2
    pool.close()
    assert (tmp_path / "closed").exists()


class Meeting(Corridor):
    """`wait` waits until another episode has done `arrive`."""

    def __init__(self, place):
        self._file = Path(place.folder) / "arrived"

    def step(self, action):
        while action == "wait" and not self._file.exists():
            time.sleep(0.01)
        if action == "arrive":
            self._file.touch()
        return super().step("forward")


class Place:
    """A simulator without a process."""

    alive = True

    def __init__(self, folder):
        self.folder = folder

    def close(self):
        pass


@pytest.mark.slow
def test_worker_steps_several_episodes_of_a_thread_safe_world_at_once(tmp_path):
    pool = WorkerPool(Served(partial(Place, str(tmp_path)), Meeting, threads=2), 1, timeout_s=5.0)
    try:
        pool.reset([corridor(4), corridor(4), corridor(4)])
        texts = [answer.observation.text for answer in pool.step([(0, "wait"), (1, "arrive"), (2, "forward")])]
        assert texts == ["place 1 of 4"] * 3, "the first was answered after the second"
        (tmp_path / "arrived").unlink()
        pool.submit([(0, "wait"), (1, "forward")])
        others = pool.collect(0.0)
        while not others:
            others = pool.collect(0.1)
        assert list(others) == [1], "the other call is answered while the first hangs"
        pool.submit([(2, "forward")])
        rest = pool.collect()
        assert (rest[0].reason, rest[0].detail) == (StopReason.WORLD_HANG, "no answer within 5 s")
        assert [answer.observation.text for answer in (others[1], rest[2])] == ["place 2 of 4"] * 2
        assert [answer.observation.text for answer in pool.step([(1, "forward"), (2, "forward")])] == ["place 3 of 4"] * 2
    finally:
        pool.close()


class Silent(Corridor):
    """Returns None for any action but `forward`."""

    def step(self, action):
        return super().step(action) if action == "forward" else None


def test_step_that_returns_none_fails_only_its_episode():
    pool = WorkerPool(Silent, 1, timeout_s=60.0)
    try:
        pool.reset([corridor(3), corridor(4)])
        nothing, moved = pool.step([(0, "stand"), (1, "forward")])
        assert "returned nothing" in nothing.detail and moved.observation.text == "place 1 of 4"
    finally:
        pool.close()


@pytest.mark.slow
def test_pool_reports_the_slowest_pending_call():
    pool = WorkerPool(Corridor, 1, 60.0)
    try:
        slow = corridor(2, "slow", 0)
        pool.reset([slow, corridor(3)])
        assert pool.slowest_call is None
        with ThreadPoolExecutor(1) as executor:
            stepping = executor.submit(pool.step, [(0, "forward"), (1, "forward")])
            while (late := pool.slowest_call) is None and not stepping.done():
                pass
        assert late is not None and late.task == slow and late.limit_s == 60.0 and 0 <= late.seconds < 60
        assert len(stepping.result()) == 2 and pool.slowest_call is None
    finally:
        pool.close()


@pytest.mark.slow
def test_sigint_does_not_interrupt_workers_in_a_step(capfd):
    """Ctrl-C reaches every process of the terminal."""
    pool = WorkerPool(Corridor, 1, 60.0)
    try:
        pool.reset([corridor(4, "slow", at=1)])
        pool.step([(0, "forward")])
        with ThreadPoolExecutor(1) as executor:
            stepping = executor.submit(pool.step, [(0, "forward")])
            while pool.slowest_call is None and not stepping.done():
                pass
            (worker,) = (child for child in multiprocessing.active_children() if child.pid is not None)
            os.kill(worker.pid, signal.SIGINT)
            assert [answer.observation.text for answer in stepping.result()] == ["place 2 of 4"]
    finally:
        pool.close()
    assert "KeyboardInterrupt" not in capfd.readouterr().err


def test_pool_without_processes_is_rejected():
    with pytest.raises(ValueError, match="at least one process"):
        WorkerPool(Corridor, 0)


@pytest.mark.slow
def test_calls_in_flight_per_worker_are_bounded():
    pool = WorkerPool(Corridor, 1, 60.0)
    try:
        slots = range(3 * MAX_IN_FLIGHT)
        pool.reset([corridor(2, "slow", 0), *(corridor(2) for _ in slots[1:])])
        in_flight, send = [], pool.send_queued
        pool.send_queued = lambda worker: (send(worker), in_flight.append(pool.in_flight[0]))
        assert len(pool.step([(slot, "forward") for slot in slots])) == len(slots)
        assert max(in_flight) == MAX_IN_FLIGHT
    finally:
        pool.close()


class Stillborn:
    """Makes worlds; the first `times` processes that unpickle it exit at once."""

    def __init__(self, folder, times):
        self._folder, self._times = folder, times

    def __setstate__(self, state):
        self.__dict__ = state
        born = len(list(Path(self._folder).iterdir()))
        if born < self._times:
            (Path(self._folder) / str(born)).touch()
            os._exit(3)

    def __call__(self):
        return Corridor()


@pytest.mark.slow
@pytest.mark.parametrize("more", [0, 1])
def test_worker_start_is_retried_up_to_the_limit(tmp_path, more):
    pool = WorkerPool(Stillborn(str(tmp_path), MAX_FAILED_STARTS + more), 1, timeout_s=60.0)
    try:
        answers = pool.reset([corridor(2), corridor(3)])
        assert [isinstance(answer, WorldFailure) for answer in answers] == [bool(more), False]
        assert answers[1].text == "place 0 of 3"
    finally:
        pool.close()
