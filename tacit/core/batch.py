"""A training batch as plain columns: one row per environment step. Any engine can take it as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from tacit.core.credit import Credit
from tacit.core.types import Group, flat_steps

Per = Literal["token", "row", "prompt"]
"""what a column has one entry for"""


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of (prompt, completion) with what the losses need. Ragged columns are lists of arrays, one per row."""

    prompts: Sequence[np.ndarray]
    completions: Sequence[np.ndarray]
    behaviour: Sequence[np.ndarray]
    """the sampler's log-probabilities, per token"""
    advantages: Sequence[np.ndarray]
    """per token"""
    group: np.ndarray
    trajectory: np.ndarray
    """unique over the whole batch"""
    step: np.ndarray
    temperature: float = 1.0
    """at which `behaviour` was measured, and at which ratios are taken"""
    sampled: bool = True
    """False for rows to imitate, which no policy of ours wrote"""
    tokens: Mapping[str, Sequence[np.ndarray]] = field(default_factory=dict)
    """further per-token columns by name"""
    rows: Mapping[str, np.ndarray] = field(default_factory=dict)
    """further per-row columns by name"""
    contexts: Mapping[str, Sequence[np.ndarray]] = field(default_factory=dict)
    """further prompts of the same completions by name, e.g. `taught`: what would have been read with a skill in it"""

    def __len__(self) -> int:
        return len(self.prompts)

    @cached_property
    def total_tokens(self) -> int:
        """completion tokens"""
        return sum(len(c) for c in self.completions)

    @classmethod
    def from_groups(cls, groups: Sequence[Group], credits: Sequence[Credit], temperature: float) -> Batch:
        steps = flat_steps(groups)
        first = np.cumsum([0, *(len(g) for g in groups)])
        return cls(
            prompts=[s.prompt_tokens for s in steps],
            completions=[s.completion.tokens for s in steps],
            behaviour=[s.completion.logprobs for s in steps],
            advantages=[a for credit in credits for a in credit.steps()],
            group=_columns(np.full(len(g.steps), i) for i, g in enumerate(groups)),
            trajectory=_columns(g.trajectory_of_step + first[i] for i, g in enumerate(groups)),
            step=_columns(np.arange(n) for g in groups for n in g.lengths),
            temperature=temperature,
        )

    @classmethod
    def imitation(cls, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray]) -> Batch:
        """Rows to imitate: no behaviour policy, every token wanted equally."""
        n = len(prompts)
        return cls(
            prompts=prompts,
            completions=completions,
            behaviour=[np.zeros(len(c), np.float32) for c in completions],
            advantages=[np.ones(len(c), np.float32) for c in completions],
            group=np.arange(n),
            trajectory=np.arange(n),
            step=np.zeros(n, np.int64),
            sampled=False,
        )

    @classmethod
    def concatenate(cls, batches: Sequence[Batch]) -> Batch:
        """The rows of all, one after another; groups and trajectories keep apart. All must have the same columns."""
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
            prompts=joined(b.prompts for b in batches),
            completions=joined(b.completions for b in batches),
            behaviour=joined(b.behaviour for b in batches),
            advantages=joined(b.advantages for b in batches),
            group=_columns(b.group + groups[i] for i, b in enumerate(batches)),
            trajectory=_columns(b.trajectory + trajectories[i] for i, b in enumerate(batches)),
            step=_columns(b.step for b in batches),
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
        """The given rows, in the given order."""

        def pick(column: Sequence[np.ndarray]) -> list[np.ndarray]:
            return [column[i] for i in rows]

        return replace(
            self,
            prompts=pick(self.prompts),
            completions=pick(self.completions),
            behaviour=pick(self.behaviour),
            advantages=pick(self.advantages),
            group=self.group[rows],
            trajectory=self.trajectory[rows],
            step=self.step[rows],
            tokens={name: pick(column) for name, column in self.tokens.items()},
            rows={name: column[rows] for name, column in self.rows.items()},
            contexts={name: pick(column) for name, column in self.contexts.items()},
        )


def _columns(parts) -> np.ndarray:
    parts = list(parts)
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)
