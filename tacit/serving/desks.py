"""The desks at which the model's thread hands in what is asked, and who waits at each. All of it is for that thread alone.

An engine that writes with several adapters at once has one desk for them; other weights have their own. Where a desk for
several breaks, its requests are written apart, so that only those of the weights at fault are lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable

from tacit.core.protocols import Desk, Request, Sampling
from tacit.core.types import Completion
from tacit.serving.refusals import gone

Answers = Sequence[tuple[asyncio.Future[Any], Any, Exception | None]]
"""(whose, what, or why not)"""
IDLE_DESKS = 8
"""desks that are kept though nobody waits at them; whoever samples in a way of their own should not leave one each"""


class DeskMaker(Protocol):
    def desk(self, sampling: Sampling, layer: int | None = None) -> Desk: ...


class DeskForAll(Desk, Protocol):
    def submit(self, request: Request, whose: str | None = None) -> int: ...


class Shared(Protocol):
    def desk_for_all(self, sampling: Sampling) -> DeskForAll | None: ...


@runtime_checkable
class Sharing(Protocol):
    """A maker that is one of several over one engine."""

    engine: Shared
    name: str


@dataclass(frozen=True, eq=False)
class Ask:
    maker: DeskMaker
    sampling: Sampling
    request: Request
    answer: asyncio.Future[Completion]


@dataclass(eq=False)
class _Busy:
    """A desk and who waits at it."""

    owner: DeskMaker | Shared
    desk: Desk
    waiting: dict[int, Ask] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Place:
    """Where one maker's requests are handed in."""

    maker: DeskMaker
    busy: _Busy
    submit: Callable[[Request], int]


class Desks:
    def __init__(self, deliver: Callable[[Answers], None], watch: Callable[[int], None]) -> None:
        """`watch` is told how many requests were under way whenever a desk goes on."""
        self._deliver, self._watch = deliver, watch
        self._desks: dict[tuple[int, Sampling], _Busy] = {}
        self._places: dict[tuple[int, Sampling], _Place] = {}
        self._at_fault: set[int] = set()
        """makers that broke a desk by themselves: each has desks of its own until one of them holds"""

    def __len__(self) -> int:
        return len(self._desks)

    @property
    def busy(self) -> bool:
        return any(desk.waiting for desk in self._desks.values())

    def take(self, ask: Ask) -> None:
        try:
            self._hand_in(ask, self._place(ask.maker, ask.sampling))
        except Exception as error:
            self._deliver([(ask.answer, None, error)])

    def go_on(self) -> None:
        """Each until something is finished at it."""
        for desk in [desk for desk in self._desks.values() if desk.waiting]:
            self._go_on(desk)
        self._close_idle()

    def close(self) -> None:
        for desk in list(self._desks.values()):
            self._drop(desk)

    def forget(self, maker: DeskMaker) -> None:
        """Close the desks of weights that are about to be given up."""
        given_up = gone("the module was taken off while it was thinking; begin again with what is in its place.")
        for desk in list(self._desks.values()):
            asked = list(desk.waiting.values())
            if desk.owner is maker or any(ask.maker is maker for ask in asked):
                self._drop(desk)
                self._deliver([(ask.answer, None, given_up) for ask in asked if ask.maker is maker])
                for ask in (ask for ask in asked if ask.maker is not maker):
                    self.take(ask)  # elsewhere, from its first token
        self._at_fault.discard(id(maker))
        self._places = {key: place for key, place in self._places.items() if place.maker is not maker}

    def _place(self, maker: DeskMaker, sampling: Sampling) -> _Place:
        if (place := self._places.get((id(maker), sampling))) is None:
            place = self._places[id(maker), sampling] = self._find_place(maker, sampling)
        return place

    def _find_place(self, maker: DeskMaker, sampling: Sampling) -> _Place:
        if isinstance(maker, Sharing) and id(maker) not in self._at_fault:
            busy = self._desks.get((id(maker.engine), sampling))
            if busy is None and (shared := maker.engine.desk_for_all(sampling)) is not None:
                busy = self._open(maker.engine, sampling, shared)
            if busy is not None:
                return _Place(maker, busy, partial(cast(DeskForAll, busy.desk).submit, whose=maker.name))
        return self._own_place(maker, sampling)

    def _own_place(self, maker: DeskMaker, sampling: Sampling) -> _Place:
        busy = self._desks.get((id(maker), sampling)) or self._open(maker, sampling, maker.desk(sampling))
        return _Place(maker, busy, busy.desk.submit)

    @staticmethod
    def _hand_in(ask: Ask, place: _Place) -> None:
        place.busy.waiting[place.submit(ask.request)] = ask

    def _open(self, owner: DeskMaker | Shared, sampling: Sampling, desk: Desk) -> _Busy:
        busy = self._desks[id(owner), sampling] = _Busy(owner, desk)
        return busy

    def _go_on(self, desk: _Busy) -> None:
        self._watch(len(desk.waiting))
        try:
            finished = desk.desk.wait()
        except Exception as error:  # theirs alone: other desks have their own rows
            lost = list(desk.waiting.values())
            desk.waiting.clear()
            self._drop(desk)
            if len({id(ask.maker) for ask in lost}) > 1:
                self._part(lost)
            else:
                self._at_fault.update(id(ask.maker) for ask in lost)
                self._deliver([(ask.answer, None, error) for ask in lost])
            return
        if id(desk.owner) in self._at_fault:
            self._at_fault.discard(id(desk.owner))
            self._places = {key: place for key, place in self._places.items() if place.maker is not desk.owner}
        self._deliver([(desk.waiting.pop(ticket).answer, completion, None) for ticket, completion in finished])

    def _part(self, asked: Sequence[Ask]) -> None:
        """A desk for several broke, and only one of them may be at fault: what they asked is written apart. Who asks next finds
        a place as ever."""
        for ask in asked:
            try:
                self._hand_in(ask, self._own_place(ask.maker, ask.sampling))
            except Exception as error:
                self._deliver([(ask.answer, None, error)])

    def _close_idle(self) -> None:
        """All but a few, and every one that nobody will come to any more: those that had been parted."""
        if not (idle := [desk for desk in self._desks.values() if not desk.waiting]):
            return
        places = {id(place.busy) for place in self._places.values()}
        kept = [desk for desk in idle if id(desk) in places][-IDLE_DESKS:]
        for desk in idle:
            if desk not in kept:
                self._drop(desk)

    def _drop(self, desk: _Busy) -> None:
        desk.desk.close()
        self._desks = {key: other for key, other in self._desks.items() if other is not desk}
        self._places = {key: place for key, place in self._places.items() if place.busy is not desk}
