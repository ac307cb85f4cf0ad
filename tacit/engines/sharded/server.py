"""The driver's side of one sampling server. No wait is without a limit; whoever is gone, or late, has died."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import load as from_bytes

from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling, Scheduler
from tacit.core.types import Completion
from tacit.engines.local.adapters import MAIN
from tacit.engines.local.checkpoint import export
from tacit.engines.local.engine import LocalEngine
from tacit.engines.local.model import LanguageModel
from tacit.engines.local.scheduler import LocalSampler
from tacit.engines.local.settings import EngineSettings
from tacit.engines.sharded.group import LOOK_S, RankGroup, eventually
from tacit.engines.sharded.launch import Launcher, Started
from tacit.engines.sharded.messages import Delivery, Line, Lost, Opening, Order, caller, written

# Who samples for the ranks.


class Samplers(Protocol):
    """Writes completions with the weights that the ranks have trained; every completion carries their version."""

    @property
    def written_tokens(self) -> int: ...

    def sample(self, name: str, requests: Sequence[Request], sampling: Sampling, layer: int | None) -> list[Completion]: ...

    def open_scheduler(self, name: str, sampling: Sampling, layer: int | None) -> Scheduler: ...


class Replica(LocalEngine):
    """The whole model in the driver's own process, which takes over the weights of the ranks whenever they have moved and
    somebody wants something written."""

    def __init__(
        self,
        hf: Any,
        tokenizer: Any,
        settings: EngineSettings,
        seed: int,
        newest: Callable[[str], int],
        fetch: Callable[[str], bytes],
        plays: bool = True,
    ):
        """`newest`: the version of a member's weights on the ranks; `fetch`: those weights; `plays`: False where servers do, so
        that what is here is only saved"""
        self._plays = plays
        super().__init__(hf, tokenizer, settings, seed)
        self._newest, self._fetch = newest, fetch

    def catch_up(self, name: str) -> None:
        """Have the weights that the ranks have."""
        member, newest = self.member(name), self._newest(name)
        if member.version == newest:
            return
        fetched = from_bytes(self._fetch(name))
        with torch.no_grad():
            for own, p in member.parameters.items():
                p.copy_(fetched[own])
        self.weights_changed()
        member.version = newest

    def wrap_model(self, hf: Any, packed: bool = True) -> LanguageModel:
        # Many a CPU takes minutes for a few tokens in bfloat16: a copy that never computes is not tried out.
        return super().wrap_model(hf, packed and self._plays)

    @property
    def written_tokens(self) -> int:
        return self.sampler.written_tokens if self.sampler else 0

    def for_requests(self) -> LocalSampler:
        """Whoever knows what can be asked of the model."""
        return self.get_sampler()

    def _begin_sampling(self, name: str) -> int:
        self.catch_up(name)
        return super()._begin_sampling(name)


# Weights straight from the first rank to the servers, one after the other: the driver sees that both are there.


class Direct:
    def __init__(self, ranks: RankGroup):
        self._ranks = ranks
        self._told: dict[str, list[tuple[str, tuple[int, ...], str]]] = {}

    def keep(self, member: str) -> None:
        """Have the newest weights at hand on the first rank, in the place of what it had of this member."""
        self._told[member] = self._ranks.ask("keep_weights", member)[0]

    def give(self, server: Server, member: str, version: int) -> None:
        """What is kept of it. A server that was started again has to meet the first rank anew. It waits for two minutes, and
        ranks that learn may take longer: so it is told once they have time."""
        with self._ranks.undisturbed():
            if not server.met:
                place = self._ranks.ask("open_pair", server.number)[0]
                server.ask("meet", place, meanwhile=lambda: self._ranks.ask("meet", server.number)[0])
                server.met = True
            server.ask("take", member, version, self._told[member], meanwhile=lambda: self._given(member, server.number))

    def _given(self, member: str, number: int) -> str:
        """Returns what went wrong."""
        return str(self._ranks.ask("give_weights", member, number)[0])


# Weights on their way from the ranks to the servers: as files, on storage that both can reach, or directly.
#
# A file is complete before anybody is told of it, and stays until the next one of its member is there, so that a server that is
# started again finds the newest. With each goes what the ranks say of a few prompts, and a server that says otherwise is
# refused.

MEMORY = Path("/dev/shm")
LEFT = "tacit-weights-"
"""how directories begin that weights lie in; the number of the process whose they are follows"""
PROBES = (1, 3, 40, 160)
"""tokens of the prompts that tell weights apart; the longest fills blocks of a prefix cache, which must have been emptied"""
TOLERANCE = {"float32": 5e-3, "bfloat16": 1.0}
"""largest difference in the log-probability of the likeliest token, by the number format of the weights. SmolLM2-135M rounded
to bfloat16 after every layer is up to 0.11 from itself unrounded; what is less than a whole model apart shows in
`behaviour_gap`"""
SPARE_BYTES = 2.5
"""versions of the weights for which there must be room in memory: the old, the new, and something to spare"""


@dataclass(frozen=True)
class Handed:
    """One version of a member's weights, as it is handed over."""

    member: str
    version: int
    path: str
    """empty: what the checkpoint has"""
    direct: Direct | None
    """who gives them, where they go without a file"""
    expected: tuple[np.ndarray, ...]
    """log-probabilities of the first token after each probe, of the whole vocabulary, as the ranks score them"""


class Handover:
    def __init__(self, ranks: RankGroup, replica: Replica, place: str, direct: bool = False):
        """`place`: a directory that ranks and servers share; empty is this machine's memory"""
        try:
            if place:
                Path(place).mkdir(parents=True, exist_ok=True)
            if not place:
                for known in (MEMORY, Path(tempfile.gettempdir())):
                    _clear_up(known)
            where = Path(place) if place else place_for(replica)
            own = f"{LEFT}{os.getpid()}-"
            self._directory = tempfile.TemporaryDirectory(prefix=own, dir=where, ignore_cleanup_errors=True)
        except OSError as error:
            raise TacitError(f"cannot write to --engine.exchange {place or MEMORY}: {error}.") from error
        self._ranks, self._replica = ranks, replica
        self._direct = Direct(ranks) if direct else None
        vocabulary, most = replica.model.vocabulary, replica.codec.context_limit - 1
        self.probes = tuple((np.arange(1, min(n, most) + 1) * 7919) % vocabulary for n in PROBES)
        self.newest: dict[str, Handed] = {}

    def hand_over(self, member: str, version: int) -> Handed:
        """Have the newest weights written. What was there of this member goes once everybody has the new one: `settle`."""
        path = self._place(member, version)
        direct = self._direct if version else None  # until it has learned a server has what the checkpoint has
        try:
            if self._replica.adapters:
                self._replica.catch_up(member)
                export(self._replica, path)
            elif direct is not None:
                direct.keep(member)
            elif version and (wrong := self._ranks.ask("write_weights", member, path)[0]):
                raise OSError(wrong)
        except OSError as error:
            raise TacitError(
                f"cannot hand over weights in {path.parent}: {error}. Name other storage: --engine.exchange."
            ) from error
        said = self._ranks.ask("distributions", (member, False), self.probes, [np.zeros(1, np.int64)] * len(self.probes), None)
        found = dict(pair for own in said for pair in own)
        expected = []
        for i in range(len(self.probes)):
            ids_1V, logps_1V = found[i]
            in_order_V = np.empty(logps_1V.shape[-1], np.float32)
            in_order_V[ids_1V[0]] = logps_1V[0]
            expected.append(in_order_V)
        self._ranks.ask("leave_room")
        file = path / "adapters" / member if self._replica.adapters else path
        return Handed(member, version, str(file) if file.exists() else "", direct, tuple(expected))

    def settle(self, handed: Handed) -> None:
        """Every server has it."""
        old = self.newest.get(handed.member)
        self.newest[handed.member] = handed
        if old is not None and old.version != handed.version:
            path = self._place(old.member, old.version)
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def close(self) -> None:
        self._directory.cleanup()

    def _place(self, member: str, version: int) -> Path:
        return Path(self._directory.name).absolute() / f"{member}-{version}"


def place_for(replica: Replica) -> Path:
    """This machine's memory; where that has no room, as in many a container, its disk."""
    parameters = replica.members[MAIN].parameters.values()
    needed = SPARE_BYTES * sum(p.numel() * p.element_size() for p in parameters)
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= needed:
        return MEMORY
    return Path(tempfile.gettempdir())


def _clear_up(where: Path) -> None:
    """What a driver that was killed has left in this machine's memory."""
    for place in where.glob(f"{LEFT}*-*"):
        number = place.name.removeprefix(LEFT).partition("-")[0]
        if number.isdigit() and not Path("/proc", number).exists():
            shutil.rmtree(place, ignore_errors=True)


def apart(handed: Handed, said: list[tuple[int, float]]) -> float:
    """How far what a server says of the probes (the likeliest token, and its log-probability) is from what the ranks say."""
    gaps = [
        max(abs(expected_V[token] - logprob), float(expected_V.max() - expected_V[token]))
        for expected_V, (token, logprob) in zip(handed.expected, said, strict=True)
    ]
    return float(np.max(gaps)) if np.isfinite(gaps).all() else float("inf")


GREEDY = Sampling(temperature=0.0, max_tokens=1)
ROOM = "that it has memory for what it is given: --engine.server-memory"


class Died(Exception):
    """A server is gone, or did not answer in time; its words say how."""

    def __init__(self, server: Server, how: str):
        super().__init__(how)
        self.server = server


class Server:
    def __init__(self, number: int, launcher: Launcher, opening: Opening, start_timeout_s: float, timeout_s: float):
        self.number, self._launcher, self._opening = number, launcher, opening
        self.start_timeout_s, self.timeout_s = start_timeout_s, timeout_s
        self.under_way: dict[int, Order] = {}
        self.finished: list[Delivery] = []
        """what has been heard and not been fetched yet"""
        self.deaths = 0
        """in a row, without anything finished in between"""
        self._heard = 0.0
        """when it last said something, or was given something to do"""
        self.met = False
        """it has met the first rank, to take weights from it"""
        self._line: Line | None = None
        self._started: Started | None = None

    def __str__(self) -> str:
        return f"server {self.number} ({self._started.name if self._started else 'not started'})"

    def launch(self) -> None:
        """Have its process started; `arrive` waits for it, so that many can start at once."""
        self._key, self._deadline = secrets.token_bytes(32), time.monotonic() + self.start_timeout_s
        self._door = socket.create_server((self._launcher.host, 0), backlog=1)
        self.met = False
        self._started = self._launcher.start(self.number, (self._launcher.host, self._door.getsockname()[1]), self._key)

    def arrive(self) -> None:
        """Wait until it has loaded the model."""
        with closing(self._door):
            while (called := caller(self._door, self._key, LOOK_S, max(0.1, self._left()))) is None:
                if (how := self._process.ended()) is not None:
                    raise Died(self, how)
                if self._left() < 0:
                    raise Died(self, "it was waited for until the limit of --engine.start_timeout_s")
        self._line = called[1]
        try:
            self._ask("open", self._opening, limit_s=self._left(), setting="start_timeout_s")
        except TacitError as error:  # no vLLM there, no memory for the model
            raise Died(self, str(error)) from error

    def give(self, handed: Handed, probes: Sequence[np.ndarray]) -> None:
        """Have it take over weights, and refuse it where it then does not have those of the ranks."""
        if handed.direct is not None:
            handed.direct.give(self, handed.member, handed.version)
        elif handed.path:
            try:
                self.ask("load", handed.member, handed.version, handed.path)
            except TacitError as error:
                raise TacitError(f"{error}. See that it reaches --engine.exchange, as the ranks do, and {ROOM}.") from error
        orders = [Order(-1 - i, handed.member, tuple(probe.tolist()), 0, 1, GREEDY) for i, probe in enumerate(probes)]
        self.add(orders)
        deadline, found = time.monotonic() + self.timeout_s, dict[int, Delivery]()
        while len(found) < len(orders):
            self._hear(deadline, "probes of its weights", "timeout_s")
            found |= {delivery.request_id: delivery for delivery in self.finished if delivery.request_id < 0}
        self.finished = [delivery for delivery in self.finished if delivery.request_id >= 0]
        said = [(found[order.request_id].tokens[0], found[order.request_id].logprobs[0]) for order in orders]
        gap, version = apart(handed, said), found[-1].version
        if gap > TOLERANCE[self._opening.dtype] or version != handed.version:
            raise TacitError(
                f"{self} has other weights than the ranks: what it says of a token is {gap:.3g} from what they say of it "
                f"(versions {version} and {handed.version}). See that all read the same {self._opening.checkpoint} and "
                f"the same --engine.exchange, and that its vLLM computes in {self._opening.dtype}."
            )

    def add(self, orders: Sequence[Order]) -> None:
        """Have these written."""
        self.under_way |= {order.request_id: order for order in orders}
        self._send("add", list(orders))

    def forget(self, request_ids: Sequence[int]) -> None:
        mine = [request_id for request_id in request_ids if self.under_way.pop(request_id, None) is not None]
        if mine:
            self._send("forget", mine)

    @property
    def connection(self) -> Any:
        return self._open_line.connection

    def hear(self) -> None:
        """Take what it says. Only once there is something to hear."""
        try:
            kind, told = self._open_line.receive()
        except Lost as error:
            raise self._gone(error) from error
        self._took(kind, told)

    def look(self) -> None:
        """Whether it still lives, and says something in time."""
        if self._process.ended() is not None:
            raise self._gone(None)
        if self.under_way and time.monotonic() > self._heard + self.timeout_s:
            raise Died(self, f"{len(self.under_way)} completions were waited for, until the limit of --engine.timeout_s")

    def stop(self) -> None:
        """End it at once. What was under way is kept, to be asked for again."""
        self.under_way = {request_id: order for request_id, order in self.under_way.items() if request_id >= 0}
        if self._line is not None:
            self._line.close()
        if self._started is not None:
            self._started.stop()

    def last_words(self) -> str:
        words = self._started.last_words() if self._started else ""
        return f" Its last words: {words}" if words else ""

    def ask(self, what: str, *arguments: Any, meanwhile: Callable[[], str] | None = None) -> None:
        """As every question is asked; `meanwhile` somebody else does his part of it, and says what went wrong there."""
        self._ask(what, *arguments, limit_s=self.timeout_s, meanwhile=meanwhile)

    def _ask(
        self,
        what: str,
        *arguments: Any,
        limit_s: float,
        setting: str = "timeout_s",
        meanwhile: Callable[[], str] | None = None,
    ) -> None:
        self._send(what, *arguments)
        if meanwhile is not None and (wrong := meanwhile()):
            raise Died(self, eventually(self._process.ended) or f"it was not to be reached in {what!r}: {wrong}")
        deadline = time.monotonic() + limit_s
        while (said := self._hear(deadline, repr(what), setting)) is None:
            pass
        fine, answer = said
        if not fine:
            raise TacitError(f"{self} failed in {what!r}: {answer[1]}") from answer[0]

    def _send(self, what: str, *arguments: Any) -> None:
        self._heard = time.monotonic()
        try:
            self._open_line.limit(self.timeout_s)
            self._open_line.send(written((what, arguments)))
        except Lost as error:
            raise self._gone(error) from error

    def _hear(self, deadline: float, what: str, setting: str) -> Any:
        """Wait for what it says next: None where that was completions, else its answer."""
        while not wait([self.connection], timeout=LOOK_S):
            if self._process.ended() is not None:
                raise self._gone(None)
            if time.monotonic() > deadline:
                raise Died(self, f"it was waited for in {what}, until the limit of --engine.{setting}")
        try:
            kind, told = self._open_line.receive()
        except Lost as error:
            raise self._gone(error) from error
        return told if kind == "answer" else self._took(kind, told)

    def _took(self, kind: str, told: Any) -> None:
        assert kind == "written", kind
        self._heard = time.monotonic()
        mine = [delivery for delivery in told if self.under_way.pop(delivery.request_id, None) is not None]
        self.finished += mine
        if any(delivery.request_id >= 0 for delivery in mine):
            self.deaths = 0

    def _gone(self, error: BaseException | None) -> Died:
        return Died(self, eventually(self._process.ended) or f"its line broke off ({type(error).__name__}: {error})")

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    @property
    def _process(self) -> Started:
        assert self._started is not None
        return self._started

    @property
    def _open_line(self) -> Line:
        assert self._line is not None
        return self._line
