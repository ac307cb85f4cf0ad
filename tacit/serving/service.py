"""Everything a server keeps, put together: the catalogue, the thread that gathers, the sessions. HTTP and MCP are its doors."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.core.protocols import Request
from tacit.core.seeds import derive
from tacit.core.types import Observation, Prompt, StopReason, Task, Transition
from tacit.core.world import Environment
from tacit.engines.local.settings import EngineSettings
from tacit.rollout.encoding import encode_action
from tacit.rollout.worlds import InProcessPool, WorldFailure
from tacit.serving.batching import Aside, Gathering, aside
from tacit.serving.catalogue import Agreed, Catalogue, Changes, Offer
from tacit.serving.guard import Metrics
from tacit.serving.requests import Refused, gone, not_found, out_of_turn, unusable
from tacit.serving.sessions import Session, Sessions, Turn, answer_in_time
from tacit.serving.settings import ServingSettings

# Episodes in the modules' own worlds, played here: what the page and the tool over MCP act in.

MOST_TASKS = 512
"""how far into a split one may ask: a world makes all tasks before the one that is asked for, a millisecond each"""
WORLD_S = 30.0
"""a world that takes longer is taken to hang"""


class Hosted:
    """A world of one episode. Worlds may be anybody's: one that raises or hangs ends its own session."""

    def __init__(self, world: Environment) -> None:
        self._pool = InProcessPool(world.make, WORLD_S)
        self._thread = Aside()

    async def reset(self, task: Task) -> Observation | WorldFailure:
        return (await self._thread.do(partial(self._pool.reset, [task])))[0]

    async def step(self, action: str) -> Transition | WorldFailure:
        return (await self._thread.do(partial(self._pool.step, [(0, action)])))[0]

    def close(self) -> None:
        self._thread.close(self._pool.close)


def task_at(offer: Offer, split: str, number: int, family: str) -> Task:
    """The task of this number in a split, of the families the module serves or of the one named."""
    world = offer.world
    if family and family not in offer.module.families:
        raise not_found(f"module {offer.name} is for {', '.join(offer.module.families)}, not for family {family!r}.")
    if not 0 <= number < MOST_TASKS:
        raise unusable(f"task {number}: tasks are counted from 0 to {MOST_TASKS - 1}.")
    try:
        tasks = world.tasks_of(world.split_to_measure(split), number + 1, 0, (family,) if family else offer.module.families)
    except TacitError as error:
        raise unusable(str(error)) from error
    if number >= len(tasks):
        raise not_found(f"split {split!r} of world {world.name!r} has {len(tasks)} such tasks; they are counted from 0.")
    return tasks[number]


async def open_world_for(session: Session, sessions: Sessions) -> None:
    """The session sees the world's first observation; what it does then is somebody's to say."""
    session.world = Hosted(session.offer.world)
    with sessions.alone(session):
        try:
            first = await asyncio.wait_for(session.world.reset(session.episode.task), WORLD_S)
        except TimeoutError:
            first = WorldFailure(StopReason.WORLD_HANG, f"it did not begin within {WORLD_S:g} s")
        if not session.open:
            raise gone(f"session {session.name!r} was ended while its world began.")
        if isinstance(first, WorldFailure):
            sessions.end(session, first.reason.value, first.detail)
            raise unusable(f"the world broke when the task was begun: {first.detail}")
        await sessions.next_turn(session, first)


def present_turn(session: Session) -> Turn:
    if not session.turns:
        raise out_of_turn(f"session {session.name!r} has no turn yet: its world is still beginning.")
    return session.turns[-1]


async def play_turn(session: Session, sessions: Sessions, action: str | None) -> Turn:
    """One turn in the session's own world: the module's action, or the one given by hand."""
    if session.world is None:
        raise unusable(f"session {session.name!r} is played in a world of your own; tell it what is seen there (observe).")
    present_turn(session)
    with sessions.alone(session):
        turn = await sessions.act(session) if action is None else sessions.acted(session, action)
        try:
            answer = await asyncio.wait_for(session.world.step(turn.action), WORLD_S)
        except TimeoutError:
            sessions.end(session, "world_hang", f"no answer to {turn.action!r} within {WORLD_S:g} s")
            return turn
        if isinstance(answer, WorldFailure):
            sessions.end(session, answer.reason.value, answer.detail)
            return turn
        try:
            await sessions.told(session, answer)
            if session.open and not sessions.at_limit(session):
                await sessions.next_turn(session, answer.observation)
        except Refused as error:  # the world will not say it in other words
            sessions.end(session, "broken", str(error))
            raise
        finally:
            if not session.open:
                session.final = answer.observation
    return turn


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


# What else the module might have done: probabilities of whole actions, in its own prompt.
#
#     π(a | x) = Π over tokens of π(token | x, earlier tokens)
#
# of every action that the world lists, at the temperature the module is played at (1 where it is greedy). Where the world lists
# none, of what a few draws come up with.

MOST_LISTED, DRAWS = 100, 16


async def weigh(session: Session, turn: Turn, most: int, service: Service) -> None:
    """Give the present turn its likeliest `most` actions, likeliest first."""
    offer, request, prompt = session.offer, session.request, session.episode.prompt
    if turn.alternatives is not None or request is None or prompt is None or turn is not session.turns[-1]:
        return
    listed, seed = turn.observation.actions[:MOST_LISTED], session.episode.seed
    temperature = session.episode.sampling.temperature or 1.0

    def work() -> list[tuple[str, float]]:
        meant = listed or _drawn(offer, request, seed, session)
        return _scored(offer, prompt, request, tuple(dict.fromkeys(meant)), temperature)

    found = await answer_in_time(lambda: service.gathering.call(work), service.settings, service.gathering)
    turn.alternatives = [{"action": action, "probability": value} for action, value in found[:most]]


def _drawn(offer: Offer, request: Request, seed: int, session: Session) -> tuple[str, ...]:
    requests = [Request(request.prompt, derive(seed, len(session.turns), "alternative", draw)) for draw in range(DRAWS)]
    completions = offer.policy.sample(requests, session.episode.sampling)
    return tuple(offer.context.format.parse(completion.text).action for completion in completions)


def _scored(
    offer: Offer, prompt: Prompt, request: Request, actions: tuple[str, ...], temperature: float
) -> list[tuple[str, float]]:
    written = {}
    for action in actions:
        with suppress(TacitError):  # what the module's format cannot write, it cannot do
            tokens = encode_action(prompt, action, offer.context.format, offer.policy)
            if len(tokens) + len(request.prompt) <= offer.policy.context_limit:
                written[action] = tokens
    rows = offer.policy.logprobs([request.prompt] * len(written), list(written.values()), temperature)
    scored = [(action, math.exp(float(row.sum()))) for action, row in zip(written, rows, strict=True)]
    return sorted(scored, key=lambda pair: -pair[1])
