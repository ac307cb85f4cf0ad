"""Everything a server keeps, put together: the catalogue, the thread that gathers, the sessions. HTTP and MCP are its doors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.engines.local.settings import EngineSettings
from tacit.serving.aside import aside
from tacit.serving.catalogue import Agreed, Catalogue, Changes
from tacit.serving.gathering import Gathering
from tacit.serving.hosting import open_world_for, task_at
from tacit.serving.metrics import Metrics
from tacit.serving.refusals import Refused
from tacit.serving.session import Session
from tacit.serving.sessions import Sessions
from tacit.serving.settings import ServingSettings

TIDY_S = 1.0


class Service:
    def __init__(
        self,
        places: Sequence[Path],
        settings: ServingSettings,
        engine: EngineSettings | None = None,
        base: str | None = None,
        fallback: str | None = None,
        agreed: Agreed = lambda name, draft: False,
    ) -> None:
        """`agreed`: as a `Catalogue` asks it."""
        self.settings, self.metrics = settings, Metrics()
        self.gathering = Gathering(self.metrics.batch)
        self.catalogue = Catalogue(places, self.gathering, engine, base, fallback, agreed)
        self.sessions = Sessions(settings, self.catalogue, self.gathering, self.metrics)
        self.metrics.read_off("sessions_open", "sessions open now", lambda: len(self.sessions))
        self.metrics.read_off("requests_waiting", "requests that wait for the model", lambda: self.gathering.waiting)
        self.metrics.read_off("modules", "modules served", lambda: len(self.catalogue.offers))
        self.ready = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Service]:
        """From loaded weights to an orderly end. A module that cannot be served at the start is a mistake, and said."""
        self.gathering.start()
        tidy = asyncio.create_task(self._tidy())
        try:
            changes = await self.catalogue.refresh()
            if changes.refused:
                raise TacitError("; ".join(changes.refused.values()).rstrip(".") + ".")
            self.catalogue.check_fallback()
            self.ready = True
            yield self
        finally:
            self.ready = False
            tidy.cancel()
            with suppress(asyncio.CancelledError):
                await tidy
            self.sessions.end_all("the server was stopped")
            self.catalogue.close()
            await self.gathering.stop()

    async def refresh(self) -> Changes:
        return await self.catalogue.refresh()

    async def begin(
        self,
        goal: str = "",
        *,
        skill: str = "",
        world: str = "",
        family: str = "",
        seed: int = 0,
        temperature: float | None = None,
        data: dict | None = None,
        split: str = "",
        number: int | None = None,
    ) -> Session:
        """An episode for somebody's own world, given its goal; or, with a number, one in the module's own world, here."""
        offer = self.catalogue.choose(skill, world, family)
        if family and family not in offer.module.families:
            raise Refused(422, f"{offer.module.skill!r} is for {', '.join(offer.module.families)}, not for {family!r}.")
        if number is None:
            kind = family or (offer.module.families[0] if len(offer.module.families) == 1 else "")
            if not kind:
                raise Refused(422, f"which kind of task is it? Say family, one of {', '.join(offer.module.families)}.")
            task = Task(offer.world.name, "", kind, "", 0, goal, data or {})
            return self.sessions.begin(offer, task, seed, temperature)
        if not self.settings.worlds:
            raise Refused(403, "no episodes are played here; this server was started without worlds.")
        with self.catalogue.using(offer):  # from here on: what is replaced meanwhile stays until the session is over
            task = await aside(partial(task_at, offer, split, number, family))
            session = self.sessions.begin(offer, task, seed, temperature)
        try:
            await open_world_for(session, self.sessions)
        except BaseException:
            self.sessions.end(session, "world_error", "its world did not begin")
            raise
        return session

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(min(TIDY_S, self.settings.idle_s))
            self.sessions.end_idle()
