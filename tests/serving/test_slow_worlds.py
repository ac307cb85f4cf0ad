"""Sessions exist before their world has started: requests meanwhile, and worlds that never start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from served import heat_elsewhere

from tacit.engines.local.settings import EngineSettings
from tacit.serving import service as service_module
from tacit.serving.app import make_app
from tacit.serving.service import Service
from tacit.serving.settings import ServingSettings

PLAY = {"skill": "heat", "play": {"split": "seen"}}


def meanwhile(modules: Path, place: Path, asks: Callable[[httpx.AsyncClient, asyncio.Task, str], Awaitable[None]]) -> None:
    """Runs `asks` while a session starts, with the pending request and the session's path. The world waits for a file."""
    wait = f"import pathlib, time\n        while not pathlib.Path({str(place / 'go')!r}).exists(): time.sleep(0.01)"

    async def run() -> None:
        service = Service([heat_elsewhere(modules, place, begins=wait)], ServingSettings(), EngineSettings(device="cpu"))
        async with (
            service.running(),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(make_app(service, None)), base_url="http://localhost", timeout=60
            ) as client,
        ):
            begin = asyncio.create_task(client.post("/sessions", json=PLAY))
            try:
                async with asyncio.timeout(60):
                    while not (open_now := (await client.get("/sessions")).json()["sessions"]):
                        await asyncio.sleep(0.01)
                    await asks(client, begin, f"/sessions/{open_now[0]['session']}")
            finally:
                (place / "go").touch()

    asyncio.run(run())


@pytest.mark.slow
def test_session_is_busy_while_its_world_starts(modules: Path, tmp_path: Path) -> None:
    async def asks(client: httpx.AsyncClient, begin: asyncio.Task, path: str) -> None:
        for body in ({}, {"action": "look"}, {"alternatives": 3}):
            refused = await client.post(f"{path}/step", json=body)
            assert refused.status_code == 409 and "its world is still starting" in refused.text
        (tmp_path / "go").touch()
        assert (await begin).status_code == 201
        assert (await client.post(f"{path}/step", json={"action": "look"})).json()["next"]["turn"] == 2

    meanwhile(modules, tmp_path, asks)


@pytest.mark.slow
def test_session_ended_while_its_world_starts_is_abandoned(modules: Path, tmp_path: Path) -> None:
    async def asks(client: httpx.AsyncClient, begin: asyncio.Task, path: str) -> None:
        assert (await client.post(f"{path}/end")).status_code == 200
        (tmp_path / "go").touch()
        refused = await begin
        assert refused.status_code == 410 and "was ended while its world started" in refused.text
        assert (await client.get(path)).json()["outcome"] == "abandoned"

    meanwhile(modules, tmp_path, asks)


@pytest.mark.slow
def test_world_that_never_starts_is_reported_as_hanging(modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "WORLD_S", 0.3)

    async def asks(client: httpx.AsyncClient, begin: asyncio.Task, path: str) -> None:
        refused = await begin
        assert refused.status_code == 422 and "no answer to reset within 0.3 s" in refused.text
        session = (await client.get(path)).json()
        assert (session["outcome"], session["note"]) == ("world_hang", "no answer to reset within 0.3 s")

    meanwhile(modules, tmp_path, asks)
