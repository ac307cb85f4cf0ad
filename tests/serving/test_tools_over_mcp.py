"""The modules as tools, called by a real MCP client over standard input and output."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters
from served import WORLD

from tacit.modules import Agent


def test_a_client_has_episodes_played_and_plays_its_own(modules: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = ["-m", "tacit", "serve", str(modules), "--mcp", "--engine.device", "cpu"]
    asyncio.run(converse(StdioServerParameters(command=sys.executable, args=words, env=environment), modules))


async def converse(server: StdioServerParameters, modules: Path) -> None:
    async with Client(server, read_timeout_seconds=120) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"alfworld_heat", "alfworld_pick", "begin", "observe", "end"}
        assert "until it is over: heat" in tools["alfworld_heat"].description

        seen_progress: list[float] = []

        async def progress(done: float, total: float | None, message: str | None) -> None:
            seen_progress.append(done)

        result = await client.call_tool("alfworld_heat", {"number": 1, "split": "seen", "seed": 5}, progress_callback=progress)
        told = result.structured_content
        agent, task = Agent.load(modules / "heat"), WORLD.tasks_of("seen", 2, 0, ("heat",))[1]
        alone = agent.play(WORLD.make(), task, 5)
        assert told["goal"] == task.goal and [turn["did"] for turn in told["turns"]] == [step.action for step in alone.steps]
        assert told["outcome"] in ("success", "limit") and len(seen_progress) == len(alone)

        begun = (await client.call_tool("begin", {"goal": "put a hot mug in cabinet.", "family": "heat"})).structured_content
        seen = {"session": begun["session"], "observation": "You are in the middle of a room. You see a fridge 1."}
        first = (await client.call_tool("observe", seen)).structured_content
        assert first["turn"] == 1 and first["action"] and "subgoal:" in first["state"]
        over = (await client.call_tool("observe", {**seen, "done": True, "success": True})).structured_content
        assert over == {"action": None, "outcome": "success"}

        refused = await client.call_tool("observe", seen)
        assert refused.is_error and "is over: success" in refused.content[0].text
        refused = await client.call_tool("begin", {"goal": "x", "family": "nope"})
        assert refused.is_error and "unknown family 'nope'" in refused.content[0].text
