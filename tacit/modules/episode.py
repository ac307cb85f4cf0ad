"""One episode as a module plays it: what it is asked at each turn, and what its answer means.

    request = episode.ask(observation, policy)       what it reads now, as tokens
    action = episode.take(completion)                what it wrote, as the world understands it
    episode.tell(transition)                         what came of it

Whoever asks the model is somebody else: an `Agent` one at a time, a server many at once. Both play the same episode, since a
request's seed is a function of the episode's and of the turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tacit.core.actions import Parsed
from tacit.core.errors import TacitError
from tacit.core.method import Context
from tacit.core.protocols import Request, Sampling, Tokenizer
from tacit.core.seeds import derive
from tacit.core.types import Completion, Observation, Prompt, Task, Transition
from tacit.modules.module import Module
from tacit.rollout.retelling import Telling


def playing(module: Module, context: Context, temperature: float | None = None) -> Sampling:
    """How a module is sampled when it plays: as it was measured, or at another temperature; its format says where it stops."""
    own = module.sampling if temperature is None else replace(module.sampling, temperature=temperature)
    return replace(own, stop=tuple(dict.fromkeys((*context.format.stop, *own.stop))))


class Episode:
    def __init__(self, module: Module, context: Context, task: Task, sampling: Sampling, seed: int = 0) -> None:
        self.module, self.task, self.sampling, self.seed = module, task, sampling, seed
        self._format = context.format
        self._telling = Telling(context, task)
        self.prompt: Prompt | None = None
        """what it read last"""
        self.action: str | None = None
        """done, but not yet answered"""
        self._wrote: str | None = None
        """in its place, where it was no action"""

    @property
    def turns(self) -> int:
        """that are over"""
        return self._telling.turns

    @property
    def block(self) -> str:
        """the tracker's state block in what it read last; empty where it reads none"""
        return self._telling.block

    def ask(self, observation: Observation, tokenizer: Tokenizer) -> Request:
        if self.action is not None:
            raise TacitError(f"the agent did {self.action!r} and was not told what came of it: call observe(transition) first.")
        room = self.sampling.max_tokens
        self.prompt, tokens, fits = self._telling.show(observation, tokenizer, room)
        if not fits:
            raise TacitError(
                f"the prompt has {len(tokens)} tokens, and {room} more for an action do not fit in the "
                f"model's {tokenizer.context_limit}; the world says too much in one turn for this module."
            )
        return Request(tokens, derive(self.seed, self.turns))

    def take(self, completion: Completion) -> Parsed:
        """What was meant. What cannot be understood is passed on as it was written."""
        parsed = self._format.parse(completion.text)
        self.action, self._wrote = parsed.action, None if parsed.valid else completion.text
        return parsed

    def tell(self, transition: Transition) -> Mapping[str, float]:
        if self.action is None:
            raise TacitError("the agent has not acted since it was last told: call act(observation) first.")
        signals = self._telling.record(self.action, transition, self._wrote)
        self.action = self._wrote = None
        return signals
