"""A stopping server exits within its time limit and answers waiting requests with 503."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from served import Served, heat_elsewhere


@pytest.fixture
def slow(modules: Path, tmp_path: Path) -> Path:
    """A module whose world takes a minute to answer."""
    return heat_elsewhere(modules, tmp_path, "import time; time.sleep(60)")


@pytest.mark.slow
def test_hanging_world_does_not_delay_the_stop(slow: Path) -> None:
    server = Served(slow, "--stop-s", "1")
    session = server.post("/sessions", {"skill": "heat", "play": {"split": "seen"}})["session"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.ask, "POST", f"/sessions/{session}/step", {"action": "look"})
        time.sleep(0.5)
        began = time.monotonic()
        assert server.stop() == 0 and time.monotonic() - began < 15
        status, answer = waiting.result()
    assert status == 503 and "the server is stopping" in answer["error"]["message"]


@pytest.mark.slow
def test_running_generation_does_not_delay_the_stop(modules: Path) -> None:
    server = Served(modules, "--stop-s", "1", "--max-tokens", "400", "--engine.threads", "1")
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "room:"}], "max_tokens": 400, "n": 16, "temperature": 5}
    asks = [json.dumps({**ask, "top_p": 1 - i / 100}) for i in range(16)]  # each with its own scheduler
    with ThreadPoolExecutor(len(asks)) as pool:
        waiting = [pool.submit(server.send, "POST", "/v1/chat/completions", body) for body in asks]
        time.sleep(0.5)
        began = time.monotonic()
        assert server.stop() == 0 and time.monotonic() - began < 15
        statuses = {answer.result()[0] for answer in waiting}
    assert 503 in statuses and statuses <= {200, 503}
