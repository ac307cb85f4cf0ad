"""Sessions: one isolated episode each.

A client begins a session with a goal, sends an observation, gets an action, sends the next observation, and so on. Turns are
numbered: repeating a turn's number returns the same answer, so a client can retry.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tacit.core.errors import TacitError
from tacit.core.protocols import Request
from tacit.core.types import Observation, Task, Transition
from tacit.modules.agent import Episode, playing_sampling
from tacit.serving.batching import BatchingThread
from tacit.serving.catalog import Catalog, ServedModule
from tacit.serving.guard import Metrics
from tacit.serving.requests import RequestError, conflict, gone, invalid, not_found, too_many
from tacit.serving.settings import ServingSettings

MODULE, HAND = "module", "hand"  # who chose an action
TURN_BYTES = 2048  # of a turn besides its texts, about


def count_bytes(*values: Any) -> int:
    """Memory of JSON values and texts."""
    size, stack = 0, list(values)
    while stack:
        value = stack.pop()
        size += sys.getsizeof(value)
        stack.extend((*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list | tuple) else ())
    return size


@dataclass
class Turn:
    """One turn. Field names are part of the HTTP API."""

    number: int
    observation: Observation
    prompt: str
    state: str  # the state block in the prompt; empty if there is none
    action: str = ""
    acted: bool = False
    by: str = MODULE
    wrote: str = ""  # the completion
    effective: bool = True  # whether the action changed anything
    valid: bool = True  # whether the completion is an action in the module's format
    probability: float | None = None  # of the completion, at its sampling temperature
    prompt_tokens: int = 0
    tokens: int = 0
    alternatives: list[dict[str, Any]] | None = None  # the most likely actions with probabilities, if requested
    signals: dict[str, float] = field(default_factory=dict)  # the tracker's reward signals

    def to_json(self) -> dict[str, Any]:
        rest = {name: value for name, value in vars(self).items() if name not in ("number", "observation", "action")}
        seen = {"observation": self.observation.text, "actions": list(self.observation.actions)}
        return {"turn": self.number, "action": self.action, **seen, **rest}


class Session:
    def __init__(self, name: str, client: str, served: ServedModule, episode: Episode) -> None:
        self.name, self.client, self.served, self.episode = name, client, served, episode
        self.resources = ExitStack()  # closed when it ends
        self.turns: list[Turn] = []
        self.outcome = ""  # empty while it is open
        self.note = ""
        self.began = time.time()
        self.touch()
        self.bytes = 0  # of its texts in memory
        self.final: Observation | None = None  # the last observation
        self.request: Request | None = None  # of the current turn
        self.acting = False  # a request is in progress
        self.world: Any = None  # a `service.HostedWorld`, if the server runs the world

    @property
    def open(self) -> bool:
        return not self.outcome

    def check_still_open(self) -> None:
        """Raise if it was ended during an `await`."""
        if not self.open:
            raise gone(f"session {self.name!r} was ended meanwhile.")

    def touch(self) -> None:
        """Record a request: `touched` for display, `active` on a monotonic clock for expiry."""
        self.touched, self.active = time.time(), time.monotonic()

    def to_json(self, turns: bool = False) -> dict[str, Any]:
        task, module = self.episode.task, self.served.module
        data: dict[str, Any] = {
            "session": self.name, "module": self.served.name, "digest": module.digest, "goal": task.goal, "family": task.family,
            "task": task.id, "seed": self.episode.seed, "temperature": self.episode.sampling.temperature,
            "open": self.open, "outcome": self.outcome, "note": self.note, "hosted": self.world is not None,
            "turn": len(self.turns), "began": self.began, "touched": self.touched,
        }  # fmt: skip
        if turns:
            data["turns"] = [turn.to_json() for turn in self.turns]
            data["final"] = self.final.text if self.final else ""
        return data


Answer = TypeVar("Answer")


class Sessions:
    def __init__(self, settings: ServingSettings, catalog: Catalog, batching: BatchingThread, metrics: Metrics) -> None:
        self._settings, self._catalog, self._batching, self._metrics = settings, catalog, batching, metrics
        self._server_id = secrets.token_hex(4)  # prefix of session names, to recognize those of an earlier server process
        self._open: dict[str, Session] = {}
        self._ended: OrderedDict[str, Session] = OrderedDict()
        self._reserved = self.bytes = 0

    def of(self, client: str) -> list[Session]:
        """A client's open sessions, then its ended ones, newest first."""
        return [session for session in (*self._open.values(), *reversed(self._ended.values())) if session.client == client]

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def reserve(self) -> Iterator[None]:
        """Reserve a place for a session that is about to begin; raises (429) if the server is full."""
        taken = len(self._open) + self._reserved
        if taken >= self._settings.sessions:
            raise too_many(f"{taken} sessions are open, which is the limit: end one, or try again later.")
        self._reserved += 1
        try:
            yield
        finally:
            self._reserved -= 1

    async def begin(self, client: str, served: ServedModule, task: Task, seed: int, temperature: float | None) -> Session:
        """Begin a session. Reserve a place for it first."""
        sampling = playing_sampling(served.module, served.context, temperature)

        def begin() -> tuple[Episode, int]:
            return Episode(served.module, served.context, task, sampling, seed), count_bytes(task.goal, task.data)

        episode, size = await _run_code(served, begin, "begin with this goal")
        self._count_bytes(size, 0)
        session = Session(f"{self._server_id}-{secrets.token_urlsafe(12)}", client, served, episode)
        session.resources.enter_context(self._catalog.use(served))
        session.bytes = size
        self._open[session.name] = session
        self._metrics.started.labels(served.name).inc()
        return session

    def grow(self, session: Session, size: int) -> None:
        """Count bytes that are about to be stored. Ends a session that exceeds its limit."""
        try:
            self._count_bytes(size, session.bytes)
        except RequestError as error:
            if error.status == 413:
                self.end(session, "limit", f"{self._settings.session_bytes} bytes")
            raise
        session.bytes += size

    def _count_bytes(self, size: int, before: int) -> None:
        """Count further bytes of a session. If the server is full, drop ended sessions; if that is not enough, refuse (429)."""
        if before + size > (limit := self._settings.session_bytes):
            raise RequestError(413, f"the session would take {before + size} bytes; the limit is {limit} (--session-bytes).")
        while self.bytes + size > self._settings.total_bytes and self._ended:
            self._drop_oldest()
        if self.bytes + size > self._settings.total_bytes:
            raise too_many(
                f"the sessions of this server take {self.bytes} bytes, which is the limit: end one, or try again later."
            )
        self.bytes += size

    def _drop_oldest(self) -> None:
        self.bytes -= self._ended.popitem(last=False)[1].bytes

    def find(self, name: str, client: str = "") -> Session:
        """An open session, or an ended one that is still kept."""
        session = self._open.get(name) or self._ended.get(name)
        if session is not None and session.client == client:
            return session
        server_id, dash, _ = name.partition("-")
        if dash and len(server_id) == len(self._server_id) and server_id != self._server_id:
            raise gone(
                f"session {name!r} belonged to a server that has been stopped; its episode is lost. Begin a new session."
            )
        raise not_found(f"there is no session {name[:80]!r}; it never existed, or ended long ago.")

    def find_open(self, name: str, client: str = "") -> Session:
        session = self.find(name, client)
        if not session.open:
            note = f" ({session.note})" if session.note else ""
            raise gone(f"session {name!r} has ended: {session.outcome}{note}. Begin a new one.")
        session.touch()
        return session

    async def observe(self, session: Session, transition: Transition, number: int | None) -> Turn | None:
        """Record an observation and return the next turn with its action; None if the episode ended."""
        if session.world is not None:
            raise conflict(f"session {session.name!r} is played in a world on this server; use step instead of observe.")
        with self.lock(session):
            turn = session.turns[-1] if session.turns else None
            is_retry = turn is not None and (number == turn.number if number is not None else not turn.acted)
            if turn is not None and is_retry and (transition.done or transition.success):
                raise conflict(
                    f"turn {turn.number} was not the end when it was first sent; send the result of its action as turn "
                    f"{turn.number + 1}, or end the session (end)."
                )
            if turn is not None and number is not None and number == turn.number:
                if transition.observation != turn.observation:
                    raise conflict(f"turn {number} already has another observation; the next turn is {number + 1}.")
                return turn if turn.acted else await self.act(session, turn)
            next_number = turn.number + 1 if turn else 1
            if number is not None and number != next_number:
                raise conflict(f"turn {number} is out of order; the next turn is {next_number}.")
            if turn is not None and not turn.acted:
                # The client did not get the answer, for example because of a timeout, and sends the observation again.
                if transition.observation != turn.observation:
                    raise conflict(f"turn {turn.number} has no action yet; send its observation again.")
                return await self.act(session, turn)
            await self.record(session, transition)
            if not session.open:
                return None
            return await self.act(session, await self.next_turn(session, transition.observation))

    @contextmanager
    def lock(self, session: Session) -> Iterator[None]:
        """Allow one request at a time per session."""
        if session.acting:
            raise conflict(f"session {session.name!r} is busy with turn {len(session.turns)}; send one request at a time.")
        session.acting = True
        try:
            yield
        finally:
            session.acting = False
            session.touch()

    async def record(self, session: Session, transition: Transition) -> None:
        """Record the result of the last action, if there is one, and end the session if the episode ended."""
        if session.episode.action is not None:
            try:
                signals = await self._run_episode_code(session, lambda: session.episode.record(transition))
            except RequestError as error:  # the tracker's state may be inconsistent
                self.end(session, "broken", str(error))
                raise
            turn = session.turns[-1]
            turn.signals, turn.effective = {**transition.signals, **signals}, transition.effective
        if transition.done or transition.success:
            session.final = transition.observation
            self.end(session, "success" if transition.success else "failure", transition.label)

    def end_at_limit(self, session: Session) -> bool:
        if len(session.turns) < self._settings.turns:
            return False
        self.end(session, "limit", f"{self._settings.turns} turns")
        return True

    async def next_turn(self, session: Session, observation: Observation) -> Turn:
        if self.end_at_limit(session):
            raise gone(f"session {session.name!r} has had {self._settings.turns} turns, which is the limit.")
        turn = Turn(len(session.turns) + 1, observation, "", "")
        policy = session.served.policy
        build = lambda: session.episode.build_request(observation, policy)  # noqa: E731
        request = session.request = await self._run_episode_code(session, build)
        assert session.episode.prompt is not None
        turn.prompt, turn.state, turn.prompt_tokens = session.episode.prompt.text, session.episode.block, len(request.prompt)
        if session.turns:  # drop the previous list of actions, which takes most of the memory
            before = session.turns[-1]
            self.grow(session, -count_bytes(*before.observation.actions))
            before.observation = Observation(before.observation.text)
        self.grow(session, TURN_BYTES + count_bytes(turn.prompt, turn.state, observation.text, *observation.actions))
        session.turns.append(turn)
        return turn

    async def _run_episode_code(self, session: Session, work: Callable[[], Answer]) -> Answer:
        result = await _run_code(session.served, work, "read this observation")
        session.check_still_open()
        return result

    def act_by_hand(self, session: Session, action: str) -> Turn:
        """Use the client's action for the current turn."""
        turn = session.turns[-1]
        self.grow(session, count_bytes(action))
        session.episode.action = turn.action = action
        turn.by, turn.acted = HAND, True
        self._metrics.count_turn(session.served.name, turn.prompt_tokens, 0, HAND)
        return turn

    async def act(self, session: Session, turn: Turn) -> Turn:
        """Let the module choose the action of the current turn."""
        episode, served, request = session.episode, session.served, session.request
        assert request is not None
        completion = await wait_for_answer(
            lambda: self._batching.sample(served.policy, episode.sampling, request), self._settings, self._batching
        )
        session.check_still_open()
        parsed = episode.parse_completion(completion)
        turn.action, turn.acted, turn.valid, turn.wrote = parsed.action, True, parsed.valid, completion.text
        turn.tokens, turn.probability = len(completion.tokens), math.exp(float(completion.logprobs.sum()))
        self._metrics.count_turn(served.name, turn.prompt_tokens, turn.tokens, MODULE)
        return turn

    def end(self, session: Session, outcome: str, note: str = "") -> None:
        if not session.open:
            return
        session.outcome, session.note = outcome, note
        session.resources.close()
        self._metrics.ended.labels(session.served.name, outcome).inc()
        del self._open[session.name]
        self._ended[session.name] = session
        while len(self._ended) > self._settings.kept:
            self._drop_oldest()

    def end_idle(self) -> None:
        before = time.monotonic() - self._settings.idle_s
        for session in [s for s in self._open.values() if s.active < before and not s.acting]:
            self.end(session, "expired", f"no request for {self._settings.idle_s:g} s")

    def end_all(self, reason: str) -> None:
        for session in list(self._open.values()):
            self.end(session, "stopped", reason)


async def _run_code(served: ServedModule, work: Callable[[], Answer], task: str) -> Answer:
    """Run code of a wording or tracker, which may be a third party's. Its exceptions become errors of this request."""
    try:
        return await served.run(work)
    except RequestError:
        raise
    except TacitError as error:
        raise invalid(str(error)) from error
    except Exception as error:
        raise invalid(f"module {served.name} cannot {task}: {type(error).__name__}: {error}") from error


async def wait_for_answer(ask: Callable[[], Awaitable[Answer]], settings: ServingSettings, batching: BatchingThread) -> Answer:
    """Wait for the model. Too many waiting requests (429) and timeouts (504) are errors."""
    if batching.waiting >= settings.waiting:
        raise too_many(f"{batching.waiting} requests are waiting for the model; try again later.")
    try:
        async with asyncio.timeout(settings.answer_s):
            return await ask()
    except TimeoutError:
        raise RequestError(504, f"no answer within {settings.answer_s:g} s; send the same turn again.") from None
