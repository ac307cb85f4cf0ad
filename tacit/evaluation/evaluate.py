"""Play a panel with an agent and score it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tacit.core.method import Alike, Context
from tacit.core.protocols import Sampling, SamplingPolicy
from tacit.core.seeds import derive
from tacit.core.types import Group, Task, Trajectory
from tacit.core.world import Environment
from tacit.evaluation.journal import CachedPolicy, Journal, Place
from tacit.evaluation.panels import PANEL_SEED, Panel, Rules
from tacit.evaluation.scores import PanelScore, score_panel
from tacit.rollout.episodes import NO_OBSERVER, EpisodePlan, RolloutObserver, rollout, rollout_groups
from tacit.rollout.worlds import WorldPool

BATCH = 256  # concurrent episodes


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
    on_resume: Callable[[int], None] | None = None,
    observer: RolloutObserver = NO_OBSERVER,
    settle: Callable[[Trajectory], Trajectory] | None = None,
) -> list[Trajectory]:
    """Play the panel's episodes; returns them in order, repeat after repeat.

    The seed of an episode depends on its index, its repeat and the rules' seed, so batching changes nothing and two conditions
    see the same randomness. Tasks are grouped by agent (`route`). Episodes in the journal are not played again; `on_resume`
    receives their number. Finished episodes and single turns are written to the journal, except those with a crash or an
    unusable completion, which are played again next time. `settle` makes the final change to an episode.
    """
    places = [(repeat, i) for repeat in range(rules.repeats) for i in range(len(panel.tasks))]
    played = journal.read(panel, rules.repeats) if journal else {}
    missing = [place for place in places if place not in played]
    if on_resume:
        on_resume(len(played))
    by_agent: dict[str, list[Place]] = {}
    for place in missing:
        by_agent.setdefault(route.name(panel.tasks[place[1]]), []).append(place)
    chunks = [(agent, own[start : start + batch]) for agent, own in by_agent.items() for start in range(0, len(own), batch)]
    for agent, chunk in chunks:
        context, policy = route.agent(agent)

        def store(index: int, trajectory: Trajectory, chunk: Sequence[Place] = chunk) -> Trajectory:
            played[chunk[index]] = settled = settle(trajectory) if settle else trajectory
            if journal and not is_lost(settled):
                journal.write([(chunk[index], settled)])
            return settled

        plans = [
            EpisodePlan(panel.tasks[i], derive(PANEL_SEED, rules.seed, i, repeat), rules.condition_of(panel.tasks[i]))
            for repeat, i in chunk
        ]
        remembering, keeper = CachedPolicy(policy, journal.turns) if journal else policy, _EpisodeStore(observer, store)
        rollout(plans, context, worlds, remembering, rules.sampling, rules.max_steps, observer=keeper)
    if journal:
        journal.finish(lost=sum(map(is_lost, played.values())))
    return [played[place] for place in places]


def is_lost(trajectory: Trajectory) -> bool:
    """Whether the world crashed or a completion was unusable, so that the episode says nothing about the policy."""
    return trajectory.stop.crashed or trajectory.unusable > 0


class _EpisodeStore(RolloutObserver):
    """Stores each finished episode under its (repeat, index)."""

    def __init__(self, observer: RolloutObserver, store: Callable[[int, Trajectory], Trajectory]) -> None:
        self._observer, self._store = observer, store
        self.on_start, self.on_turn = observer.on_start, observer.on_turn  # type: ignore[method-assign]

    def on_episode_end(self, index: int, trajectory: Trajectory) -> None:
        self._observer.on_episode_end(index, self._store(index, trajectory))


# Rollouts as in training, to measure a policy: tasks, prompts, sampling and groups.


@dataclass(frozen=True)
class RolloutSetup:
    world: Environment
    worlds: WorldPool
    context: Context
    policy: Any  # samples, scores and returns hidden states
    tasks: Sequence[Task]  # the training tasks
    sampling: Sampling  # as in training
    max_steps: int
    group_size: int
    seed: int
    iteration: int  # the next training iteration, from 1
    collect: Callable[[int], Sequence[Group]]  # the groups of an iteration as in training, without crashed episodes

    def play(self, tasks: Sequence[Task], members: int, seed: int) -> list[Group]:
        """Groups of the given tasks, rolled out with the same settings."""
        played = rollout_groups(
            tasks, members, seed, Alike(), self.context, self.worlds, self.policy, self.sampling, self.max_steps
        )
        return [group for group in (g.without_crashes() for g in played) if len(group)]
