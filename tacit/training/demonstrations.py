"""What an expert did, as the policy would have read it: one sample per turn (prompt tokens, action tokens)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.method import Context
from tacit.core.protocols import Tokenizer
from tacit.core.seeds import derive
from tacit.core.types import PLAIN, Task
from tacit.core.world import Environment
from tacit.rollout.parsing import write_action


@dataclass(frozen=True)
class Demonstrations:
    prompts: list[np.ndarray]
    completions: list[np.ndarray]
    episodes: int
    won: int

    def __len__(self) -> int:
        return len(self.prompts)


def demonstrate(
    world: Environment,
    tasks: Sequence[Task],
    context: Context,
    tokenizer: Tokenizer,
    max_steps: int,
    expert: str = "",
    noise: float = 0.0,
    seed: int = 0,
) -> Demonstrations:
    """Play each task with the expert; with probability `noise` a turn is a random action instead, admissible now or a turn
    ago (and then mostly refused), which is not shown to the policy but whose consequences are. Only won episodes teach."""
    make_expert = world.expert(expert or None)
    prompts: list[np.ndarray] = []
    completions: list[np.ndarray] = []
    won = 0
    live = world.make()
    for task in tasks:
        rng = random.Random(derive(seed, "demonstration", task.id))
        reader, hero = context.begin(task, PLAIN), make_expert(task)
        observation = before = live.reset(task)
        shown: list[tuple[np.ndarray, np.ndarray]] = []
        for _ in range(max_steps):
            action = hero.act(observation)
            prompt = reader.read(observation)
            stray = before.actions + observation.actions
            if stray and rng.random() < noise:
                action = rng.choice(stray)
            else:
                completion = tokenizer.encode_completion(write_action(action, context.style))
                shown.append((tokenizer.encode_prompt(prompt.text), completion))
            transition = live.step(action)
            reader.record(action, transition)
            before, observation = observation, transition.observation
            if transition.done or transition.success:
                break
        if transition.success:
            won += 1
            prompts += [p for p, _ in shown]
            completions += [c for _, c in shown]
    live.close()
    if not prompts:
        raise TacitError(f"the expert of world {world.name!r} won none of {len(tasks)} tasks, so there is nothing to imitate.")
    return Demonstrations(prompts, completions, len(tasks), won)
