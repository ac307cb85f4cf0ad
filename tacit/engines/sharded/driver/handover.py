"""Weights on their way from the ranks to the servers: as files, on storage that both can reach, or directly.

A file is complete before anybody is told of it, and stays until the next one of its member is there, so that a server that is
started again finds the newest. With each goes what the ranks say of a few prompts, and a server that says otherwise is refused.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tacit.core.errors import TacitError
from tacit.engines.local.learning.adapters import MAIN
from tacit.engines.local.learning.saving import export
from tacit.engines.sharded.driver.direct import Direct
from tacit.engines.sharded.driver.group import RankGroup
from tacit.engines.sharded.driver.sampling import Replica

MEMORY = Path("/dev/shm")
LEFT = "tacit-weights-"
"""how directories begin that weights lie in; the number of the process whose they are follows"""
PROBES = (1, 3, 40, 160)
"""tokens of the prompts that tell weights apart; the longest fills blocks of a prefix cache, which must have been emptied"""
TOLERANCE = {"float32": 5e-3, "bfloat16": 1.0}
"""largest difference in the log-probability of the likeliest token, by the number format of the weights. SmolLM2-135M rounded
to bfloat16 after every layer is up to 0.11 from itself unrounded; what is less than a whole model apart shows in
`behaviour_gap`"""
ROOM = 2.5
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
    needed = ROOM * sum(p.numel() * p.element_size() for p in parameters)
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
