"""Self-imitation: the policy imitates its better episodes, in a separate optimizer step after the actor's.

    B = {τ : score(τ) > mean score of its group}
    L = −E[log π_θ(a | h)]      over the tokens of B

Complementary RL's self-distillation also uses this companion: it imitates guided winners on prompts without the note
(experience/companion.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacit.core.credit import Batch
from tacit.core.method import Companion
from tacit.core.protocols import Policy
from tacit.core.types import Group, IterationInfo, Trajectory
from tacit.losses.surrogates import Imitation

Selector = Callable[[Group], list[Trajectory]]
Examples = tuple[list[np.ndarray], list[np.ndarray]]  # (prompts, completions), one of each per turn
ExampleMaker = Callable[[Sequence[Trajectory], Policy], Examples]


def select_above_mean(group: Group, share: float = 1.0, quickest: bool = False) -> list[Trajectory]:
    """Members above their group's mean score, at most `share` of the group. `quickest`: only those with the fewest turns."""
    mean, members = np.mean([trajectory.score for trajectory in group.trajectories]), group.trajectories
    better = [trajectory for trajectory in members[: round(share * len(members))] if trajectory.score > mean]
    fewest = min(map(len, better), default=0)
    return [trajectory for trajectory in better if not quickest or len(trajectory) == fewest]


def make_examples(trajectories: Sequence[Trajectory], policy: Policy) -> Examples:
    """Every turn with a valid action, as it was sampled."""
    turns = [step for trajectory in trajectories for step in trajectory.steps if step.valid]
    return [turn.prompt_tokens for turn in turns], [turn.completion.tokens for turn in turns]


@dataclass(eq=False)
class ImitationCompanion(Companion):
    """Imitates selected episodes of the current batch every `every` iterations. Stateless."""

    has_state: ClassVar[bool] = False
    read_in_rollouts: ClassVar[bool] = False
    lr: float
    every: int = 1
    select: Selector = select_above_mean
    make_examples: ExampleMaker = make_examples
    name: str = "imitating"
    metric: str = "self_imitation/imitated"

    def learn(self, groups: Sequence[Group], policy: Policy, info: IterationInfo) -> dict[str, float]:
        if info.iteration % self.every:
            return {}
        chosen = [trajectory for group in groups for trajectory in self.select(group)]
        prompts, completions = self.make_examples(chosen, policy)
        if not prompts:
            return {self.metric: 0.0}
        metrics = policy.update(Batch.imitation(prompts, completions), (Imitation(),), self.lr)
        return {self.metric: float(len(chosen)), f"{self.metric}_loss": metrics["loss"]}
