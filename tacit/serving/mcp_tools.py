"""Modules as MCP tools: one per module that plays an episode in its own world, and begin/observe/end for the client's world.

The model that uses the tools reads INSTRUCTIONS and the tools' docstrings.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ToolsListChanged

import tacit
from tacit.core.errors import TacitError
from tacit.core.types import Observation, Transition
from tacit.serving.batching import exit_process
from tacit.serving.catalog import Changes, ServedModule
from tacit.serving.requests import Actions, Name, Seed, Text
from tacit.serving.server import describe_changes, on_sighup
from tacit.serving.service import Service, play_turn
from tacit.serving.sessions import Session

INSTRUCTIONS = """Small models that each know one kind of work. A tool named after a module plays a whole episode of its own
world and says how it went. For a world of your own: `begin` with the goal, then `observe` with what is seen there and do the
action it answers with, again and again, and `end`."""

NONE_LISTED: list[str] = []


def serve_tools(service: Service, report: Callable[[str], None]) -> int:
    """Serve over stdin and stdout until the client closes them. `report` gets the changes after each SIGHUP."""

    async def run() -> None:
        async with service.running():
            tools = Tools(service)

            async def refresh() -> None:
                report(describe_changes(await tools.update()))

            on_sighup(refresh)
            await tools.server.run_stdio_async()

    asyncio.run(run())
    return exit_process(0)


class Tools:
    """The MCP server; `service` must be running."""

    def __init__(self, service: Service) -> None:
        self._service, self._changed, self._play_tools = service, InMemorySubscriptionBus(), list[str]()
        self._initialized: list[ServerSession] = []  # clients that did the handshake; they are notified of changes
        self.server: MCPServer[Any] = MCPServer(
            "tacit", instructions=INSTRUCTIONS, version=tacit.__version__, log_level="WARNING", subscriptions=self._changed,
            middleware=[self._handshake],
        )  # fmt: skip
        for tool in (self.begin, self.observe, self.end, self.refresh):
            self.server.add_tool(tool)
        self._update_tools()

    async def begin(self, goal: Text, family: Name = "", skill: Name = "", seed: Seed = 0) -> dict[str, Any]:
        """Begin an episode in a world of your own. Say which kind of task it is (family) where there is more than one."""
        with _as_tool_errors():
            session = await self._service.begin(goal, family=family, skill=skill, seed=seed)
            return {"session": session.name, "module": session.served.name}

    async def observe(
        self,
        session: Name,
        observation: Text,
        actions: Actions = NONE_LISTED,
        done: bool = False,
        success: bool = False,
        effective: bool = True,
        turn: int | None = None,
    ) -> dict[str, Any]:
        """Say what is seen now, which actions there are where the world lists them, and whether that is the end; whether the
        action before did anything (`effective`). Answers with the next action, and with what the module read. Who did not get
        an answer asks again with the same `turn`."""
        with _as_tool_errors():
            open_session = self._service.sessions.find_open(session)
            transition = Transition(Observation(observation, tuple(actions)), done, success, effective=effective)
            answer = await self._service.sessions.observe(open_session, transition, turn)
            if answer is None:
                return {"action": None, "outcome": open_session.outcome}
            return {"action": answer.action, "turn": answer.number, "state": answer.state, "prompt": answer.prompt}

    async def end(self, session: Name, success: bool = False) -> dict[str, Any]:
        """End an episode before its world does."""
        with _as_tool_errors():
            open_session = self._service.sessions.find_open(session)
            self._service.sessions.end(open_session, "success" if success else "failure")
            return _summarize(open_session)

    async def refresh(self) -> dict[str, Any]:
        """Look for modules again: new ones become tools, changed ones are replaced, missing ones taken off."""
        with _as_tool_errors():
            return vars(await self.update())

    async def update(self) -> Changes:
        changes = await self._service.catalog.refresh()
        if changes.added or changes.replaced or changes.removed:
            self._update_tools()
            await self._changed.publish(ToolsListChanged())
            for client in tuple(self._initialized):
                try:
                    await client.send_tool_list_changed()
                except Exception:  # the client has gone
                    self._initialized.remove(client)
        return changes

    async def _handshake(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Middleware: announce `listChanged` in the handshake, and remember clients that completed it."""
        answer = await call_next(ctx)
        if ctx.method == "initialize" and isinstance(answer, dict):
            tools = {**answer["capabilities"].get("tools", {}), "listChanged": True}
            return {**answer, "capabilities": {**answer["capabilities"], "tools": tools}}
        if ctx.method == "notifications/initialized":
            self._initialized.append(ctx.session)
        return answer

    def _update_tools(self) -> None:
        while self._play_tools:
            self.server.remove_tool(self._play_tools.pop())
        for served in self._service.catalog.modules.values() if self._service.settings.worlds else ():
            families = ", ".join(served.module.families)
            description = f"Play one episode of {served.world.name} ({served.world.summary}) until it is over: {families}."
            self._play_tools.append(re.sub(r"[^A-Za-z0-9_-]", "_", served.name)[:64])
            self.server.add_tool(_make_play_tool(self._service, served), self._play_tools[-1], description=description)


def _make_play_tool(service: Service, served: ServedModule) -> Callable[..., Awaitable[dict[str, Any]]]:
    async def play(context: Context, number: int = 0, split: Name = "", family: Name = "", seed: Seed = 0) -> dict[str, Any]:
        """`number`: which task of the split, from 0; `split` and `family`: the world's own where they are left out."""
        with _as_tool_errors():
            session = await service.begin(skill=served.name, family=family, split=split, number=number, seed=seed)
            max_turns = min(served.module.max_steps, service.settings.turns)
            try:
                while session.open:
                    turn = await play_turn(session, service.sessions, None)
                    await context.report_progress(turn.number, max_turns, turn.action)
                    if turn.number >= max_turns:
                        service.sessions.end(session, "limit", f"{max_turns} turns")
            except BaseException:  # nobody else knows this session
                service.sessions.end(session, "abandoned", "its client went away, or got an error")
                raise
            return _summarize(session)

    return play


def _summarize(session: Session) -> dict[str, Any]:
    turns = [{"saw": turn.observation.text, "did": turn.action} for turn in session.turns if turn.acted]
    summary = {"goal": session.episode.task.goal, "outcome": session.outcome, "note": session.note}
    return summary | {"turns": turns, "saw_last": session.final.text if session.final else ""}


@contextmanager
def _as_tool_errors() -> Iterator[None]:
    """Report our errors to the client."""
    try:
        yield
    except TacitError as error:
        raise ToolError(str(error)) from error
