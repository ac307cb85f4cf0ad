"""Random episodes and a killed trainer leave no processes, mounts or files behind."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.code_world import children, left_over, play
from tacit.core.errors import TacitError
from tacit.worlds.code.tasks import tasks
from tacit.worlds.code.world import Bench, CodeWorld

ROOT = Path(__file__).parents[2]


def play_many(count: int) -> None:
    others = children(os.getpid())  # children of earlier tests
    try:
        bench = Bench()
    except TacitError as error:
        pytest.skip(str(error))
    try:
        world, found = CodeWorld(bench), tasks("train", 20, 0)
        before = {}
        for number in range(count):
            if number == count // 2:
                before = left_over(bench, others)
            play(world, found[number % len(found)], random.Random(number), 2)
        after = left_over(bench, others)
        assert {**after, "memory_mb": 0} == {**before, "memory_mb": 0}
        assert after["memory_mb"] <= before["memory_mb"] + 20 and after["workspaces"] == 0
        assert after["processes"] == len(bench.runner.pids), "the servers, and nothing below them"
        folder = bench.runner.sandbox.folder
    finally:
        bench.close()
    assert not folder.exists()


@pytest.mark.slow
def test_random_episodes_leak_no_resources():
    play_many(10)


@pytest.mark.slow
def test_many_random_episodes_leak_no_resources():
    play_many(400)


TRAINER = """
import sys, threading, time
from tacit.worlds.code.tasks import tasks
from tacit.worlds.code.world import Bench, CodeWorld
bench, [task] = Bench(), tasks("train", 1, 0)
worlds = [CodeWorld(bench) for _ in range(3)]
for world in worlds:
    world.reset(task)
hang = "create conftest.py import time; time.sleep(983)"
worlds[0].step(hang)
for world, action in zip(worlds, ("bash pytest", "bash sleep 983", "bash (setsid sleep 983 &) ; sleep 983")):
    threading.Thread(target=world.step, args=(action,), daemon=True).start()
time.sleep(1.5)
print(bench.runner.sandbox.folder, *bench.runner.pids, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_killed_trainer_leaves_no_process_mount_or_file():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER], stdout=subprocess.PIPE, text=True, env=environment)
    words = trainer.stdout.readline().split()
    if not words:
        pytest.skip("user namespaces are not allowed here")
    folder, *servers = words
    trainer.kill()
    trainer.wait()
    deadline = time.monotonic() + 30
    while True:
        processes = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True).stdout.splitlines()
        left = [line for line in processes if "sleep 983" in line or line.split()[0] in servers]
        if not left and not Path(folder).exists():
            break
        assert time.monotonic() < deadline, (left, list(Path(folder).rglob("*"))[:5])
        time.sleep(0.1)
    assert folder not in Path("/proc/self/mountinfo").read_text()
