"""Told to stop, a server is gone within the time it was given, and whoever still waits is told so."""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from served import Served

SLOW_WORLD = """
import dataclasses, time
from tacit.environments import get_environment

KNOWN = get_environment("alfworld")

class Slow:
    def __init__(self):
        self.world = KNOWN.make()

    def reset(self, task):
        return self.world.reset(task)

    def step(self, action):
        time.sleep(60)

    def close(self):
        self.world.close()

ENVIRONMENT = dataclasses.replace(KNOWN, make=Slow)
"""


@pytest.fixture
def slow(modules: Path, tmp_path: Path) -> Path:
    """A module whose own world takes a minute to answer."""
    (tmp_path / "slow.py").write_text(SLOW_WORLD)
    shutil.copytree(modules / "heat", tmp_path / "modules" / "heat")
    manifest = tmp_path / "modules" / "heat" / "module.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"world": f"{tmp_path}/slow.py:ENVIRONMENT"}))
    return tmp_path / "modules"


def test_a_world_that_does_not_answer_holds_up_nobody(slow: Path) -> None:
    server = Served(slow, "--stop-s", "1")
    session = server.post("/sessions", {"skill": "heat", "play": {"split": "seen"}})["session"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.ask, "POST", f"/sessions/{session}/step", {"action": "look"})
        time.sleep(0.5)
        began = time.monotonic()
        assert server.stop() == 0 and time.monotonic() - began < 6
        status, told = waiting.result()
    assert status == 503 and "the server is stopping" in told["error"]["message"]


def test_a_model_that_is_still_writing_holds_up_nobody(modules: Path) -> None:
    server = Served(modules, "--stop-s", "1", "--max-tokens", "400", "--engine.threads", "1")
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "room:"}], "max_tokens": 400, "n": 16, "temperature": 5}
    asks = [json.dumps({**ask, "top_p": 1 - i / 100}) for i in range(16)]  # each at a desk of its own
    with ThreadPoolExecutor(len(asks)) as pool:
        waiting = [pool.submit(server.send, "POST", "/v1/chat/completions", body) for body in asks]
        time.sleep(0.5)
        began = time.monotonic()
        assert server.stop() == 0 and time.monotonic() - began < 6
        statuses = {answer.result()[0] for answer in waiting}
    assert 503 in statuses and statuses <= {200, 503}
