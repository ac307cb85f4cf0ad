"""A bank that is made before anybody trains and then stays as it is (Offline Exp. of Figure 3a).

From a file: a run, a bank, or JSON lines. Or by rule: somebody acts at random, and the world's own hindsight says what each
episode teaches: an outsider's experience, as the paper's larger model wrote it down for its smaller ones.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from random import Random

from tacit.companions.experience.bank import Bank
from tacit.companions.experience.embedding import Embedding
from tacit.companions.experience.entries import Origin
from tacit.companions.experience.exchange import exported, take_in
from tacit.companions.experience.opening import find_bank, read_bank
from tacit.core.errors import TacitError
from tacit.core.types import Observation
from tacit.core.world import Environment
from tacit.rollout.retelling import as_trajectory, playing


def fill(bank: Bank, embedding: Embedding, world: Environment, source: str, episodes: int) -> None:
    """Into an empty bank; one that was filled before stays as it is."""
    if len(bank):
        return
    if source:
        from_file(bank, embedding, Path(source).expanduser())
    else:
        by_rule(bank, embedding, world, episodes)
    if not len(bank):
        raise TacitError(f"the bank made beforehand ({source or 'by rule'}) has no entries: nobody would be guided.")


def from_file(bank: Bank, embedding: Embedding, source: Path) -> None:
    if source.suffix == ".jsonl":
        try:
            lines = source.read_bytes().splitlines()
        except OSError as error:
            raise TacitError(f"cannot read the entries {source}: {error.strerror}.") from error
        taken = take_in(bank, embedding, lines)
        if taken.bad:
            line, why = taken.bad[0]
            raise TacitError(f"{source}, line {line}: {why} Mend it, or `tacit bank import` what can be read.")
        return
    try:
        take_in(bank, embedding, (line.encode() for line in exported(read_bank(find_bank(source)))))
    except sqlite3.DatabaseError as error:
        raise TacitError(f"cannot read the bank {source}: {error}.") from error


def by_rule(bank: Bank, embedding: Embedding, world: Environment, episodes: int, seed: int = 0) -> None:
    """What so many random episodes of training tasks teach, each text once."""
    if world.hindsight is None:
        raise TacitError(f"world {world.name!r} has no hindsight to make a bank by: name one (--bank FILE).")
    live, found = world.make(), dict[str, Origin]()
    for i, task in enumerate(world.tasks_of("train", episodes, seed)):
        trajectory = as_trajectory(task, playing(live, task, AtRandom(Random(f"{task.id}/{i}")), world.max_steps), i)
        if text := world.hindsight(trajectory).episode.strip():
            found.setdefault(text, Origin(task.world, task.family, task.id, i, trajectory.success, 0, "import"))
    live.close()
    vectors = embedding(list(found)) if found else ()
    bank.replace((), [(t, v, o, None) for (t, o), v in zip(found.items(), vectors, strict=True)], "")


class AtRandom:
    """Does anything that is possible."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def act(self, observation: Observation) -> str:
        return self._rng.choice(observation.actions) if observation.actions else ""
