"""Self-distillation (§4.3): what a guided agent did well is imitated by itself without the note and without its questions.

    B = {τ guided : score(τ) > mean score of the free half of its group}
    L = −E[log π_θ(a | h without m)]      over the tokens of B

The paper adds L to the actor's loss; here it is an optimiser step of its own after the actor's, every so many iterations. Its
authors saw a gain early and a collapse later, and suggest such intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tacit.companions.experience.companion import GUIDED
from tacit.contexts.asking import ASKED
from tacit.core.batch import Batch
from tacit.core.method import Context
from tacit.core.moment import Moment
from tacit.core.protocols import Policy
from tacit.core.types import PLAIN, Group, Trajectory
from tacit.losses.imitation import Imitation
from tacit.rollout.retelling import recorded, told


class Internalising:
    """Learns from the batch before it, and remembers nothing."""

    name = "internalising"
    remembers = False
    read_in_play = False

    def __init__(self, context: Context, lr: float, every: int = 1) -> None:
        self.context, self.lr, self.every = context, lr, every

    def observe(self, groups: Sequence[Group], policy: Policy, moment: Moment) -> dict[str, float]:
        return {}

    def learn(self, groups: Sequence[Group], policy: Policy, moment: Moment) -> dict[str, float]:
        if moment.iteration % self.every:
            return {}
        chosen = [trajectory for group in groups for trajectory in winners(group)]
        prompts, completions = unguided(chosen, self.context, policy)
        if not prompts:
            return {"experience/internalised": 0.0}
        metrics = policy.update(Batch.imitation(prompts, completions), (Imitation(),), self.lr)
        return {"experience/internalised": float(len(chosen)), "experience/internalising_loss": metrics["loss"]}

    def save(self, directory: Path) -> None:
        pass

    def load(self, directory: Path) -> None:
        pass


def winners(group: Group) -> list[Trajectory]:
    """Guided members above the mean of the free ones; none where nobody was free to be compared with."""
    free = [t.score for t in group.trajectories if t.condition.name != GUIDED]
    if not free:
        return []
    return [t for t in group.trajectories if t.condition.name == GUIDED and t.score > np.mean(free)]


def unguided(trajectories: Sequence[Trajectory], context: Context, policy: Policy) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(what would have been read without the note, what was written), for every turn whose completion was an action. Turns
    that asked are not there: without an entry nobody may ask, and the world stood still."""
    prompts, completions = [], []
    for guided in trajectories:
        acted = replace(guided, steps=tuple(step for step in guided.steps if ASKED not in step.signals))
        turns = told(context, acted.task, recorded(acted), PLAIN, policy)
        for step, turn in zip(acted.steps, turns, strict=True):
            if step.valid:
                prompts.append(turn.tokens)
                completions.append(step.completion.tokens)
    return prompts, completions
