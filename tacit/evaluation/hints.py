"""Can a policy read a skill at all? One that cannot shows no shift, and then there is nothing to distil.

At every turn of episodes that an expert plays with some noise, the expert's own choice a* is scored under the prompt as it is
and with a hint in it, in the place of a step's skill or of an episode's:

    true         the hint names a*
    false        it names another action that is possible here
    irrelevant   it is the hint of another task
    empty        it says nothing

    shift = log π(a* | H(h, hint)) − log π(a* | h)          summed over the action's tokens

A reader shifts up by the true hint, and not by the others. Where a false hint shifts the action it names, the policy follows
hints whether they help or not: that is reading, too.
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
from tacit.prompts.conversation import teach
from tacit.rollout.encoding import encode_action, fit_prompt
from tacit.rollout.replay import play_episode, render_turns

KINDS = ("true", "false", "irrelevant", "empty")
FOLLOWED = "false, what it names"
PLACES = ("step", "task")
NOISE = 0.3


class Reader(Tokenizer, Scorer, Protocol): ...


@dataclass(frozen=True)
class Spot:
    """One turn: what was read there, what the expert does, and what else could be done."""

    task: str
    prompt: Prompt
    right: str
    wrong: str


@dataclass(frozen=True)
class Probed:
    kind: str
    place: str
    shift: float
    interval: tuple[float, float]
    """95%, over tasks"""
    raised: float
    """share of turns where the shift is above 0"""
    turns: int


def spots(world: Environment, tasks: Sequence[Task], context: Context, seed: int) -> list[Spot]:
    """Turns of a noisy expert's episodes at which more than one thing could be done."""
    found = []
    for task in tasks:
        live, rng = world.make(), Random(f"{seed}/{task.id}")
        player = _Noisy(world.expert()(task), rng)
        try:
            for turn in render_turns(context, task, play_episode(live, task, player, world.max_steps)):
                others = [action for action in turn.observation.actions if action != player.best]
                if others:
                    found.append(Spot(task.id, turn.prompt, player.best, rng.choice(others)))
        finally:
            live.close()
    if not found:
        raise TacitError(f"world {world.name!r} lists no actions, so there is nothing else to hint at.")
    return found


def probe(policy: Reader, context: Context, found: Sequence[Spot], seed: int = 0) -> list[Probed]:
    """What each kind of hint, in each place, does to the right action; and a false one to the action it names."""
    rng = Random(seed)
    foreign = [[s.right for s in found if s.task != spot.task] or [spot.right] for spot in _firsts(found)]
    by_task = dict(zip([spot.task for spot in _firsts(found)], foreign, strict=True))
    hints = {
        "true": [spot.right for spot in found],
        "false": [spot.wrong for spot in found],
        "irrelevant": [rng.choice(by_task[spot.task]) for spot in found],
        "empty": ["..."] * len(found),
    }
    right = [encode_action(spot.prompt, spot.right, context.format, policy) for spot in found]
    wrong = [encode_action(spot.prompt, spot.wrong, context.format, policy) for spot in found]
    tasks = [spot.task for spot in found]
    plain = [spot.prompt for spot in found]
    bare, bare_wrong = _scores(policy, plain, right), _scores(policy, plain, wrong)
    results = []
    for place in PLACES:
        for kind, texts in hints.items():
            lessons = [Lesson(**{place: text}) for text in texts]
            hinted = [teach(prompt, lesson) for prompt, lesson in zip(plain, lessons, strict=True)]
            results.append(_summed(kind, place, _scores(policy, hinted, right) - bare, tasks))
            if kind == "false":
                results.append(_summed(FOLLOWED, place, _scores(policy, hinted, wrong) - bare_wrong, tasks))
    return results


def _scores(policy: Reader, prompts: Sequence[Prompt], completions: Sequence[np.ndarray]) -> np.ndarray:
    """[N] log π(completion | prompt); NaN where it does not fit."""
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


def _firsts(found: Sequence[Spot]) -> list[Spot]:
    """One turn of each task."""
    return list({spot.task: spot for spot in found}.values())


class _Noisy:
    """Plays as the expert does but for now and then, and remembers what the expert would have done."""

    def __init__(self, expert: Expert, rng: Random) -> None:
        self._expert, self._rng, self.best = expert, rng, ""

    def act(self, observation: Observation) -> str:
        self.best = self._expert.act(observation)
        stray = observation.actions and self._rng.random() < NOISE
        return self._rng.choice(observation.actions) if stray else self.best
