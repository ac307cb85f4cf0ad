"""A method is a small frozen object holding pieces; `methods/<paper>.py` builds it.

piece        question it answers
context      what does the agent read?
conditions   how do the members of a group differ?
rewards      what is a step or an episode worth?
credits      who gets the credit?
columns      what do the losses read beside the credit?
losses       how do weights move?
companions   what else learns?
selection    which groups are worth training on?
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, overload

import numpy as np

from tacit.core.credit import Credit, Rewards
from tacit.core.errors import TacitError
from tacit.core.protocols import LossTerm, Policy
from tacit.core.types import PLAIN, ActionStyle, Condition, Group, Observation, Prompt, Task, Transition


class Reader(Protocol):
    """One episode's context: told of every turn, asked for the next prompt."""

    def read(self, observation: Observation) -> Prompt: ...

    def record(self, action: str, transition: Transition) -> Mapping[str, float]:
        """Take note of a turn; return what was measured on it (a tracker's signals), usually nothing."""
        ...


class Context(Protocol):
    """What the agent reads, and how it is asked to write its action."""

    @property
    def style(self) -> ActionStyle: ...

    def begin(self, task: Task, condition: Condition) -> Reader: ...


class Conditions(Protocol):
    def assign(self, task: Task, size: int, seed: int) -> Sequence[Condition]:
        """One condition for each of the `size` members of the task's group."""
        ...


class RewardTerm(Protocol):
    def __call__(self, groups: Sequence[Group]) -> Sequence[Rewards]: ...


class CreditTerm(Protocol):
    def __call__(self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy) -> Sequence[Credit]:
        """Terms see all groups at once: some normalise over the batch, some score it in one pass. A term that can say how it
        came to its credits returns them `Explained`."""
        ...


@dataclass(frozen=True, eq=False)
class Explained(Sequence[Credit]):
    """Credits, one per group, and how they came about."""

    credits: Sequence[Credit]
    metrics: Mapping[str, float] = field(default_factory=dict)
    """numbers for the run's metrics"""
    marks: Sequence[Mapping[str, np.ndarray]] = ()
    """per group, named columns with one number per step, recorded beside its trajectories"""

    def __len__(self) -> int:
        return len(self.credits)

    @overload
    def __getitem__(self, index: int) -> Credit: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Credit]: ...
    def __getitem__(self, index: int | slice) -> Credit | Sequence[Credit]:
        return self.credits[index]


class Column(Protocol):
    """Something a loss reads beside the credit, computed once per batch by the policy before the update: reference
    log-probabilities (one array per step), value targets (one number per step)."""

    @property
    def name(self) -> str: ...

    @property
    def per(self) -> Literal["token", "row"]: ...

    def __call__(
        self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy
    ) -> Sequence[np.ndarray] | np.ndarray: ...


class Companion(Protocol):
    """Something else that learns beside the policy. `observe` runs before rewards are computed, `learn` after the update."""

    def observe(self, groups: Sequence[Group], policy: Policy) -> dict[str, float]: ...

    def learn(self, groups: Sequence[Group], policy: Policy) -> dict[str, float]: ...

    def state(self) -> dict[str, Any]:
        """JSON-able; whatever is here survives a killed run."""
        ...

    def load(self, state: Mapping[str, Any]) -> None: ...


class Selection(Protocol):
    """Dynamic sampling: keep rolling out until enough groups are worth training on, at most `rounds` times."""

    @property
    def rounds(self) -> int: ...

    def keep(self, group: Group) -> bool: ...


@dataclass(frozen=True)
class Alike:
    """Every member of a group is rolled out the same way."""

    def assign(self, task: Task, size: int, seed: int) -> Sequence[Condition]:
        return (PLAIN,) * size


@dataclass(frozen=True)
class Schedule:
    """The published training settings of a method. Every field can be overridden, and then visibly is."""

    groups: int = 16
    """tasks per iteration"""
    group_size: int = 8
    """episodes per task"""
    iterations: int = 150
    """rollout-and-update rounds"""
    lr: float = 1e-6
    """learning rate of AdamW, constant"""
    temperature: float = 1.0
    """sampling temperature during training"""
    top_p: float = 1.0
    """nucleus kept when sampling in training; 1 keeps log-probabilities those of what was sampled"""
    epochs: int = 1
    """passes over each batch"""
    minibatches: int = 1
    """optimiser steps per pass; 1 is a single on-policy step"""
    minibatch_rows: int = 0
    """samples (environment steps) per optimiser step: a longer batch then has more of them; 0 goes by `minibatches`"""

    def __post_init__(self) -> None:
        if self.minibatch_rows < 0:
            raise TacitError(f"minibatch_rows = {self.minibatch_rows} must not be negative.")
        if self.minibatch_rows and self.minibatches > 1:
            raise TacitError(
                f"minibatches = {self.minibatches} and minibatch_rows = {self.minibatch_rows} both say how a batch is parted; "
                "leave one of them out."
            )

    def steps_per_pass(self, rows: int) -> int:
        """Optimiser steps over a batch of so many samples."""
        return math.ceil(rows / self.minibatch_rows) if self.minibatch_rows else self.minibatches


ENGINE_PROVIDES = frozenset({"entropy", "values", "logits"})
"""what an engine can compute beside log-probabilities during an update"""


@dataclass(frozen=True)
class Method:
    name: str
    context: Context
    rewards: tuple[RewardTerm, ...]
    credits: tuple[CreditTerm, ...]
    losses: tuple[LossTerm, ...]
    columns: tuple[Column, ...] = ()
    conditions: Conditions = field(default_factory=Alike)
    companions: tuple[Companion, ...] = ()
    selection: Selection | None = None
    schedule: Schedule = field(default_factory=Schedule)
    hidden_layer: int | None = None
    """layer whose state at the last prompt token the sampler should hand back with each completion"""

    def __post_init__(self) -> None:
        for piece in ("rewards", "credits", "losses"):
            if not getattr(self, piece):
                raise TacitError(f"method {self.name!r} has no {piece}; it could not learn.")
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names):
            raise TacitError(f"method {self.name!r} has two columns of the same name among {names}.")
        missing = self.needs - ENGINE_PROVIDES - {column.name for column in self.columns}
        if missing:
            raise TacitError(
                f"method {self.name!r} has losses that need {sorted(missing)}, which neither an engine nor its columns provide."
            )

    @property
    def needs(self) -> frozenset[str]:
        """What the losses read beside log-probabilities and advantages."""
        return frozenset().union(*(loss.needs for loss in self.losses))

    @property
    def needs_reference(self) -> bool:
        """Whether anything is compared with the reference policy, which then has to be kept beside the trained one.

        A loss says so by needing the column `reference`; any other piece that calls `policy.reference()` says so by an
        attribute `needs_reference`.
        """
        pieces = (*self.rewards, *self.credits, *self.columns, *self.companions)
        return "reference" in self.needs or any(getattr(piece, "needs_reference", False) for piece in pieces)


def combine(a: Method, b: Method) -> Method:
    """Both methods' terms in one. Shared terms count once; where the two disagree, an error says why.

    The schedule is a's. `combine(a, b)` and `combine(b, a)` have the same terms.
    """
    return replace(
        a,
        name=f"{a.name}+{b.name}",
        context=_one("context", a, b),
        conditions=_one("conditions", a, b, default=Alike()),
        selection=_one("selection", a, b, default=None),
        hidden_layer=_one("hidden_layer", a, b, default=None),
        rewards=_union("rewards", a, b),
        credits=_union("credits", a, b),
        columns=_union("columns", a, b),
        losses=_union("losses", a, b),
        companions=_union("companions", a, b),
    )


_NOTHING = object()


def _one(piece: str, a: Method, b: Method, default: Any = _NOTHING) -> Any:
    left, right = getattr(a, piece), getattr(b, piece)
    if left == right or right == default:
        return left
    if left == default:
        return right
    raise TacitError(
        f"cannot combine {a.name!r} and {b.name!r}: a group has one {piece}, and theirs differ "
        f"({left!r} against {right!r}). Build one of them with the other's {piece}."
    )


def _union(piece: str, a: Method, b: Method) -> tuple[Any, ...]:
    ours, theirs = getattr(a, piece), getattr(b, piece)
    terms = list(ours)
    for term in theirs:
        if term in ours:
            continue
        # Only a term of a's alone can clash: a method may well have two of one kind, and both may share one.
        twin = next((t for t in ours if type(t) is type(term) and t not in theirs), None)
        if twin is not None:
            raise TacitError(
                f"cannot combine {a.name!r} and {b.name!r}: both have {type(term).__name__} among their {piece}, with "
                f"{_difference(twin, term)}. Give both the same setting."
            )
        terms.append(term)
    return tuple(terms)


def _difference(a: Any, b: Any) -> str:
    try:
        names = [f.name for f in fields(a)]
    except TypeError:
        return "different settings"
    differ = [n for n in names if getattr(a, n) != getattr(b, n)]
    return ", ".join(f"{n} = {getattr(a, n)!r} against {getattr(b, n)!r}" for n in differ) or "different settings"
