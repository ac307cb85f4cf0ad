"""Modules as MCP tools, called by a real MCP client over standard input and output, or in process."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.server.subscriptions import ToolsListChanged
from served import WORLD

from tacit.engines.local.settings import EngineSettings
from tacit.modules import Agent
from tacit.serving.mcp_tools import Tools
from tacit.serving.requests import RequestError
from tacit.serving.server import on_sighup
from tacit.serving.service import Service
from tacit.serving.settings import ServingSettings


@pytest.mark.slow
def test_mcp_client_can_request_episodes_and_play_its_own(modules: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = ["-m", "tacit", "serve", str(modules), "--mcp", "--engine.device", "cpu"]
    asyncio.run(converse(StdioServerParameters(command=sys.executable, args=words, env=environment), modules))


async def converse(server: StdioServerParameters, modules: Path) -> None:
    async with Client(server, read_timeout_seconds=120) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"alfworld_heat", "alfworld_pick", "begin", "observe", "end", "refresh"}
        assert "until it is over: heat" in tools["alfworld_heat"].description

        seen_progress: list[float] = []

        async def progress(done: float, total: float | None, message: str | None) -> None:
            seen_progress.append(done)

        result = await client.call_tool("alfworld_heat", {"number": 1, "split": "seen", "seed": 5}, progress_callback=progress)
        content = result.structured_content
        agent, task = Agent.load(modules / "heat"), WORLD.tasks_of("seen", 2, 0, ("heat",))[1]
        alone = agent.play(WORLD.make(), task, 5)
        assert content["goal"] == task.goal and [t["did"] for t in content["turns"]] == [step.action for step in alone.steps]
        assert content["outcome"] in ("success", "limit") and len(seen_progress) == len(alone)

        session = (await client.call_tool("begin", {"goal": "put a hot mug in cabinet.", "family": "heat"})).structured_content
        seen = {"session": session["session"], "observation": "You are in the middle of a room. You see a fridge 1."}
        first = (await client.call_tool("observe", seen)).structured_content
        assert first["turn"] == 1 and first["action"] and "subgoal:" in first["state"]
        over = (await client.call_tool("observe", {**seen, "done": True, "success": True})).structured_content
        assert over == {"action": None, "outcome": "success"}

        world, alone = WORLD.make(), Agent.load(modules / "heat")
        session = (await client.call_tool("begin", {"goal": task.goal, "family": "heat", "seed": 3})).structured_content
        alone.begin(task.goal, "heat", seed=3)
        now, effective = world.reset(task), True
        for number in range(1, 4):
            content = {"observation": now.text, "actions": list(now.actions), "effective": effective, "turn": number}
            arguments = {"session": session["session"], **content}
            did = [(await client.call_tool("observe", arguments)).structured_content["action"] for _ in range(2)]
            assert did == [alone.act(now)] * 2, "as alone; a repeated call gets the same answer"
            transition = world.step(did[0])
            alone.observe(transition)
            now, effective = transition.observation, transition.effective

        refused = await client.call_tool("observe", seen)
        assert refused.is_error and "has ended: success" in refused.content[0].text
        refused = await client.call_tool("begin", {"goal": "x", "family": "nope"})
        assert refused.is_error and "unknown family 'nope'" in refused.content[0].text


@pytest.mark.slow
def test_limits_and_refresh_match_the_http_api(modules: Path, tmp_path: Path) -> None:
    shutil.copytree(modules / "heat", tmp_path / "heat")

    async def run() -> None:
        service = Service([tmp_path], ServingSettings(turns=2), EngineSettings(device="cpu"))
        async with service.running():
            tools = Tools(service)
            on_sighup(tools.update)
            async with Client(tools.server, read_timeout_seconds=120) as client:
                await held_to_limits(client)
                shutil.copytree(modules / "pick", tmp_path / "pick")
                changes = (await client.call_tool("refresh", {})).structured_content
                assert changes["added"] == ["alfworld/pick"] and "alfworld_pick" in await tool_names(client)
                assert not (await client.call_tool("alfworld_pick", {"split": "seen"})).is_error
                shutil.rmtree(tmp_path / "pick")
                os.kill(os.getpid(), signal.SIGHUP)
                async with asyncio.timeout(60):
                    while "alfworld_pick" in await tool_names(client):
                        await asyncio.sleep(0.05)
                assert "alfworld_heat" in await tool_names(client)

    asyncio.run(run())


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("why", ["cancelled", "refused"])
def test_failed_or_cancelled_call_leaves_no_open_session(modules: Path, why: str, monkeypatch) -> None:
    began = asyncio.Event()

    async def run() -> None:
        service = Service([modules / "heat"], ServingSettings(), EngineSettings(device="cpu"))

        async def stuck(*arguments: object) -> None:
            began.set()
            if why == "refused":
                raise RequestError(504, "no answer within 60 s; ask again for the same turn.")
            await asyncio.sleep(60)

        async with service.running():
            monkeypatch.setattr(service.batching, "sample", stuck)
            async with Client(Tools(service).server, read_timeout_seconds=120) as client:
                call = asyncio.create_task(client.call_tool("alfworld_heat", {"split": "seen"}))
                await asyncio.wait_for(began.wait(), 60)
                if why == "cancelled":
                    call.cancel()
                (answer,) = await asyncio.gather(call, return_exceptions=True)
                assert isinstance(answer, asyncio.CancelledError) or answer.is_error
                async with asyncio.timeout(10):
                    while len(service.sessions):
                        await asyncio.sleep(0.02)
                assert [session.outcome for session in service.sessions.of("")] == ["abandoned"]

    asyncio.run(run())


@pytest.mark.slow
def test_subscribed_client_is_notified_of_new_tools(modules: Path, tmp_path: Path) -> None:
    shutil.copytree(modules / "heat", tmp_path / "heat")

    async def run() -> None:
        service = Service([tmp_path], ServingSettings(), EngineSettings(device="cpu"))
        async with service.running(), asyncio.timeout(120):
            tools = Tools(service)
            async with Client(tools.server) as client, client.listen(tools_list_changed=True) as heard:
                assert client.server_capabilities.tools.list_changed
                await client.call_tool("refresh", {})
                with pytest.raises(TimeoutError):  # nothing is new
                    await asyncio.wait_for(anext(heard), 0.5)
            async with Client(tools.server) as client, client.listen(tools_list_changed=True) as heard:
                shutil.copytree(modules / "pick", tmp_path / "pick")
                await client.call_tool("refresh", {})
                assert isinstance(await anext(heard), ToolsListChanged) and "alfworld_pick" in await tool_names(client)

    asyncio.run(run())


@pytest.mark.slow
def test_legacy_client_is_notified_of_new_tools(modules: Path, tmp_path: Path) -> None:
    shutil.copytree(modules / "heat", tmp_path / "heat")
    notifications: list[str] = []

    async def hear(message: object) -> None:
        notifications.append(type(message).__name__)

    async def run() -> None:
        service = Service([tmp_path], ServingSettings(), EngineSettings(device="cpu"))
        async with service.running(), asyncio.timeout(120):
            tools = Tools(service)
            async with Client(tools.server, mode="legacy"):
                pass  # a disconnected client must not block notifications
            async with Client(tools.server, mode="legacy", message_handler=hear) as client:
                assert client.server_capabilities.tools.list_changed
                await client.call_tool("refresh", {})
                assert not notifications, "nothing is new"
                shutil.copytree(modules / "pick", tmp_path / "pick")
                await tools.update()
                while not notifications:
                    await asyncio.sleep(0.02)
                assert notifications == ["ToolListChangedNotification"] and "alfworld_pick" in await tool_names(client)

    asyncio.run(run())


async def held_to_limits(client: Client) -> None:
    played = (await client.call_tool("alfworld_heat", {"split": "seen"})).structured_content
    assert played["outcome"] == "limit" and len(played["turns"]) == 2 and played["saw_last"]
    session = (await client.call_tool("begin", {"goal": "put a hot mug in cabinet.", "family": "heat"})).structured_content
    long, seen = "x" * 20_000, {"session": session["session"], "observation": "You see a fridge 1."}
    for tool, arguments, says in (
        ("begin", {"goal": long, "family": "heat"}, "at most 16384 characters"),
        ("begin", {"goal": "x", "family": "heat", "seed": -1}, "greater than or equal to 0"),
        ("observe", {**seen, "observation": long}, "at most 16384 characters"),
        ("observe", {**seen, "session": long}, "at most 200 characters"),
        ("alfworld_heat", {"number": 512}, "task numbers are 0 to 511"),
    ):
        refused = await client.call_tool(tool, arguments)
        assert refused.is_error and says in refused.content[0].text, (tool, refused)
    assert not (await client.call_tool("observe", seen)).is_error


async def tool_names(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}
