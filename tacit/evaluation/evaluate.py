"""Play a panel with an agent and score it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tacit.core.method import Alike, Context
from tacit.core.protocols import Sampling
from tacit.core.seeds import derive
from tacit.core.types import Completion, Group, Task, Trajectory
from tacit.core.world import Environment
from tacit.evaluation.journal import CachedPolicy, Journal, Place
from tacit.evaluation.panels import PANEL_SEED, Panel, Rules
from tacit.evaluation.scores import PanelScore, score_panel
from tacit.rollout.episodes import NO_OBSERVER, EpisodePlan, RolloutObserver, SamplingPolicy, rollout, rollout_groups
from tacit.rollout.worlds import WorldPool

BATCH = 256
"""concurrent episodes"""


class Route(Protocol):
    """Assigns an agent to each task."""

    def name(self, task: Task) -> str:
        """The name of the task's agent."""
        ...

    def agent(self, name: str) -> tuple[Context, SamplingPolicy]:
        """Its prompt and policy. The previously requested agent may be unloaded."""
        ...


@dataclass(frozen=True)
class SingleAgent:
    """One agent for all tasks."""

    context: Context
    policy: SamplingPolicy

    def name(self, task: Task) -> str:
        return ""

    def agent(self, name: str) -> tuple[Context, SamplingPolicy]:
        return self.context, self.policy


def evaluate(
    panel: Panel,
    rules: Rules,
    worlds: WorldPool,
    context: Context,
    policy: SamplingPolicy,
    observer: RolloutObserver = NO_OBSERVER,
) -> tuple[PanelScore, list[Trajectory]]:
    """Play and score the whole panel."""
    played = play_panel(panel, rules, worlds, SingleAgent(context, policy), observer=observer)
    return score_panel(panel, played, rules), played


def play_panel(
    panel: Panel,
    rules: Rules,
    worlds: WorldPool,
    route: Route,
    *,
    batch: int = BATCH,
    journal: Journal | None = None,
    begun: Callable[[int], None] | None = None,
    observer: RolloutObserver = NO_OBSERVER,
    settle: Callable[[Trajectory], Trajectory] | None = None,
) -> list[Trajectory]:
    """Play the panel's episodes; returns them in order, repeat after repeat.

    The seed of an episode depends on its index, its repeat and the rules' seed, so batching changes nothing and two conditions
    see the same randomness. Tasks are grouped by agent (`route`). Episodes in the journal are not played again; `begun`
    receives their number. Finished episodes and single turns are written to the journal, except those with a crash or an
    unusable completion, which are played again next time. `settle` makes the final change to an episode.
    """
    places = [(repeat, i) for repeat in range(rules.repeats) for i in range(len(panel.tasks))]
    played = journal.read(panel, rules.repeats) if journal else {}
    missing = [place for place in places if place not in played]
    if begun:
        begun(len(played))
    for agent, chunk in _chunks(missing, batch, [route.name(panel.tasks[i]) for _, i in missing]):
        context, policy = route.agent(agent)
        plans = [
            EpisodePlan(panel.tasks[i], derive(PANEL_SEED, rules.seed, i, repeat), rules.condition_of(panel.tasks[i]))
            for repeat, i in chunk
        ]
        keeper = _EpisodeStore(chunk, played, journal, settle, observer)
        remembering = CachedPolicy(policy, journal.turns) if journal else policy
        rollout(plans, context, worlds, remembering, rules.sampling, rules.max_steps, observer=keeper)
    if journal:
        journal.finish(lost=sum(map(is_lost, played.values())))
    return [played[place] for place in places]


def is_lost(trajectory: Trajectory) -> bool:
    """The world crashed, or a completion was unusable: the episode is no evidence about the policy."""
    return trajectory.stop.crashed or trajectory.unusable > 0


class _EpisodeStore(RolloutObserver):
    """Stores each finished episode at its place."""

    def __init__(
        self,
        places: Sequence[Place],
        played: dict[Place, Trajectory],
        journal: Journal | None,
        settle: Callable[[Trajectory], Trajectory] | None,
        observer: RolloutObserver,
    ) -> None:
        self._places, self._played, self._journal, self._settle, self._observer = places, played, journal, settle, observer

    def on_start(self, worlds: object) -> None:
        self._observer.on_start(worlds)

    def on_turn(self, completion: Completion, valid: bool) -> None:
        self._observer.on_turn(completion, valid)

    def on_episode_end(self, index: int, trajectory: Trajectory) -> None:
        where, settled = self._places[index], self._settle(trajectory) if self._settle else trajectory
        self._played[where] = settled
        if self._journal and not is_lost(settled):
            self._journal.write([(where, settled)])
        self._observer.on_episode_end(index, settled)


def _chunks(places: Sequence[Place], batch: int, agents: Sequence[str]) -> Iterator[tuple[str, list[Place]]]:
    """(agent, places) with at most `batch` places each; agents in order of first appearance."""
    for agent in dict.fromkeys(agents):
        own = [place for place, whose in zip(places, agents, strict=True) if whose == agent]
        for start in range(0, len(own), batch):
            yield agent, own[start : start + batch]


# Rollouts as in training, to measure a policy: tasks, prompts, sampling and groups.


@dataclass(frozen=True)
class RolloutSetup:
    world: Environment
    worlds: WorldPool
    context: Context
    policy: Any
    """samples, scores and returns hidden states"""
    tasks: Sequence[Task]
    """the training tasks"""
    sampling: Sampling
    """as in training"""
    max_steps: int
    group_size: int
    seed: int
    iteration: int
    """the next training iteration, from 1"""
    collect: Callable[[int], Sequence[Group]]
    """the groups of an iteration as in training, without crashed episodes"""
    run: Path | None = None
    """directory of its recorded episodes"""

    def play(self, tasks: Sequence[Task], members: int, seed: int) -> list[Group]:
        """Groups of other tasks, rolled out in the same way."""
        played = rollout_groups(
            tasks, members, seed, Alike(), self.context, self.worlds, self.policy, self.sampling, self.max_steps
        )
        return [group for group in (g.without_crashes() for g in played) if len(group)]
