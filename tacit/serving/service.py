"""The service behind HTTP and MCP: catalog, batching thread and sessions; episodes in the modules' own worlds."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.core.protocols import Request
from tacit.core.seeds import derive
from tacit.core.types import Observation, StopReason, Task, Transition
from tacit.core.world import Environment
from tacit.engines.local.settings import EngineSettings
from tacit.rollout.encoding import encode_action
from tacit.rollout.worlds import InProcessPool, WorldFailure
from tacit.serving.batching import BatchingThread, Result, WorkerThread
from tacit.serving.catalog import ApproveDraft, Catalog, ServedModule
from tacit.serving.guard import Metrics
from tacit.serving.requests import RequestError, conflict, gone, invalid, not_found
from tacit.serving.sessions import Session, Sessions, Turn, count_bytes, wait_for_answer
from tacit.serving.settings import ServingSettings

MAX_TASKS = 512  # largest task number plus one; a world makes all earlier tasks of a split, about 1 ms each
MAX_STARTING = 2  # worlds that start at once
WORLD_S = 30.0  # timeout of a world's reset and step


class HostedWorld:
    """The world of one session. A world that raises or hangs ends only its session."""

    def __init__(self, world: Environment) -> None:
        self._pool = InProcessPool(world.make, WORLD_S)
        self._thread = WorkerThread(f"world {world.name}")

    async def reset(self, task: Task) -> Observation | WorldFailure:
        return await self._do("reset", partial(self._pool.reset, [task]))

    async def step(self, action: str) -> Transition | WorldFailure:
        return await self._do(repr(action), partial(self._pool.step, [(0, action)]))

    async def _do(self, call: str, work: Callable[[], list[Result]]) -> Result | WorldFailure:
        try:
            return (await self._thread.do(work, WORLD_S))[0]
        except RequestError:
            return WorldFailure(StopReason.WORLD_HANG, f"no answer to {call} within {WORLD_S:g} s")

    def close(self) -> None:
        self._thread.close(self._pool.close)


def find_task(served: ServedModule, split: str, number: int, family: str) -> Task:
    """Task `number` of a split, counted over `family` or, without one, over all families of the module."""
    world = served.world
    if not 0 <= number < MAX_TASKS:
        raise invalid(f"task {number}: task numbers are 0 to {MAX_TASKS - 1}.")
    if (split, number, family) in served.tasks:
        return served.tasks[split, number, family]
    try:
        tasks = world.tasks_of(world.split_to_measure(split), number + 1, 0, (family,) if family else served.module.families)
    except TacitError as error:
        raise invalid(str(error)) from error
    if number >= len(tasks):
        raise not_found(f"split {split!r} of world {world.name!r} has {len(tasks)} such tasks, numbered from 0.")
    if len(served.tasks) >= MAX_TASKS:
        served.tasks.clear()
    served.tasks[split, number, family] = tasks[number]
    return tasks[number]


def current_turn(session: Session) -> Turn:
    if not session.turns:
        raise conflict(f"session {session.name!r} has no turn yet: its world is still starting.")
    return session.turns[-1]


async def play_turn(session: Session, sessions: Sessions, action: str | None) -> Turn:
    """Play one turn in the session's hosted world: the module's action, or `action` if given."""
    if session.world is None:
        raise invalid(f"session {session.name!r} is played in a world of your own; use observe instead of step.")
    current_turn(session)
    with sessions.lock(session):
        turn = await sessions.act(session, session.turns[-1]) if action is None else sessions.act_by_hand(session, action)
        answer = await session.world.step(turn.action)
        if isinstance(answer, WorldFailure):
            sessions.end(session, answer.reason.value, answer.detail)
            return turn
        try:
            await sessions.record(session, answer)
            if session.open and not sessions.end_at_limit(session):
                await sessions.next_turn(session, answer.observation)
        except RequestError as error:  # a retry would give the same observation
            sessions.end(session, "broken", str(error))
            raise
        finally:
            if not session.open:
                session.final = answer.observation
    return turn


CLEANUP_S = 1.0  # seconds between searches for idle sessions


class Service:
    def __init__(
        self,
        paths: Sequence[Path],
        settings: ServingSettings,
        engine: EngineSettings | None = None,
        base: str | None = None,
        fallback: str | None = None,
        approve_draft: ApproveDraft = lambda name, draft: False,
    ) -> None:
        self.settings, self.metrics = settings, Metrics()
        self.batching = BatchingThread(self.metrics.rows.observe)
        self.catalog = Catalog(paths, self.batching, engine, base, fallback, approve_draft)
        self.sessions = Sessions(settings, self.catalog, self.batching, self.metrics)
        self.metrics.add_gauge("sessions_open", "sessions open now", lambda: len(self.sessions))
        self.metrics.add_gauge("requests_waiting", "requests that wait for the model", lambda: self.batching.waiting)
        self.metrics.add_gauge("modules", "modules served", lambda: len(self.catalog.modules))
        self.metrics.add_gauge("session_bytes", "memory of all sessions' texts", lambda: self.sessions.bytes)
        self._task_thread, self._thread = WorkerThread("the world"), WorkerThread("the server")
        self._starting_worlds = asyncio.Semaphore(MAX_STARTING)
        self.ready = False

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run slow work that belongs to no module. It runs outside the event loop, one call at a time."""
        return await self._thread.do(work, self.settings.answer_s)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Service]:
        """Load all modules, run, and shut down. A module that cannot be served at the start is an error."""
        self.batching.start()

        async def end_idle_sessions() -> None:
            while True:
                await asyncio.sleep(min(CLEANUP_S, self.settings.idle_s))
                self.sessions.end_idle()

        cleanup = asyncio.create_task(end_idle_sessions())
        try:
            changes = await self.catalog.refresh()
            if changes.refused:
                raise TacitError("; ".join(changes.refused.values()).rstrip(".") + ".")
            self.catalog.check_fallback()
            self.ready = True
            yield self
        finally:
            self.ready = False
            cleanup.cancel()
            with suppress(asyncio.CancelledError):
                await cleanup
            self.sessions.end_all("the server was stopped")
            self.catalog.close()
            self._task_thread.close()
            self._thread.close()
            await self.batching.stop()

    async def begin(
        self,
        goal: str = "",
        *,
        client: str = "",
        skill: str = "",
        world: str = "",
        family: str = "",
        seed: int = 0,
        temperature: float | None = None,
        data: dict | None = None,
        split: str = "",
        number: int | None = None,
    ) -> Session:
        """Begin a session for the client's own world with a goal, or for task `number` of the module's world on this server."""
        served = self.catalog.choose(skill, world, family)
        if family and family not in served.module.families:
            raise RequestError(422, f"{served.module.skill!r} is for {', '.join(served.module.families)}, not for {family!r}.")
        served_family = family or (served.module.families[0] if len(served.module.families) == 1 else "")
        if number is None and not served_family:
            raise RequestError(422, f"the goal needs a family, one of {', '.join(served.module.families)}.")
        if number is not None and not self.settings.worlds:
            raise RequestError(403, "this server was started without worlds (--worlds); use your own.")
        # From here on the module is in use: if it is replaced, its old version stays loaded until the session ends.
        with self.sessions.reserve(), self.catalog.use(served):
            task = Task(served.world.name, "", served_family, "", 0, goal, data or {})
            if number is not None:
                task = await self._task_thread.do(partial(find_task, served, split, number, family), WORLD_S)
            session = await self.sessions.begin(client, served, task, seed, temperature)
        if number is None:
            return session
        try:
            session.world = HostedWorld(session.served.world)
            session.resources.callback(session.world.close)
            with self.sessions.lock(session):
                async with self._starting_worlds:
                    first = await session.world.reset(task)
                if not session.open:
                    raise gone(f"session {session.name!r} was ended while its world started.")
                if isinstance(first, WorldFailure):
                    self.sessions.end(session, first.reason.value, first.detail)
                    raise invalid(f"the world failed at reset: {first.detail}")
                await self.sessions.next_turn(session, first)
        except BaseException:
            self.sessions.end(session, "world_error", "its world did not start")
            raise
        return session


MAX_ALTERNATIVES, DRAWS = 100, 16  # listed actions to score; completions to sample if no actions are listed


async def score_alternatives(session: Session, turn: Turn, count: int, service: Service) -> None:
    """Add the `count` most likely actions to the current turn.

    π(a | x) = Π over tokens of π(token | x, earlier tokens), for every action that the world lists, at the module's temperature
    (1 if it is greedy). If the world lists none, for a few sampled actions.
    """
    served, request, prompt = session.served, session.request, session.episode.prompt
    if turn.alternatives is not None or request is None or prompt is None or turn is not session.turns[-1]:
        return
    world_actions, seed = turn.observation.actions[:MAX_ALTERNATIVES], session.episode.seed
    temperature = session.episode.sampling.temperature or 1.0

    def work() -> list[tuple[str, float]]:
        actions = list(world_actions)
        if not actions:
            requests = [Request(request.prompt, derive(seed, len(session.turns), "alternative", draw)) for draw in range(DRAWS)]
            completions = served.policy.sample(requests, session.episode.sampling)
            actions = [served.context.format.parse(completion.text).action for completion in completions]
        tokens_by_action = {}
        for action in dict.fromkeys(actions):
            with suppress(TacitError):  # the module's format may not be able to express the action
                tokens = encode_action(prompt, action, served.context.format, served.policy)
                if len(tokens) + len(request.prompt) <= served.policy.context_limit:
                    tokens_by_action[action] = tokens
        rows = served.policy.logprobs([request.prompt] * len(tokens_by_action), list(tokens_by_action.values()), temperature)
        scored = [(action, math.exp(float(row.sum()))) for action, row in zip(tokens_by_action, rows, strict=True)]
        return sorted(scored, key=lambda pair: -pair[1])

    scores = await wait_for_answer(lambda: service.batching.call(work), service.settings, service.batching)
    alternatives = [{"action": action, "probability": value} for action, value in scores[:count]]
    service.sessions.grow(session, count_bytes(alternatives))
    turn.alternatives = alternatives
