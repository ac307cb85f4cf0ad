"""A real server for tests: `tacit serve` in a separate process, with a small client."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forked import start
from small_modules import change_manifest

from tacit.core.trust import trust_names
from tacit.core.types import Observation
from tacit.worlds import get_environment

TOKEN = "a-token-for-tests"
WORLD = get_environment("alfworld")


class Served:
    def __init__(self, modules: Path, *flags: str, port: int = 0, token: str = TOKEN) -> None:
        words = ("serve", modules, "--port", port, "--engine.device", "cpu", *flags)
        self.process = start(*words, TACIT_SERVE_TOKEN=token, NO_COLOR="1", COLUMNS="200")
        self.address = self.process.address().split("/#")[0].rstrip("/")
        self.host, _, port = self.address.removeprefix("http://").rpartition(":")
        self.port = int(port)

    @property
    def complaints(self) -> str:
        return self.process.err

    def send(
        self, method: str, path: str, body: bytes | str | None = None, token: str | None = TOKEN, **headers: str
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        fields = {"content-type": "application/json", **({"authorization": f"Bearer {token}"} if token else {}), **headers}
        try:
            connection.request(method, path, body, fields)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        status, text = self.send(method, path, None if body is None else json.dumps(body))
        return status, json.loads(text)

    def get(self, path: str) -> Any:
        status, answer = self.ask("GET", path)
        assert status == 200, answer
        return answer

    def post(self, path: str, body: Any = None) -> Any:
        status, answer = self.ask("POST", path, body)
        assert status in (200, 201), answer
        return answer

    def refusal(self, path: str, body: Any = None) -> tuple[int, str]:
        status, answer = self.ask("POST", path, body)
        assert status >= 400, answer
        return status, answer["error"]["message"]

    def begin(self, goal: str, family: str, **more: Any) -> str:
        return f"/sessions/{self.post('/sessions', {'goal': goal, 'family': family, **more})['session']}"

    def stop(self) -> int:
        return self.process.stop()


def connect(server: Served, words: str | bytes) -> socket.socket:
    """A raw connection that has sent these bytes."""
    connection = socket.create_connection((server.host, server.port), timeout=30)
    connection.sendall(words.encode() if isinstance(words, str) else words)
    return connection


def read_to_end(connection: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


@contextmanager
def served(modules: Path, *flags: str, **more: Any) -> Iterator[Served]:
    server = Served(modules, *flags, **more)
    try:
        yield server
    finally:
        server.stop()


def played(server: Served, task: Any, steps: int, seed: int, **more: Any) -> list[str]:
    """The actions of an episode over HTTP, with the world in the client."""
    world, actions = WORLD.make(), []
    path, seen = server.begin(task.goal, task.family, seed=seed, **more), observation_fields(world.reset(task))
    for _ in range(steps):
        actions.append(server.post(f"{path}/observe", seen)["action"])
        transition = world.step(actions[-1])
        seen = {**observation_fields(transition.observation), "effective": transition.effective}
    server.post(f"{path}/end", {"outcome": "failure"})
    return actions


def observation_fields(observation: Observation) -> dict[str, Any]:
    return {"observation": observation.text, "actions": list(observation.actions)}


ANOTHER_WORLD = """
import dataclasses
from tacit.core.types import Observation, Transition
from tacit.worlds import get_environment

KNOWN = get_environment("alfworld")

class Another:
    def __init__(self):
        self.world = KNOWN.make()

    def reset(self, task):
        {begins}
        return self.world.reset(task)

    def step(self, action):
        {answers}

    def close(self):
        self.world.close()

ENVIRONMENT = dataclasses.replace(KNOWN, make=Another)
"""


def heat_elsewhere(modules: Path, place: Path, answers: str = "return self.world.step(action)", begins: str = "pass") -> Path:
    """The heat module with another world; `answers` is the code of its step, `begins` runs first in its reset."""
    file = place / f"{place.name}_world.py"  # world names must be unique in a process
    trust_names(f"{file}:ENVIRONMENT")
    file.write_text(ANOTHER_WORLD.format(answers=answers, begins=begins))
    shutil.copytree(modules / "heat", place / "modules" / "heat")
    change_manifest(place / "modules" / "heat", world=f"{file}:ENVIRONMENT")
    return place / "modules"
