"""Learning on many ranks: each goes through its share of the rows, and gradients are added up.

Every loss term divides by totals of the whole batch, so the gradients of the ranks, like those of micro-batches, simply add up
to the gradient of the batch. What is not finite anywhere is known everywhere, before any weight moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tacit.core.batch import Batch
from tacit.core.protocols import LossTerm
from tacit.core.seeds import derive
from tacit.engines.local.learning.teaching import longest_read
from tacit.engines.local.learning.update import Learning, Tally, training
from tacit.engines.local.passes.packing import input_lengths
from tacit.engines.sharded.ranks.shards import Sharded
from tacit.engines.sharded.ranks.turns import budget_for, turns
from tacit.engines.sharded.ranks.weights import ShardedWeights

Found = tuple[dict[str, float], int]


class ShardedLearning(Learning):
    weights: ShardedWeights

    def __init__(self, sharded: Sharded, *rest: Any):
        super().__init__(sharded.model, *rest)
        self.sharded = sharded

    def _fitting(self, gradient: Callable[[int], Found], least: int) -> Found:
        """One rank cannot cut finer while the others do not."""
        return gradient(self.budget.now)

    def _gradient(
        self, batch: Batch, losses: Sequence[LossTerm], rows: np.ndarray, needs: frozenset[str], token_budget: int
    ) -> Found:
        self.weights.clear()
        rank, ranks = dist.get_rank(), dist.get_world_size()
        reads = longest_read(batch, needs)
        lengths = input_lengths(reads, batch.completions, self.codec.context_limit)[rows]
        parts = self.model.parts(reads, batch.completions, rows, budget_for(ranks, lengths, token_budget))
        counted, for_nothing = Tally(losses, batch.total_tokens), Tally(losses, batch.total_tokens)
        computed = 0
        dropout = bool(self.settings.lora_dropout) and not batch.sampled
        with training(self.model, self.settings, dropout, derive(self.seed, "dropout", rank, self.weights.steps)):
            for part, counts, last in turns(parts, rank, ranks):
                packed = self.model.packed(batch.prompts, batch.completions, part, self.codec.pad)
                tally = counted if counts else for_nothing
                computed += packed.computed if counts else 0
                self.sharded.sync_gradients(last)
                total = self.sharded.run(partial(self._loss, batch, packed, needs, len(rows), tally))
                (total if counts else total * 0.0).backward()
                self.weights.collect()
        self.weights.add_up()
        read = counted.read(self.weights.gradient_norm())
        told: list[Any] = [None] * ranks
        dist.all_gather_object(told, (read, computed))
        return counted.metrics(_together([own for own, _ in told])), sum(own for _, own in told)

    def _loss(self, batch: Batch, packed: Any, needs: frozenset[str], rows: int, tally: Tally) -> torch.Tensor:
        view = self._view(batch, packed, needs, rows)
        # A term may find nothing to learn from in this part; the ranks must still have gradients for the same weights.
        return tally.add(view, batch.sampled) + 0.0 * view.logprobs_T.sum()


def _together(told: Sequence[dict[str, float]]) -> dict[str, float]:
    """Sums are added, of peaks the highest is taken; the norm is of the whole gradient on every rank."""
    names = list(dict.fromkeys(name for own in told for name in own))
    there = {name: [own[name] for own in told if name in own] for name in names}
    found = {name: max(values) if name.startswith("max:") else sum(values) for name, values in there.items()}
    return {**found, "norm": told[0]["norm"]}
