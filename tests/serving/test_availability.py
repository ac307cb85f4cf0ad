"""The server stays available when clients send too slowly, read too slowly or request too much."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import socket
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import TOKEN, WORLD, Served, connect, read_to_end, served
from small_modules import change_manifest
from test_hostile_requests import read_answer

from tacit.core.errors import TacitError
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.bases import hash_file
from tacit.modules import read_module
from tacit.serving import guard
from tacit.serving.app import make_app
from tacit.serving.batching import WorkerThread
from tacit.serving.requests import RequestError
from tacit.serving.server import TOKEN as VARIABLE
from tacit.serving.server import find_tokens, limit_memory, listen
from tacit.serving.service import Service
from tacit.serving.sessions import count_bytes
from tacit.serving.settings import ServingSettings

BEGIN = {"goal": "put a hot mug in cabinet.", "family": "heat"}
SEEN = "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a microwave 1, and a fridge 1."
KNOWN = f"authorization: Bearer {TOKEN}\r\n"
CLIENTS = {"ada": "5f2c1b7e9a3d4c68", "ben": "0d9e8f7a6b5c4132"}


@pytest.fixture(scope="module")
def bounded(modules: Path):
    flags = ("--answer-s", "2", "--client-connections", "24", "--session-bytes", "30000", "--total-bytes", "50000")
    with served(modules, *flags) as found:
        yield found


@pytest.fixture(scope="module")
def shared(modules: Path, tmp_path_factory: pytest.TempPathFactory):
    file = tmp_path_factory.mktemp("tokens") / "tokens"
    file.write_text("# who may ask\n" + "".join(f"{client} {token}\n" for client, token in CLIENTS.items()))
    with served(modules, "--host", "127.0.0.2", "--token-file", str(file), token="") as found:
        yield found


def memory(server: Served) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return 1024 * int(re.findall(r"VmRSS:\s+(\d+)", status)[0])


@pytest.mark.slow
@pytest.mark.parametrize("length", ["content-length: 100", "transfer-encoding: chunked"])
def test_refused_request_with_unfinished_body_is_closed(bounded: Served, length: str) -> None:
    connection = connect(bounded, f"POST /sessions HTTP/1.1\r\nhost: x\r\n{length}\r\n\r\n")
    answer = read_to_end(connection)
    # 408 if the machine is so busy that the body times out before the refusal
    assert answer.startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 408 ")) and b"connection: close" in answer


def test_refused_request_with_finished_body_keeps_its_connection(bounded: Served) -> None:
    connection = connect(bounded, "POST /sessions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
    assert b" 401 " in read_answer(connection)
    connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b" 200 " in read_answer(connection)


@pytest.mark.slow
@pytest.mark.parametrize("words", [f"POST /sessions HTTP/1.1\r\n{KNOWN}transfer-encoding: chunked\r\n\r\nff\r\n{{", "\r\n"])
def test_request_arriving_byte_by_byte_times_out(bounded: Served, words: str) -> None:
    connection, answer = connect(bounded, words), b""
    connection.settimeout(0.2)
    deadline = time.monotonic() + 30
    while b"\r\n\r\n" not in answer and time.monotonic() < deadline:
        try:
            answer += connection.recv(65536)
        except TimeoutError:
            connection.sendall(b"\n" if words == "\r\n" else b" ")
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_pipelined_requests_are_not_queued(bounded: Served) -> None:
    before = memory(bounded)
    connection = connect(bounded, "GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
    answers = read_to_end(connection)
    assert answers.count(b"HTTP/1.1 ") == 1 and b"connection: close" in answers
    for _ in range(4):  # 26 MB of requests each, without reading the answers
        connection = connect(bounded, "")
        connection.settimeout(1)
        try:
            for _ in range(100):
                connection.sendall(b"GET / HTTP/1.1\r\n\r\n" * (1 << 14))
        except OSError:
            pass
    assert bounded.send("GET", "/health")[0] == 200
    assert memory(bounded) - before < 100e6


ENDLESS = {
    "fields": (b"GET /health HTTP/1.1\r\n", b"a:\r\n" * 4000),
    "trailers": (b"POST /health HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"a:\r\n" * 4000),
    "chunks": (b"POST /health HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 4000),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_number_of_header_fields_trailers_and_chunks_is_bounded(bounded: Served, kind: str) -> None:
    """Each header field costs a tuple and two strings. Trailers do too, and each one-byte chunk costs a call."""
    first, then = ENDLESS[kind]
    connection = connect(bounded, first)
    with contextlib.suppress(OSError):
        for _ in range(50):
            connection.sendall(then)
    answer = read_to_end(connection)
    assert not answer or b" 431 " in answer[:20], "nothing: it was closed before everything was sent"


def test_trailer_is_not_used_as_a_header(bounded: Served) -> None:
    connection = connect(bounded, f"POST /sessions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n{KNOWN}\r\n")
    assert b" 401 " in read_answer(connection)


def test_unused_request_bodies_are_not_kept_in_memory(bounded: Served) -> None:
    """Large bodies on a public path, without a token."""
    before = memory(bounded)
    head = "POST /health HTTP/1.1\r\nhost: x\r\ncontent-length: 262144\r\n\r\n"
    connections = [connect(bounded, head.encode() + b"x" * 262_000) for _ in range(20)]
    for one in connections:
        one.sendall(b"x" * 144)
        assert b" 405 " in read_answer(one)
    assert memory(bounded) - before < 30e6


@pytest.mark.slow
def test_large_requests_are_bounded_in_number(modules: Path) -> None:
    """Each of these becomes 4 MB of lists; all at once would be more than a gigabyte."""
    body = json.dumps({**BEGIN, "data": {"x": [[]] * 60_000}}, separators=(",", ":"))
    request = f"POST /sessions HTTP/1.1\r\nhost: x\r\n{KNOWN}content-length: {len(body)}\r\n\r\n{body}"
    with served(modules, "--request-bytes", str(len(body)), "--sessions", "300") as server:
        before, connections = memory(server), [connect(server, request) for _ in range(120)]
        statuses = Counter(read_answer(one)[9:12] for one in connections)
        assert set(statuses) <= {b"201", b"503", b"429"} and statuses[b"503"] and statuses[b"201"] >= 32, statuses
        assert memory(server) - before < 500e6


def test_refused_data_is_not_kept(bounded: Served) -> None:
    before = memory(bounded)
    for _ in range(20):
        assert bounded.refusal("/sessions", {**BEGIN, "data": {"x": [[]] * 60_000}})[0] == 413
    assert memory(bounded) - before < 40e6


@pytest.mark.slow
def test_client_that_does_not_read_is_dropped(bounded: Served) -> None:
    """With small buffers on both sides, a few pages fill them."""
    page = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    connection.settimeout(20)
    connection.connect(("127.0.0.1", bounded.port))
    with pytest.raises(OSError):
        for _ in range(400):
            connection.sendall(page)
            time.sleep(0.05)
    assert bounded.send("GET", "/health")[0] == 200


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux only")
def test_listener_sets_tcp_user_timeout_for_unread_data() -> None:
    """Without it, Linux keeps up to 512 KiB per closed connection for minutes."""
    with listen(ServingSettings(port=0, answer_s=2.5)) as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2500


def test_unread_answers_are_bounded_over_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit, the connection that has been unread for longest is dropped."""
    import uvicorn
    from uvicorn.server import ServerState

    monkeypatch.setattr(guard, "MAX_UNREAD", 20 << 20)
    size = 8 << 20

    async def app(scope, receive, send) -> None:
        headers = [(b"content-length", str(size).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * size})

    async def run() -> None:
        config, state = uvicorn.Config(app, lifespan="off", log_level="error", proxy_headers=False), ServerState()
        make = lambda: guard.BoundedConnection(config, state, {})  # noqa: E731
        server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
        sockets = []
        for _ in range(8):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, server.sockets[0].getsockname())
            await asyncio.get_running_loop().sock_sendall(client, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            sockets.append(client)
            await asyncio.sleep(0.05)
        unread = [connection.transport.get_write_buffer_size() for connection in state.connections]
        assert len(unread) < 8 and sum(unread) <= 20 << 20
        for client in sockets:
            client.close()
        server.close()

    asyncio.run(run())


def test_connections_of_one_address_replace_each_other(bounded: Served) -> None:
    known = connect(bounded, f"GET /modules HTTP/1.1\r\nhost: x\r\n{KNOWN}\r\n")
    assert b" 200 " in read_answer(known)
    hostile = [connect(bounded, "POST /sessions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n") for _ in range(60)]
    assert bounded.send("GET", "/health", token=None)[0] == 200
    known.sendall(f"GET /modules HTTP/1.1\r\nhost: x\r\n{KNOWN}\r\n".encode())
    assert b" 200 " in read_answer(known), "a client that has sent its token is the last to go"
    for connection in hostile:
        connection.close()


@pytest.mark.slow
def test_server_stays_available_and_stoppable_under_many_requests(modules: Path) -> None:
    server = Served(modules, "--sessions", "16", "--stop-s", "1")
    body = json.dumps({"skill": "heat", "play": {"number": 511}})
    with ThreadPoolExecutor(64) as pool:
        pending = [pool.submit(server.send, "POST", "/sessions", body) for _ in range(64)]
        assert server.send("GET", "/health")[0] == 200
        statuses = Counter(answer.result()[0] for answer in pending)
        assert statuses[429] >= 1 and statuses[201] <= 16 and set(statuses) <= {201, 429}
        more = [pool.submit(server.send, "POST", "/sessions", body) for _ in range(8)]
        assert server.stop() == 0
        for answer in more:
            answer.exception()


def test_hanging_work_is_interrupted_and_the_next_call_runs() -> None:
    released = threading.Event()

    def loop() -> None:
        while True:
            pass

    async def run() -> None:
        worker = WorkerThread("module x")
        assert worker.thread is None, "starting a thread takes the event loop's time; it starts with the first call"
        waiting = asyncio.create_task(worker.do(loop, 0.3))
        await asyncio.sleep(0.05)
        hung = worker.thread
        assert hung is not None
        queued = asyncio.create_task(worker.do(lambda: 7, 60))
        with pytest.raises(RequestError, match=r"module x did not answer within 0\.3 s"):
            await waiting
        assert await queued == 7
        hung.join(30)
        assert not hung.is_alive()
        for _ in range(4):  # waiting in native code cannot be interrupted
            with pytest.raises(RequestError, match="did not answer"):
                await worker.do(lambda: released.wait(60), 0.05)
        with pytest.raises(RequestError, match="module x hangs"):
            await worker.do(lambda: 7, 60)
        released.set()
        for thread in list(worker.hung):
            thread.join(30)
        assert await worker.do(lambda: 8, 60) == 8
        with pytest.raises(RuntimeError, match="SystemExit"):
            await worker.do(lambda: exit(1), 60)
        worker.close()

    asyncio.run(run())


DOUBLES = """{% set ns = namespace(x='the quick brown fox') %}{% for message in messages %}{{ message.content }}
{%- for letter in message.content %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x[:10] }}{% endfor %}"""


@pytest.mark.slow
def test_chat_template_cannot_exhaust_memory(modules: Path, tmp_path: Path) -> None:
    """The template doubles a text with each letter of a message."""
    heat = read_module(modules / "heat")
    place = tmp_path / "modules" / "heat"
    shutil.copytree(heat.base.source(WORLD), place)
    (place / "chat_template.jinja").write_text(DOUBLES)
    files = {file.name: hash_file(file) for file in place.iterdir()}
    shutil.copy(heat.path / "module.json", place)
    change_manifest(place, weights="model", files=files)
    with served(tmp_path / "modules") as server:
        for letters, status in ((4, 200), (60, 422), (4, 200)):
            body = {"model": "heat", "messages": [{"role": "user", "content": "x" * letters}]}
            answered, answer = server.ask("POST", "/v1/chat/completions", body)
            assert answered == status and (status == 200 or "MemoryError" in answer["error"]["message"]), answer


def test_session_and_server_byte_budgets_are_enforced(bounded: Served) -> None:
    status, message = bounded.refusal("/sessions", {**BEGIN, "data": {"x": [[]] * 1000}})
    assert status == 413 and "the limit is 30000 (--session-bytes)" in message
    path = bounded.begin(BEGIN["goal"], "heat")
    for turn in range(1, 40):
        status, answer = bounded.ask("POST", f"{path}/observe", {"observation": SEEN, "turn": turn})
        if status != 200:
            break
    assert status == 413 and bounded.get(path)["outcome"] == "limit", answer
    refused = [bounded.ask("POST", "/sessions", {**BEGIN, "data": {"x": "y" * 20_000}})[0] for _ in range(5)]
    assert refused == [201, 201, 429, 429, 429]
    assert "tacit_session_bytes" in bounded.send("GET", "/metrics")[1]


def test_bytes_are_counted_at_any_nesting_depth() -> None:
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert count_bytes(deep) > 5_000_000 and count_bytes({"a": ["b" * 1000]}) > 1000


def test_each_client_sees_only_its_own_sessions(shared: Served) -> None:
    """Other clients' sessions are never shown or changed, and look like sessions that never existed."""

    def ask(client: str, method: str, path: str, body: dict | None = None) -> tuple[int, dict]:
        status, text = shared.send(method, path, None if body is None else json.dumps(body), token=CLIENTS[client])
        return status, json.loads(text)

    own, over = (ask("ada", "POST", "/sessions", BEGIN)[1]["session"] for _ in range(2))
    assert ask("ada", "POST", f"/sessions/{own}/observe", {"observation": SEEN})[0] == 200
    assert ask("ada", "POST", f"/sessions/{over}/end", {"note": "a secret"})[0] == 200
    assert {answer["session"] for answer in ask("ada", "GET", "/sessions")[1]["sessions"]} >= {own, over}
    assert ask("ben", "GET", "/sessions")[1]["sessions"] == []
    before = ask("ada", "GET", f"/sessions/{own}")
    for name in (own, over):
        other = f"{name[:-4]}{'AAAA' if name[-4:] != 'AAAA' else 'BBBB'}"
        for what, body in (
            ("", None),
            ("/observe", {"observation": SEEN}),
            ("/observe", {"observation": SEEN, "turn": 1, "alternatives": 3, "actions": ["x" * 5000]}),
            ("/observe", {"observation": SEEN, "turn": 99}),
            ("/step", {"action": "look"}),
            ("/end", {"outcome": "success"}),
        ):
            method = "GET" if body is None else "POST"
            status, answer = ask("ben", method, f"/sessions/{name}{what}", body)
            assert status == 404 and "there is no session" in answer["error"]["message"]
            unknown = ask("ben", method, f"/sessions/{other}{what}", body)
            assert json.dumps(unknown).replace(other, name) == json.dumps((status, answer))
    assert ask("ada", "GET", f"/sessions/{own}") == before
    for path in ("/metrics", "/modules", "/v1/models", "/sessions", "/health", "/"):
        text = shared.send("GET", path, token=CLIENTS["ben"])[1]
        assert not any(word in text for word in (own, over, "a secret", CLIENTS["ada"], '"ada"')), path
    status, answer = ask("ada", "POST", f"/sessions/{own}/observe", {"observation": SEEN, "turn": 1})
    assert status == 200 and answer["turn"] == 1


def test_similar_tokens_are_refused(shared: Served) -> None:
    token = CLIENTS["ada"]
    wrong = [
        token[:-1],
        f"{token}x",
        token.swapcase(),
        f"{token}, {CLIENTS['ben']}",
        f"{token} {token}",
        f'"{token}"',
        "é" * 16,
    ]
    for text in [f"Bearer {word}" for word in wrong] + [
        token,
        f"Basic {token}",
        f"Bearer{token}",
        "Bearer",
        f"Bearer\t{token}",
    ]:
        connection = connect(
            shared, b"GET /sessions HTTP/1.1\r\nconnection: close\r\nauthorization: " + text.encode() + b"\r\n\r\n"
        )
        assert b" 401 " in read_to_end(connection)[:20], text
    for text in (f"bearer {token}", f"BEARER   {token}  "):
        connection = connect(shared, f"GET /sessions HTTP/1.1\r\nconnection: close\r\nauthorization: {text}\r\n\r\n")
        assert b" 200 " in read_to_end(connection)[:20], text
    assert shared.send("GET", f"/sessions?token={token}&authorization=Bearer%20{token}", token=None)[0] == 401
    for path in ("//health", "/health/", "/HEALTH", "/./sessions", "/health/../sessions", "/%2e/sessions", "/sessions/", "/;/"):
        assert shared.send("GET", path, token=None)[0] == 401, path


def test_nonlocal_host_disables_worlds_and_warns_about_plain_http(shared: Served) -> None:
    status, text = shared.send("POST", "/sessions", '{"skill": "heat", "play": {}}', token=CLIENTS["ada"])
    assert status == 403 and "without worlds (--worlds)" in text
    assert "plain HTTP; put a TLS proxy in front" in shared.complaints
    assert not any(token in shared.process.out for token in CLIENTS.values())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("password", "weak"),
        ("passwordpassword", "weak"),
        ("Password12345678", "weak"),
        ("qwertyuiopasdfgh", "weak"),
        ("ada my-secret-token-7", "weak"),
        ("change-me-please-0", "weak"),
        ("1234567890123456", "weak"),
        ("aaaaaaaaaaaaaaaaaaaaaaaa", "weak"),
        ("ada bob 5f2c1b7e9a3d4c68", "needs a client and its token"),
        ("ada 5f2c1b7e9a3d4c68\nada 0d9e8f7a6b5c4132", "different from the others"),
        ("ada 5f2c1b7e9a3d4c68\nben 5f2c1b7e9a3d4c68", "different from the others"),
        ("# nothing\n", "contains no token"),
    ],
)
def test_weak_or_malformed_tokens_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(TacitError, match=says):
        find_tokens(tmp_path / "tokens", False, "127.0.0.1")
    (tmp_path / "tokens").write_text("5f2c1b7e#9a3d4c68  # of ada")
    assert find_tokens(tmp_path / "tokens", False, "127.0.0.1") == ({"": "5f2c1b7e#9a3d4c68"}, False)
    tokens, is_new = find_tokens(None, False, "127.0.0.1")
    assert is_new and tokens is not None and len(tokens[""]) >= 32


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("host", "127.0.0.1:80")], 200),
        ([("host", "[::1]:80")], 200),
        ([("host", "LOCALHOST")], 200),
        ([("host", "[::1]evil.com")], 403),
        ([("host", "localhost:80.evil.com")], 403),
        ([("host", "localhost:80@evil.com")], 403),
        ([("host", "evil.com:127.0.0.1")], 403),
        ([("host", "127.0.0.1"), ("host", "evil.com")], 400),
        ([("host", "127.0.0.1"), ("origin", "http://127.0.0.1"), ("origin", "http://evil.com")], 400),
        ([("host", "127.0.0.1"), ("origin", "https://127.0.0.1")], 403),
        ([], 403),
    ],
)
def test_host_header_is_parsed_strictly(headers: list[tuple[str, str]], status: int) -> None:
    sent = [(name.encode(), value.encode()) for name, value in headers]
    scope = {"type": "http", "method": "GET", "path": "/modules", "scheme": "http", "headers": sent}
    refused = guard.Guard(None, None, ServingSettings(), guard.Metrics()).check_headers(scope)  # type: ignore[arg-type]
    assert (refused[0] if refused else 200) == status


def test_host_headers_and_targets_are_checked_over_the_wire(modules: Path) -> None:
    """With --no-token, checking the Host header protects against pages of other sites."""
    with served(modules, "--no-token", token="") as server:
        for head, status in (
            (f"GET /modules HTTP/1.1\r\nhost: localhost:{server.port}", 200),
            ("GET /modules HTTP/1.1\r\nhost: localhost\r\nx-forwarded-host: evil.com", 200),
            ("GET http://evil.com/modules HTTP/1.1\r\nhost: localhost", 400),
            ("GET evil.com HTTP/1.1\r\nhost: localhost", 400),
            ("OPTIONS * HTTP/1.1\r\nhost: localhost", 400),
            ("CONNECT evil.com:80 HTTP/1.1\r\nhost: localhost", 400),
            ("GET //evil.com/modules HTTP/1.1\r\nhost: localhost", 404),
            ("GET /modules HTTP/1.0", 403),
            ("GET /modules HTTP/1.1\r\nhost : localhost", 400),
            ("GET /modules HTTP/1.1\r\nhost: localhost\r\n .evil.com", 400),
            ("GET /modules HTTP/1.1\r\nhost: localhost\r\nHoSt: evil.com", 400),
            ("GET /modules HTTP/1.1\r\nhost: localhost\0.evil.com", 400),
            ("GET /modules HTTP/1.1\r\nhost: localhost\nhost: evil.com", 400),
            ("GET /modules HTTP/1.1\r\nhost: localhost.", 403),
            ("GET /modules HTTP/1.1\r\nhost: localhost, evil.com", 403),
            ("GET /modules HTTP/1.1\r\nhost: localhost:٣٣", 403),
            ("GET /modules HTTP/1.1\r\nhost: 127.0.0.1.evil.com", 403),
            ("GET /modules HTTP/1.1\r\nhost: 127.1", 403),
            ("GET /modules HTTP/1.1\r\nhost: 0.0.0.0", 403),
            ("GET /modules HTTP/1.1\r\nhost: [::1%25lo]", 403),
            ("GET /modules HTTP/1.1\r\nhost: localhost\r\norigin: null", 403),
            (f"GET /modules HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost:{server.port}", 403),
            ("GET /modules HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost.evil.com", 403),
        ):
            answer = read_to_end(connect(server, f"{head}\r\nconnection: close\r\n\r\n"))
            assert answer.startswith(f"HTTP/1.1 {status} ".encode()), (head, answer[:200])


@pytest.mark.slow
def test_changing_the_system_clock_ends_no_session(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        service = Service([modules], ServingSettings(), EngineSettings(device="cpu"))
        transport = httpx.ASGITransport(make_app(service, None))
        async with service.running(), httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            path = f"/sessions/{(await client.post('/sessions', json=BEGIN)).json()['session']}"
            real = time.time
            for jump in (3600, -3600, 1e9, -real()):
                monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
                service.sessions.end_idle()
                assert (await client.get(path)).json()["open"]
                assert (await client.post(f"{path}/observe", json={"observation": SEEN})).status_code == 200
            steady = time.monotonic
            monkeypatch.setattr(time, "monotonic", lambda: steady() + 3600)
            service.sessions.end_idle()
            monkeypatch.undo()
            assert (await client.get(path)).json()["outcome"] == "expired"

    asyncio.run(run())


def test_memory_is_not_limited_when_cuda_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA maps host memory on demand, so under a limit a server with a GPU could fail at any time."""
    resource, limits = pytest.importorskip("resource"), list[Any]()
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limit: limits.append((kind, limit)))
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for used in (False, True):
        monkeypatch.setattr("torch.cuda.is_initialized", lambda used=used: used)
        limit_memory(1)
    assert [kind for kind, _ in limits] == ([resource.RLIMIT_DATA] if sys.platform == "linux" else [])
