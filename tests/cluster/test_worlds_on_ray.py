"""Worlds in Ray actors: they behave as in-process worlds, and a dead actor ends only the episode it was serving."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedPolicy, stumble_through_countdown

from tacit.core.errors import TacitError
from tacit.core.protocols import Sampling
from tacit.core.simulator import Served
from tacit.core.types import Observation, StopReason, Task, Transition
from tacit.core.world import Environment
from tacit.prompts.history import History
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.workers import RayLauncher, WorkerPool
from tacit.rollout.worlds import InProcessPool, WorldFailure, WorldPool
from tacit.worlds import get_environment

ray = pytest.importorskip("ray", reason="Ray is not installed here; `make test-cluster` makes an environment that has it")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A simulated Ray cluster of two machines with two cores each."""
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 2, "object_store_memory": 80_000_000}
    found = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    found.add_node(**small)
    yield found
    ray.shutdown()
    found.shutdown()


@pytest.fixture(scope="module")
def actors(cluster: Any) -> Iterator[RayLauncher]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_TRUST_CODE", "1")  # the address does not come from the command line
        yield RayLauncher(cluster.address, 2)


def episodes(pool: WorldPool, world: Environment, policy: Any, count: int) -> list[Any]:
    context = History(world.wording("terse"), turns=1, style="bare")
    plans = [EpisodePlan(task, i) for i, task in enumerate(world.tasks("train", count, 0))]
    try:
        played = rollout(plans, context, pool, policy, Sampling(), 10)
    finally:
        pool.close()
    return [(t.stop, t.final, [(s.observation, s.action, s.effective) for s in t.steps]) for t in played]


def test_ray_actors_give_the_same_episodes_as_in_process(actors: RayLauncher) -> None:
    """Twenty episodes on two actors, more than one batch for each."""
    world = get_environment("countdown")
    ours = episodes(WorkerPool(world.make, 2, 60.0, launcher=actors), world, ScriptedPolicy(stumble_through_countdown), 20)
    assert ours == episodes(InProcessPool(world.make), world, ScriptedPolicy(stumble_through_countdown), 20)


class Counting:
    """A world that counts steps, reports its process and machine, and dies or hangs on certain actions."""

    def reset(self, task: Task) -> Observation:
        self._count = 0
        return self._observe()

    def step(self, action: str) -> Transition:
        if action == "die":
            os._exit(7)
        while action == "hang":
            signal.pause()
        self._count += 1
        return Transition(self._observe())

    def close(self) -> None:
        pass

    def _observe(self) -> Observation:
        return Observation(f"{self._count} {os.getpid()} {ray.get_runtime_context().get_node_id()}")


COUNT = Task("counting", "counting/0", "only", "train", 0, "count")


def step_counts(answers: list[Any]) -> list[int]:
    return [int(answer.observation.text.split()[0]) for answer in answers]


def test_dead_or_hanging_actor_ends_only_one_episode(actors: RayLauncher) -> None:
    pool = WorkerPool(Counting, 2, 5.0, launcher=actors)
    try:
        process = [int(answer.text.split()[1]) for answer in pool.reset([COUNT] * 6)]
        assert process[0] == process[2] == process[4] != process[1] == process[3] == process[5]
        assert step_counts(pool.step([(slot, "on") for slot in range(6)])) == [1] * 6
        first, *others = pool.step([(0, "die"), *((slot, "on") for slot in range(1, 6))])
        assert first.reason is StopReason.WORLD_ERROR and "Ray actor died" in first.detail
        assert step_counts(others) == [2] * 5
        hangs, *others = pool.step([(1, "hang"), *((slot, "on") for slot in range(2, 6))])
        assert hangs.reason is StopReason.WORLD_HANG and hangs.detail == "no answer within 5 s"
        assert step_counts(others) == [3] * 4
        now = int(pool.step([(2, "on")])[0].observation.text.split()[1])
        assert now != process[2]
        os.kill(now, signal.SIGKILL)  # while idle: the next request notices it
        lost, other = pool.step([(2, "on"), (4, "on")])
        assert lost.reason is StopReason.WORLD_ERROR and step_counts([other]) == [4]
        assert [answer.text.split()[0] for answer in pool.reset([COUNT] * 3)] == ["0"] * 3
    finally:
        pool.close()


def test_scienceworld_runs_in_ray_actors(actors: RayLauncher) -> None:
    world = get_environment("scienceworld")
    if world.remedy:
        pytest.skip(f"world 'scienceworld' {world.remedy}")
    assert isinstance(world.make, Served)
    tasks = world.tasks("train", 4, 0)
    walks = ["look around", "open door to kitchen", "inventory"]
    seen = []
    for pool in (WorkerPool(world.make, 2, 60.0, launcher=actors), InProcessPool(world.make, 60.0)):
        try:
            first = pool.reset(tasks)
            seen.append([first, *(pool.step([(slot, action) for slot in range(len(tasks))]) for action in walks)])
        finally:
            pool.close()
    assert seen[0] == seen[1]


def test_eval_command_plays_on_ray(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tacit", "eval", "expert", "--world", "countdown", "--tasks", "6", "--json"]
    found = []
    for name, there in (("here", []), ("there", ["--workers", "2", "--workers-at", "local"])):
        place = tmp_path / name
        done = subprocess.run([*command, str(place), *there], capture_output=True, text=True, cwd=tmp_path, timeout=300)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(place.read_text()))
    assert found[0] == found[1] and found[0]["success"] == 1.0


def test_too_small_or_conflicting_cluster_is_refused(cluster: Any, actors: RayLauncher) -> None:
    with pytest.raises(TacitError, match=r"workers = 99, but the Ray cluster at .* free CPU\(s\).*--workers \d"):
        RayLauncher(cluster.address, 99)
    with pytest.raises(TacitError, match=r"--workers-at local: this process has already joined the Ray cluster at '\S+'"):
        RayLauncher("local", 2)


def test_lost_machine_ends_only_one_episode_of_its_actor(cluster: Any, actors: RayLauncher) -> None:
    pool = WorkerPool(Counting, 2, 60.0, launcher=actors)
    try:
        machines = [answer.text.split()[2] for answer in pool.reset([COUNT] * 4)]
        assert machines[0] == machines[2] != machines[1] == machines[3], "they are spread"
        (second,) = (node for node in cluster.list_all_nodes() if not node.is_head())
        lost_node = machines.index(second.node_id)
        cluster.remove_node(second, allow_graceful=False)
        count, broken = 0, list[int]()
        while not broken and count < 300:  # its processes end a moment later
            time.sleep(0.1)
            count += 1
            answers = pool.step([(slot, "on") for slot in range(4)])
            broken = [slot for slot, answer in enumerate(answers) if isinstance(answer, WorldFailure)]
        assert len(broken) == 1 and broken[0] % 2 == lost_node
        assert answers.pop(broken[0]).reason is StopReason.WORLD_ERROR
        assert step_counts(answers) == [count] * 3
        assert {answer.observation.text.split()[2] for answer in answers} == {machines[1 - lost_node]}
    finally:
        pool.close()
