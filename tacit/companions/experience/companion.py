"""Complementary RL's companion: it gives entries to agents, queues episodes for distillation, and trains the extractor."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from tacit.companions.experience import manager as managing
from tacit.companions.experience.bank import Call, Usage
from tacit.companions.experience.extractor import Sample
from tacit.companions.experience.manager import Critic, DistillRequest, ExperienceManager, QueryAnswerer, QuerySettings, Verdict
from tacit.companions.experience.retrieval import Query
from tacit.companions.imitation import Examples, ImitationCompanion
from tacit.core.errors import TacitError
from tacit.core.files import read_json
from tacit.core.method import Companion, Conditions, Context
from tacit.core.protocols import Policy
from tacit.core.seeds import derive
from tacit.core.types import PLAIN, Condition, Group, IterationInfo, Task, Trajectory
from tacit.prompts.search_and_ask import ASKED, ENTRY, SearchResult, parse_question
from tacit.rollout.replay import iterate_trajectory, render_turns

GUIDED = "experience"  # the condition of an episode with an entry


class Experience(Companion):
    """One per run. All worlds of the run share its bank, so an entry from one world may guide an episode in another."""

    name = "experience"

    def __init__(
        self,
        manager: Callable[[], ExperienceManager],
        merge_every: int = 5,
        queries: QuerySettings | None = None,
        writes: bool = True,
        critic: Critic | None = None,
    ) -> None:
        """`writes`: False for a fixed bank made before training. `critic`: the actor reviews its entries."""
        self._open_manager, self._queries = manager, queries or QuerySettings()
        self.writes, self.critic = writes, critic
        self._manager: ExperienceManager | None = None
        self._answerer: QueryAnswerer | None = None
        self.merge_every = merge_every
        self.step, self.seed = 1, 0  # current iteration and run seed

    @property
    def manager(self) -> ExperienceManager:
        """Opened on first use, so that building a method opens nothing."""
        if self._manager is None:
            self._manager = self._open_manager()
        return self._manager

    def close(self) -> None:
        """Stop all threads and close the bank. On resume, episodes that the last checkpoint had not distilled are replayed."""
        if self._answerer is not None:
            self._answerer.queries.abandon()
        if self._manager is not None:
            self._manager.abandon()
            self._manager.bank.close()

    def ask(self, question: str, task: Task) -> Future[SearchResult]:
        if self._answerer is None:
            self._answerer = QueryAnswerer(self.manager, self._queries)
        self._answerer.step, self._answerer.seed = self.step, self.seed
        return self._answerer.ask(question, task)

    def observe(self, groups: Sequence[Group], policy: Policy, info: IterationInfo) -> dict[str, float]:
        """Record which entries guided which episodes, with what outcome, and submit all episodes for distillation."""
        bank, self.step, self.seed = self.manager.bank, info.iteration, info.seed
        episodes = [trajectory for group in groups for trajectory in group.trajectories]
        outcomes: dict[int, list[bool]] = {}
        for trajectory in episodes:
            bank.record("retrieved", managing.queried_entries(trajectory), self.step)
            bank.record("guided", guiding_entries(trajectory), self.step, trajectory.task.id, trajectory.success)
            for entry in guiding_entries(trajectory):
                outcomes.setdefault(entry, []).append(trajectory.success)
            if self.critic is not None:
                self.critic.record(trajectory)
            if self.writes:
                key = f"{trajectory.task.id}/{trajectory.seed}"
                self.manager.submit(DistillRequest(trajectory, guiding_entry(trajectory.condition), info, key))
        questions = [step for trajectory in episodes for step in trajectory.steps if ASKED in step.signals]
        metrics = {"asked": float(len(questions)), "answered": float(sum(ENTRY in step.signals for step in questions))}
        if outcomes:
            metrics["useful"] = float(np.mean([np.mean(won) > 0.5 for won in outcomes.values()]))
        for half in (True, False):
            if outcomes_of_half := [t.success for t in episodes if (t.condition.name == GUIDED) == half]:
                metrics["success_guided" if half else "success_free"] = float(np.mean(outcomes_of_half))
        return {f"experience/{name}": number for name, number in metrics.items()}

    def _add_samples(self, groups: Sequence[Group]) -> None:
        """One sample per entry: r̄(m) = mean over the episodes m guided, in any world, of ±1, or of Eq. 8 with a critic."""
        calls = {} if self._answerer is None else self._answerer.refinements
        rewards: dict[int, list[float]] = {}
        refinement_rewards: dict[tuple[int, str], list[float]] = {}
        """(entry, question) -> ±1 for each episode that read the refined answer"""
        for trajectory in (t for group in groups for t in group.trajectories):
            verdict, outcome = critic_verdict(trajectory.condition), 1.0 if trajectory.success else -1.0
            if verdict is not None:
                rewards.setdefault(verdict[0], []).append(managing.critic_reward(verdict[1], trajectory.success))
            for entry in guiding_entries(trajectory):
                if verdict is None or entry != verdict[0]:
                    rewards.setdefault(entry, []).append(outcome)
            for step in trajectory.steps:
                key = int(step.signals.get(ENTRY, -1)), parse_question(step.action) or ""
                if key in calls:
                    refinement_rewards.setdefault(key, []).append(outcome)
        extractor = self.manager.extractor
        for entry, earned in rewards.items():
            if (call := self.manager.bank.call(entry)) is not None:
                extractor.add_sample(Sample(entry, float(np.mean(earned)), call, len(earned)))
        for key, earned in refinement_rewards.items():
            extractor.add_sample(Sample(key[0], float(np.mean(earned)), calls[key], len(earned), refinement=True))
        calls.clear()

    def training_usage(self, entry: int) -> Usage:
        """c_train and t_last of Eq. 7; those of a retired entry are read from disk."""
        if (usage := self.manager.bank.usage.get(entry)) is not None:
            return usage
        steps = self.manager.bank.training_steps(entry)
        return Usage(trained=len(steps), last_trained=steps[-1]) if steps else Usage()

    def learn(self, groups: Sequence[Group], policy: Policy, info: IterationInfo) -> dict[str, float]:
        manager = self.manager
        metrics: dict[str, float] = {}
        if self.writes:
            self._add_samples(groups)
            manager.work()
            metrics = manager.learn(self.training_usage, info.iteration)
            if self.merge_every and info.iteration % self.merge_every == 0:
                manager.start("merge", partial(manager.merge, info))
            manager.bank.drop_retired_calls()  # this iteration's rewards are already in the buffer
        self.step = info.iteration + 1
        seconds, manager.search_seconds = manager.search_seconds, []
        names = ("added", "updated", "returned", "refused", "merges")
        return {
            **metrics,
            **{f"experience/{name}": float(manager.counts[name]) for name in names},
            "experience/entries": float(len(manager.bank)),
            "experience/search_ms": 1e3 * float(np.mean(seconds)) if seconds else 0.0,
        }

    def save(self, directory: Path) -> None:
        """Save the bank and the training buffer, after all queued episodes are distilled."""
        manager = self.manager
        manager.finish()
        manager.bank.save_to(directory / "bank.sqlite")
        buffer = enumerate(manager.extractor.buffer)
        columns = ("prompt", "completion", "logprobs")
        arrays = {f"{column}{i}": getattr(sample.call, column) for i, sample in buffer for column in columns}
        np.savez(directory / "buffer.npz", allow_pickle=False, **arrays)
        state = {
            "buffer": [[s.entry, s.reward, s.call.version, s.episodes, s.refinement] for s in manager.extractor.buffer],
            "updates": manager.extractor.updates,
            "counts": dict(manager.counts),
            "step": self.step,
            "seed": self.seed,
            "wins": self.critic.wins if self.critic else {},
        }
        (directory / "state.json").write_text(json.dumps(state), encoding="utf-8")

    def load(self, directory: Path) -> None:
        manager = self.manager
        manager.bank.restore_from(directory / "bank.sqlite")
        state = read_json(directory / "state.json")
        manager.extractor.buffer, manager.extractor.updates = [], state.get("updates", 0)
        with np.load(directory / "buffer.npz") as arrays:
            for i, (entry, reward, version, *more) in enumerate(state["buffer"]):
                call = Call(arrays[f"prompt{i}"], arrays[f"completion{i}"], arrays[f"logprobs{i}"], version)
                manager.extractor.add_sample(Sample(entry, reward, call, *more))
        manager.counts.clear()
        manager.counts.update(state["counts"])
        self.step, self.seed = state["step"], state.get("seed", 0)
        if self.critic is not None:
            self.critic.wins = state.get("wins", {})


def guiding_entries(trajectory: Trajectory) -> list[int]:
    """The entries that guided an episode: the one it started with, and those retrieved for its questions."""
    first = guiding_entry(trajectory.condition)
    return list(dict.fromkeys([*([] if first is None else [first]), *managing.queried_entries(trajectory)]))


def guiding_entry(condition: Condition) -> int | None:
    """The entry an episode started with; None if there was none or it was rejected."""
    number = condition.entry.partition(" ")[0]
    return int(number) if condition.name == GUIDED and number.isdecimal() else None


def critic_verdict(condition: Condition) -> tuple[int, Verdict] | None:
    """(entry, the critic's verdict) of a condition like `17 refine`; None if there was no critic."""
    number, _, word = condition.entry.partition(" ")
    return (int(number), word) if number.isdecimal() and word in managing.SCORES else None  # type: ignore[return-value]


@dataclass(frozen=True)
class GuidedHalf(Conditions):
    """Half of a group's members get an entry from the bank, half none. With an empty bank, no member does."""

    experience: Experience = field(compare=False)
    share: float = 0.5
    actor: Policy | None = field(default=None, compare=False)

    def with_actor(self, policy: Policy) -> GuidedHalf:
        """The same conditions, with the policy that is about to act, for the critic."""
        return replace(self, actor=policy) if self.experience.critic else self

    def assign(self, task: Task, size: int, seed: int) -> Sequence[Condition]:
        critic, guided = self.experience.critic, round(size * self.share)
        if self.share == 0.5 and size % 2:
            raise TacitError(f"group_size = {size} cannot be split into halves; use an even number.")
        queries = [Query(task.goal, task.world, task.family, derive(seed, "demotion", i)) for i in range(guided)]
        results = self.experience.manager.search(queries, self.experience.step)
        entries = [entry for entry in results if entry is not None]
        conditions = [PLAIN if entry is None else Condition(GUIDED, entry.text, str(entry.id)) for entry in results]
        if self.actor is not None and critic is not None:
            verdicts = zip(entries, critic.judge(self.actor, task, entries, seed), strict=True)
            conditions = [Condition(GUIDED if note else PLAIN.name, note, f"{e.id} {word}") for e, (word, note) in verdicts]
        return (*conditions, *[PLAIN] * (size - len(conditions)))

    def condition(self, task: Task) -> Condition:
        """For an evaluation: retrieve an entry without recording it."""
        query = Query(task.goal, task.world, task.family)
        (entry,) = self.experience.manager.search([query], self.experience.step, count=False)
        return PLAIN if entry is None else Condition(GUIDED, entry.text, str(entry.id))

    @property
    def evaluated(self) -> Mapping[str, Callable[[Task], Condition]]:
        return {GUIDED: self.condition}


def make_self_distillation(context: Context, lr: float, every: int = 1) -> ImitationCompanion:
    """Self-distillation (§4.3): imitate guided winners on prompts without the note and without their questions.

        B = {τ guided : score(τ) > mean score of the free half of its group}
        L = −E[log π_θ(a | h without m)]      over the tokens of B

    The paper adds L to the actor's loss; here it is a separate optimizer step every `every` iterations. Its authors saw an
    early gain and a later collapse, and suggest such intervals.
    """
    examples = partial(make_unguided_examples, context)
    return ImitationCompanion(lr, every, select_guided_winners, examples, "internalising", "experience/internalised")


def select_guided_winners(group: Group) -> list[Trajectory]:
    """Guided members above the mean score of the free ones; none if there are no free ones."""
    free = [t.score for t in group.trajectories if t.condition.name != GUIDED]
    if not free:
        return []
    return [t for t in group.trajectories if t.condition.name == GUIDED and t.score > np.mean(free)]


def make_unguided_examples(context: Context, trajectories: Sequence[Trajectory], policy: Policy) -> Examples:
    """(prompts without the note, completions) of every turn with a valid action, without questions."""
    prompts, completions = [], []
    for guided in trajectories:
        without_questions = replace(guided, steps=tuple(step for step in guided.steps if ASKED not in step.signals))
        turns = render_turns(context, without_questions.task, iterate_trajectory(without_questions), PLAIN, policy)
        for step, turn in zip(without_questions.steps, turns, strict=True):
            if step.valid:
                prompts.append(turn.tokens)
                completions.append(step.completion.tokens)
    return prompts, completions
