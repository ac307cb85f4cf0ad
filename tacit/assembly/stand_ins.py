"""Who stands in for a policy: the expert or a person, who act on observations, and a reader, which answers by a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np

from tacit.assembly.checks import EXPERT, READER
from tacit.core.actions import BARE, ActionFormat
from tacit.core.chat import Chat
from tacit.core.errors import TacitError
from tacit.core.method import Reader
from tacit.core.protocols import Policy, Request, Sampling
from tacit.core.types import ActionStyle, Completion, Condition, Observation, Prompt, Task, Transition
from tacit.core.world import Environment, Expert
from tacit.engines.chat.byte_tokens import ByteTokens
from tacit.rollout.worlds import PunctualExpert
from tacit.training.practice import Practice


@dataclass(frozen=True)
class Advised:
    """A context for one who acts on observations, not on prompts: the prompt *is* the action, and `Echo` repeats it. So the
    expert and a person play through the same rollout and are scored by the same code as a policy."""

    make: Callable[[Task], Expert]
    style: ActionStyle = "bare"
    format: ActionFormat = BARE

    def begin(self, task: Task, condition: Condition) -> Reader:
        actor = self.make(task)
        if not hasattr(actor, "act"):
            raise TacitError(
                f"{self.make!r} made {actor!r} of a task, which cannot play: it must be a class, or a function of a task, "
                "whose object has `act(observation)`."
            )
        return _Adviser(actor)


class _Adviser:
    def __init__(self, actor: Expert) -> None:
        self._actor = actor

    def read(self, observation: Observation) -> Prompt:
        action = self._actor.act(observation)
        if not isinstance(action, str):
            raise TacitError(f"{self._actor!r} acted with {action!r}; an action is text.")
        return Prompt(task="", now=action)

    def record(self, action: str, transition: Transition) -> Mapping[str, float]:
        return {}


class Echo(ByteTokens):
    """Says what it reads."""

    def digest(self) -> str:
        return EXPERT

    def sample(self, requests: Sequence[Request], sampling: Sampling, layer: int | None = None) -> list[Completion]:
        nothing = np.zeros(0, np.int64)
        return [Completion(nothing, np.zeros(0, np.float32), self.decode(r.prompt), "stop") for r in requests]


class ByRule(ByteTokens):
    """Answers each prompt as a rule says, and knows nothing but its text; of a conversation what its messages say."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        self._rule = rule

    def digest(self) -> str:
        return READER

    def encode_chat(self, chat: Chat) -> np.ndarray:
        return self.encode_prompt("\n".join(message.content for message in chat.messages if message.content))

    def sample(self, requests: Sequence[Request], sampling: Sampling, layer: int | None = None) -> list[Completion]:
        answers = [self._rule(self.decode(request.prompt)) for request in requests]
        tokens = [self.encode_completion(answer) for answer in answers]
        return [Completion(t, np.zeros(len(t), np.float32), a, "stop") for t, a in zip(tokens, answers, strict=True)]


def advised_by_expert(world: Environment, timeout_s: float) -> Advised:
    """Of a world's own expert, which has as long for an answer as the world has."""
    return Advised(partial(PunctualExpert, world.expert(), timeout_s))


def seated(name: str, practice: Practice) -> tuple[Policy, Practice]:
    """The expert or the reader in the place of a policy that a run trains: it can be measured there, and that is all."""
    if name == EXPERT:
        advised = advised_by_expert(practice.world, practice.settings.world_timeout_s)
        return cast(Policy, Echo()), replace(practice, method=replace(practice.method, context=advised))
    assert practice.world.reader is not None, "refused before"
    return cast(Policy, ByRule(practice.world.reader)), practice
