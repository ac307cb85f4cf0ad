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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, overload

import numpy as np

from tacit.core.actions import ActionFormat
from tacit.core.bounds import AtLeastOne, Bound, Count, NotNegative, PositiveShare, Share
from tacit.core.credit import Credit, Per, Rewards
from tacit.core.errors import TacitError
from tacit.core.protocols import DURING_UPDATES, HIDDEN_STATES, LEARNING, SAMPLING, LossTerm, Policy
from tacit.core.types import PLAIN, ActionStyle, Condition, Group, IterationInfo, Observation, Prompt, Task, Transition


class Pending(Protocol):
    """A turn that somebody else than the world will answer."""

    def result(self) -> Transition: ...


class Reader(Protocol):
    """One episode's context: told of every turn, asked for the next prompt.

    One that knows somebody to ask has `ask(action) -> Pending | None` beside these: None where the action is the world's. One
    that tells an agent its own words has `wrote(text)`, which is told, before `record`, what was written where it was no
    action in the context's format."""

    def read(self, observation: Observation) -> Prompt: ...

    def record(self, action: str, transition: Transition) -> Mapping[str, float]:
        """Take note of a turn; return what was measured on it (a tracker's signals), usually nothing."""
        ...


def record_turn(reader: Reader, action: str, transition: Transition, wrote: str | None = None) -> Mapping[str, float]:
    """`record`; `wrote` is what was really written where it was no action, and None where the action says it all."""
    listen = getattr(reader, "wrote", None)
    if wrote is not None and listen is not None:
        listen(wrote)
    return reader.record(action, transition)


class Context(Protocol):
    """What the agent reads, and how it is asked to write its action."""

    @property
    def style(self) -> ActionStyle: ...

    @property
    def format(self) -> ActionFormat:
        """how an action is written in that style, and read back"""
        ...

    def begin(self, task: Task, condition: Condition) -> Reader: ...


class Conditions(Protocol):
    """Where an evaluation should also be made under some of them, `measured` says which: name -> (task -> condition). Where
    whoever is about to play is to be asked first, `asking(policy)` gives the conditions that ask it."""

    def assign(self, task: Task, size: int, seed: int) -> Sequence[Condition]:
        """One condition for each of the `size` members of the task's group."""
        ...


class RewardTerm(Protocol):
    def __call__(self, groups: Sequence[Group], info: IterationInfo) -> Sequence[Rewards]: ...


class CreditTerm(Protocol):
    def __call__(
        self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, info: IterationInfo
    ) -> Sequence[Credit]:
        """Terms see all groups at once: some normalise over the batch, some score it in one pass. A term that can say how it
        came to its credits returns them `Explained`. What it asks of a policy beside sampling and learning it says by an
        attribute `needs`; one that compares no episodes of a group with each other says `alone = True`, one that compares
        across groups `batchwide = True`."""
        ...


@dataclass(frozen=True, eq=False)
class Explained(Sequence[Credit]):
    """Credits, one per group, and how they came about."""

    credits: Sequence[Credit]
    metrics: Mapping[str, float] = field(default_factory=dict)
    """numbers for the run's metrics"""
    marks: Sequence[Mapping[str, Sequence[Any] | np.ndarray]] = ()
    """per group, named columns with one entry per step (a number, or what JSON can hold; None: nothing), recorded beside its
    trajectories"""

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
    log-probabilities (one array per step), value targets (one number per step), prompts with a skill in them."""

    @property
    def name(self) -> str: ...

    @property
    def per(self) -> Per: ...

    def __call__(
        self, groups: Sequence[Group], rewards: Sequence[Rewards], policy: Policy, info: IterationInfo
    ) -> Sequence[np.ndarray] | np.ndarray: ...


class Companion(Protocol):
    """Something else that learns beside the policy. `observe` runs before rewards are computed, `learn` after the update.
    One that several worlds share observes each of them by itself, and learns once, from all of them. One that knows nothing but
    the present batch says `remembers = False`. One that holds something open has a `close`, called when the run ends, once
    per world. One that cannot work beside a policy refuses it in `check(policy)`, before anything is played. `examples` are
    what alarms about it show, by their names. One of which no episode reads anything says `read_in_play = False`: it may
    observe and learn while the next episodes are played."""

    @property
    def name(self) -> str:
        """what it is found again by in a checkpoint; no two of a method share one"""
        ...

    def observe(self, groups: Sequence[Group], policy: Policy, info: IterationInfo) -> dict[str, float]: ...

    def learn(self, groups: Sequence[Group], policy: Policy, info: IterationInfo) -> dict[str, float]: ...

    def save(self, directory: Path) -> None:
        """Whatever has to survive a killed run, into an empty directory of its own."""
        ...

    def load(self, directory: Path) -> None: ...


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


def measured_under(method: Method) -> Mapping[str, Callable[[Task], Condition]]:
    """The conditions an evaluation of the method is made under, beside the plain one."""
    return getattr(method.conditions, "measured", {})


def companions_of(methods: Sequence[Method]) -> list[tuple[Companion, list[int]]]:
    """Every companion once, with the places of the methods that have it: worlds of a run may share one."""
    found: dict[int, tuple[Companion, list[int]]] = {}
    for place, method in enumerate(methods):
        for companion in method.companions:
            found.setdefault(id(companion), (companion, []))[1].append(place)
    return list(found.values())


NOT_GREEDY = Bound(lambda v: v > 0, "must be above 0 in training: greedy episodes of one task are all the same")


@dataclass(frozen=True)
class Schedule:
    """The published training settings of a method. Every field can be overridden, and then visibly is."""

    groups: AtLeastOne = 16
    """tasks per iteration"""
    group_size: AtLeastOne = 8
    """episodes per task"""
    iterations: Count = 150
    """rollout-and-update rounds"""
    lr: NotNegative = 1e-6
    """learning rate of AdamW: constant, or the peak where it warms up or decays"""
    temperature: Annotated[float, NOT_GREEDY] = 1.0
    """sampling temperature during training"""
    top_p: PositiveShare = 1.0
    """nucleus kept when sampling in training; 1 keeps log-probabilities those of what was sampled"""
    epochs: AtLeastOne = 1
    """passes over each batch"""
    minibatches: AtLeastOne = 1
    """optimiser steps per pass; 1 is a single on-policy step"""
    minibatch_rows: int = 0
    """samples (environment steps) per optimiser step: a longer batch then has more of them; 0 goes by `minibatches`"""
    warmup: Share = 0.0
    """share of the iterations in which the learning rate rises to its peak"""
    decay: Literal["none", "linear", "cosine"] = "none"
    """how the learning rate falls after that, to reach zero with the end of the last iteration"""

    def __post_init__(self) -> None:
        if self.minibatch_rows < 0:
            raise TacitError(f"minibatch_rows = {self.minibatch_rows} must not be negative.")
        if self.minibatch_rows and self.minibatches > 1:
            raise TacitError(
                f"minibatches = {self.minibatches} and minibatch_rows = {self.minibatch_rows} both say how a batch is parted; "
                "leave one of them out."
            )

    def lr_at(self, info: IterationInfo) -> float:
        """η · n/W in iteration n of the W that warm up; then η, η · (1 − x) or η · ½(1 + cos πx), with x the share of the
        iterations after W that lie behind. The last iteration still moves: x = 1 would be the one after it."""
        warm = round(self.warmup * info.iterations)
        if info.iteration <= warm:
            return self.lr * info.iteration / warm
        behind = (info.iteration - 1 - warm) / max(1, info.iterations - warm)
        return self.lr * {"none": 1.0, "linear": 1 - behind, "cosine": 0.5 * (1 + math.cos(math.pi * behind))}[self.decay]

    def steps_per_pass(self, rows: int) -> int:
        """Optimiser steps over a batch of so many samples."""
        return math.ceil(rows / self.minibatch_rows) if self.minibatch_rows else self.minibatches


@dataclass(frozen=True)
class Method:
    """What a method is in one world: `settings.build(world, resources)` makes it."""

    name: str
    context: Context
    rewards: tuple[RewardTerm, ...]
    credits: tuple[CreditTerm, ...]
    losses: tuple[LossTerm, ...]
    """none where the policy stays as it is and only companions learn"""
    columns: tuple[Column, ...] = ()
    conditions: Conditions = field(default_factory=Alike)
    companions: tuple[Companion, ...] = ()
    selection: Selection | None = None
    schedule: Schedule = field(default_factory=Schedule)
    hidden_layer: int | None = None
    """layer whose state at the last prompt token the sampler should hand back with each completion"""

    def __post_init__(self) -> None:
        for piece in ("rewards", "credits", "losses"):
            beside = piece == "losses" and self.companions
            if not getattr(self, piece) and not beside:
                raise TacitError(f"method {self.name!r} has no {piece}; it could not learn.")
        for piece in ("columns", "companions"):
            names = [each.name for each in getattr(self, piece)]
            if len(set(names)) < len(names):
                raise TacitError(f"method {self.name!r} has two {piece} of the same name among {names}.")
        missing = self._read_by_losses - DURING_UPDATES - {column.name for column in self.columns}
        if missing:
            raise TacitError(
                f"method {self.name!r} has losses that need {sorted(missing)}, which neither an engine nor its columns provide."
            )

    @property
    def _read_by_losses(self) -> frozenset[str]:
        """What the losses read beside log-probabilities and advantages."""
        return frozenset().union(*(loss.needs for loss in self.losses))

    @property
    def needs(self) -> frozenset[str]:
        """What it asks of an engine, by the names of core/protocols.py."""
        pieces = (*self.rewards, *self.credits, *self.columns, *self.companions, self.conditions)
        asked = frozenset().union(*(getattr(piece, "needs", frozenset()) for piece in pieces))
        hidden = {HIDDEN_STATES} if self.hidden_layer is not None else frozenset()
        return asked | hidden | (self._read_by_losses & DURING_UPDATES) | {SAMPLING, LEARNING}

    @property
    def compares_episodes(self) -> bool:
        """Whether an episode is judged beside others of its task, so that a group of one teaches nothing."""
        return self.selection is not None or not all(getattr(term, "alone", False) for term in self.credits)
