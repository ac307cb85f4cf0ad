"""Episodes without a policy: play an expert or replay recorded actions, and render the prompt of each turn.

Interactions come from `play_episode` (an agent in a live world), `replay_actions` (recorded actions in a live world, which
must return the recorded observations) or `iterate_trajectory` (without a world). `render_turns` adds the prompt of each turn.
All are generators: they advance one turn at a time, and the episode ends when the consumer stops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.method import Context
from tacit.core.protocols import Tokenizer
from tacit.core.types import PLAIN, Completion, Condition, Observation, Prompt, Step, StopReason, Task, Trajectory, Transition
from tacit.core.world import Expert, World, as_action, as_observation, as_transition
from tacit.rollout.encoding import encode_prompt, fit_prompt


class Interaction(NamedTuple):
    observation: Observation
    action: str
    transition: Transition
    wrote: str | None = None  # the completion's text, if it was not a valid action


@dataclass(frozen=True, eq=False)
class Turn:
    """A rendered prompt, the interaction that followed, and the context's signals."""

    prompt: Prompt
    tokens: np.ndarray
    fits: bool
    observation: Observation
    action: str
    transition: Transition
    signals: Mapping[str, float]


class ReplayMismatch(TacitError):
    """A replayed world showed another observation than recorded. `turn` counts from 1."""

    def __init__(self, task: Task, turn: int, shows: str, recorded: str) -> None:
        super().__init__(
            f"turn {turn} of the recorded episode of {task.id!r} cannot be replayed: the world returns {shows!r}, but the "
            f"recording has {recorded!r}. The world has changed since, or is not deterministic."
        )
        self.turn = turn


class PromptRenderer:
    """Renders the prompts of one episode: `render`, then `record`, once per turn."""

    def __init__(self, context: Context, task: Task, condition: Condition = PLAIN) -> None:
        self.reader = context.begin(task, condition)
        self.turns = 0  # finished turns

    def render(
        self, observation: Observation, tokenizer: Tokenizer | None = None, room: int | None = None
    ) -> tuple[Prompt, np.ndarray, bool]:
        """(prompt, tokens, whether `room` completion tokens fit). With `room`, the prompt is truncated to make them fit;
        without a tokenizer, the tokens are empty."""
        prompt = self.reader.read(observation)
        if tokenizer is None or room is None:
            return prompt, np.zeros(0, np.int64) if tokenizer is None else encode_prompt(prompt, tokenizer), True
        return fit_prompt(prompt, tokenizer, room)

    def record(self, action: str, transition: Transition, wrote: str | None = None) -> Mapping[str, float]:
        """Record the turn and return its signals. `wrote`: the completion's text, if it was not a valid action."""
        self.turns += 1
        return self.reader.record(action, transition, wrote)


def render_turns(
    context: Context,
    task: Task,
    interactions: Iterable[Interaction],
    condition: Condition = PLAIN,
    tokenizer: Tokenizer | None = None,
    room: int | None = None,
) -> Iterator[Turn]:
    """The interactions, each with its prompt and tokens as from `PromptRenderer.render`."""
    renderer = PromptRenderer(context, task, condition)
    for observation, action, transition, wrote in interactions:
        prompt = renderer.render(observation, tokenizer, room)
        yield Turn(*prompt, observation, action, transition, renderer.record(action, transition, wrote))


def play_episode(world: World, task: Task, agent: Expert, limit: int) -> Iterator[Interaction]:
    """Let `agent` act until the world ends the episode or `limit` turns have passed."""
    observation = as_observation(world.reset(task))
    for _ in range(limit):
        action = as_action(agent.act(observation), observation)
        transition = as_transition(world.step(action))
        yield Interaction(observation, action, transition)
        if transition.done or transition.success:
            return
        observation = transition.observation


def replay_actions(
    world: World, task: Task, actions: Sequence[str], seen: Sequence[str], wrote: Sequence[str | None] = ()
) -> Iterator[Interaction]:
    """Replay recorded actions. `seen`: the recorded observations, one per action and optionally the final one. Raises
    `ReplayMismatch` at the first observation that differs. `wrote`: per action, as in `Interaction`."""
    observation = as_observation(world.reset(task))
    for turn, text in enumerate(seen, start=1):
        if observation.text != text:
            raise ReplayMismatch(task, turn, observation.text, text)
        if turn > len(actions):
            return
        transition = as_transition(world.step(actions[turn - 1]))
        yield Interaction(observation, actions[turn - 1], transition, wrote[turn - 1] if wrote else None)
        observation = transition.observation


def iterate_trajectory(trajectory: Trajectory) -> Iterator[Interaction]:
    """The interactions of a trajectory. Transitions have only the fields that a trajectory keeps."""
    after = trajectory.observations[1:]
    ended = trajectory.stop in (StopReason.SUCCESS, StopReason.FAILURE)
    for turn, (step, observation) in enumerate(zip(trajectory.steps, after, strict=True), start=1):
        at_end = turn == len(trajectory)
        score = trajectory.score if at_end else 0.0
        transition = Transition(
            observation, at_end and ended, at_end and trajectory.success, score, step.effective, step.label, reward=step.reward
        )
        yield Interaction(step.observation, step.action, transition, None if step.valid else step.completion.text)


def build_trajectory(task: Task, interactions: Iterable[Interaction], seed: int = 0) -> Trajectory:
    """The trajectory of an agent that is not a policy, without prompts and tokens. Needs at least one interaction."""
    empty = np.zeros(0, np.int64)
    no_completion = Completion(empty, np.zeros(0, np.float32), "", "stop")
    turns = list(interactions)
    steps = tuple(
        Step(seen, Prompt("", ""), empty, no_completion, action, True, transition.effective, transition.label)
        for seen, action, transition, _ in turns
    )
    last = turns[-1].transition
    stop = StopReason.SUCCESS if last.success else StopReason.FAILURE if last.done else StopReason.STEP_LIMIT
    return Trajectory(task, steps, last.success, last.score, stop, last.observation, PLAIN, last.label, seed)
