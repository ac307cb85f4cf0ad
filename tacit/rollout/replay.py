"""An episode told again, turn by turn, to whoever needs its prompts and no policy.

What happened is a course of `Happening`s, from one of

    playing(world, task, player, limit)       somebody acts in a live world
    repeating(world, task, actions, seen)     recorded actions in a live world, which must answer as it did
    recorded(trajectory)                      what was recorded, and no world

and `told(context, task, course)` adds what an agent in that context would have read at each turn. Both go forward one turn at
a time: whoever stops reading stops the episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.method import Context, record_turn
from tacit.core.protocols import Tokenizer
from tacit.core.types import (
    PLAIN,
    Completion,
    Condition,
    Observation,
    Prompt,
    Step,
    StopReason,
    Task,
    Trajectory,
    Transition,
)
from tacit.core.world import Expert, World, as_observation, as_transition
from tacit.rollout.encoding import encode_prompt, fit_prompt


class Interaction(NamedTuple):
    """What was seen, what was done, what came of it."""

    observation: Observation
    action: str
    transition: Transition
    wrote: str | None = None
    """what was really written, where it was no action"""


class RenderedPrompt(NamedTuple):
    """What is read at one turn."""

    prompt: Prompt
    tokens: np.ndarray
    """none where no tokenizer was given"""
    fits: bool
    """the tokens leave room for the completion"""


@dataclass(frozen=True, eq=False)
class Turn:
    """One turn: what was `Shown`, what happened, and what the context measured on it."""

    prompt: Prompt
    tokens: np.ndarray
    fits: bool
    observation: Observation
    action: str
    transition: Transition
    signals: Mapping[str, float]


class ReplayMismatch(TacitError):
    """A world that was played again showed something else. `turn` counts from 1."""

    def __init__(self, task: Task, turn: int, shows: str, recorded: str) -> None:
        super().__init__(
            f"turn {turn} of the recorded episode of {task.id!r} does not come out again: the world shows {shows!r}, the "
            f"recording has {recorded!r}. The world has changed since, or is not deterministic."
        )
        self.turn = turn


class PromptRenderer:
    """One episode as its reader is told of it: `show`, then `record`, turn after turn."""

    def __init__(self, context: Context, task: Task, condition: Condition = PLAIN) -> None:
        self._reader = context.begin(task, condition)
        self.turns = 0
        """that are over"""

    def show(self, observation: Observation, tokenizer: Tokenizer | None = None, room: int | None = None) -> RenderedPrompt:
        """The prompt, with its tokens where there is a tokenizer: cut to leave `room` for a completion, or whole."""
        prompt = self._reader.read(observation)
        if tokenizer is None:
            return RenderedPrompt(prompt, np.zeros(0, np.int64), True)
        if room is None:
            return RenderedPrompt(prompt, encode_prompt(prompt, tokenizer), True)
        return RenderedPrompt(*fit_prompt(prompt, tokenizer, room))

    @property
    def block(self) -> str:
        """The state block in what was shown last; empty where the context has none."""
        return getattr(self._reader, "block", "")

    def record(self, action: str, transition: Transition, wrote: str | None = None) -> Mapping[str, float]:
        """`wrote`: what was really written, where it was no action."""
        self.turns += 1
        return record_turn(self._reader, action, transition, wrote)


def render_turns(
    context: Context,
    task: Task,
    course: Iterable[Interaction],
    condition: Condition = PLAIN,
    tokenizer: Tokenizer | None = None,
    room: int | None = None,
) -> Iterator[Turn]:
    """The course with what is read at each turn; tokens as `Telling.show` gives them."""
    telling = PromptRenderer(context, task, condition)
    for observation, action, transition, wrote in course:
        shown = telling.show(observation, tokenizer, room)
        yield Turn(*shown, observation, action, transition, telling.record(action, transition, wrote))


def play_episode(world: World, task: Task, player: Expert, limit: int) -> Iterator[Interaction]:
    """`player` acts until the world ends the episode, `limit` turns at most. Asked for a turn, it acts; not before."""
    observation = as_observation(world.reset(task))
    for _ in range(limit):
        action = player.act(observation)
        transition = as_transition(world.step(action))
        yield Interaction(observation, action, transition)
        if transition.done or transition.success:
            return
        observation = transition.observation


def replay_actions(
    world: World, task: Task, actions: Sequence[str], seen: Sequence[str], wrote: Sequence[str | None] = ()
) -> Iterator[Interaction]:
    """Recorded actions once more. `seen` are the texts on record, one for each action and one for the end where it is known; a
    world that shows anything else `Differs`. `wrote`: as a `Happening` has it, where it is on record."""
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
    """The world's answers, as far as a trajectory keeps them."""
    after = [*(step.observation for step in trajectory.steps), trajectory.final][1:]
    ended = trajectory.stop in (StopReason.SUCCESS, StopReason.FAILURE)
    for turn, (step, observation) in enumerate(zip(trajectory.steps, after, strict=True), start=1):
        at_end = turn == len(trajectory)
        transition = Transition(
            observation=observation,
            done=at_end and ended,
            success=at_end and trajectory.success,
            score=trajectory.score if at_end else 0.0,
            effective=step.effective,
            label=step.label,
            reward=step.reward,
        )
        yield Interaction(step.observation, step.action, transition, None if step.valid else step.completion.text)


def build_trajectory(task: Task, course: Iterable[Interaction], seed: int = 0) -> Trajectory:
    """The course of somebody who is no policy, as an episode without prompts and tokens: for whoever looks back on it."""
    empty = np.zeros(0, np.int64)
    nothing = Completion(empty, np.zeros(0, np.float32), "", "stop")
    turns = list(course)
    steps = tuple(
        Step(seen, Prompt("", ""), empty, nothing, action, True, answer.effective, answer.label)
        for seen, action, answer, _ in turns
    )
    last = turns[-1].transition
    stop = StopReason.SUCCESS if last.success else StopReason.FAILURE if last.done else StopReason.STEP_LIMIT
    return Trajectory(task, steps, last.success, last.score, stop, last.observation, PLAIN, last.label, seed)
