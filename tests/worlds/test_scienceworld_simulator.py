"""ScienceWorld in its real simulator: the JVM is started, shared, killed and restarted."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from random import Random

import pytest
from scienceworld_traces import task, traces

from tacit.core.errors import TacitError
from tacit.core.simulator import SimulatorDied
from tacit.core.types import StopReason
from tacit.rollout.workers import WorkerPool
from tacit.rollout.worlds import WorldFailure
from tacit.worlds import get_environment
from tacit.worlds.scienceworld import world as science_world
from tacit.worlds.scienceworld.world import OUT_OF_STEPS, SERVED, TASKS, WRONG_FOCUS, GoldPath, goals

if get_environment("scienceworld").remedy:
    pytest.skip(f"scienceworld {get_environment('scienceworld').remedy}", allow_module_level=True)
pytestmark = pytest.mark.slow
SHORT = [pair for pair in traces() if len(pair[1]) < 16][2:10]
"""eight gold paths of at most fifteen turns, with wandering animals and with paint cups of equal names"""


@pytest.fixture(scope="module", autouse=True)
def closed_at_the_end():
    yield
    process = SERVED.start().process
    SERVED.close()
    assert process.wait(5) is not None


def answers(world, of, actions):
    """(observation text, score) from the reset on."""
    answers_so_far = [(world.reset(of).text, 0.0)]
    for action in actions:
        transition = world.step(action)
        answers_so_far.append((transition.observation.text, transition.score))
    return answers_so_far


def test_interleaved_episodes_reproduce_recorded_gold_paths():
    """Episodes interleaved in one JVM do not affect each other, including their random draws."""
    worlds = [SERVED() for _ in SHORT]
    for world, (of, turns) in zip(worlds, SHORT, strict=True):
        assert world.reset(of).text == turns[0][1]
    for turn in range(1, 15):
        for world, (of, turns) in zip(worlds, SHORT, strict=True):
            if turn < len(turns):
                action, text, score = turns[turn]
                transition = world.step(action)
                assert (transition.observation.text, transition.score) == (text, score), (of.id, turn, action)
                assert transition.done == transition.success == (turn == len(turns) - 1), of.id
    for world in worlds:
        world.close()


def test_concurrent_task_does_not_reuse_object_ids():
    """Regression: an object made by `disconnect` once got the id of the episode's agent, which could then not be found."""
    first, second = SERVED(), SERVED()
    first.reset(task("test-conductivity", 285))
    second.reset(task("find-non-living-thing", 106))
    for mine, other in (("flush kitchen", "open door to hallway"), ("disconnect fountain", "go to hallway")):
        first.step(mine)
        second.step(other)
    assert first.step("look in agent").observation.text == "It's not clear how to look inside of that."
    first.close()
    second.close()


def test_expert_wins_and_rewards_follow_the_score():
    world = SERVED()
    for name in ("lifespan-shortest-lived", "find-non-living-thing"):
        of = task(name, 0)
        expert, seen, total = GoldPath(of), world.reset(of), 0.0
        for _ in range(40):
            transition = world.step(expert.act(seen))
            seen, total = transition.observation, total + transition.reward
            if transition.done:
                break
        assert transition.success and transition.score == 1.0 and 0.75 < total <= 1.0
    world.close()


def test_step_limit_and_wrong_focus_end_the_episode():
    world = SERVED()
    world.reset(task("boil", 0, limit=2))
    assert not world.step("wait1").done
    late = world.step("wait1")
    assert late.done and not late.success and late.label == OUT_OF_STEPS
    with pytest.raises(TacitError, match="no ScienceWorld episode is running"):
        world.step("wait1")
    world.reset(task("boil", 0))
    lost = world.step("focus on air")
    assert lost.done and not lost.success and (lost.score, lost.label) == (0.0, WRONG_FOCUS) and lost.reward <= -1
    world.close()


HOSTILE = [
    "",
    " ",
    "\n",
    "0",
    "999",
    "go to " * 200,
    "open door to kitchen\nlook around",
    "\x00",
    "\ud800",
    "日本語",
    "'; exit",
    "focus",
]


def test_hostile_actions_and_invalid_tasks_are_handled():
    world = SERVED()
    world.reset(task("melt", 3))
    for action in HOSTILE:
        transition = world.step(action)
        assert isinstance(transition.observation.text, str) and not transition.done
    assert not world.step("frobnicate the widget").effective
    assert world.step("look around").effective
    for strange in ({}, {"task": "boil", "variation": 9999}, {"task": "bake a cake", "variation": 0}):
        with pytest.raises(TacitError, match=r"is not a ScienceWorld task|has no variation"):
            world.reset(type(task("boil", 0))("scienceworld", "x", "power", "train", 0, "", strange))
    world.close()


def test_random_episodes_run_without_exceptions():
    environment, rng = get_environment("scienceworld"), Random(0)
    tracker, world, words = (
        environment.tracker,
        SERVED(),
        ["thermometer", "metal pot", "sink", "air", "agent", "kitchen", "door", "5"],
    )
    verbs = ["pick up {}", "open door to {}", "go to {}", "move {} to {}", "activate {}", "pour {} into {}", "use {} on {}",
             "wait", "mix {}", "connect {} to {}", "look in {}", "inventory", "read {}", "eat {}", "{}"]  # fmt: skip
    for of in environment.tasks("train", 5, 3):
        state = tracker.start(of, world.reset(of))
        for _ in range(12):
            action = rng.choice(verbs).format(rng.choice(words), rng.choice(words))
            transition = world.step(action).in_plain_numbers()
            after = tracker.update(state, action, transition)
            assert set(tracker.signals(state, after)) >= {"progress", "error"}
            state = after
            if transition.done:
                break
    world.close()


def test_episode_is_identical_in_another_process():
    (of, turns) = next(pair for pair in SHORT if pair[0].data["task"] == "find-animal")
    actions = [action for action, *_ in turns[1:]]
    # Play another task first: earlier episodes must not affect this one.
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[2])\n"
        "from scienceworld_traces import task\n"
        "from tacit.worlds.scienceworld.world import SERVED\n"
        "world = SERVED(); world.reset(task('chemistry-mix-paint-secondary-color', 1)); world.step('look around')\n"
        f"texts = [world.reset(task('find-animal', {of.data['variation']})).text]\n"
        "texts += [world.step(action).observation.text for action in json.loads(sys.argv[1])]\n"
        "world.close(); SERVED.close(); print(json.dumps(texts))"
    )
    here = os.path.dirname(__file__)
    done = subprocess.run([sys.executable, "-c", code, json.dumps(actions), here], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [text for _, text, _ in turns]


def test_packaged_goals_equal_those_of_the_simulator():
    world, rng = SERVED(), Random(1)
    for name in ("inclined-plane-friction-named-surfaces", "test-conductivity", "chemistry-mix"):
        variation = rng.randrange(sum(TASKS[name][1:4]))
        world.reset(task(name, variation))
        goal = world.world.ask("getTaskDescription")
        assert goal == goals()[name][variation]
    world.close()


def test_too_many_concurrent_episodes_are_refused(monkeypatch):
    monkeypatch.setattr(science_world, "MAX_EPISODES", len(SERVED.start().slots))
    world = SERVED()
    with pytest.raises(TacitError, match="run fewer, or use more worker processes"):
        world.reset(task("boil", 0))


def test_unclosed_worlds_release_their_slots():
    before = len(SERVED.start().slots)
    forgotten = SERVED()
    forgotten.reset(task("boil", 0))
    assert len(SERVED.start().slots) == before + 1
    del forgotten
    gc.collect()
    assert len(SERVED.start().slots) == before
    closed = SERVED()
    closed.reset(task("boil", 1))
    inner = closed.world
    idle = len(SERVED.start().idle_interfaces)
    closed.close()
    inner.close()
    assert len(SERVED.start().idle_interfaces) == idle + 1, "a seat comes back once"


def test_killed_jvm_ends_its_episodes_and_is_restarted():
    first, second = SERVED(), SERVED()
    first.reset(task("boil", 0))
    second.reset(task("boil", 1))
    process = SERVED.start().process
    process.send_signal(signal.SIGKILL)
    process.wait()
    with pytest.raises(SimulatorDied, match="the JVM no longer answers"):
        first.step("look around")
    with pytest.raises(SimulatorDied, match="the simulator of this episode is gone"):
        second.step("look around")
    assert "This room is called" in first.reset(task("boil", 0)).text
    assert SERVED.start().process.pid != process.pid
    first.close()


def test_worker_pool_recovers_from_a_killed_jvm():
    """Its episodes fail, the next ones are played, and closing the pool leaves no JVM."""
    workers = WorkerPool(SERVED, processes=1)
    tasks = [task("boil", 0), task("melt", 0)]
    try:
        assert all("This room" in seen.text for seen in workers.reset(tasks))
        jvm = children_of(workers.workers[0].process.pid)
        assert len(jvm) == 1
        os.kill(jvm[0], signal.SIGKILL)
        broken = workers.step([(0, "look around"), (1, "look around")])
        assert all(isinstance(b, WorldFailure) and b.reason is StopReason.WORLD_ERROR for b in broken)
        assert all("This room" in seen.text for seen in workers.reset(tasks))
        (again,) = children_of(workers.workers[0].process.pid)
    finally:
        workers.close()
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{again}") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{again}")


def children_of(pid: int) -> list[int]:
    processes = subprocess.run(
        ["ps", "-o", "pid=,comm=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    ).stdout
    return [int(line.split()[0]) for line in processes.splitlines() if "java" in line]
