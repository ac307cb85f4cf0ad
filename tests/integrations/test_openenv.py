"""The OpenEnv integration with the real package: a real server, the OpenEnv client, and our client."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("openenv.core", reason="needs the extra openenv")
import uvicorn
from openenv.core import GenericEnvClient
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment as OpenEnvironment
from openenv.core.env_server.types import Action, State
from openenv.core.env_server.types import Observation as Shown

from tacit.core.errors import TacitError
from tacit.core.types import Observation
from tacit.integrations.openenv import openenv_app, openenv_environment
from tacit.worlds import get_environment

ROOT = Path(__file__).resolve().parents[2]
HOUSEHOLD = get_environment("alfworld")


def serve(app):
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    return server, thread, f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def household():
    server, thread, url = serve(openenv_app("alfworld", split="unseen", tasks=6, max_steps=40))
    yield url
    server.should_exit = True
    thread.join(10)


def seen(result):
    return Observation(result.observation["text"], tuple(result.observation["admissible_actions"]))


def test_expert_wins_through_the_openenv_client(household):
    tasks = HOUSEHOLD.tasks_of("unseen", 6, 0)
    with GenericEnvClient(household).sync() as client:
        for number in (0, 4):
            result = client.reset(task=number)
            world, expert = HOUSEHOLD.make(), HOUSEHOLD.expert()(tasks[number])
            assert seen(result) == world.reset(tasks[number]) and result.observation["goal"] == tasks[number].goal
            while not result.done:
                action = expert.act(seen(result))
                result, transition = client.step({"action": action}), world.step(action)
                assert seen(result) == transition.observation and result.done == transition.done
            assert result.reward == 1.0 and result.observation["success"] and result.observation["score"] == 1.0
            state = client.state()
            assert state["task"] == tasks[number].id and state["step_count"] > 3


def test_seed_chooses_a_task_and_sessions_are_independent(household):
    with GenericEnvClient(household).sync() as one, GenericEnvClient(household).sync() as other:
        first, second = one.reset(seed=5), other.reset(seed=5)
        assert seen(first) == seen(second) and first.observation["task"] == second.observation["task"]
        moved = one.step({"action": seen(first).actions[0]})
        assert seen(moved) != seen(first) and other.state()["step_count"] == 0 and one.state()["step_count"] == 1


def test_errors_are_reported_and_the_session_continues(household):
    with GenericEnvClient(household).sync() as client:
        with pytest.raises(RuntimeError, match="call reset first"):
            client.step({"action": "look"})
        client.reset(seed=1)
        with pytest.raises(RuntimeError, match="VALIDATION"):
            client.step({"act": "look"})
        assert not client.step({"action": "fly to the moon"}).observation["effective"]


def test_tasks_are_made_once_for_all_sessions():
    calls = []
    counted = replace(HOUSEHOLD, tasks=lambda *arguments: calls.append(arguments) or HOUSEHOLD.tasks(*arguments))
    server, thread, url = serve(openenv_app(counted, split="unseen", tasks=2))
    before = len(calls)
    for number in range(2):
        with GenericEnvClient(url).sync() as client:
            client.reset(task=number)
    server.should_exit = True
    thread.join(10)
    assert before and len(calls) == before


def test_http_endpoints_work_without_a_client(household):
    with urllib.request.urlopen(f"{household}/schema", timeout=10) as answer:
        assert json.load(answer)["action"]["properties"]["action"]["type"] == "string"
    with urllib.request.urlopen(f"{household}/metadata", timeout=10) as answer:
        assert json.load(answer)["name"] == "alfworld"
    request = urllib.request.Request(
        f"{household}/reset", data=json.dumps({"seed": 3}).encode(), headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert "Your task is to" in json.load(answer)["observation"]["text"]


def test_round_trip_through_openenv_is_the_same_world(household):
    theirs = openenv_environment("theirs", household, "Do what the first text asks.", max_steps=40)
    world, ours = theirs.make(), HOUSEHOLD.make()
    by_goal = {task.goal: task for task in HOUSEHOLD.tasks_of("unseen", 6, 0)}
    (task,) = theirs.tasks("test", 1, 0)
    observation = world.reset(task)
    mine = next(t for goal, t in by_goal.items() if f"Your task is to: {goal}" in observation.text)
    expert = HOUSEHOLD.expert()(mine)
    assert observation == ours.reset(mine) == world.reset(task)
    done = False
    while not done:
        action = expert.act(observation)
        there, here = world.step(action), ours.step(action)
        assert (there.observation, there.done, there.success, there.effective) == (
            here.observation, here.done, here.success, here.effective,
        )  # fmt: skip
        observation, done = there.observation, there.done
    assert there.success and there.score == 1.0 and there.reward == 1.0
    world.close()


class Say(Action):
    word: str
    loud: bool = False


class Heard(Shown):
    echo: str
    mood: str = ""


class Parrot(OpenEnvironment):
    """A third-party environment: pays for repeating its word and does not report success."""

    def reset(self, seed=None, episode_id=None, **more):
        self.word = f"word{(seed or 0) % 7}"
        return Heard(echo=self.word)

    def step(self, action, timeout_s=None, **more):
        right = action.word == self.word
        return Heard(echo="yes" if right else "no", reward=1.0 if right else -0.5, done=right)

    @property
    def state(self):
        return State()


def test_third_party_server_becomes_a_world():
    server, thread, url = serve(create_fastapi_app(Parrot, Say, Heard))
    try:
        with pytest.raises(TacitError, match=r"which field of an observation .* is the text \(echo, mood\); set text_field"):
            openenv_environment("parrot", url, "Say the word.")
        theirs = openenv_environment("parrot", url, "Say the word.", max_steps=5, text_field="echo")
        world = theirs.make()
        (task,) = theirs.tasks("train", 1, 0)
        word = world.reset(task).text
        assert word == f"word{task.data['seed'] % 7}"
        wrong = world.step("word")
        assert (wrong.reward, wrong.done, wrong.success, wrong.score) == (-0.5, False, False, 0.0)
        right = world.step(word)
        assert right.done and right.success and right.reward == 1.0 and right.score == 1.0
        world.close()
    finally:
        server.should_exit = True
        thread.join(10)


def test_missing_server_and_unknown_split_are_refused():
    with pytest.raises(TacitError, match=r"no OpenEnv server answers at http://127\.0\.0\.1:9"):
        openenv_environment("nobody", "http://127.0.0.1:9", "…")
    with pytest.raises(TacitError, match="unknown split 'unsen'"):
        openenv_app("alfworld", split="unsen")


def test_example_script_runs():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "openenv_integration.py")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "won through OpenEnv: True reward: 1.0" in done.stdout and "played here: " in done.stdout
