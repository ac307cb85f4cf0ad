"""Sessions over HTTP on a real server: isolated, ordered, limited, and with a clear end."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from served import WORLD, Served, heat_elsewhere, played, served

from tacit.modules import Agent

SEEN = "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a microwave 1, and a fridge 1."
GOAL = "put a hot mug in cabinet."


def alone(modules: Path, task, steps: int, seed: int, temperature: float) -> list[str]:
    agent, world, actions = Agent.load(modules, temperature=temperature), WORLD.make(), []
    agent.begin(task.goal, task.family, seed=seed)
    observation = world.reset(task)
    for _ in range(steps):
        actions.append(agent.act(observation))
        transition = world.step(actions[-1])
        agent.observe(transition)
        observation = transition.observation
    return actions


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_concurrent_episodes_match_those_played_alone(modules: Path, server: Served, temperature: float) -> None:
    tasks = [task for family in ("heat", "pick", "pick2") for task in WORLD.tasks_of("seen", 4, 3, (family,))]
    with ThreadPoolExecutor(len(tasks)) as pool:
        futures = [pool.submit(played, server, task, 4, i, temperature=temperature) for i, task in enumerate(tasks)]
        over_http = [episode.result() for episode in futures]
    assert over_http == [alone(modules, task, 4, i, temperature) for i, task in enumerate(tasks)]
    rows = re.findall(
        r'tacit_batch_rows_bucket\{le="1.0"\} (\S+)|tacit_batch_rows_count (\S+)', server.send("GET", "/metrics")[1]
    )
    assert float(rows[1][1]) > float(rows[0][0]), "some of them shared a batch"


def test_turn_reports_the_prompt_and_action_probabilities(server: Served) -> None:
    path = server.begin(GOAL, "heat")
    turn = server.post(f"{path}/observe", {"observation": SEEN, "actions": ["go to fridge 1", "look"], "alternatives": 2})
    assert turn["turn"] == 1 and turn["module"] == "alfworld/heat" and turn["open"]
    assert turn["state"].startswith("subgoal: ") and turn["state"] in turn["prompt"] and GOAL in turn["prompt"]
    assert 0 < turn["probability"] <= 1 and turn["prompt_tokens"] > 10 and turn["tokens"] > 0
    assert {a["action"] for a in turn["alternatives"]} == {"go to fridge 1", "look"}
    assert sorted((a["probability"] for a in turn["alternatives"]), reverse=True) == [
        a["probability"] for a in turn["alternatives"]
    ]
    kept = server.get(path)
    assert kept["turns"][0]["action"] == turn["action"] and kept["turns"][0]["observation"] == SEEN


def test_repeated_request_for_a_turn_gets_the_same_answer(server: Served) -> None:
    path = server.begin(GOAL, "heat")
    first = server.post(f"{path}/observe", {"observation": SEEN, "turn": 1})
    assert server.post(f"{path}/observe", {"observation": SEEN, "turn": 1}) == first
    assert server.refusal(f"{path}/observe", {"observation": "Other.", "turn": 1})[0] == 409
    assert server.refusal(f"{path}/observe", {"observation": SEEN, "turn": 3}) == (
        409,
        "turn 3 is out of order; the next turn is 2.",
    )
    for end in ("done", "success"):
        status, message = server.refusal(f"{path}/observe", {"observation": SEEN, "turn": 1, end: True})
        assert status == 409 and "turn 1 was not the end when it was first sent" in message and "as turn 2" in message
    assert server.post(f"{path}/observe", {"observation": "The fridge 1 is closed.", "turn": 2})["turn"] == 2
    assert server.post(f"{path}/observe", {"observation": SEEN, "turn": 3, "done": True})["outcome"] == "failure"


def test_ended_session_stays_ended(server: Served) -> None:
    path = server.begin(GOAL, "heat")
    server.post(f"{path}/observe", {"observation": SEEN})
    last = server.post(f"{path}/observe", {"observation": "Done.", "done": True, "success": True})
    assert (last["action"], last["open"], last["outcome"], last["final"]) == (None, False, "success", "Done.")
    for what, body in (("observe", {"observation": SEEN}), ("end", {}), ("step", {})):
        status, message = server.refusal(f"{path}/{what}", body)
        assert status == 410 and "has ended: success. Begin a new one." in message
    sessions = {session["session"]: session for session in server.get("/sessions")["sessions"]}
    assert sessions[path.rpartition("/")[2]]["outcome"] == "success"


def test_hosted_episode_can_be_played_by_module_and_by_hand(server: Served) -> None:
    session = server.post("/sessions", {"skill": "heat", "play": {"split": "seen", "number": 1}})
    path = f"/sessions/{session['session']}"
    task = WORLD.tasks_of("seen", 2, 0, ("heat",))[1]
    assert (
        session["goal"] == task.goal
        and session["hosted"]
        and session["turns"][0]["observation"] == WORLD.make().reset(task).text
    )
    turn = server.post(f"{path}/step", {"alternatives": 3})
    assert turn["by"] == "module" and len(turn["alternatives"]) == 3
    assert turn["next"]["turn"] == 2
    by_hand = server.post(f"{path}/step", {"action": "inventory"})
    assert by_hand["by"] == "hand" and "You are not carrying anything" in by_hand["next"]["observation"]
    assert server.refusal(f"{path}/observe", {"observation": SEEN})[0] == 409
    refused = server.refusal("/sessions", {"skill": "heat", "play": {"split": "nowhere"}})
    assert refused[0] == 422 and "unknown split 'nowhere'" in refused[1]


def test_expert_actions_by_hand_succeed(server: Served) -> None:
    session = server.post("/sessions", {"skill": "pick", "family": "pick", "play": {"split": "seen", "number": 0}})
    task = WORLD.tasks_of("seen", 1, 0, ("pick",))[0]
    world, expert = WORLD.make(), WORLD.expert()(task)
    observation, turn = world.reset(task), {"open": True}
    for _ in range(60):
        action = expert.act(observation)
        observation = world.step(action).observation
        turn = server.post(f"/sessions/{session['session']}/step", {"action": action})
        if not turn["open"]:
            break
    assert turn["outcome"] == "success" and turn["next"] is None


@pytest.mark.slow
def test_too_long_hosted_observation_ends_the_episode_and_keeps_its_transcript(modules: Path, tmp_path: Path) -> None:
    words = "return Transition(Observation(' '.join(f'x{i}' for i in range(1500))))"
    with served(heat_elsewhere(modules, tmp_path, words)) as server:
        path = f"/sessions/{server.post('/sessions', {'skill': 'heat', 'play': {'split': 'seen'}})['session']}"
        status, message = server.refusal(f"{path}/step", {"action": "look"})
        assert status == 422 and ("do not fit" in message or "more than the bound" in message)
        session = server.get(path)
        assert (session["outcome"], session["note"]) == ("broken", message) and session["final"].startswith("x0 x1 ")
        assert [(turn["action"], turn["by"]) for turn in session["turns"]] == [("look", "hand")]
        assert server.refusal(f"{path}/step", {"action": "inventory"})[0] == 410
        assert server.get(path) == session


@pytest.mark.slow
def test_session_limits_are_enforced_and_reported(modules: Path) -> None:
    with served(modules, "--sessions", "2", "--turns", "2", "--idle-s", "1.5", "--kept", "2") as server:
        first, second = server.begin(GOAL, "heat"), server.begin(GOAL, "heat")
        assert server.refusal("/sessions", {"goal": GOAL, "family": "heat"})[0] == 429
        for turn in (1, 2):
            server.post(f"{first}/observe", {"observation": SEEN, "turn": turn})
        status, message = server.refusal(f"{first}/observe", {"observation": SEEN})
        assert status == 410 and "has had 2 turns" in message
        here = server.post("/sessions", {"skill": "heat", "play": {"split": "seen"}})["session"]
        assert server.post(f"/sessions/{here}/step", {"action": "look"})["open"]
        last = server.post(f"/sessions/{here}/step", {"action": "look"})
        assert (last["turn"], last["outcome"], last["next"]) == (2, "limit", None) and last["final"]
        deadline = time.monotonic() + 30
        while server.get(second)["open"] and time.monotonic() < deadline:
            time.sleep(0.2)
        status, message = server.refusal(f"{second}/observe", {"observation": SEEN})
        assert status == 410 and "expired (no request for 1.5 s)" in message
        server.begin(GOAL, "heat")


@pytest.mark.slow
def test_sessions_of_a_killed_server_are_reported_as_gone(modules: Path) -> None:
    server = Served(modules)
    path = server.begin(GOAL, "heat")
    server.post(f"{path}/observe", {"observation": SEEN})
    server.process.kill()
    server.stop()
    with served(modules, port=server.port) as again:
        status, message = again.refusal(f"{path}/observe", {"observation": SEEN})
        assert status == 410 and "belonged to a server that has been stopped" in message
        assert again.refusal("/sessions/never-begun/observe", {"observation": SEEN})[0] == 404
        again.begin(GOAL, "heat")


@pytest.mark.slow
def test_stopping_server_answers_running_requests_and_exits_cleanly(modules: Path) -> None:
    server = Served(modules)
    tasks = WORLD.tasks_of("seen", 8, 5, ("heat",))
    paths = [server.begin(task.goal, "heat") for task in tasks]
    with ThreadPoolExecutor(len(paths)) as pool:
        answers = [pool.submit(server.ask, "POST", f"{path}/observe", {"observation": SEEN}) for path in paths]
        time.sleep(0.05)
        server.process.terminate()
        statuses = set()
        for answer in answers:
            try:
                statuses.add(answer.result()[0])
            except OSError:  # sent after the server had closed its socket
                statuses.add(0)
    assert statuses <= {200, 0} and server.stop() == 0
