"""Attacks before authentication: endless heads, missing heads, and too many connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from pathlib import Path

import pytest
import uvicorn
from served import TOKEN, Served, connect, read_to_end, served
from uvicorn.server import ServerState

from tacit.serving import guard
from tacit.serving.server import LISTENING_SOCKETS


@pytest.fixture(scope="module")
def impatient(modules: Path):
    with served(modules, "--answer-s", "1.5") as found:
        yield found


def asks(connection: socket.socket) -> bytes:
    """The whole answer; the connection stays open."""
    connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    answer = b""
    while not answer.endswith(b"}"):
        answer += connection.recv(65536)
    return answer


def test_endless_request_head_is_cut_off(server: Served) -> None:
    connection, sent = connect(server, b"GET /health HTTP/1.1\r\nhost: x\r\nx: "), 0
    with pytest.raises(OSError):
        while sent < 16 << 20:
            sent += connection.send(b"a" * 4096)
            time.sleep(0.001)
    assert sent < 8 << 20, "what lies between is read by nobody"
    connection = connect(server, b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 70_000)
    assert read_to_end(connection).startswith(b"HTTP/1.1 431 ")
    assert server.send("GET", "/health", None, TOKEN, x="a" * 60_000)[0] == 200


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_several_connections_are_accepted_per_turn_of_the_event_loop(server: Served) -> None:
    """libuv accepts one per listening socket and turn, and a burst would delay /health."""
    port, lines = f":{server.port:04X}", Path("/proc/net/tcp").read_text().splitlines()
    inode = next(f[9] for f in map(str.split, lines) if f[1].endswith(port) and f[3] == "0A")
    links = [os.readlink(file) for file in Path(f"/proc/{server.process.pid}/fd").iterdir()]
    assert links.count(f"socket:[{inode}]") == LISTENING_SOCKETS


def test_non_http_input_gets_a_json_error(server: Served) -> None:
    head, _, body = read_to_end(connect(server, b"HELO there\r\n\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and json.loads(body)["error"]["code"] == 400


LONG = [b"x: " + b"a" * 70_000 + b"\r\n", (b"x: " + b"a" * 400 + b"\r\n") * 200]


@pytest.mark.parametrize("head", LONG, ids=["one line", "many"])
def test_complete_but_too_long_head_is_refused(server: Served, head: bytes) -> None:
    connection = connect(server, b"GET /health HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n")
    answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 431 ") and b"the limit is 65536 bytes" in answer
    assert server.send("GET", "/health")[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("words", [b"", b"\r\n", b"GET /health HTTP/1.1\r\nhost: x\r\n"])
def test_missing_request_head_times_out(impatient: Served, words: bytes) -> None:
    began = time.monotonic()
    answer = read_to_end(connect(impatient, words))
    assert answer.startswith(b"HTTP/1.1 408 ") and b"did not arrive within 1.5 s" in answer
    assert 1.0 < time.monotonic() - began < 15


@pytest.mark.slow
def test_incomplete_second_request_or_body_times_out(impatient: Served) -> None:
    connection = connect(impatient, b"")
    assert asks(connection).startswith(b"HTTP/1.1 200 ")
    connection.sendall(b"GET /health HT")
    assert read_to_end(connection).startswith(b"HTTP/1.1 408 ")
    head = f"POST /sessions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 100\r\n\r\n{{"
    assert read_to_end(connect(impatient, head.encode())).startswith(b"HTTP/1.1 408 "), "and then it is closed"


@pytest.mark.slow
def test_connection_with_regular_requests_is_kept(impatient: Served) -> None:
    connection = connect(impatient, b"")
    for _ in range(4):
        assert asks(connection).startswith(b"HTTP/1.1 200 ")
        time.sleep(0.7)
    connection.close()


def test_connection_limit_respects_the_file_limit() -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (guard.OTHER_FILES + 8, hard))
    try:
        assert guard.max_connections(2048) == 8
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Few(guard.BoundedConnection):
    limit = 2


def test_connection_over_the_limit_replaces_the_longest_idle_one() -> None:
    async def run() -> None:
        config, state = uvicorn.Config(lambda scope, receive, send: None, lifespan="off", log_level="error"), ServerState()
        server = await asyncio.get_running_loop().create_server(lambda: Few(config, state, {}), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asyncio.sleep(0.1)
        kept.append(await asyncio.open_connection("127.0.0.1", port))
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(kept[0][0].read(), 20) == b""
        assert len(state.connections) == 2 and not any(reader.at_eof() for reader, _ in kept[1:])
        for _, writer in kept:
            writer.close()
        server.close()

    asyncio.run(run())
