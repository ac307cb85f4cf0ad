"""Whole rollouts with given completion lengths, in a world that takes no time, to measure scheduling alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tacit.core.actions import BARE
from tacit.core.method import Context, PromptReader
from tacit.core.protocols import PolicyHooks, Request, Sampling, Scheduler
from tacit.core.seeds import derive
from tacit.core.types import ActionStyle, Completion, Condition, Observation, Prompt, Task, Trajectory, Transition
from tacit.engines.local.scheduler import LocalSampler
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.worlds import InProcessPool

PIECE = 60
"""tokens that a growing prompt gains per turn: an action and an observation"""


class Ragged(PolicyHooks):
    """A policy with random prompts, whose completion lengths are derived from the request's seed."""

    context_limit = 1 << 40

    def __init__(self, sampler: LocalSampler, vocabulary: int, prompt_tokens: int, lengths: tuple[int, int]) -> None:
        self._sampler, self._vocabulary, self._prompt_tokens, self._lengths = sampler, vocabulary, prompt_tokens, lengths

    def encode_prompt(self, text: str) -> np.ndarray:
        rng = np.random.default_rng([int(part) for part in text.split()])
        return rng.integers(0, self._vocabulary, self._prompt_tokens)

    def encode_completion(self, text: str) -> np.ndarray:
        raise NotImplementedError

    def decode(self, tokens: np.ndarray) -> str:
        raise NotImplementedError

    def sample(self, requests: Sequence[Request], sampling: Sampling, layer: int | None = None) -> list[Completion]:
        return self._sampler.sample([self.limited(r) for r in requests], replace(sampling, stop=()), layer)

    def open_scheduler(self, sampling: Sampling, layer: int | None = None) -> Scheduler:
        return RaggedScheduler(self, self._sampler.open_scheduler(replace(sampling, stop=()), layer))

    def limited(self, request: Request) -> Request:
        least, most = self._lengths
        return replace(request, max_tokens=least + request.seed % (most - least + 1))


class Growing(Ragged):
    """Each prompt extends the previous turn's by PIECE tokens."""

    _follows = True

    def anew(self) -> Growing:
        """A copy that does not use the prefix cache: requests name no episode."""
        other = copy.copy(self)
        other._follows = False
        return other

    def encode_prompt(self, text: str) -> np.ndarray:
        group, member, turn = (int(part) for part in text.split())
        first = super().encode_prompt(f"{group} 0 0")
        pieces = (np.random.default_rng([group, member, i, 1]).integers(0, self._vocabulary, PIECE) for i in range(1, turn + 1))
        return np.concatenate([first, *pieces])

    def limited(self, request: Request) -> Request:
        request = super().limited(request)
        return request if self._follows else replace(request, episode=None)


class RaggedScheduler:
    def __init__(self, policy: Ragged, scheduler: Scheduler) -> None:
        self._policy, self._scheduler = policy, scheduler
        self.wait, self.close = scheduler.wait, scheduler.close

    def submit(self, request: Request) -> int:
        return self._scheduler.submit(self._policy.limited(request))


class Turns:
    """A world that counts turns."""

    def reset(self, task: Task) -> Observation:
        self._turn = 0
        return Observation("0")

    def step(self, action: str) -> Transition:
        self._turn += 1
        return Transition(Observation(str(self._turn)))

    def close(self) -> None:
        pass


class Places(Context, PromptReader):
    """A context whose prompts are (group, member, turn). First prompts of a group are equal."""

    style: ActionStyle = "bare"
    format = BARE

    def __init__(self, task_id: str = "") -> None:
        self._task_id = task_id

    def begin(self, task: Task, condition: Condition) -> Places:
        return Places(task.id)

    def read(self, observation: Observation) -> Prompt:
        group, member = self._task_id.split()
        return Prompt(task=f"{group} {member if observation.text != '0' else 0}", now=observation.text)

    def record(self, action: str, transition: Transition, raw_text: str | None = None) -> Mapping[str, float]:
        return {}


def play(policy: Ragged, episodes: int, group: int, turns: int, repeat: int = 0, lockstep: bool = False) -> list[Trajectory]:
    """A rollout with this many episodes and turns per episode."""
    tasks = [Task("turns", f"{i // group} {i % group}", "", "", 0, "") for i in range(episodes)]
    plans = [EpisodePlan(task, seed=derive(repeat, i)) for i, task in enumerate(tasks)]
    return rollout(plans, Places(), InProcessPool(Turns), policy, Sampling(), turns, lockstep=lockstep)


def whole_rollout(policy: Ragged, episodes: int, group: int, turns: int, lockstep: bool) -> Callable[[int], int]:
    """`run(repeat)` plays all episodes and returns the number of sampled tokens."""

    def run(repeat: int) -> int:
        return sum(trajectory.completion_tokens for trajectory in play(policy, episodes, group, turns, repeat, lockstep))

    return run
