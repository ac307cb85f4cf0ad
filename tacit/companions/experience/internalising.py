"""Self-distillation (§4.3): what a guided agent did well is imitated by itself without the note and without its questions.

    B = {τ guided : score(τ) > mean score of the free half of its group}
    L = −E[log π_θ(a | h without m)]      over the tokens of B

The paper adds L to the actor's loss; here it is an optimiser step of its own after the actor's, every so many iterations. Its
authors saw a gain early and a collapse later, and suggest such intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tacit.companions.experience.companion import GUIDED
from tacit.companions.imitating import Examples, Imitating
from tacit.contexts.asking import ASKED
from tacit.core.method import Context
from tacit.core.protocols import Policy
from tacit.core.types import PLAIN, Group, Trajectory
from tacit.rollout.retelling import recorded, told


def internalising(context: Context, lr: float, every: int = 1) -> Imitating:
    """Winners with a note, told as if they had had none."""
    alone = partial(unguided, context)
    return Imitating(lr, every, winners, alone, name="internalising", metric="experience/internalised")


def winners(group: Group) -> list[Trajectory]:
    """Guided members above the mean of the free ones; none where nobody was free to be compared with."""
    free = [t.score for t in group.trajectories if t.condition.name != GUIDED]
    if not free:
        return []
    return [t for t in group.trajectories if t.condition.name == GUIDED and t.score > np.mean(free)]


def unguided(context: Context, trajectories: Sequence[Trajectory], policy: Policy) -> Examples:
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
