"""Worlds in worker processes: the same answers, and no more lost than the world that broke.

Starting a process takes a while, so there are few tests here and each does much.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from scripted import ScriptedPolicy, stumble_through_countdown
from small_worlds import Corridor, Signs, corridor

from tacit.core.protocols import Sampling
from tacit.core.types import StopReason
from tacit.prompts.history import History
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.workers import MAX_FAILED_STARTS, MAX_IN_FLIGHT, WorkerPool
from tacit.rollout.worlds import InProcessPool, WorldFailure
from tacit.worlds import get_environment

COUNTDOWN = get_environment("countdown")


def test_the_same_answers_as_in_place():
    context = History(COUNTDOWN.wording("terse"), turns=1, style="bare")
    plans = [EpisodePlan(task, i) for i, task in enumerate(COUNTDOWN.tasks("train", 5, 0))]

    def play(pool):
        try:
            # twice over: a pool is used again and again, for different numbers of episodes
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
def test_a_broken_world_costs_its_own_episode_and_the_others_on_its_worker_go_on():
    """One worker holds all five: each of the three bad ones takes a place in the middle."""
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
    assert played[6].detail.startswith("SystemExit: no more today (small_worlds.py, line"), "the process goes on"
    # what the others saw is what an undisturbed world shows: they were brought back by replaying their actions
    assert [s.observation.text for s in played[5].steps] == [f"place {n} of 4" for n in range(4)]


def interrupted(workers, limit_s):
    raise KeyboardInterrupt


def test_answers_to_episodes_that_were_broken_off_are_not_taken_for_others():
    pool = WorkerPool(Corridor, 1, 60.0)
    try:
        pool.reset([corridor(5, "slow", 0), corridor(6)])
        wait, pool._launcher.wait = pool._launcher.wait, interrupted
        with pytest.raises(KeyboardInterrupt):
            pool.step([(0, "forward"), (1, "forward")])
        pool._launcher.wait = wait
        assert [a.text for a in pool.reset([corridor(7)])] == ["place 0 of 7"]
        assert [a.observation.text for a in pool.step([(0, "forward")])] == ["place 1 of 7"]
    finally:
        pool.close()


class Noting(Corridor):
    """Leaves a file behind when it is closed."""

    def __init__(self, folder):
        self._folder = folder

    def close(self):
        (Path(self._folder) / "closed").touch()


@pytest.mark.slow
def test_workers_die_at_reset_go_on_and_close_their_worlds(tmp_path):
    pool = WorkerPool(partial(Noting, str(tmp_path)), 1, timeout_s=1.0)
    first = pool.reset([corridor(2), corridor(2, "hang_in_reset"), corridor(2)])
    assert [getattr(a, "text", None) or a.reason for a in first] == ["place 0 of 2", StopReason.WORLD_HANG, "place 0 of 2"]
    answers = pool.step([(0, "forward"), (2, "forward")])
    assert [a.observation.text for a in answers] == ["place 1 of 2"] * 2
    pool.close()
    assert (tmp_path / "closed").exists()


class Silent(Corridor):
    """Answers nothing at all to those who stand still."""

    def step(self, action):
        return super().step(action) if action == "forward" else None


def test_an_answer_of_nothing_is_an_answer():
    pool = WorkerPool(Silent, 1, timeout_s=60.0)
    try:
        pool.reset([corridor(3), corridor(4)])
        nothing, moved = pool.step([(0, "stand"), (1, "forward")])
        assert "returned nothing" in nothing.detail and moved.observation.text == "place 1 of 4"
    finally:
        pool.close()


@pytest.mark.slow
def test_it_is_known_whom_one_waits_for_longest():
    pool = WorkerPool(Corridor, 1, 60.0)
    try:
        slow = corridor(2, "slow", 0)
        pool.reset([slow, corridor(3)])
        assert pool.late is None
        with ThreadPoolExecutor(1) as executor:
            stepping = executor.submit(pool.step, [(0, "forward"), (1, "forward")])
            while (late := pool.late) is None and not stepping.done():
                pass
        assert late is not None and late.task == slow and late.limit_s == 60.0 and 0 <= late.seconds < 60
        assert len(stepping.result()) == 2 and pool.late is None
    finally:
        pool.close()


@pytest.mark.slow
def test_what_stops_the_command_does_not_end_its_workers_in_the_middle(capfd):
    """Ctrl-C reaches every process of a terminal."""
    pool = WorkerPool(Corridor, 1, 60.0)
    try:
        pool.reset([corridor(4, "slow", at=1)])
        pool.step([(0, "forward")])
        with ThreadPoolExecutor(1) as executor:
            stepping = executor.submit(pool.step, [(0, "forward")])
            while pool.late is None and not stepping.done():
                pass
            (worker,) = (child for child in multiprocessing.active_children() if child.pid is not None)
            os.kill(worker.pid, signal.SIGINT)
            assert [answer.observation.text for answer in stepping.result()] == ["place 2 of 4"]
    finally:
        pool.close()
    assert "KeyboardInterrupt" not in capfd.readouterr().err


def test_a_pool_needs_a_process():
    with pytest.raises(ValueError, match="at least one process"):
        WorkerPool(Corridor, 0)


@pytest.mark.slow
def test_a_worker_is_handed_no_more_than_a_few_calls_at_once():
    pool = WorkerPool(Corridor, 1, 60.0)
    try:
        slots = range(3 * MAX_IN_FLIGHT)
        pool.reset([corridor(2, "slow", 0), *(corridor(2) for _ in slots[1:])])
        in_flight, send = [], pool._send
        pool._send = lambda worker: (send(worker), in_flight.append(pool._in_flight[0]))
        assert len(pool.step([(slot, "forward") for slot in slots])) == len(slots)
        assert max(in_flight) == MAX_IN_FLIGHT
    finally:
        pool.close()


class Stillborn:
    """Makes worlds, in processes of which the first few end while they start."""

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
def test_a_process_that_ends_while_it_starts_costs_nothing_unless_it_does_so_again_and_again(tmp_path, more):
    pool = WorkerPool(Stillborn(str(tmp_path), MAX_FAILED_STARTS + more), 1, timeout_s=60.0)
    try:
        answers = pool.reset([corridor(2), corridor(3)])
        assert [isinstance(answer, WorldFailure) for answer in answers] == [bool(more), False]
        assert answers[1].text == "place 0 of 3"
    finally:
        pool.close()
