"""The companion of Complementary RL: it hands out entries, has episodes distilled, and lets the extractor learn."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tacit.companions.experience.critic import SCORES, Critic, Verdict, critic_reward
from tacit.companions.experience.entries import Call, Entry
from tacit.companions.experience.extractor import Sample
from tacit.companions.experience.manager import Manager, Request
from tacit.core.errors import TacitError
from tacit.core.moment import Moment
from tacit.core.protocols import Policy
from tacit.core.types import PLAIN, Condition, Group, Task

GUIDED = "experience"
"""the condition of an episode that was given an entry"""


class Experience:
    name = "experience"

    def __init__(
        self, manager: Callable[[], Manager], merge_every: int = 5, writes: bool = True, critic: Critic | None = None
    ) -> None:
        """`writes`: False where the bank was made beforehand and stays as it is. `critic`: asks the actor about its entries."""
        self.writes, self.critic = writes, critic
        self._make = manager
        self._manager: Manager | None = None
        self.merge_every = merge_every
        self.step = 1
        """the iteration that is being played"""

    @property
    def manager(self) -> Manager:
        """Opened on first use: building a method opens nothing."""
        if self._manager is None:
            self._manager = self._make()
        return self._manager

    def observe(self, groups: Sequence[Group], policy: Policy, moment: Moment) -> dict[str, float]:
        """Who was guided by what, with what result; and all episodes are to be distilled, whatever their outcome."""
        bank, self.step = self.manager.bank, moment.iteration
        outcomes: dict[int, list[float]] = {}
        rewards: dict[int, list[float]] = {}
        """with what the critic said, where there is one"""
        for group in groups:
            for trajectory in group.trajectories:
                entry, verdict = entry_of(trajectory.condition), verdict_of(trajectory.condition)
                if entry is not None:
                    bank.happened("guided", [entry], self.step, trajectory.task.id, trajectory.success)
                    outcomes.setdefault(entry, []).append(1.0 if trajectory.success else -1.0)
                if verdict is not None:
                    weighed, said = verdict
                    rewards.setdefault(weighed, []).append(critic_reward(said, trajectory.success))
                if self.critic is not None:
                    self.critic.saw(trajectory)
                if self.writes:
                    place = f"{trajectory.task.id}/{trajectory.seed}"
                    self.manager.submit(Request(trajectory, entry, moment, place))
        for entry, earned in (rewards if self.critic else outcomes).items() if self.writes else ():
            call = bank.call(entry)
            if call is not None:
                self.manager.extractor.buffer.append(Sample(entry, float(np.mean(earned)), call))
        useful = {"experience/useful": float(np.mean([np.mean(own) > 0 for own in outcomes.values()]))} if outcomes else {}
        return self._by_half(groups) | useful

    def learn(self, groups: Sequence[Group], policy: Policy, moment: Moment) -> dict[str, float]:
        manager = self.manager
        metrics: dict[str, float] = {}
        if self.writes:
            manager.work()
            metrics, trained = manager.extractor.learn(manager.bank.usage, moment.iteration)
            if trained:
                manager.bank.happened("trained", trained, moment.iteration)
            if self.merge_every and moment.iteration % self.merge_every == 0:
                manager.finish()
                manager.merge(moment)
        self.step = moment.iteration + 1
        seconds, manager.search_seconds = manager.search_seconds, []
        told = {
            f"experience/{name}": float(manager.counts[name]) for name in ("added", "updated", "returned", "refused", "merges")
        }
        return {
            **metrics,
            **told,
            "experience/entries": float(len(manager.bank)),
            "experience/search_ms": 1e3 * float(np.mean(seconds)) if seconds else 0.0,
        }

    def _by_half(self, groups: Sequence[Group]) -> dict[str, float]:
        """How the guided and the free did, each by themselves."""
        ended: dict[bool, list[bool]] = {True: [], False: []}
        for group in groups:
            for trajectory in group.trajectories:
                ended[trajectory.condition.name == GUIDED].append(trajectory.success)
        names = {True: "experience/success_guided", False: "experience/success_free"}
        return {names[half]: float(np.mean(found)) for half, found in ended.items() if found}

    def save(self, directory: Path) -> None:
        """Bank and buffer. Nothing is queued by then: a checkpoint waits for the last episode to be distilled."""
        manager = self.manager
        manager.finish()
        manager.bank.save_to(directory / "bank.sqlite")
        arrays: dict[str, np.ndarray] = {}
        for i, sample in enumerate(manager.extractor.buffer):
            arrays |= {
                f"prompt{i}": sample.call.prompt,
                f"completion{i}": sample.call.completion,
                f"logprobs{i}": sample.call.logprobs,
            }
        np.savez(directory / "buffer.npz", allow_pickle=False, **arrays)
        known = {
            "buffer": [[s.entry, s.reward, s.call.version] for s in manager.extractor.buffer],
            "counts": dict(manager.counts),
            "step": self.step,
            "wins": self.critic.wins if self.critic else {},
        }
        (directory / "state.json").write_text(json.dumps(known), encoding="utf-8")

    def load(self, directory: Path) -> None:
        manager = self.manager
        manager.bank.restore_from(directory / "bank.sqlite")
        known = json.loads((directory / "state.json").read_text(encoding="utf-8"))
        with np.load(directory / "buffer.npz") as arrays:
            manager.extractor.buffer = [
                Sample(entry, reward, Call(arrays[f"prompt{i}"], arrays[f"completion{i}"], arrays[f"logprobs{i}"], version))
                for i, (entry, reward, version) in enumerate(known["buffer"])
            ]
        manager.counts.clear()
        manager.counts.update(known["counts"])
        self.step = known["step"]
        if self.critic is not None:
            self.critic.wins = known.get("wins", {})


def entry_of(condition: Condition) -> int | None:
    """The entry that guided an episode; a rejected one did not."""
    number = condition.entry.partition(" ")[0]
    return int(number) if condition.name == GUIDED and number.isdecimal() else None


def verdict_of(condition: Condition) -> tuple[int, Verdict] | None:
    """(entry, what the actor said to it), where it was asked: `17 refine`."""
    number, _, said = condition.entry.partition(" ")
    return (int(number), said) if number.isdecimal() and said in SCORES else None  # type: ignore[return-value]


@dataclass(frozen=True)
class Halves:
    """Half of a group's members get an entry from the bank, half none; with an empty bank nobody does."""

    experience: Experience = field(compare=False)
    share: float = 0.5
    actor: Policy | None = field(default=None, compare=False)

    def asking(self, policy: Policy) -> Halves:
        """The same, with whoever is about to play at hand: a critic asks it."""
        return replace(self, actor=policy) if self.experience.critic else self

    def assign(self, task: Task, size: int, seed: int) -> Sequence[Condition]:
        guided = round(size * self.share)
        if self.share == 0.5 and size % 2:
            raise TacitError(f"group_size = {size} cannot be halved; take an even one.")
        found = self.experience.manager.search([task.goal] * guided, self.experience.step)
        if self.actor is not None and self.experience.critic is not None:
            return (*self._weighed(self.actor, self.experience.critic, task, found, seed), *[PLAIN] * (size - guided))
        told = [PLAIN if entry is None else Condition(GUIDED, entry.text, str(entry.id)) for entry in found]
        return (*told, *[PLAIN] * (size - guided))

    def _weighed(
        self, actor: Policy, critic: Critic, task: Task, found: Sequence[Entry | None], seed: int
    ) -> Sequence[Condition]:
        there = [entry for entry in found if entry is not None]
        told = []
        for entry, (verdict, note) in zip(there, critic.weigh(actor, task, there, seed), strict=True):
            told.append(Condition(GUIDED if note else PLAIN.name, note, f"{entry.id} {verdict}"))
        return (*told, *[PLAIN] * (len(found) - len(there)))

    def condition(self, task: Task) -> Condition:
        """For an evaluation: an entry, and no trace of having asked for it."""
        (entry,) = self.experience.manager.search([task.goal], self.experience.step, count=False)
        return PLAIN if entry is None else Condition(GUIDED, entry.text, str(entry.id))

    @property
    def measured(self) -> Mapping[str, Callable[[Task], Condition]]:
        return {GUIDED: self.condition}
