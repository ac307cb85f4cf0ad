"""One simulator process shared by many episodes: started once, closed last, restarted after it died."""

from __future__ import annotations

import pickle
import re

import pytest
from scripted import ScriptedPolicy
from small_worlds import Signs
from word_server import LENGTH, Opener, Walk

from tacit.core.protocols import Sampling
from tacit.core.simulator import Served, SimulatorDied
from tacit.core.types import StopReason, Task
from tacit.prompts.history import History
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.workers import WorkerPool
from tacit.rollout.worlds import InProcessPool

CONTEXT = History(Signs(), 0, style="bare")


def walks(count: int) -> list[EpisodePlan]:
    return [EpisodePlan(Task("walk", f"walk/{i}", "only", "train", 0, f"walk {i}"), i) for i in range(count)]


def play(pool, count, answer=lambda prompt, seed: "forward"):
    return rollout(walks(count), CONTEXT, pool, ScriptedPolicy(answer), Sampling(), 6)


def only_walk(number: int, instead: str, place: int = 1):
    """Every episode walks on, except that walk `number` does `instead` at one place."""
    return lambda prompt, seed: instead if f"walk {number}\n" in prompt and f"place {place}\n" in prompt else "forward"


def servers(played) -> set[str]:
    return set(re.findall(r"server (\d+)", " ".join(s.observation.text for t in played for s in t.steps)))


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


@pytest.fixture
def served(tmp_path):
    simulator = Served(Opener(str(tmp_path)), Walk)
    yield simulator
    simulator.close()


def test_one_process_plays_many_episodes_and_closes_last(served, log):
    pool = InProcessPool(served, 10.0)
    for _ in range(2):
        played = play(pool, 12)
        assert all(t.success and len(t) == LENGTH for t in played) and len(servers(played)) == 1
    pool.close()
    lines = log.read_text().splitlines()
    assert sum(line.startswith("start") for line in lines) == 1
    assert sum(line.startswith("reset") for line in lines) == 24
    assert lines[-13:] == [*(f"close {n}" for n in range(1, 13)), "end"], "the worlds first, the simulator last"
    assert served.simulator is None


def test_world_works_without_a_pool(served):
    world = served()
    assert "place 0" in world.reset(walks(1)[0].task).text and "place 1" in world.step("forward").observation.text
    world.close()
    other = served()
    other.reset(walks(1)[0].task)
    assert served.simulator.alive, "closing an episode must not close the simulator"


def test_episode_error_does_not_affect_other_episodes(served):
    pool = InProcessPool(served, 10.0)
    played = play(pool, 4, only_walk(2, "trip"))
    assert [t.stop for t in played] == [StopReason.SUCCESS] * 2 + [StopReason.WORLD_ERROR, StopReason.SUCCESS]
    assert played[2].detail.startswith("RuntimeError: tripped over (word_server.py, line") and len(servers(played)) == 1
    assert all(t.success for t in play(pool, 4))
    pool.close()


def test_simulator_death_ends_its_episodes_and_it_is_restarted(served, log):
    pool = InProcessPool(served, 10.0)
    played = play(pool, 4, only_walk(1, "crash"))
    assert [t.stop for t in played] == [StopReason.WORLD_ERROR] * 4
    assert played[1].detail == "SimulatorDied: the simulator died: EOFError: the server left with code 3"
    # episode 0 had its answer before episode 1 crashed the simulator, so it fails one step later
    detail = "SimulatorDied: the simulator of this episode is gone"
    assert [t.detail for t in (played[0], played[2], played[3])] == [detail] * 3
    assert [len(t) for t in played] == [2, 1, 1, 1]
    again = play(pool, 4)
    assert all(t.success for t in again) and servers(again).isdisjoint(servers(played))
    pool.close()
    assert log.read_text().count("start") == 2


@pytest.mark.slow
def test_simulator_is_replaced_after_a_call_timed_out(served, log):
    pool = InProcessPool(served, 1.0)
    played = play(pool, 3, only_walk(0, "hang"))
    assert played[0].stop is StopReason.WORLD_HANG and played[0].detail == "no answer within 1 s"
    assert [t.stop for t in played[1:]] == [StopReason.WORLD_ERROR] * 2
    again = play(pool, 3)
    assert all(t.success for t in again), "answers of the old simulator must not reach new episodes"
    pool.close()
    assert log.read_text().count("start") == 2


@pytest.mark.slow
def test_each_worker_process_has_its_own_simulator(served, tmp_path, log):
    pool = WorkerPool(served, 2, timeout_s=30.0)
    try:
        played = play(pool, 6)
        assert all(t.success for t in played) and len(servers(played)) == 2
        crashed = play(pool, 6, only_walk(1, "crash"))
        assert [t.success for t in crashed] == [True, False] * 3, "only episodes that share the crashed simulator end"
        assert all(t.stop is StopReason.WORLD_ERROR and "SimulatorDied" in t.detail for t in crashed[1::2])
        again = play(pool, 6)
        assert all(t.success for t in again) and len(servers(again) - servers(played)) == 1
    finally:
        pool.close()
    text = log.read_text()
    assert text.count("start") == 3 and text.count("end") == 2, "the dead simulator is not closed, the other two are"
    assert served.simulator is None, "no simulator was started in this process"


def test_pickled_simulator_carries_only_its_opener(served):
    served.start()
    there = pickle.loads(pickle.dumps(served))
    assert there.simulator is None and served.simulator is not None


class Jammed:
    """Fails to start the first three times."""

    def __init__(self, opener):
        self._opener, self.tried = opener, 0

    def __call__(self):
        self.tried += 1
        if self.tried <= 3:
            raise OSError("no java here")
        return self._opener()


def test_failed_simulator_start_is_reported_and_retried(tmp_path):
    jammed = Jammed(Opener(str(tmp_path)))
    pool = InProcessPool(Served(jammed, Walk), 10.0)
    played = play(pool, 3)
    assert all(t.detail.startswith("OSError: no java here (") for t in played[:2]) and played[2].success
    assert all(t.stop is StopReason.WORLD_ERROR for t in played[:2]) and jammed.tried == 4
    pool.close()


def test_step_raises_after_the_simulator_closed(served):
    world = served()
    world.reset(walks(1)[0].task)
    served.close()
    with pytest.raises(SimulatorDied, match="is gone"):
        world.step("forward")
    world.close()
