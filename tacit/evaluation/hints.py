"""Can a policy read a skill at all? If hints do not shift its log-probabilities, there is nothing to distill.

At every turn of a noisy expert's episodes, the expert's action a* is scored with and without a hint in the prompt, placed like
a step's or an episode's skill:

    true         the hint names a*
    false        it names another admissible action
    irrelevant   it is the hint of another task
    empty        it says nothing

    shift = log π(a* | H(h, hint)) − log π(a* | h)          summed over the action's tokens

A policy that reads hints shifts up by the true hint and not by the others. If a false hint shifts the action it names, the
policy follows hints whether they help or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.hindsight import Lesson
from tacit.core.method import Context
from tacit.core.protocols import Scorer, Tokenizer
from tacit.core.types import Observation, Prompt, Task
from tacit.core.world import Environment, Expert
from tacit.evaluation.statistics import t_interval
from tacit.prompts.conversation import insert_lesson
from tacit.rollout.encoding import encode_action, fit_prompt
from tacit.rollout.replay import play_episode, render_turns

KINDS = ("true", "false", "irrelevant", "empty")
FOLLOWED = "false, what it names"
PLACES = ("step", "task")
NOISE = 0.3


class Reader(Tokenizer, Scorer, Protocol): ...


@dataclass(frozen=True)
class ProbeTurn:
    """One turn: the prompt, the expert's action, and the other admissible actions."""

    task: str
    prompt: Prompt
    right: str
    wrong: str


@dataclass(frozen=True)
class Probed:
    kind: str
    place: str
    shift: float
    interval: tuple[float, float]  # 95%, over tasks
    raised: float  # share of turns with a positive shift
    turns: int


def probe_turns(world: Environment, tasks: Sequence[Task], context: Context, seed: int) -> list[ProbeTurn]:
    """Turns of a noisy expert's episodes with more than one admissible action."""
    found = []
    for task in tasks:
        live, rng = world.make(), Random(f"{seed}/{task.id}")
        expert = _NoisyExpert(world.expert()(task), rng)
        try:
            for turn in render_turns(context, task, play_episode(live, task, expert, world.max_steps)):
                others = [action for action in turn.observation.actions if action != expert.best]
                if others:
                    found.append(ProbeTurn(task.id, turn.prompt, expert.best, rng.choice(others)))
        finally:
            live.close()
    if not found:
        raise TacitError(f"world {world.name!r} lists no actions, so there is nothing else to hint at.")
    return found


def probe(policy: Reader, context: Context, found: Sequence[ProbeTurn], seed: int = 0) -> list[Probed]:
    """The shift of the expert's action for each kind and place of hint, and of the action a false hint names."""
    rng = Random(seed)
    by_task = {s.task: [other.right for other in found if other.task != s.task] or [s.right] for s in found}
    hints = {
        "true": [spot.right for spot in found],
        "false": [spot.wrong for spot in found],
        "irrelevant": [rng.choice(by_task[spot.task]) for spot in found],
        "empty": ["..."] * len(found),
    }
    tasks, plain = [spot.task for spot in found], [spot.prompt for spot in found]
    right = [encode_action(spot.prompt, spot.right, context.format, policy) for spot in found]
    wrong = [encode_action(spot.prompt, spot.wrong, context.format, policy) for spot in found]
    bare, bare_wrong = _scores(policy, plain, right), _scores(policy, plain, wrong)
    results = []
    for place in PLACES:
        for kind, texts in hints.items():
            lessons = [Lesson(**{place: text}) for text in texts]
            hinted = [insert_lesson(prompt, lesson) for prompt, lesson in zip(plain, lessons, strict=True)]
            results.append(_summed(kind, place, _scores(policy, hinted, right) - bare, tasks))
            if kind == "false":
                results.append(_summed(FOLLOWED, place, _scores(policy, hinted, wrong) - bare_wrong, tasks))
    return results


def _scores(policy: Reader, prompts: Sequence[Prompt], completions: Sequence[np.ndarray]) -> np.ndarray:
    """[N] log π(completion | prompt); NaN if it exceeds the context."""
    fitted = [fit_prompt(prompt, policy, len(c)) for prompt, c in zip(prompts, completions, strict=True)]
    rows = [i for i, (_, _, fits) in enumerate(fitted) if fits]
    scored = policy.logprobs([fitted[i][1] for i in rows], [completions[i] for i in rows])
    found = np.full(len(prompts), np.nan)
    found[rows] = [float(np.sum(own)) for own in scored]
    return found


def _summed(kind: str, place: str, shift_N: np.ndarray, tasks: Sequence[str]) -> Probed:
    known = ~np.isnan(shift_N)
    by_task = [shift_N[known & np.array([task == name for task in tasks])] for name in dict.fromkeys(tasks)]
    means = [float(own.mean()) for own in by_task if len(own)]
    interval = t_interval(means) if means else (float("nan"), float("nan"))
    values = shift_N[known]
    mean = float(np.mean(means)) if means else float("nan")
    return Probed(kind, place, mean, interval, float((values > 0).mean()) if len(values) else 0.0, len(values))


class _NoisyExpert:
    """A noisy expert that remembers the intended actions."""

    def __init__(self, expert: Expert, rng: Random) -> None:
        self._expert, self._rng, self.best = expert, rng, ""

    def act(self, observation: Observation) -> str:
        self.best = self._expert.act(observation)
        stray = observation.actions and self._rng.random() < NOISE
        return self._rng.choice(observation.actions) if stray else self.best
