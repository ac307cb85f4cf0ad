"""The companion of Complementary RL: it hands out entries, has episodes distilled, and lets the extractor learn."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from tacit.companions.experience.bank import Call, Entry, Usage
from tacit.companions.experience.extractor import Sample
from tacit.companions.experience.manager import (
    SCORES,
    Critic,
    DistillRequest,
    ExperienceManager,
    QueryAnswerer,
    QuerySettings,
    Verdict,
    critic_reward,
    queried_entries,
)
from tacit.companions.imitation import Examples, ImitationCompanion
from tacit.core.errors import TacitError
from tacit.core.method import Companion, Conditions, Context
from tacit.core.protocols import Policy
from tacit.core.types import PLAIN, Condition, Group, IterationInfo, Task, Trajectory
from tacit.prompts.search_and_ask import ASKED, ENTRY, Told
from tacit.rollout.replay import iterate_trajectory, render_turns

GUIDED = "experience"
"""the condition of an episode that was given an entry"""


class Experience(Companion):
    """One for all worlds of a run: they share the bank, and whatever was learned in one may guide in another."""

    name = "experience"

    def __init__(
        self,
        manager: Callable[[], ExperienceManager],
        merge_every: int = 5,
        asked: QuerySettings | None = None,
        writes: bool = True,
        critic: Critic | None = None,
    ) -> None:
        """`asked`: how questions in mid-episode are answered. `writes`: False where the bank was made beforehand and stays as
        it is. `critic`: asks the actor about its entries."""
        self._make, self._asked = manager, asked or QuerySettings()
        self.writes, self.critic = writes, critic
        self._manager: ExperienceManager | None = None
        self._counsel: QueryAnswerer | None = None
        self.merge_every = merge_every
        self.step, self.seed = 1, 0
        """the iteration that is being played, and the seed of the run"""

    @property
    def manager(self) -> ExperienceManager:
        """Opened on first use: building a method opens nothing."""
        if self._manager is None:
            self._manager = self._make()
        return self._manager

    def close(self) -> None:
        """No thread and no open file is left. What was not distilled by the last checkpoint is played again from there."""
        if self._counsel is not None:
            self._counsel.desk.abandon()
        if self._manager is not None:
            self._manager.abandon()
            self._manager.bank.close()

    def ask(self, question: str) -> Future[Told]:
        """search_and_ask: the answer is there when somebody waits for it."""
        if self._counsel is None:
            self._counsel = QueryAnswerer(self.manager, self._asked)
        self._counsel.step, self._counsel.seed = self.step, self.seed
        return self._counsel.ask(question)

    def observe(self, groups: Sequence[Group], policy: Policy, info: IterationInfo) -> dict[str, float]:
        """Who was guided by what, with what result; and all episodes are to be distilled, whatever their outcome."""
        bank, self.step, self.seed = self.manager.bank, info.iteration, info.seed
        episodes = [trajectory for group in groups for trajectory in group.trajectories]
        outcomes: dict[int, list[bool]] = {}
        for trajectory in episodes:
            bank.happened("retrieved", queried_entries(trajectory), self.step)
            bank.happened("guided", guiding_entries(trajectory), self.step, trajectory.task.id, trajectory.success)
            for entry in guiding_entries(trajectory):
                outcomes.setdefault(entry, []).append(trajectory.success)
            if self.critic is not None:
                self.critic.saw(trajectory)
            if self.writes:
                place = f"{trajectory.task.id}/{trajectory.seed}"
                self.manager.submit(DistillRequest(trajectory, guiding_entry(trajectory.condition), info, place))
        questions = [step for trajectory in episodes for step in trajectory.steps if ASKED in step.signals]
        told = {"asked": float(len(questions)), "answered": float(sum(ENTRY in step.signals for step in questions))}
        if outcomes:
            told["useful"] = float(np.mean([np.mean(won) > 0.5 for won in outcomes.values()]))
        return {**self._by_half(groups), **{f"experience/{name}": number for name, number in told.items()}}

    def _reward(self, groups: Sequence[Group]) -> None:
        """r̄(m) = mean over the episodes m guided in this iteration, in whichever world, of ±1, or of Eq. 8's r̃ where the actor
        was asked about its entry: one sample for each entry."""
        rewards: dict[int, list[float]] = {}
        for group in groups:
            for trajectory in group.trajectories:
                verdict = critic_verdict(trajectory.condition)
                if verdict is not None:
                    weighed, said = verdict
                    rewards.setdefault(weighed, []).append(critic_reward(said, trajectory.success))
                for entry in guiding_entries(trajectory):
                    if verdict is None or entry != verdict[0]:
                        rewards.setdefault(entry, []).append(1.0 if trajectory.success else -1.0)
        for entry, earned in rewards.items():
            call = self.manager.bank.call(entry)
            if call is not None:
                self.manager.extractor.earned(Sample(entry, float(np.mean(earned)), call, len(earned)))

    def _trained(self, entry: int) -> Usage:
        """c_train and t_last of Eq. 7; of an entry that has left the bank they are on disk."""
        bank = self.manager.bank
        if (usage := bank.usage.get(entry)) is not None:
            return usage
        steps = bank.trainings(entry)
        return Usage(trained=len(steps), last_trained=steps[-1]) if steps else Usage()

    def learn(self, groups: Sequence[Group], policy: Policy, info: IterationInfo) -> dict[str, float]:
        manager = self.manager
        metrics: dict[str, float] = {}
        if self.writes:
            self._reward(groups)
            manager.work()
            metrics, trained = manager.extractor.learn(self._trained, info.iteration)
            if trained:
                manager.bank.happened("trained", trained, info.iteration)
            if self.merge_every and info.iteration % self.merge_every == 0:
                manager.finish()
                manager.merge(info)
            manager.bank.let_calls_go()  # all that this iteration's episodes earned is in the buffer
        self.step = info.iteration + 1
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
            "buffer": [[s.entry, s.reward, s.call.version, s.episodes] for s in manager.extractor.buffer],
            "counts": dict(manager.counts),
            "step": self.step,
            "seed": self.seed,
            "wins": self.critic.wins if self.critic else {},
        }
        (directory / "state.json").write_text(json.dumps(known), encoding="utf-8")

    def load(self, directory: Path) -> None:
        manager = self.manager
        manager.bank.restore_from(directory / "bank.sqlite")
        known = json.loads((directory / "state.json").read_text(encoding="utf-8"))
        manager.extractor.buffer = []
        with np.load(directory / "buffer.npz") as arrays:
            for i, (entry, reward, version, *episodes) in enumerate(known["buffer"]):
                call = Call(arrays[f"prompt{i}"], arrays[f"completion{i}"], arrays[f"logprobs{i}"], version)
                manager.extractor.earned(Sample(entry, reward, call, *episodes))
        manager.counts.clear()
        manager.counts.update(known["counts"])
        self.step, self.seed = known["step"], known.get("seed", 0)
        if self.critic is not None:
            self.critic.wins = known.get("wins", {})


def guiding_entries(trajectory: Trajectory) -> list[int]:
    """The entries that guided an episode: the one it began with, and those it asked for."""
    first = guiding_entry(trajectory.condition)
    return list(dict.fromkeys([*([] if first is None else [first]), *queried_entries(trajectory)]))


def guiding_entry(condition: Condition) -> int | None:
    """The entry that guided an episode; a rejected one did not."""
    number = condition.entry.partition(" ")[0]
    return int(number) if condition.name == GUIDED and number.isdecimal() else None


def critic_verdict(condition: Condition) -> tuple[int, Verdict] | None:
    """(entry, what the actor said to it), where it was asked: `17 refine`."""
    number, _, said = condition.entry.partition(" ")
    return (int(number), said) if number.isdecimal() and said in SCORES else None  # type: ignore[return-value]


@dataclass(frozen=True)
class GuidedHalf(Conditions):
    """Half of a group's members get an entry from the bank, half none; with an empty bank nobody does."""

    experience: Experience = field(compare=False)
    share: float = 0.5
    actor: Policy | None = field(default=None, compare=False)

    def with_actor(self, policy: Policy) -> GuidedHalf:
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
    def evaluated(self) -> Mapping[str, Callable[[Task], Condition]]:
        return {GUIDED: self.condition}


# Self-distillation (§4.3): what a guided agent did well is imitated by itself without the note and without its questions.
#
#     B = {τ guided : score(τ) > mean score of the free half of its group}
#     L = −E[log π_θ(a | h without m)]      over the tokens of B
#
# The paper adds L to the actor's loss; here it is an optimiser step of its own after the actor's, every so many iterations. Its
# authors saw a gain early and a collapse later, and suggest such intervals.


def make_self_distillation(context: Context, lr: float, every: int = 1) -> ImitationCompanion:
    """Winners with a note, told as if they had had none."""
    alone = partial(make_unguided_examples, context)
    return ImitationCompanion(lr, every, select_guided_winners, alone, name="internalising", metric="experience/internalised")


def select_guided_winners(group: Group) -> list[Trajectory]:
    """Guided members above the mean of the free ones; none where nobody was free to be compared with."""
    free = [t.score for t in group.trajectories if t.condition.name != GUIDED]
    if not free:
        return []
    return [t for t in group.trajectories if t.condition.name == GUIDED and t.score > np.mean(free)]


def make_unguided_examples(context: Context, trajectories: Sequence[Trajectory], policy: Policy) -> Examples:
    """(what would have been read without the note, what was written), for every turn whose completion was an action. Turns
    that asked are not there: without an entry nobody may ask, and the world stood still."""
    prompts, completions = [], []
    for guided in trajectories:
        acted = replace(guided, steps=tuple(step for step in guided.steps if ASKED not in step.signals))
        turns = render_turns(context, acted.task, iterate_trajectory(acted), PLAIN, policy)
        for step, turn in zip(acted.steps, turns, strict=True):
            if step.valid:
                prompts.append(turn.tokens)
                completions.append(step.completion.tokens)
    return prompts, completions
