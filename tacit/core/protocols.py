"""Protocols of a policy and an engine. A function takes the smallest one it needs, so its signature shows its cost:
`scorer: Scorer` needs another forward pass, `learner: Learner` changes weights.

Engines keep no random state. Each `Request` carries a seed, and the noise of its n-th token is a function of that seed and n
alone. So a sample does not depend on the rest of the batch, and a resumed run needs no generator state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from tacit.core.chat import Chat, Message
from tacit.core.errors import TacitError
from tacit.core.types import Completion, HiddenState

if TYPE_CHECKING:
    import torch

    from tacit.core.credit import Batch


@dataclass(frozen=True)
class Sampling:
    temperature: float = 1.0  # softmax temperature; 0 is greedy
    top_p: float = 1.0  # nucleus sampling; 1 keeps all tokens
    top_k: int = 0  # sample from the k most likely tokens; 0 keeps all
    max_tokens: int = 64  # maximum completion length, unless the request sets its own
    stop: tuple[str, ...] = ()  # stop strings; the completion's text includes the one that ended it


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    prompt: np.ndarray
    seed: int = 0
    max_tokens: int | None = None
    episode: int | None = None  # number of its episode, if any: the sampler may reuse the KV cache of the previous turn


@runtime_checkable
class Tokenizer(Protocol):
    """Text to tokens and back."""

    @property
    def context_limit(self) -> int:
        """longest prompt plus completion, in tokens"""

    def encode_prompt(self, text: str) -> np.ndarray: ...

    def encode_completion(self, text: str) -> np.ndarray:
        """The completion's tokens and the end token, as for imitation."""

    def decode(self, tokens: np.ndarray) -> str: ...


@runtime_checkable
class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer that renders conversations with the model's chat template."""

    def encode_chat(self, chat: Chat) -> np.ndarray:
        """The conversation up to the start of the assistant's next message."""

    def encode_answer(self, chat: Chat, answer: Message) -> np.ndarray:
        """The assistant's next message and the end token, as for imitation."""


@runtime_checkable
class Sampler(Protocol):
    def sample(self, requests: Sequence[Request], sampling: Sampling, hidden: HiddenState | None = None) -> list[Completion]:
        """One completion per request. With `hidden`, each carries this hidden state of its prompt, from the prefill."""


@runtime_checkable
class Scheduler(Protocol):
    """Continuous batching: requests are submitted one by one, and completions come back as they finish, in any order."""

    def submit(self, request: Request) -> int:
        """Queue a request and return its request id. Sampling happens inside `wait`."""

    def wait(self) -> list[tuple[int, Completion]]:
        """Sample until a request finishes. Returns (request id, completion) of all finished; empty if none is pending."""

    def close(self) -> None: ...


def run_requests(scheduler: Scheduler, requests: Sequence[Request]) -> list[Completion]:
    """Submit all requests, wait for them, close the scheduler, and return the completions in order."""
    completions: dict[int, Completion] = {}
    try:
        request_ids = [scheduler.submit(request) for request in requests]
        while finished := scheduler.wait():
            completions.update(finished)
    finally:
        scheduler.close()
    return [completions[request_id] for request_id in request_ids]


@runtime_checkable
class SchedulingSampler(Sampler, Protocol):
    """A sampler with continuous batching. `rollout/encoding.py` wraps samplers without it."""

    def open_scheduler(self, sampling: Sampling, hidden: HiddenState | None = None) -> Scheduler:
        """A scheduler whose requests all use these sampling settings; `hidden` as in `sample`."""


@runtime_checkable
class PinnedSampler(Sampler, Protocol):
    """A sampler that can keep sampling from fixed weights while training updates the policy."""

    def pin_weights(self) -> AbstractContextManager[None]:
        """Within this context, sample from the weights at its start, whatever updates follow."""


@runtime_checkable
class Scorer(Protocol):
    def logprobs(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], temperature: float = 1.0
    ) -> list[np.ndarray]:
        """log π(completion token | prompt, earlier tokens), one array per row."""

    def distributions(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], top_k: int | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Per row (token ids [T, K], log-probabilities [T, K]); the whole vocabulary if `top_k` is None."""


@runtime_checkable
class Encoder(Protocol):
    def hidden_states(self, prompts: Sequence[np.ndarray], layer: int, pooling: str = "last") -> np.ndarray:
        """[N, D] hidden states of one layer, pooled over each prompt as in `HiddenState`."""


@runtime_checkable
class Critic(Protocol):
    def values(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        """[N] the value head's estimate of the return from each prompt."""


@runtime_checkable
class Learner(Protocol):
    def update(self, batch: Batch, losses: Sequence[LossTerm], lr: float) -> dict[str, float]:
        """One optimizer step on the whole batch. The gradient does not depend on micro-batches."""


@runtime_checkable
class GradientScorer(Protocol):
    def gradient_norm(self, batch: Batch, losses: Sequence[LossTerm]) -> float:
        """The norm of the gradient that `update` would use. Changes no weight."""


@runtime_checkable
class PolicyHooks(Protocol):
    """Optional hooks of a policy, with defaults. Policies inherit from this class and override what they have."""

    @property
    def version(self) -> int:
        """number of weight changes so far; completions carry the version that sampled them"""
        return 0

    @property
    def numbers(self) -> str:
        """dtype and device, e.g. `float32 on cpu`; other devices round differently"""
        return ""

    @property
    def written_tokens(self) -> int:
        """tokens sampled so far, including unfinished completions"""
        return 0

    @property
    def broken(self) -> Sequence[str]:
        """reasons for unusable completions"""
        return ()

    @property
    def trouble(self) -> str:
        """what it is retrying and why; empty if it is not retrying"""
        return ""

    @property
    def repeatable(self) -> bool:
        """whether equal batches of requests give equal completions, bit for bit. A rollout then waits for every world, so that
        batches do not depend on timing"""
        return True

    @property
    def elsewhere(self) -> bool:
        """whether the model runs on another machine, so this one is free while it samples"""
        return False

    def encode_prompts(self: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode_prompt(text) for text in texts]

    def check_answers(self) -> None:
        """Raise if the model cannot be reached. Called before a run starts."""
        return

    def close(self) -> None:
        """End its processes."""
        return


AnyPolicy = TypeVar("AnyPolicy")


def check_hooks(policy: AnyPolicy) -> AnyPolicy:
    """Refuse a policy from outside that lacks the hooks."""
    if not isinstance(policy, PolicyHooks):
        raise TacitError(
            f"{type(policy).__name__} lacks hooks of a policy; make it a subclass of tacit.core.protocols.PolicyHooks, which "
            "has defaults."
        )
    return policy


class SamplingPolicy(Tokenizer, Sampler, PolicyHooks, Protocol):
    """A policy as far as rollouts need it."""


@runtime_checkable
class Policy(SamplingPolicy, Scorer, Encoder, Critic, Learner, Protocol):
    """A policy that samples, scores and learns, with named adapters, a reference and checkpoints."""

    def reference(self) -> Scorer:
        """The reference policy of a KL penalty: the base without the adapter, or the copy made by `freeze_reference`. Pieces of
        a method that call this must have `reference` in their `needs`; otherwise there may be no copy."""

    def freeze_reference(self) -> None:
        """Make a copy of the current policy the reference."""

    def begin_stage(self) -> None:
        """Start another training stage: reset the optimizer, keep the weights."""

    def check_layer(self, layer: int) -> None:
        """Raise if the model lacks this layer, or the engine has no hidden states."""

    def adapter(self, name: str) -> Policy:
        """The same base with another adapter, created on first use."""

    def save(self, directory: Path, optimizer: bool = True) -> None:
        """Save the weights into an empty directory, and with `optimizer` all state needed to resume exactly."""

    def load(self, directory: Path) -> None: ...

    def digest(self) -> str:
        """A hash of the trained weights; equal if and only if they are equal bit for bit."""


if TYPE_CHECKING:
    Compare = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """(log π [C, V] with gradient, the teacher's [C, V] without) -> [C]"""


@dataclass(frozen=True)
class TokenView:
    """The input of a loss term: the completion tokens of one micro-batch, flat, and totals of the whole batch.

    A loss is a *sum* over the micro-batch divided by a total of the whole batch, so the losses of micro-batches add up.
    Names end in _T (one per completion token) or _R (one per row, that is per step).
    """

    logprobs_T: torch.Tensor  # log π_θ of each token, with gradient
    behavior_T: torch.Tensor  # behavior log-probabilities, from the sampler
    advantages_T: torch.Tensor
    row_T: torch.Tensor  # which row of the micro-batch each token belongs to
    lengths_R: torch.Tensor  # completion tokens per row
    total_tokens: int  # completion tokens of the whole batch
    total_rows: int  # rows of the whole batch
    tokens: Mapping[str, torch.Tensor] = field(default_factory=dict)  # per-token columns by name: `reference`
    rows: Mapping[str, torch.Tensor] = field(default_factory=dict)  # per-row columns the batch carries by name, e.g. `returns`
    entropy_T: torch.Tensor | None = None  # entropy of the policy's distribution, if a term needs `entropy`
    values_R: torch.Tensor | None = None  # value head at the last prompt token, with gradient, if a term needs `values`
    compare_with_teacher: Callable[[Compare], torch.Tensor] | None = None
    """[T], if a term needs `teacher`: compares the policy's distributions with the teacher's, its own under the prompts of the
    column `teacher_prompts`, without gradient; computed in chunks of tokens"""


class LossTerm(Protocol):
    """One term of the loss; the terms add up. `needs` names its inputs besides log-probabilities and advantages: `entropy`,
    `values` and `teacher`, which the engine computes, or columns of the method (`reference`, `returns`)."""

    @property
    def needs(self) -> frozenset[str]: ...

    def __call__(self, view: TokenView) -> tuple[torch.Tensor, dict[str, Any]]:
        """(scalar loss, detached sums to report). Each reported sum is divided by the batch's tokens."""


# An engine: a name, capabilities, settings, and a function that loads a policy. Found by name or entry point.
#
# capability      its policies have                               needed by
# sampling        Sampler                                         everything
# learning        Learner                                         training
# scoring         Scorer.logprobs                                 KL, skill shift
# reference       reference(), freeze_reference()                 KL
# distributions   Scorer.distributions                            distillation
# hidden_states   Encoder, and `hidden` in sampling               BiPACE
# values          Critic, and `values` in updates                 PPO
# entropy         `entropy` in updates                            entropy bonus
# gradients       GradientScorer                                  OPID with a share of the gradient
# teacher         `teacher` in updates                            full-vocabulary distillation
# adapters        adapter(name)                                   skill modules

SAMPLING, LEARNING, SCORING, REFERENCE = "sampling", "learning", "scoring", "reference"
DISTRIBUTIONS, HIDDEN_STATES, VALUES, ADAPTERS = "distributions", "hidden_states", "values", "adapters"
ENTROPY, TEACHER, GRADIENTS = "entropy", "teacher", "gradients"
CAPABILITIES = (
    SAMPLING, LEARNING, SCORING, REFERENCE, DISTRIBUTIONS, HIDDEN_STATES, VALUES, ADAPTERS, ENTROPY, TEACHER, GRADIENTS,
)  # fmt: skip
DURING_UPDATES = frozenset({ENTROPY, VALUES, TEACHER})  # what an engine can compute during an update


@dataclass(frozen=True)
class ModelSource:
    """Which model to load, or how to make one from scratch."""

    name: str  # a packaged base, a tiny size, a directory or a hub id
    seed: int = 0  # for initial weights and new adapters
    texts: Callable[[], Sequence[str]] | None = None  # text of the worlds, to train a tokenizer on
    sizes: Any = None  # sizes of a tiny model, if not the defaults


@dataclass(frozen=True)
class Engine:
    name: str
    summary: str
    capabilities: frozenset[str]
    settings: type[Any]  # a frozen dataclass, whose fields become `--engine.FIELD`; its module must import nothing heavy
    load: Callable[[ModelSource, Any], Policy]  # (model, settings) -> a policy; heavy imports belong here
    elsewhere: bool = False  # its models are on other machines, so model names cannot be checked here
    fit: Callable[[Any, frozenset[str]], tuple[Any, tuple[str, ...]]] | None = None
    """(settings, what the method needs) -> settings with the required options turned on, and notes about them"""
    can_pin_weights: Callable[[Any], bool] | None = None  # (settings) -> `PinnedSampler`? None: after loading

    def __post_init__(self) -> None:
        if wrong := sorted(self.capabilities - set(CAPABILITIES)):
            raise TacitError(f"engine {self.name!r} declares unknown capabilities {wrong}. Known: {', '.join(CAPABILITIES)}.")

    def refuse_unless_able(self, method: str, needs: frozenset[str], others: Mapping[str, Engine]) -> None:
        """Raise if it lacks a capability; the error names it and the engines that have it."""
        if missing := sorted(needs - self.capabilities):
            capable = [name for name, other in others.items() if needs <= other.capabilities]
            remedy = f"Engines that can: {', '.join(capable)} (--engine NAME)." if capable else "No installed engine can."
            raise TacitError(f"{method!r} needs {', '.join(missing)}, which engine {self.name!r} cannot do. {remedy}")
