"""Rewards per step (`Rewards`) and advantages per token (`Credit`) of one group, as flat arrays that can be added.

So a method reads like its paper: `episode + w * step`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import add
from typing import Any, Literal, TypeVar

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.types import Group, flat_steps


@dataclass(frozen=True, eq=False)
class Rewards:
    """Rewards of one group's N flat steps.

    `flow_N` enters the return of its step and of every earlier step. `local_N` enters that of its own step only, such as the
    penalty for an action that does not parse.
    """

    group: Group
    flow_N: np.ndarray
    local_N: np.ndarray

    @classmethod
    def zeros(cls, group: Group) -> Rewards:
        n = len(group.steps)
        return cls(group, np.zeros(n), np.zeros(n))

    @classmethod
    def per_step(cls, group: Group, values_N: np.ndarray) -> Rewards:
        return cls(group, _check_shape(values_N, len(group.steps), "step"), np.zeros(len(group.steps)))

    @classmethod
    def local(cls, group: Group, values_N: np.ndarray) -> Rewards:
        return cls(group, np.zeros(len(group.steps)), _check_shape(values_N, len(group.steps), "step"))

    @classmethod
    def at_the_end(cls, group: Group, values_G: np.ndarray) -> Rewards:
        """One reward per trajectory, at its last step. A trajectory without steps gets none."""
        values_G = _check_shape(values_G, len(group), "trajectory")
        flow_N = np.zeros(len(group.steps))
        has_steps = group.lengths > 0
        flow_N[np.cumsum(group.lengths)[has_steps] - 1] = values_G[has_steps]
        return cls(group, flow_N, np.zeros_like(flow_N))

    def __add__(self, other: Rewards) -> Rewards:
        _check_same_group(self.group, other.group)
        return Rewards(self.group, self.flow_N + other.flow_N, self.local_N + other.local_N)

    def outcomes_G(self) -> np.ndarray:
        """Undiscounted sum of flowing rewards per trajectory."""
        return np.bincount(self.group.trajectory_of_step, weights=self.flow_N, minlength=len(self.group))

    def returns_N(self, gamma: float) -> np.ndarray:
        """R_t = r_t + γ R_{t+1} over the flowing rewards of each trajectory, plus the step's own local part."""
        returns_N = self.flow_N.astype(np.float64)
        start = 0
        for length in self.group.lengths:
            for t in range(start + length - 2, start - 1, -1):
                returns_N[t] += gamma * returns_N[t + 1]
            start += length
        return returns_N + self.local_N


@dataclass(frozen=True, eq=False)
class Credit:
    """Per-token advantages of one group, flat: the tokens of step 0, then of step 1, …"""

    group: Group
    tokens_T: np.ndarray

    @classmethod
    def zeros(cls, group: Group) -> Credit:
        return cls(group, np.zeros(int(group.tokens_per_step.sum())))

    @classmethod
    def per_step(cls, group: Group, values_N: np.ndarray) -> Credit:
        """Every token of a step gets the step's value."""
        values_N = _check_shape(values_N, len(group.steps), "step")
        return cls(group, np.repeat(values_N, group.tokens_per_step))

    def __add__(self, other: Credit) -> Credit:
        _check_same_group(self.group, other.group)
        return Credit(self.group, self.tokens_T + other.tokens_T)

    def __mul__(self, weight: float) -> Credit:
        return Credit(self.group, weight * self.tokens_T)

    __rmul__ = __mul__

    def steps(self) -> list[np.ndarray]:
        """The advantages of each step's tokens, in step order."""
        return np.split(self.tokens_T, np.cumsum(self.group.tokens_per_step)[:-1]) if self.group.steps else []


K = TypeVar("K", Rewards, Credit)


def check_results(term: object, results: Any, groups: Sequence[Group], kind: type[K]) -> Sequence[K]:
    """Check what a term of a method returned: one `kind` per group, all numbers finite. Otherwise raise with the reason."""
    name = type(term).__name__
    types = [type(result).__name__ for result in results] if isinstance(results, Sequence) else None
    if types is None or len(types) != len(groups) or not all(isinstance(result, kind) for result in results):
        description = (
            f"[{', '.join(types[:3])}{', …' if len(types) > 3 else ''}], of length {len(types)}"
            if types is not None
            else results
        )
        expected = f"a list with one {kind.__name__} for each of the {len(groups)} groups"
        raise TacitError(f"the term {name} must return {expected}, but returned {description}.")
    for result in results:
        numbers = result.flow_N + result.local_N if isinstance(result, Rewards) else result.tokens_T
        if not np.isfinite(numbers).all():
            number = numbers[~np.isfinite(numbers)][0]
            raise TacitError(
                f"the term {name} returned {number} for the group of task {result.group.task.id!r}; its numbers must be finite."
            )
    return results


def sum_terms(terms: Iterable[Sequence[K]]) -> list[K]:
    return [reduce(add, parts) for parts in zip(*terms, strict=True)]


def _check_shape(values: np.ndarray, size: int, of: str) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (size,):
        raise ValueError(f"expected one number per {of} ({size}), got an array of shape {values.shape}")
    return values


def _check_same_group(a: Group, b: Group) -> None:
    if a is not b:
        raise ValueError(f"cannot add terms of two different groups ({a.task.id} and {b.task.id})")


# A training batch as plain columns: one row per environment step. Every engine accepts it.

Per = Literal["token", "row", "prompt"]  # a column has one entry per token or row, or one prompt per row
RAGGED = ("prompts", "completions", "behavior", "advantages")  # columns with one array per row


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of (prompt, completion) with what the losses need. Ragged columns are lists of arrays, one per row."""

    prompts: Sequence[np.ndarray]
    completions: Sequence[np.ndarray]
    behavior: Sequence[np.ndarray]  # the sampler's log-probabilities, per token
    advantages: Sequence[np.ndarray]  # per token
    group: np.ndarray
    trajectory: np.ndarray  # unique over the whole batch
    step: np.ndarray
    temperature: float = 1.0  # sampling temperature of `behavior`; importance ratios use it too
    sampled: bool = True  # False for demonstrations, which no policy sampled
    tokens: Mapping[str, Sequence[np.ndarray]] = field(default_factory=dict)  # further per-token columns by name
    rows: Mapping[str, np.ndarray] = field(default_factory=dict)  # further per-row columns by name
    contexts: Mapping[str, Sequence[np.ndarray]] = field(default_factory=dict)
    """alternative prompts per row, e.g. `teacher_prompts`"""

    def __len__(self) -> int:
        return len(self.prompts)

    @cached_property
    def total_tokens(self) -> int:
        return sum(len(c) for c in self.completions)

    @classmethod
    def from_groups(cls, groups: Sequence[Group], credits: Sequence[Credit], temperature: float) -> Batch:
        steps = flat_steps(groups)
        first = np.cumsum([0, *(len(g) for g in groups)])
        return cls(
            prompts=[s.prompt_tokens for s in steps],
            completions=[s.completion.tokens for s in steps],
            behavior=[s.completion.logprobs for s in steps],
            advantages=[a for credit in credits for a in credit.steps()],
            group=_concat_int64(np.full(len(g.steps), i) for i, g in enumerate(groups)),
            trajectory=_concat_int64(g.trajectory_of_step + first[i] for i, g in enumerate(groups)),
            step=_concat_int64(np.arange(n) for g in groups for n in g.lengths),
            temperature=temperature,
        )

    @classmethod
    def imitation(cls, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray]) -> Batch:
        """Demonstrations: no behavior policy, advantage 1 for every token."""
        n = len(prompts)
        return cls(
            prompts=prompts,
            completions=completions,
            behavior=[np.zeros(len(c), np.float32) for c in completions],
            advantages=[np.ones(len(c), np.float32) for c in completions],
            group=np.arange(n),
            trajectory=np.arange(n),
            step=np.zeros(n, np.int64),
            sampled=False,
        )

    @classmethod
    def concatenate(cls, batches: Sequence[Batch]) -> Batch:
        """All rows, in order; group and trajectory numbers stay distinct. All batches must have the same columns."""
        if len(batches) == 1:
            return batches[0]
        first = batches[0]
        for batch in batches:
            for kind in ("tokens", "rows", "contexts"):
                if set(getattr(batch, kind)) != set(getattr(first, kind)):
                    raise ValueError(f"batches to be joined have other columns of {kind}: {set(getattr(batch, kind))}")
        groups = np.cumsum([0, *(int(b.group.max(initial=-1)) + 1 for b in batches)])
        trajectories = np.cumsum([0, *(int(b.trajectory.max(initial=-1)) + 1 for b in batches)])

        def joined(columns: Iterable[Sequence[np.ndarray]]) -> list[np.ndarray]:
            return [row for column in columns for row in column]

        return cls(
            **{name: joined(getattr(b, name) for b in batches) for name in RAGGED},
            group=_concat_int64(b.group + groups[i] for i, b in enumerate(batches)),
            trajectory=_concat_int64(b.trajectory + trajectories[i] for i, b in enumerate(batches)),
            step=_concat_int64(b.step for b in batches),
            temperature=first.temperature,
            sampled=first.sampled,
            tokens={name: joined(b.tokens[name] for b in batches) for name in first.tokens},
            rows={name: np.concatenate([b.rows[name] for b in batches]) for name in first.rows},
            contexts={name: joined(b.contexts[name] for b in batches) for name in first.contexts},
        )

    def with_column(self, name: str, per: Per, values: Sequence[np.ndarray] | np.ndarray) -> Batch:
        """The same batch with one more named column: one array, one number, or one prompt per row."""
        if len(values) != len(self):
            raise ValueError(f"column {name!r} has {len(values)} rows, the batch {len(self)}")
        if per == "token":
            return replace(self, tokens={**self.tokens, name: list(values)})
        if per == "prompt":
            return replace(self, contexts={**self.contexts, name: list(values)})
        return replace(self, rows={**self.rows, name: np.asarray(values)})

    def select(self, rows: np.ndarray) -> Batch:
        def pick(column: Sequence[np.ndarray]) -> list[np.ndarray]:
            return [column[i] for i in rows]

        per_row: dict[str, Any] = {name: pick(getattr(self, name)) for name in RAGGED}
        per_row |= {name: getattr(self, name)[rows] for name in ("group", "trajectory", "step")}
        return replace(
            self,
            **per_row,
            tokens={name: pick(column) for name, column in self.tokens.items()},
            rows={name: column[rows] for name, column in self.rows.items()},
            contexts={name: pick(column) for name, column in self.contexts.items()},
        )


def _concat_int64(parts) -> np.ndarray:
    parts = list(parts)
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)


@dataclass(frozen=True)
class Iteration:
    """The results of one training iteration."""

    played: list[Group]  # every group rolled out, crashed episodes and unselected groups included
    groups: list[Group]  # the groups trained on
    rewards: list[Rewards]
    credits: list[Credit]
    metrics: dict[str, float]
    marks: list[dict[str, Sequence[Any] | np.ndarray]]  # per group trained on: the credit terms' named columns per step
