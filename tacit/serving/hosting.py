"""Episodes in the modules' own worlds, played here: what the page and the tool over MCP act in."""

from __future__ import annotations

import asyncio
from functools import partial

from tacit.core.errors import TacitError
from tacit.core.types import Observation, StopReason, Task, Transition
from tacit.core.world import Environment
from tacit.rollout.worlds import Broken, InPlace
from tacit.serving.aside import Aside
from tacit.serving.offer import Offer
from tacit.serving.refusals import Refused, gone, not_found, out_of_turn, unusable
from tacit.serving.session import Session, Turn
from tacit.serving.sessions import Sessions

MOST_TASKS = 512
"""how far into a split one may ask: a world makes all tasks before the one that is asked for, a millisecond each"""
WORLD_S = 30.0
"""a world that takes longer is taken to hang"""


class Hosted:
    """A world of one episode. Worlds may be anybody's: one that raises or hangs ends its own session."""

    def __init__(self, world: Environment) -> None:
        self._pool = InPlace(world.make, WORLD_S)
        self._thread = Aside()

    async def reset(self, task: Task) -> Observation | Broken:
        return (await self._thread.do(partial(self._pool.reset, [task])))[0]

    async def step(self, action: str) -> Transition | Broken:
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
            first = Broken(StopReason.WORLD_HANG, f"it did not begin within {WORLD_S:g} s")
        if not session.open:
            raise gone(f"session {session.name!r} was ended while its world began.")
        if isinstance(first, Broken):
            sessions.end(session, first.reason.value, first.detail)
            raise unusable(f"the world broke when the task was begun: {first.detail}")
        await sessions.next_turn(session, first)


def present_turn(session: Session) -> Turn:
    if not session.turns:
        raise out_of_turn(f"session {session.name!r} has no turn yet: its world is still beginning.")
    return session.turns[-1]


async def step(session: Session, sessions: Sessions, action: str | None) -> Turn:
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
        if isinstance(answer, Broken):
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
