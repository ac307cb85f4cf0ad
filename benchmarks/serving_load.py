"""Load generator for `tacit serve`: a minimal HTTP client that plays ALFWorld episodes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit.core.types import Task
from tacit.worlds import get_environment

WORLD = get_environment("alfworld")
TOKEN = "a-token-for-the-benchmark"


class Answer(Exception):
    """An HTTP error response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Connection:
    """A keep-alive HTTP/1.1 connection with JSON bodies. Minimal, so that the client costs less than the server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {TOKEN}\r\n"
        writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        status = int(lines[0].split()[1])
        length = next(int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length:"))
        answer = await reader.readexactly(length)
        if status >= 400:
            raise Answer(status, json.loads(answer)["error"]["message"])
        return answer.decode() if path == "/metrics" else json.loads(answer)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


@dataclass
class Load:
    """Remaining requests, and the results so far."""

    left: int
    seconds: list[float] = field(default_factory=list)
    """latency of each turn"""
    episodes: list[tuple[int, list[str]]] = field(default_factory=list)
    """(episode number, actions) of each finished episode"""


@dataclass(frozen=True)
class Part:
    """The episode of one session; it is the same each time."""

    number: int
    task: Task
    steps: int


def make_parts(families: list[str], count: int, steps: int) -> list[Part]:
    each = -(-count // len(families))
    tasks = [task for i in range(each) for f in families for task in WORLD.tasks_of("unseen", each, 0, (f,))[i : i + 1]]
    return [Part(number, task, steps) for number, task in enumerate(tasks[:count])]


async def play(connection: Connection, part: Part, load: Load) -> None:
    """Play one episode, or its start if the load ends earlier."""
    world, task = WORLD.make(), part.task
    session = await connection.ask("POST", "/sessions", {"goal": task.goal, "family": task.family, "seed": part.number})
    path, observation, actions, feedback = f"/sessions/{session['session']}", world.reset(task), [], {}
    while len(actions) < part.steps:
        if load.left <= 0:
            await connection.ask("POST", f"{path}/end")
            return
        load.left -= 1
        body = {"observation": observation.text, "actions": observation.actions, "turn": len(actions) + 1, **feedback}
        began = time.perf_counter()
        answer = await connection.ask("POST", f"{path}/observe", body)
        load.seconds.append(time.perf_counter() - began)
        assert answer["session"] == session["session"] and answer["turn"] == len(actions) + 1
        actions.append(answer["action"])
        transition = world.step(actions[-1])
        observation, feedback = transition.observation, {"effective": transition.effective}
        if transition.done:
            break
    await connection.ask("POST", f"{path}/end", {"outcome": "success" if transition.done else "failure"})
    load.episodes.append((part.number, actions))


async def play_on(port: int, part: Part, load: Load) -> None:
    connection = Connection(port)
    try:
        while load.left > 0:
            await play(connection, part, load)
    finally:
        connection.close()


async def run_load(port: int, parts: list[Part], requests: int) -> tuple[Load, float]:
    """(load, wall seconds). Plays all parts concurrently, each in its own session."""
    load, began = Load(requests), time.perf_counter()
    await asyncio.gather(*(play_on(port, part, load) for part in parts))
    return load, time.perf_counter() - began


class Server:
    """A `tacit serve` process."""

    def __init__(self, modules: Path, threads: int, port: int = 0) -> None:
        words = [sys.executable, "-m", "tacit", "serve", str(modules), "--port", str(port), "--engine.threads", str(threads)]
        environment = {**os.environ, "TACIT_SERVE_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "COLUMNS": "200"}
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("http://"):
                self.port = int(line.split("/#")[0].rpartition(":")[2])
                return
        raise SystemExit(f"the server did not start (exit status {self.process.wait()})")

    def memory(self) -> int:
        """resident memory in bytes"""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))

    def cpu(self) -> float:
        """user and system CPU time in seconds"""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def serving(modules: Path, threads: int) -> Iterator[Server]:
    server = Server(modules, threads)
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.wait(30)
