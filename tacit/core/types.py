"""The data types of episodes: frozen, without torch. One episode:

Task         countdown/train/17 "Use 3, 7, 25 to make 82"
Observation  "numbers: 3 7 25 | target: 82"
Prompt       task, history, now, request     -> the text the policy read
Completion   "op(*, 3, 25)"                  -> tokens, log-probabilities, text
Step         one turn: all of the above and the result in the world
Trajectory   the steps of one episode, its outcome and stop reason
Group        the trajectories of one task: the comparison unit of every group-relative method
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from tacit.core.chat import Chat, Conversation, Message
from tacit.core.seeds import derive

ActionStyle = Literal["tags", "bare", "tools"]
"""How an action is written: `<think>…</think><action>…</action>`, bare on one line, or as a tool call (core/actions.py)."""
Finish = Literal["stop", "length", "unusable"]
"""How a completion ended: `stop` (stop string or end token), `length` (token limit) or `unusable` (none came back: no text)."""

ROUNDING = 1e-6  # tolerance for scores outside [0, 1]: ten times 0.1 is not exactly 1


@dataclass(frozen=True, slots=True)
class Task:
    """One problem instance of a world. `data` has what `reset` needs, as JSON values. `max_steps` in `data` limits the agent's
    episodes of this task; demonstrations may be longer."""

    world: str
    id: str
    family: str
    split: str
    seed: int
    goal: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observation:
    """The current state as text, and the admissible actions if the world lists them. Never history."""

    text: str
    actions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Transition:
    observation: Observation
    done: bool = False
    success: bool = False
    score: float = 0.0  # graded outcome so far, in [0, 1]; 0 in worlds without grades
    effective: bool = True  # False if the action parsed but the world refused it
    label: str = ""  # the world's label of the ending or of an error, e.g. `stuck`, `burned`
    reward: float = 0.0  # the world's reward of this step, if it has step rewards
    signals: Mapping[str, float] = field(default_factory=dict)
    """measured by the world itself, e.g. `progress` and `error` in a world without tracker"""
    answer: str = ""  # answer to a question, if the context answered instead of the world

    def in_plain_numbers(self) -> Transition:
        """The same with Python numbers instead of numpy's, for JSON. Raises ValueError if a number is not finite or the score
        is outside [0, 1]."""
        plain = replace(
            self,
            done=_as_bool("done", self.done),
            success=_as_bool("success", self.success),
            effective=_as_bool("effective", self.effective),
            score=_as_finite_float("score", self.score),
            reward=_as_finite_float("reward", self.reward),
            signals={name: _as_finite_float(name, value) for name, value in self.signals.items()},
        )
        if not -ROUNDING <= plain.score <= 1 + ROUNDING:
            raise ValueError(
                f"the world gave {plain.score:g} as score, which must be between 0 and 1: divide it by its maximum, or "
                "return it as reward, which may be any number"
            )
        return replace(plain, score=min(max(plain.score, 0.0), 1.0))


def _as_bool(name: str, value: Any) -> bool:
    if isinstance(value, str):  # bool("False") is True
        raise ValueError(f"the world gave the text {value!r} as {name}, which must be True or False")
    return bool(value)


def _as_finite_float(name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        text = f"the text {value!r}" if isinstance(value, str) else value
        raise ValueError(f"the world gave {text} as {name}, which must be a finite number")
    return number


class StopReason(StrEnum):
    """Why an episode ended."""

    SUCCESS = "success"
    FAILURE = "failure"  # ended by the world, unsolved
    STEP_LIMIT = "step_limit"
    PROMPT_TOO_LONG = "prompt_too_long"
    WORLD_ERROR = "world_error"
    WORLD_HANG = "world_hang"

    @property
    def crashed(self) -> bool:
        """Whether the world failed. Such an episode does not count for the policy."""
        return self in (StopReason.WORLD_ERROR, StopReason.WORLD_HANG)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt in named sections, so that a note can be added or history dropped without changing the rest.

    Order: task, task_note, history, now, step_note, request.
    """

    task: str
    now: str
    request: str = ""
    history: tuple[str, ...] = ()
    task_note: str = ""
    step_note: str = ""
    separator: str = "\n"
    now_alone: str = ""  # replaces `now` once truncation removed all history; empty: keep `now`
    conversation: Conversation | None = None  # if set, the policy reads `chat`; `text` is then only for display

    @property
    def chat(self) -> Chat | None:
        """The sections as messages. Constant sections come first, so that consecutive prompts share a prefix."""
        if self.conversation is None:
            return None
        before = self.separator.join(filter(None, (self.task, self.task_note, self.request)))
        messages = [Message("system", before)] if before else []
        called = False
        for exchange in self.conversation.past:
            messages += [Message("tool" if called else "user", exchange.message), exchange.answer]
            called = exchange.answer.call is not None
        now = self.separator.join(filter(None, (self.now, self.step_note)))
        messages.append(Message("tool" if called else "user", now))
        return Chat(tuple(messages), self.conversation.tools, self.conversation.thinking)

    @property
    def text(self) -> str:
        sections = (self.task, self.task_note, *self.history, self.now, self.step_note, self.request)
        return self.separator.join(section for section in sections if section)

    def with_notes(self, task_note: str | None = None, step_note: str | None = None) -> Prompt:
        """The same prompt with a note after the task statement, before the request for an action, or both."""
        return replace(
            self,
            task_note=self.task_note if task_note is None else task_note,
            step_note=self.step_note if step_note is None else step_note,
        )

    def without_oldest(self) -> Prompt:
        """The same prompt without its oldest past turn."""
        history, conversation = self.history[1:], self.conversation
        conversation = replace(conversation, past=conversation.past[1:]) if conversation else None
        now = self.now if history or not self.now_alone else self.now_alone
        return replace(self, history=history, now=now, conversation=conversation)


class HiddenState(NamedTuple):
    """Selects a hidden state of a prompt: the layer (0: embeddings, -1: last) and the pooling over its tokens."""

    layer: int
    pooling: str = "last"  # last, mean, or attention: the mean weighted by the last token's attention


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """A sampled completion. `logprobs` are the sampler's, at the sampling temperature, before top-p and top-k."""

    tokens: np.ndarray
    logprobs: np.ndarray
    text: str
    finish: Finish
    hidden: np.ndarray | None = None  # the hidden state of the prompt, if requested
    version: int = 0  # version of the weights that sampled it, if the engine counts versions
    read: int = 0  # prompt tokens as an endpoint counted them, if its tokenizer is unknown


@dataclass(frozen=True, slots=True)
class Condition:
    """How one member of a group is rolled out: plain, or with a note (`entry`: the source of the note)."""

    name: str = "plain"
    note: str = ""
    entry: str = ""


PLAIN = Condition()


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One turn: observation, prompt, completion, parsed action, and the result in the world."""

    observation: Observation
    prompt: Prompt
    prompt_tokens: np.ndarray
    completion: Completion
    action: str
    valid: bool  # the completion is in the full format
    effective: bool = True  # the world accepted the action
    label: str = ""
    signals: Mapping[str, float] = field(default_factory=dict)
    """measured by the world and the context's tracker, e.g. `progress` and `error`; the tracker's values take precedence"""
    reward: float = 0.0  # the world's reward of this step
    thought: str = ""  # text before the action, if the format separates it
    answer: str = ""  # answer to a question, if the context answered instead of the world


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    task: Task
    steps: tuple[Step, ...]
    success: bool
    score: float
    stop: StopReason
    final: Observation  # the observation after the last action
    condition: Condition = PLAIN
    detail: str = ""  # the world's label of the ending, or its error message
    seed: int = 0

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def unusable(self) -> int:
        """turns for which no completion came back"""
        return sum(step.completion.finish == "unusable" for step in self.steps)

    @property
    def completion_tokens(self) -> int:
        return sum(len(step.completion.tokens) for step in self.steps)

    @property
    def observations(self) -> tuple[Observation, ...]:
        return (*(step.observation for step in self.steps), self.final)

    @property
    def end_label(self) -> str:
        """the world's label of the ending; empty if it gave none"""
        return self.detail or (self.steps[-1].label if self.steps else "")


@dataclass(frozen=True, eq=False)
class Group:
    """The trajectories of one task. Flat views list the steps of the first trajectory, then those of the second, and so on."""

    task: Task
    trajectories: tuple[Trajectory, ...]

    def __len__(self) -> int:
        return len(self.trajectories)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        return tuple(step for trajectory in self.trajectories for step in trajectory.steps)

    @cached_property
    def lengths(self) -> np.ndarray:
        """steps per trajectory, [G]"""
        return np.array([len(t.steps) for t in self.trajectories], dtype=np.int64)

    @cached_property
    def trajectory_of_step(self) -> np.ndarray:
        """index of each flat step's trajectory, [N]"""
        return np.repeat(np.arange(len(self.trajectories)), self.lengths)

    @cached_property
    def tokens_per_step(self) -> np.ndarray:
        """completion tokens of each flat step, [N]"""
        return np.array([len(step.completion.tokens) for step in self.steps], dtype=np.int64)

    def without_crashes(self) -> Group:
        """The group without crashed trajectories and those without steps."""
        kept = tuple(t for t in self.trajectories if not t.stop.crashed and t.steps)
        return self if len(kept) == len(self.trajectories) else Group(self.task, kept)


Groups = Sequence[Group]


def flat_steps(groups: Groups) -> list[Step]:
    """All steps of all groups, in the order of batches and credits."""
    return [step for group in groups for step in group.steps]


@dataclass(frozen=True)
class Skills:
    """A(τ) = (s_ep, {s_step,t : t ∈ C}): a skill for the episode, and one for each critical step."""

    episode: str = ""  # a workflow that succeeded, or what to avoid
    steps: Mapping[int, str] = field(default_factory=dict)  # index of a critical step -> its skill
    summary: str = ""

    def __bool__(self) -> bool:
        return bool(self.episode or self.steps)


@dataclass(frozen=True)
class IterationInfo:
    """Iteration `iteration` (from 1) of `iterations`, under the run's seed."""

    seed: int = 0
    iteration: int = 1
    iterations: int = 1

    def derive(self, *name: int | str) -> int:
        """The seed of this name in this iteration."""
        return derive(self.seed, *name, self.iteration)
