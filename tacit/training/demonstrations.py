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
from tacit.core.world import Environment, Expert, World
from tacit.rollout.fitting import fit
from tacit.rollout.parsing import write_action

Sample = tuple[np.ndarray, np.ndarray]
"""the tokens of a prompt, and those of the action"""


@dataclass(frozen=True)
class Demonstrations:
    prompts: list[np.ndarray]
    completions: list[np.ndarray]
    episodes: int
    won: int
    broken: int = 0
    """episodes in which the world or the expert raised; they teach nothing"""
    too_long: int = 0
    """turns of won episodes whose prompt does not fit in the model; they teach nothing"""

    def __len__(self) -> int:
        return len(self.prompts)

    @classmethod
    def joined(cls, parts: Sequence[Demonstrations]) -> Demonstrations:
        """Those of several worlds as one."""
        counts = {name: sum(getattr(part, name) for part in parts) for name in ("episodes", "won", "broken", "too_long")}
        return cls([p for part in parts for p in part.prompts], [c for part in parts for c in part.completions], **counts)

    def __str__(self) -> str:
        lost = [f", {self.broken} broke" if self.broken else ""]
        lost.append(f"; {self.too_long} turns do not fit in the model and are left out" if self.too_long else "")
        return f"{len(self)} turns of {self.won} won episodes (of {self.episodes}{lost[0]}){lost[1]}"


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
    shown: list[Sample] = []
    won = broken = turns = 0
    live = world.make()
    for task in tasks:
        rng = random.Random(derive(seed, "demonstration", task.id))
        try:
            success, samples = _play(live, make_expert(task), task, context, tokenizer, max_steps, noise, rng)
        except TacitError:
            raise
        except Exception:
            broken += 1
            live = world.make()
            continue
        if success:
            won += 1
            turns += len(samples)
            shown += [sample for sample in samples if sample is not None]
    live.close()
    if not won:
        raise TacitError(
            f"the expert of world {world.name!r} won none of {len(tasks)} tasks within {max_steps} steps ({broken} broke): "
            "there is nothing to imitate. Choose another expert, or train without SFT."
        )
    if not shown:
        raise TacitError(
            f"none of the {turns} turns the expert of world {world.name!r} showed fits in the model's "
            f"{tokenizer.context_limit} tokens. Choose a model with a longer context, or a shorter prompt (wording, history)."
        )
    return Demonstrations([p for p, _ in shown], [c for _, c in shown], len(tasks), won, broken, turns - len(shown))


def _play(
    live: World,
    hero: Expert,
    task: Task,
    context: Context,
    tokenizer: Tokenizer,
    max_steps: int,
    noise: float,
    rng: random.Random,
) -> tuple[bool, list[Sample | None]]:
    """One episode: whether it was won, and the expert's own turns; None for one that does not fit in the model."""
    reader = context.begin(task, PLAIN)
    observation = before = live.reset(task)
    samples: list[Sample | None] = []
    for _ in range(max_steps):
        action = hero.act(observation)
        prompt = reader.read(observation)
        stray = before.actions + observation.actions
        if stray and rng.random() < noise:
            action = rng.choice(stray)
        else:
            completion = tokenizer.encode_completion(write_action(action, context.style))
            _, tokens, fits = fit(prompt, tokenizer, len(completion))
            samples.append((tokens, completion) if fits else None)
        transition = live.step(action)
        reader.record(action, transition)
        before, observation = observation, transition.observation
        if transition.done or transition.success:
            return bool(transition.success), samples
    return False, samples
