"""Hostile requests get a clear status and message and do not affect other sessions."""

from __future__ import annotations

import json
import random
import shutil
import socket
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from served import TOKEN, WORLD, Served, observation_fields, played, served

SEEN = "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a microwave 1, and a fridge 1."
CHAT = {"model": "heat", "messages": [{"role": "user", "content": "x"}]}
LONG_CHAT = {"model": "heat", "messages": [{"role": "user", "content": "x y " * 4000}]}
BEGIN = {"goal": "put a hot mug in cabinet.", "family": "heat"}
PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}


def half(name: str) -> dict:
    """A message, or a part of one, with a lone surrogate."""
    return {"role": "user", "type": "text", name: "x \ud800"}


@pytest.mark.parametrize(("token", "says"), [(None, "a token is needed"), ("wrong", "the token is wrong"), ("", "is needed")])
@pytest.mark.parametrize("path", ["/sessions", "/v1/models", "/metrics", "/modules", "/nowhere", "/openapi.json"])
def test_requests_without_a_valid_token_are_refused(server: Served, token: str | None, says: str, path: str) -> None:
    status, text = server.send("GET", path, token=token)
    assert status == 401 and says in json.loads(text)["error"]["message"]


def test_health_and_the_page_need_no_token(server: Served) -> None:
    assert server.send("GET", "/health", token=None) == (200, '{"status":"ok","version":"0.1.0"}')
    assert server.send("GET", "/", token=None)[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/sessions", json.dumps({**BEGIN, "goal": "x" * 1_000_000}), 413, "the limit is 262144 bytes"),
        ("/sessions", json.dumps({**BEGIN, "goal": "x" * 20_000}), 422, "goal: String should have at most 16384 characters"),
        ("/sessions", json.dumps({"family": "heat"}), 422, "needs a goal"),
        ("/sessions", json.dumps({**BEGIN, "family": "cook"}), 404, "unknown family 'cook'"),
        ("/sessions", json.dumps({**BEGIN, "skill": "heat", "family": "cook"}), 422, "'heat' is for heat, not for 'cook'"),
        ("/sessions", json.dumps({**BEGIN, "world": "nowhere"}), 404, "unknown world 'nowhere'"),
        ("/sessions", json.dumps({**BEGIN, "skill": "cook"}), 404, "unknown module 'cook'"),
        ("/sessions", json.dumps({"goal": "x"}), 422, "one of heat, pick, pick2"),
        ("/sessions", json.dumps({"skill": "heat", "play": {"number": 512}}), 422, "task 512: task numbers are 0 to 511"),
        ("/sessions", json.dumps({"skill": "heat", "play": {"number": -1}}), 422, "task -1: task numbers are 0 to 511"),
        ("/sessions", json.dumps({**BEGIN, "temperature": -1}), 422, "temperature"),
        ("/sessions", '{"goal": "x", "family": "heat", "temperature": NaN}', 422, "temperature"),
        ("/sessions", json.dumps({**BEGIN, "temperature": 1e-320}), 422, "too close to 0; use 0"),
        ("/v1/chat/completions", json.dumps({**CHAT, "temperature": 1e-320}), 422, "too close to 0; use 0"),
        ("/sessions", json.dumps({**BEGIN, "color": 1}), 422, "color: Extra inputs"),
        ("/sessions", '{"goal": "\\ud800", "family": "heat"}', 422, "goal"),
        ("/sessions", '{"goal": ', 422, "it is not JSON (at character"),
        ("/sessions", b"\xff\xfe\x00", 4, ""),
        ("/sessions", "[" * 50_000, 4, ""),
        ("/sessions", json.dumps([1]), 422, "the body: Input should be an object"),
        ("/sessions", '{"goal": "x", "seed": ' + "9" * 5000 + "}", 422, "its JSON cannot be read (Exceeds the limit"),
        ("/sessions", json.dumps({"skill": "heat", "goal": "x", "play": {}}), 422, "has its own goal"),
        ("/sessions/x/observe", json.dumps({"observation": None}), 422, "observation: Field required"),
        ("/sessions/x/observe", json.dumps({"observation": "y", "label": None, "turn": None}), 404, "there is no session"),
        ("/sessions/x/observe", json.dumps({"observation": "y"}), 404, "there is no session 'x'"),
        ("/nowhere", "{}", 404, "there is nothing at POST /nowhere"),
        ("/health", "{}", 405, "is not supported"),

        ("/v1/chat/completions", json.dumps({"model": "heat", "messages": []}), 422, "messages"),
        ("/v1/chat/completions", json.dumps(LONG_CHAT), 422, "context of"),
        ("/v1/chat/completions", json.dumps({**CHAT, "max_tokens": 10**6}), 422, "max_tokens"),
        ("/v1/chat/completions", json.dumps({**CHAT, "stop": [""]}), 422, "stop"),
        ("/v1/chat/completions", json.dumps({**CHAT, "tools": []}), 422, "tools"),
        ("/v1/chat/completions", json.dumps({**CHAT, "messages": [PICTURE]}), 422, "request: messages.0.content: Input"),
        ("/v1/chat/completions", json.dumps({**CHAT, "messages": [half("content")]}), 422, "lone surrogate"),
        ("/v1/chat/completions", json.dumps({**CHAT, "messages": [{**half("x"), "content": [half("text")]}]}), 422, "lone"),
        ("/v1/chat/completions", json.dumps({**CHAT, "stop": ["\ud800"]}), 422, "stop"),
        ("/v1/chat/completions", json.dumps({**CHAT, "user": "\udfff"}), 422, "user: Value error, contains a lone surrogate"),
        ("/v1/chat/completions", json.dumps({**CHAT, "\ud800": 1}), 422, "valid string"),
    ],
)  # fmt: skip
def test_invalid_requests_are_refused_with_a_message(server: Served, path: str, body: str, status: int, says: str) -> None:
    found, text = server.send("POST", path, body)
    assert (found if status > 10 else found // 100) == status, text
    assert says in json.loads(text)["error"]["message"]


def test_too_long_observation_leaves_the_session_open(server: Served) -> None:
    path = server.begin(BEGIN["goal"], "heat")
    server.post(f"{path}/observe", {"observation": SEEN})
    long = {"observation": "You see " + " ".join(f"x{i}" for i in range(1500))}
    status, message = server.refusal(f"{path}/observe", long)
    assert status == 422 and ("exceeds the model" in message or "more than the bound" in message)
    assert server.get(path)["open"]
    assert server.post(f"{path}/observe", {"observation": "You see a fridge 1.", "turn": 2})["turn"] == 2


def test_curl_can_play_an_episode(server: Served) -> None:
    program = shutil.which("curl")
    if program is None:
        pytest.skip("no curl on this machine")

    def curl(path: str, body: dict) -> dict:
        words = [program, "-sS", "--max-time", "60", "-H", f"Authorization: Bearer {TOKEN}", "--json", json.dumps(body)]
        return json.loads(subprocess.run([*words, server.address + path], capture_output=True, check=True).stdout)

    session = curl("/sessions", BEGIN)["session"]
    assert curl(f"/sessions/{session}/observe", {"observation": SEEN})["turn"] == 1
    assert curl(f"/sessions/{session}/end", {"outcome": "success"})["outcome"] == "success"


@pytest.mark.slow
def test_malformed_requests_do_not_disturb_a_running_episode(server: Served) -> None:
    """Random bytes, truncated JSON, wrong lengths and types, over many connections, during an episode."""
    task = WORLD.tasks_of("seen", 1, 9, ("heat",))[0]
    expected = played(server, task, 4, 3)
    path, world = server.begin(task.goal, "heat", seed=3), WORLD.make()
    fields, actions, statuses, before = observation_fields(world.reset(task)), [], [], server.complaints
    with ThreadPoolExecutor(4) as pool:
        for turn in range(4):
            floods = [pool.submit(flood, server.port, 1000 * turn + i, 625) for i in range(4)]
            actions.append(server.post(f"{path}/observe", fields)["action"])
            fields = observation_fields(world.step(actions[-1]).observation)
            statuses += [status for done in floods for status in done.result()]
    assert len(statuses) == 10_000 and all(400 <= status < 500 for status in statuses), Counter(statuses)
    assert actions == expected and server.get("/health")["status"] == "ok"
    assert server.complaints == before, "nobody can fill its log"


def flood(port: int, seed: int, count: int) -> list[int]:
    """The status of the answer to each malformed request; 0 without an answer."""
    noise, statuses = random.Random(seed), []
    connection: socket.socket | None = None
    for _ in range(count):
        if connection is None:
            connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        try:
            connection.sendall(malformed(noise))
            answer = read_answer(connection)
        except OSError:
            answer = b""
        statuses.append(int(answer.split()[1]) if answer else 0)
        if not answer or b"connection: close" in answer.lower():
            connection.close()
            connection = None
    return statuses


def malformed(noise: random.Random) -> bytes:
    kind = noise.randrange(7)
    if kind == 0:
        return noise.randbytes(noise.randrange(4, 200)) + b"\r\n\r\n"
    body = {
        1: noise.randbytes(40),
        2: b'{"goal": "put a hot mug in cabinet.", "family": ' + noise.randbytes(3),
        3: json.dumps({"goal": noise.choice([None, 1, [], {}, "x"]), "family": noise.choice([[], 5, "cook", ""])}).encode(),
        4: json.dumps({"observation": noise.choice([1, None, ["x"]]), "turn": "one"}).encode(),
        5: b"[" * noise.randrange(1, 5000),
        6: json.dumps({**CHAT, "messages": [{**half("x"), "content": noise.choice(["\udfff", [half("text")]])}]}).encode(),
    }[kind]
    path = {4: "/sessions/none/observe", 6: "/v1/chat/completions"}.get(
        kind, noise.choice(["/sessions", "/v1/chat/completions"])
    )
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def read_answer(connection: socket.socket) -> bytes:
    answer = b""
    while b"\r\n\r\n" not in answer:
        piece = connection.recv(65536)
        if not piece:
            return answer
        answer += piece
    head, _, rest = answer.partition(b"\r\n\r\n")
    lengths = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while lengths and len(rest) < lengths[0] and (piece := connection.recv(65536)):
        rest += piece
    return head


@pytest.mark.slow
def test_no_token_server_answers_only_local_requests(modules) -> None:
    with served(modules, "--no-token") as server:
        assert server.send("GET", "/modules", token=None)[0] == 200
        status, text = server.send("GET", "/modules", token=None, host="evil.example:80")
        assert status == 403 and "only local requests are answered" in text
        for origin in ("https://evil.example", "null", f"http://127.0.0.1:{server.port + 1}"):
            status, text = server.send("POST", "/modules/refresh", token=None, origin=origin, **{"content-type": "text/plain"})
            assert status == 403 and "a page of" in text
        for host in ("127.0.0.1", "localhost"):
            own = f"{host}:{server.port}"
            assert server.send("POST", "/modules/refresh", token=None, host=own, origin=f"http://{own}")[0] == 200
