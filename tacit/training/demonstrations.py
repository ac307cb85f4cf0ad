"""What an expert did, as the policy would have read it: one sample per turn (prompt tokens, action tokens)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.core.amounts import number_of
from tacit.core.errors import TacitError, told_of
from tacit.core.method import Context
from tacit.core.protocols import Tokenizer
from tacit.core.seeds import derive
from tacit.core.types import PLAIN, Condition, Observation, Task
from tacit.core.world import Adviser, Environment, Expert, World
from tacit.rollout.fitting import encode_action, fit
from tacit.rollout.retelling import Turn, playing, told

HOPELESS = 8
"""episodes that may break, all from the first on, before it is given up: each may have been waited for as long as a world may
take"""
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
        lost.append(
            f"; left out, since the model cannot read that much: {number_of(self.too_long, 'turn')}" if self.too_long else ""
        )
        return f"{number_of(len(self), 'turn')} of {number_of(self.won, 'won episode')} (of {self.episodes}{lost[0]}){lost[1]}"


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
    ago (and then refused at times), which is not shown to the policy but whose consequences are. Only won episodes teach."""
    make_expert = world.expert(expert or None)
    shown: list[Sample] = []
    played = won = turns = 0
    broken: list[str] = []
    live = world.make()
    for task in tasks:
        if played == len(broken) == HOPELESS:
            break
        played += 1
        rng = random.Random(derive(seed, "demonstration", task.id))
        try:
            success, samples = play(live, Straying(make_expert(task), noise, rng), task, context, tokenizer, max_steps)
        except TacitError:
            raise
        except (Exception, SystemExit) as error:
            broken.append(f"{told_of(error)}, in task {task.id!r}")
            live = world.make()
            continue
        if success:
            won += 1
            turns += len(samples)
            shown += [sample for sample in samples if sample is not None]
    live.close()
    if not won:
        broke = f"{len(broken)} broke; the first: {broken[0]}" if broken else "0 broke"
        raise TacitError(
            f"the expert of world {world.name!r} won none of {played} tasks within {max_steps} steps ({broke}): "
            "there is nothing to imitate. Choose another expert, or train without SFT."
        )
    if not shown:
        raise TacitError(
            f"none of the {turns} turns the expert of world {world.name!r} showed fits in the model's "
            f"{tokenizer.context_limit} tokens. Choose a model with a longer context, or a shorter prompt (wording, history)."
        )
    return Demonstrations([p for p, _ in shown], [c for _, c in shown], len(tasks), won, len(broken), turns - len(shown))


class Straying:
    """An expert, but for the turns in which it does anything else that is possible now or was a turn ago."""

    def __init__(self, hero: Expert, noise: float, rng: random.Random) -> None:
        self._hero, self._noise, self._rng = hero, noise, rng
        self._before: Observation | None = None
        self.itself = True
        """the last action was the expert's own"""
        self.wishes: list[str] = []
        """what the expert would have done, turn by turn"""

    def act(self, observation: Observation) -> str:
        action = self._hero.act(observation)
        self.wishes.append(action)
        stray = (self._before or observation).actions + observation.actions
        self._before = observation
        self.itself = not (stray and self._rng.random() < self._noise)
        if not self.itself:
            action = self._rng.choice(stray)
            if isinstance(self._hero, Adviser):
                self._hero.happened(action)
        return action


def play(
    live: World,
    player: Straying,
    task: Task,
    context: Context,
    tokenizer: Tokenizer,
    max_steps: int,
    condition: Condition = PLAIN,
) -> tuple[bool, list[Sample | None]]:
    """One episode: whether it was won, and the expert's own turns; None for one that does not fit in the model."""
    samples: list[Sample | None] = []
    won = False
    for turn in told(context, task, playing(live, task, player, max_steps), condition):
        won = bool(turn.transition.success)
        if player.itself:
            samples.append(sample(turn, context, tokenizer))
    return won, samples


def sample(turn: Turn, context: Context, tokenizer: Tokenizer) -> Sample | None:
    """A turn to imitate; None where its prompt does not fit in the model."""
    completion = encode_action(turn.prompt, turn.action, context.format, tokenizer)
    _, tokens, fits = fit(turn.prompt, tokenizer, len(completion))
    return (tokens, completion) if fits else None
