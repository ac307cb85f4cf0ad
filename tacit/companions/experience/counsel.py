"""search_and_ask: the question of an agent in mid-episode, answered from the bank (§3.2.2).

    q'  what the agent asks            ──► desk: batches of B, or whatever came within t_max
    m   the nearest entry, by Eq. 6    ◄── bank
    the answer                         ◄── π_φ(q', m): what m means for whoever asks; or m itself

Asking leaves no trace: what was found counts once the episode is over and is trained on. So an evaluation may ask, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from tacit.companions.experience.desk import Desk, InOrder
from tacit.companions.experience.manager import Manager
from tacit.companions.experience.retrieval import retrieve
from tacit.contexts.asking import ENTRY, Told
from tacit.core.seeds import derive
from tacit.core.types import Trajectory


@dataclass(frozen=True)
class Asked:
    """How questions are answered. Defaults are the paper's."""

    refined: bool = True
    """by the extractor, for the one who asks; else with the entry as it stands"""
    batch: int = 16
    """B"""
    wait_s: float = 0.001
    """t_max"""
    workers: int = 4
    """W"""


class Counsel:
    """In a background of threads where the manager has one, else in order."""

    def __init__(self, manager: Manager, settings: Asked) -> None:
        self._manager, self._settings = manager, settings
        self.step, self.seed = 1, 0
        """the iteration that is being played, and the seed of its run"""
        self.desk: Desk[Told] | InOrder[Told] = (
            Desk(self._answer, settings.batch, settings.wait_s, settings.workers)
            if manager.background
            else InOrder(self._answer, settings.batch)
        )

    def ask(self, question: str) -> Future[Told]:
        return self.desk.ask(question)

    def _answer(self, questions: Sequence[str]) -> list[Told]:
        manager = self._manager
        found = retrieve(manager.bank, manager.embedding, questions, self.step, manager.diversity, count=False)
        told = {i: Told(entry.text, entry.id) for i, entry in enumerate(found) if entry is not None}
        if self._settings.refined and told:
            asked = [(questions[i], each.text) for i, each in told.items()]
            seeds = [derive(self.seed, "advice", self.step, each.entry or 0, questions[i]) for i, each in told.items()]
            for (i, each), advice in zip(list(told.items()), manager.extractor.advise(asked, seeds), strict=True):
                if advice:
                    told[i] = Told(advice, each.entry)
                else:  # the entry itself is better than nothing
                    manager.refused("advice that says nothing")
        return [told.get(i, Told()) for i in range(len(questions))]


def asked_for(trajectory: Trajectory) -> list[int]:
    """The entries that were found for its questions, in order."""
    return [int(step.signals[ENTRY]) for step in trajectory.steps if ENTRY in step.signals]
