"""The modules as tools over MCP: one for each that acts in its own world until the episode is over, and three for a world of
the caller's own, who is told what to do, does it, and tells what came of it."""

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
from tacit.serving.batching import leave
from tacit.serving.catalogue import Changes, Offer
from tacit.serving.running import in_words, on_hang_up
from tacit.serving.service import Service, play_turn
from tacit.serving.sessions import Actions, Name, Seed, Session, Text, Turn

INSTRUCTIONS = """Small models that each know one kind of work. A tool named after a module plays a whole episode of its own
world and says how it went. For a world of your own: `begin` with the goal, then `observe` with what is seen there and do the
action it answers with, again and again, and `end`."""

NONE_LISTED: list[str] = []


def serve_tools(service: Service, remark: Callable[[str], None]) -> int:
    """Over standard input and output, until the client closes them. `remark` is given what SIGHUP has changed."""

    async def run() -> None:
        async with service.running():
            tools = Tools(service)

            async def look_again() -> None:
                remark(in_words(await tools.look()))

            on_hang_up(look_again)
            await tools.server.run_stdio_async()

    asyncio.run(run())
    return leave(0)


class Tools:
    """What is offered now; `service` must be running."""

    def __init__(self, service: Service) -> None:
        self._service, self._changed, self._players = service, InMemorySubscriptionBus(), list[str]()
        self._greeted: list[ServerSession] = []
        """clients that began with a handshake: they are told without having asked"""
        self.server: MCPServer[Any] = MCPServer(
            "tacit", instructions=INSTRUCTIONS, version=tacit.__version__, log_level="WARNING", subscriptions=self._changed,
            middleware=[self._greet],
        )  # fmt: skip
        for tool in (_begin(service), _observe(service), _end(service)):
            self.server.add_tool(tool)
        self.server.add_tool(self.refresh)
        self._renew()

    async def refresh(self) -> dict[str, Any]:
        """Look for modules again: new ones become tools, changed ones are replaced, missing ones taken off."""
        with _explained():
            return vars(await self.look())

    async def look(self) -> Changes:
        changes = await self._service.refresh()
        if changes.added or changes.replaced or changes.removed:
            self._renew()
            await self._changed.publish(ToolsListChanged())
            for client in tuple(self._greeted):
                try:
                    await client.send_tool_list_changed()
                except Exception:  # it has gone
                    self._greeted.remove(client)
        return changes

    async def _greet(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Whoever begins with a handshake is promised in it to hear of other tools, and known from its end on."""
        answer = await call_next(ctx)
        if ctx.method == "initialize" and isinstance(answer, dict):
            tools = {**answer["capabilities"].get("tools", {}), "listChanged": True}
            return {**answer, "capabilities": {**answer["capabilities"], "tools": tools}}
        if ctx.method == "notifications/initialized":
            self._greeted.append(ctx.session)
        return answer

    def _renew(self) -> None:
        while self._players:
            self.server.remove_tool(self._players.pop())
        for offer in self._service.catalogue.offers.values() if self._service.settings.worlds else ():
            families = ", ".join(offer.module.families)
            told = f"Play one episode of {offer.world.name} ({offer.world.summary}) until it is over: {families}."
            self._players.append(_tool_name(offer))
            self.server.add_tool(_player(self._service, offer), self._players[-1], description=told)


def _player(service: Service, offer: Offer) -> Callable[..., Awaitable[dict[str, Any]]]:
    async def play(context: Context, number: int = 0, split: Name = "", family: Name = "", seed: Seed = 0) -> dict[str, Any]:
        """`number`: which task of the split, from 0; `split` and `family`: the world's own where they are left out."""
        with _explained():
            session = await service.begin(skill=offer.name, family=family, split=split, number=number, seed=seed)
            most = min(offer.module.max_steps, service.settings.turns)
            try:
                while session.open:
                    turn = await play_turn(session, service.sessions, None)
                    await context.report_progress(turn.number, most, turn.action)
                    if turn.number >= most:
                        service.sessions.end(session, "limit", f"{most} turns")
            except BaseException:  # cancelled, or refused: nobody else knows of this session
                service.sessions.end(session, "abandoned", "its caller went away, or was refused")
                raise
            return _told(session)

    return play


def _begin(service: Service) -> Callable[..., Awaitable[dict[str, Any]]]:
    async def begin(goal: Text, family: Name = "", skill: Name = "", seed: Seed = 0) -> dict[str, Any]:
        """Begin an episode in a world of your own. Say which kind of task it is (family) where there is more than one."""
        with _explained():
            session = await service.begin(goal, family=family, skill=skill, seed=seed)
            return {"session": session.name, "module": session.offer.name}

    return begin


def _observe(service: Service) -> Callable[..., Awaitable[dict[str, Any]]]:
    async def observe(
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
        with _explained():
            found = service.sessions.still_open(session)
            seen = Transition(Observation(observation, tuple(actions)), done, success, effective=effective)
            told = await service.sessions.see(found, seen, turn)
            if told is None:
                return {"action": None, "outcome": found.outcome}
            return {"action": told.action, "turn": told.number, "state": told.state, "prompt": told.prompt}

    return observe


def _end(service: Service) -> Callable[..., Awaitable[dict[str, Any]]]:
    async def end(session: Name, success: bool = False) -> dict[str, Any]:
        """End an episode before its world does."""
        with _explained():
            found = service.sessions.still_open(session)
            service.sessions.end(found, "success" if success else "failure")
            return _told(found)

    return end


def _told(session: Session) -> dict[str, Any]:
    def line(turn: Turn) -> dict[str, Any]:
        return {"saw": turn.observation.text, "did": turn.action}

    told = {"goal": session.episode.task.goal, "outcome": session.outcome, "note": session.note}
    acted = [line(turn) for turn in session.turns if turn.acted]
    return told | {"turns": acted, "saw_last": session.final.text if session.final else ""}


def _tool_name(offer: Offer) -> str:
    """
    >>> re.sub(r"[^A-Za-z0-9_-]", "_", "alfworld/heat")
    'alfworld_heat'
    """
    return re.sub(r"[^A-Za-z0-9_-]", "_", offer.name)[:64]


@contextmanager
def _explained() -> Iterator[None]:
    """A refusal is for the caller to read, not a failure of the server."""
    try:
        yield
    except TacitError as error:
        raise ToolError(str(error)) from error
