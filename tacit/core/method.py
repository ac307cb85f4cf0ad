"""A method is a frozen object made of pieces; `methods/<paper>.py` builds it.

piece        the question it answers
context      what does the agent read?
conditions   how do the members of a group differ?
rewards      what is a step or an episode worth?
credits      who gets the credit?
columns      what else do the losses read?
losses       how do weights move?
companions   what else learns?
selection    which groups are worth training on?
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, get_args

import numpy as np

from tacit.core.actions import ActionFormat
from tacit.core.bounds import AtLeastOne, Basic, Bound, Count, NotNegative, PositiveShare, Share
from tacit.core.credit import Credit, Per, Rewards, check_results, sum_terms
from tacit.core.errors import TacitError, unknown
from tacit.core.protocols import DURING_UPDATES, HIDDEN_STATES, LEARNING, SAMPLING, LossTerm, Policy
from tacit.core.types import (
    PLAIN,
    ActionStyle,
    Condition,
    Group,
    HiddenState,
    IterationInfo,
    Observation,
    Prompt,
    Task,
    Transition,
)
from tacit.core.world import Tracker, Wording


class Pending(Protocol):
    """An answer that comes from something other than the world, such as an experience bank."""

    def done(self) -> bool:
        """Whether `result` returns without waiting."""

    def result(self) -> Transition: ...


class PromptReader(ABC):
    """Builds the prompts of one episode. `read` gives the next prompt, `record` takes the turn that followed."""

    block: str = ""  # the state block in the last prompt; empty without one
    reading: str = "writing the prompt"  # what `read` does, for the error message if it raises

    @abstractmethod
    def read(self, observation: Observation) -> Prompt: ...

    @abstractmethod
    def record(self, action: str, transition: Transition, raw_text: str | None = None) -> Mapping[str, float]:
        """Record a finished turn; return the tracker's signals, empty without a tracker. `raw_text` is the completion if it
        did not parse into an action."""

    def ask(self, action: str) -> Pending | None:
        """Answer the action in place of the world; None leaves it to the world."""
        return None


class Context(ABC):
    """What the agent reads, and how it writes its actions."""

    style: ActionStyle
    chat: bool = False  # prompts are conversations in the model's chat template
    thinking: bool = False  # the template's own reasoning is switched on
    wording: Wording | None = None
    tracker: Tracker | None = None  # writes the state block, if the prompt has one

    @property
    @abstractmethod
    def format(self) -> ActionFormat:
        """how an action is written in this style, and parsed"""

    @abstractmethod
    def begin(self, task: Task, condition: Condition) -> PromptReader: ...


@dataclass(frozen=True)
class WrappedContext(Context):
    """Another context with something added to its prompts."""

    inner: Context

    style = property(lambda self: self.inner.style)
    chat = property(lambda self: self.inner.chat)
    thinking = property(lambda self: self.inner.thinking)
    wording = property(lambda self: self.inner.wording)
    tracker = property(lambda self: self.inner.tracker)

    @property
    def format(self) -> ActionFormat:
        return self.inner.format


class MethodPiece:
    @property
    def needs(self) -> frozenset[str]:
        """Engine capabilities it needs besides sampling and learning, by the names of core/protocols.py."""
        return frozenset()


class Conditions(MethodPiece, ABC):
    """How the members of a group differ, such as a skill in the prompt of some."""

    @abstractmethod
    def assign(self, task: Task, size: int, seed: int) -> Sequence[Condition]:
        """One condition for each of the `size` members of the task's group."""

    @property
    def evaluated(self) -> Mapping[str, Callable[[Task], Condition]]:
        """Conditions under which an evaluation is repeated, besides the plain one: name -> (task -> condition)."""
        return {}

    def with_actor(self, policy: Any) -> Conditions:
        """These conditions for rollouts with `policy`; override to let it choose."""
        return self


class RewardTerm(MethodPiece, ABC):
    """What steps or episodes are worth. The terms of a method add up."""

    @abstractmethod
    def __call__(self, groups: Sequence[Group], info: IterationInfo) -> Sequence[Rewards]: ...


class CreditTerm(MethodPiece, ABC):
    """Which token gets how much credit. The terms of a method add up."""

    @property
    def compares_episodes(self) -> bool:
        """Whether it compares episodes of a group. If no term of a method does, a group may have one episode."""
        return True

    @property
    def compares_groups(self) -> bool:
        return False

    @abstractmethod
    def __call__(
        self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, info: IterationInfo
    ) -> Sequence[Credit]:
        """One credit per group, or `Explained` credits. Terms see all groups at once: some normalize over the batch."""

    def weigh(self, own: Sequence[Credit], others: Sequence[Credit], policy: Policy, info: IterationInfo) -> Sequence[Credit]:
        """The term's credits `own`, reweighted given `others`: per group the sum of the other terms' credits; empty if it is
        the only term."""
        return own


def credit_terms(
    terms: Sequence[CreditTerm], groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, info: IterationInfo
) -> list[Sequence[Credit]]:
    """The credits of each term after `weigh`; one list per term, one credit per group."""
    credits = [check_results(term, term(groups, rewards, policy, info), groups, Credit) for term in terms]
    others = [sum_terms(credits[:i] + credits[i + 1 :]) for i in range(len(credits))]
    return [term.weigh(own, rest, policy, info) for term, own, rest in zip(terms, credits, others, strict=True)]


class Explained(list[Credit]):
    """Credits, one per group, with `metrics` for the run and `marks` for its records: per group, named columns with one JSON
    value per step."""

    def __init__(
        self,
        credits: Iterable[Credit],
        metrics: Mapping[str, float] = MappingProxyType({}),
        marks: Sequence[Mapping[str, Sequence[Any] | np.ndarray]] = (),
    ) -> None:
        super().__init__(credits)
        self.metrics, self.marks = metrics, marks


class Column(MethodPiece, ABC):
    """A further input of the losses, computed once per batch before the update: one array, number or prompt per step."""

    name: ClassVar[str]
    per: ClassVar[Per]

    @abstractmethod
    def __call__(
        self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, info: IterationInfo
    ) -> Sequence[np.ndarray] | np.ndarray: ...


class Companion(MethodPiece):
    """Something that learns beside the policy. `observe` runs before rewards are computed, `learn` after the update. If several
    worlds share a companion, it observes each world separately and learns once, from all of them."""

    name: str  # identifies it in a checkpoint; unique within a method
    has_state: ClassVar[bool] = True  # False if it keeps nothing between batches
    read_in_rollouts: ClassVar[bool] = True  # False if rollouts do not use it, so it may learn during the next rollout
    examples: Mapping[str, str] = MappingProxyType({})  # alarm name -> text that the alarm shows

    def observe(self, groups: Sequence[Group], policy: Policy, info: IterationInfo) -> dict[str, float]:
        """Look at one world's groups before rewards are computed; return metrics."""
        return {}

    def learn(self, groups: Sequence[Group], policy: Policy, info: IterationInfo) -> dict[str, float]:
        """Learn from the groups of all worlds after the update; return metrics."""
        return {}

    def save(self, directory: Path) -> None:
        """Write all state needed to resume into this empty directory."""

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote."""

    def check(self, policy: Policy) -> None:
        """Raise a TacitError if it cannot work with this policy. Called before the first rollout."""

    def close(self) -> None:
        """Release files and connections. Called when the run ends, once per world."""


class Selection(Protocol):
    """Dynamic sampling: keep rolling out until enough groups are worth training on, at most `rounds` times."""

    @property
    def rounds(self) -> int: ...

    def keep(self, group: Group) -> bool: ...


@dataclass(frozen=True)
class Alike(Conditions):
    """Every member of a group is rolled out the same way."""

    def assign(self, task: Task, size: int, seed: int) -> Sequence[Condition]:
        return (PLAIN,) * size


def companions_of(methods: Sequence[Method]) -> list[tuple[Companion, list[int]]]:
    """Every companion once, with the indices of the methods that have it. Worlds of a run may share a companion."""
    indices_by_id: dict[int, tuple[Companion, list[int]]] = {}
    for index, method in enumerate(methods):
        for companion in method.companions:
            indices_by_id.setdefault(id(companion), (companion, []))[1].append(index)
    return list(indices_by_id.values())


NOT_GREEDY = Bound(lambda v: v > 0, "must be above 0 in training: greedy episodes of one task are all the same")


@dataclass(frozen=True)
class Schedule:
    """The published training settings of a method. Every field can be overridden."""

    groups: Basic[AtLeastOne] = 16
    """tasks per iteration"""
    group_size: Basic[AtLeastOne] = 8
    """episodes per task"""
    iterations: Basic[Count] = 150
    """rollout-and-update rounds"""
    lr: Basic[NotNegative] = 1e-6
    """learning rate of AdamW: constant, or the peak if it warms up or decays"""
    temperature: Basic[Annotated[float, NOT_GREEDY]] = 1.0
    """sampling temperature during training"""
    top_p: PositiveShare = 1.0
    """nucleus sampling in training; log-probabilities are recorded before truncation, so they are exact only at 1"""
    top_k: Count = 0
    """most likely tokens to sample from in training; 0 keeps all"""
    epochs: AtLeastOne = 1
    """passes over each batch"""
    minibatches: AtLeastOne = 1
    """optimizer steps per pass; 1 is a single on-policy step"""
    minibatch_rows: Count = 0
    """samples (environment steps) per optimizer step, so larger batches take more steps; 0: use `minibatches`"""
    warmup: Share = 0.0
    """share of the iterations in which the learning rate rises to its peak"""
    decay: Literal["none", "linear", "cosine"] = "none"
    """how the learning rate falls after that, to zero at the end of the last iteration"""

    def __post_init__(self) -> None:
        if self.minibatch_rows and self.minibatches > 1:
            raise TacitError(
                f"minibatches = {self.minibatches} and minibatch_rows = {self.minibatch_rows} both divide the batch; "
                "remove one of them."
            )

    def lr_at(self, info: IterationInfo) -> float:
        """η · n/W in iteration n of W warm-up iterations; then η, η · (1 − x) or η · ½(1 + cos πx), where x is the finished
        share of the iterations after warm-up. x is below 1 in the last iteration, so it still trains."""
        warm = round(self.warmup * info.iterations)
        if info.iteration <= warm:
            return self.lr * info.iteration / warm
        share = (info.iteration - 1 - warm) / max(1, info.iterations - warm)
        return self.lr * {"none": 1.0, "linear": 1 - share, "cosine": 0.5 * (1 + math.cos(math.pi * share))}[self.decay]

    def steps_per_pass(self, rows: int) -> int:
        return math.ceil(rows / self.minibatch_rows) if self.minibatch_rows else self.minibatches


@dataclass(frozen=True)
class Method:
    """A method in one world, made by `settings.build(world, resources)`."""

    name: str
    context: Context
    rewards: tuple[RewardTerm, ...]
    credits: tuple[CreditTerm, ...]
    losses: tuple[LossTerm, ...]  # empty if only companions learn
    columns: tuple[Column, ...] = ()
    conditions: Conditions = field(default_factory=Alike)
    companions: tuple[Companion, ...] = ()
    selection: Selection | None = None
    schedule: Schedule = field(default_factory=Schedule)
    hidden_state: HiddenState | None = None  # the hidden state of the prompt that the sampler returns with each completion

    def __post_init__(self) -> None:
        for piece in ("rewards", "credits", "losses"):
            if not getattr(self, piece) and not (piece == "losses" and self.companions):
                raise TacitError(f"method {self.name!r} has no {piece}, so it cannot learn; give it at least one.")
        for piece in ("columns", "companions"):
            names = [each.name for each in getattr(self, piece)]
            if len(set(names)) < len(names):
                raise TacitError(f"method {self.name!r} has two {piece} with the same name: {names}. Rename one.")
        if missing := self._read_by_losses - DURING_UPDATES - {column.name for column in self.columns}:
            raise TacitError(
                f"the losses of method {self.name!r} need {sorted(missing)}, which no engine computes; add such columns."
            )

    @property
    def _read_by_losses(self) -> frozenset[str]:
        return frozenset().union(*(loss.needs for loss in self.losses))

    @property
    def needs(self) -> frozenset[str]:
        """Engine capabilities it needs, by the names of core/protocols.py."""
        pieces = (*self.rewards, *self.credits, *self.columns, *self.companions, self.conditions)
        needs = frozenset().union(*(piece.needs for piece in pieces))
        hidden = {HIDDEN_STATES} if self.hidden_state is not None else frozenset()
        return needs | hidden | (self._read_by_losses & DURING_UPDATES) | {SAMPLING, LEARNING}

    @property
    def compares_episodes(self) -> bool:
        """Whether credit compares the episodes of a group. If so, a group of one episode gives no gradient."""
        return self.selection is not None or any(term.compares_episodes for term in self.credits)


# Composition: GRPO plus the changes of one or several methods.
#
# GRPO consists of parts. A part belongs to a piece of the method and has a role: rewards (outcome, invalid penalty), credits
# (episode credit), columns (reference), losses (surrogate, KL, entropy). Every other method *replaces* some of these roles, as
# RLOO does the episode credit, or *adds* new ones, as ReuseRL does a length cost and a dictionary. Combining methods applies
# all replacements, then all additions, so their order does not matter. Two methods that replace or add the same role are
# refused.

Piece = Literal[
    "context", "rewards", "credits", "comparison", "columns", "losses", "companions", "conditions", "selection", "hidden_state"
]
# Terms of `context` are functions context -> context. Terms of `comparison` are functions credit term -> credit term, applied
# to the credits of all methods: they decide which episodes are compared.
SINGLE = ("conditions", "selection", "hidden_state")  # pieces of which a method has at most one


@dataclass(frozen=True)
class Part:
    piece: Piece
    role: str  # short name, used in error messages
    terms: tuple[Any, ...]
    replaces: bool = False

    @property
    def slot(self) -> tuple[str, str]:
        return self.piece, self.role


def adds(piece: Piece, role: str, *terms: Any) -> Part:
    """A new role. Without terms it only reserves the role."""
    return Part(piece, role, terms)


def replaces(piece: Piece, role: str, *terms: Any) -> Part:
    """Replaces a role; without terms, removes it."""
    return Part(piece, role, terms, replaces=True)


def compose(
    name: str, context: Context, schedule: Schedule, base: Sequence[Part], changes: Mapping[str, Sequence[Part]]
) -> Method:
    """The method made of the parts `base` and the changes of each method by name."""
    check_conflicts(changes)
    parts = {part.slot: part for part in base}
    for method, new_parts in changes.items():
        for part in new_parts:
            if part.slot in parts and not part.replaces:
                raise TacitError(
                    f"{method!r} adds a {part.role} to the {part.piece}, but there is one already; use `replaces`, not `adds`."
                )
    ordered = [part for method in sorted(changes) for part in changes[method]]
    for part in (*(p for p in ordered if p.replaces), *(p for p in ordered if not p.replaces)):
        parts[part.slot] = part
    pieces: dict[str, Any] = {}
    for part in parts.values():
        pieces[part.piece] = (*pieces.get(part.piece, ()), *part.terms)
    for wrap_context in pieces.pop("context", ()):
        context = wrap_context(context)
    for wrap_credit in pieces.pop("comparison", ()):
        pieces["credits"] = tuple(wrap_credit(term) for term in pieces.get("credits", ()))
    for piece in SINGLE:
        terms = pieces.pop(piece, ())
        if len(terms) > 1:
            raise TacitError(f"{name!r} has {len(terms)} terms for {piece}; a method may have at most one.")
        if terms:
            pieces[piece] = terms[0]
    return Method(name=name, context=context, schedule=schedule, **{"rewards": (), "credits": (), "losses": (), **pieces})


def check_conflicts(changes: Mapping[str, Sequence[Part]]) -> None:
    """Refuse values that are not parts, and different changes of two methods to one role."""
    for method, parts in changes.items():
        if not isinstance(parts, Sequence) or not all(isinstance(part, Part) for part in parts):
            raise TacitError(
                f"`changes` of {method!r} must return a tuple of parts, such as (adds(…),), but returned {parts!r}."
            )
        for part in parts:
            if part.piece not in get_args(Piece):
                raise unknown(f"piece of the method {method!r}", part.piece, get_args(Piece))
    first_changes: dict[tuple[str, str], tuple[str, Part]] = {}
    for method, parts in changes.items():
        for part in parts:
            first, other = first_changes.setdefault(part.slot, (method, part))
            if other == part:
                continue
            if first == method:
                raise TacitError(
                    f"{method!r} changes the {part.role} twice; give all of its terms to one `adds` or `replaces`."
                )
            if part.replaces and other.replaces:
                reason = f"both replace the {part.role}, and one of the two would be lost"
            elif not part.replaces and not other.replaces:
                reason = f"both add a {part.role}, which would be counted twice"
            else:
                adding, replacing = (first, method) if part.replaces else (method, first)
                reason = f"{adding} adds a {part.role} and {replacing} would drop it"
            raise TacitError(f"{first!r} and {method!r} cannot be combined: {reason}.")


# Inputs for building a method: properties of the model, and handles to encoders, policies and directories. Building a method
# loads nothing; handles are opened when the run starts.

Thing = TypeVar("Thing")
Encode = Callable[[Sequence[str]], np.ndarray]  # N texts -> [N, D]


@dataclass(frozen=True)
class Base:
    """Properties of a model, known before it is loaded."""

    model: str = ""
    small: bool = False  # a few million parameters: too small for prompts written for language models
    chat_template: bool = False  # instruction-tuned: its tokenizer has a chat template
    layers: int | None = None  # None if its files do not say
    calibrated: Mapping[str, Mapping[str, Any]] | None = None
    """embedder -> result of `tacit calibrate` for this model, world and context; None: not looked up"""


class Resources:
    """Handles for a method. This base class is for building a method only to inspect it: using a handle raises."""

    def sentences(self, model: str, *endpoint: str) -> Encode:
        """A frozen sentence encoder: a directory or a hub id. `endpoint`: the URL of an OpenAI-compatible endpoint that serves
        it, and the environment variable with the key."""
        return lambda texts: _refuse(f"the sentence encoder {model!r}")

    def policy(self, name: str) -> Callable[[], Policy]:
        """A second trained policy, by its name in settings and checkpoints: `extractor`, `teacher`."""
        return lambda: _refuse(f"the policy {name!r}")

    def helper(self, name: str) -> Callable[[], Policy]:
        """A policy that only samples. It is not trained and not saved in checkpoints."""
        return self.policy(name)

    def directory(self, name: str) -> Path:
        """A directory in the run, for data that must survive a crash between two checkpoints."""
        return Path(name)

    def shared(self, name: str, like: Hashable, make: Callable[[], Thing]) -> Thing:
        """One object for all worlds of a run, made on first use. Raises if a world needs other settings (`like`)."""
        return make()

    def check_learns(self, name: str, remedy: str) -> None:
        """Raise, before anything is loaded, if the engine cannot train the policy of this name (an endpoint)."""

    def check_layer(self, layer: int) -> None:
        """Raise if the model has no such layer, once it is loaded."""


def _refuse(what: str) -> Any:
    raise TacitError(f"cannot use {what}: this method was built without resources, only to inspect it.")


NO_RESOURCES = Resources()
