"""Learning on many ranks: each goes through its share of the rows, and gradients are added up.

Every loss term divides by totals of the whole batch, so the gradients of the ranks, like those of micro-batches, simply add up
to the gradient of the batch. What is not finite anywhere is known everywhere, before any weight moves.

Nor does a rank cut a batch finer alone. Over whole weights it computes without the others: where its memory runs out all learn
of it when they have been through their shares, throw their gradients away, and begin again with half the token budget; with the
longest row alone they wait together, where other processes have the memory of whoever is short. Layer by layer the others would
wait for it in the middle of a pass: so memory is only planned beforehand, and where that was not enough the ranks are lost, and
a run goes on from its last checkpoint with half the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tacit.core.batch import Batch
from tacit.core.errors import EngineLost
from tacit.core.protocols import LossTerm
from tacit.core.seeds import derive
from tacit.engines.local.learning.planning import kept_by, planned_budget
from tacit.engines.local.learning.teaching import longest_read
from tacit.engines.local.learning.update import Learning, Tally, training
from tacit.engines.local.memory import Budget, Patience, give_back, ran_out
from tacit.engines.local.passes.packing import input_lengths
from tacit.engines.sharded.ranks.shards import Sharded
from tacit.engines.sharded.ranks.turns import budget_for, turns
from tacit.engines.sharded.ranks.weights import ShardedWeights, from_all

Found = tuple[dict[str, float], int]


def short_of_memory(what: str, token_budget: int) -> EngineLost:
    """This rank has no memory left, in the middle of something that the others wait for."""
    lost = EngineLost(f"out of GPU memory in {what.format(token_budget)} (--engine.token-budget)")
    lost.settings = {"token_budget": max(1, token_budget // 2)}
    return lost


class AllShort(torch.OutOfMemoryError):
    """Memory ran out on some rank, and all of them know it."""


class RigidBudget(Budget):
    """Of passes over a model that is gathered layer by layer: one rank must not make two of one."""

    def fit(self, work: Callable[[int], Any], least: int, what: str, *rest: Any, **more: Any) -> Any:
        try:
            return work(self.now)
        except RuntimeError as error:
            if not ran_out(error):
                raise
            raise short_of_memory(what, self.now) from error


class ShardedLearning(Learning):
    weights: ShardedWeights

    def __init__(self, sharded: Sharded, *rest: Any):
        super().__init__(sharded.model, *rest)
        self.sharded = sharded
        self._cut = 0
        """tokens in one micro-batch of the last attempt"""
        self._is_short = False
        """whether it was this rank that had no memory for it"""

    def plan(self, batch: Batch, losses: Sequence[LossTerm]) -> None:
        """Settle for a token budget that fits on every rank: where none has looked yet, or all have clearly more room."""
        if not all(from_all(self.budget.may_grow)):
            return
        rows = np.flatnonzero([len(completion) for completion in batch.completions])
        if self.sharded.by_layer and len(rows):  # where not even this fits on one rank, the others wait for it in vain
            try:
                self.sharded.run(lambda: kept_by(self, batch, losses, rows))
            except RuntimeError as error:
                if not ran_out(error):
                    raise
                raise short_of_memory("trying out an update of few rows, its token_budget {}", self.budget.now) from error
        with self.sharded.gradients_held():
            fits = self.sharded.run(lambda: planned_budget(self, batch, losses))
        self.sharded.let_go()
        self.budget.settle(min(from_all(fits)))

    def _fitting(self, gradient: Callable[[int], Found], least: int) -> Found:
        patience = Patience(self.model.device)
        while True:
            budget = self.budget.now
            try:
                return gradient(budget)
            except AllShort:
                if budget <= least and not all(from_all(patience.may_help or not self._is_short)):
                    raise
            # Outside of the handler: until it is left, the error holds on to every tensor of the attempt.
            give_back(self.model.device)
            if budget > least:
                self.budget.settle(max(least, min(budget, self._cut) // 2))
            else:
                patience.wait("out of GPU memory in an update, of its longest row alone" if self._is_short else "")

    def _gradient(
        self, batch: Batch, losses: Sequence[LossTerm], rows: np.ndarray, needs: frozenset[str], token_budget: int
    ) -> Found:
        self.weights.clear()
        rank, ranks = dist.get_rank(), dist.get_world_size()
        reads = longest_read(batch, needs)
        lengths = input_lengths(reads, batch.completions, self.codec.context_limit)[rows]
        self._cut = budget_for(ranks, lengths, token_budget)
        parts = self.model.parts(reads, batch.completions, rows, self._cut)
        counted, for_nothing = Tally(losses, batch.total_tokens), Tally(losses, batch.total_tokens)
        computed = 0
        dropout = bool(self.settings.lora_dropout) and not batch.sampled

        def go_through() -> None:
            nonlocal computed
            for part, counts, last in turns(parts, rank, ranks):
                packed = self.model.packed(batch.prompts, batch.completions, part, self.codec.pad)
                tally = counted if counts else for_nothing
                computed += packed.computed if counts else 0
                total = self.sharded.run(partial(self._loss, batch, packed, needs, len(rows), tally))
                (total if counts else total * 0.0).backward()
                if not last:
                    self.sharded.collect()
                self.weights.collect()

        with training(self.model, self.settings, dropout, derive(self.seed, "dropout", rank, self.weights.steps)):
            self._together(go_through, token_budget)
        self.weights.add_up()
        read = counted.read(self.weights.gradient_norm())
        told: list[Any] = [None] * ranks
        dist.all_gather_object(told, (read, computed))
        return counted.metrics(_summed([own for own, _ in told])), sum(own for _, own in told)

    def _together(self, go_through: Callable[[], None], token_budget: int) -> None:
        """This rank's passes; then the shards have the gradients of all ranks, or memory has run out on all of them."""
        short = ""
        try:
            go_through()
        except RuntimeError as error:
            if not ran_out(error):
                raise
            short = str(error) or "out of GPU memory"
            if self.sharded.by_layer:
                raise short_of_memory("an update with a token_budget of {}", token_budget) from error
        self._is_short = bool(short)
        short = next(filter(None, from_all(short)), "")
        if short:
            give_back(self.model.device)
        self.sharded.add_up()  # also of what is thrown away: FSDP must not keep it
        if short:
            self.weights.clear()
            raise AllShort(short)

    def _loss(self, batch: Batch, packed: Any, needs: frozenset[str], rows: int, tally: Tally) -> torch.Tensor:
        view = self._view(batch, packed, needs, rows)
        # A term may find nothing to learn from in this part; the ranks must still have gradients for the same weights.
        return tally.add(view, batch.sampled) + 0.0 * view.logprobs_T.sum()


def _summed(told: Sequence[dict[str, float]]) -> dict[str, float]:
    """Sums are added, of peaks the highest is taken; the norm is of the whole gradient on every rank."""
    names = list(dict.fromkeys(name for own in told for name in own))
    there = {name: [own[name] for own in told if name in own] for name in names}
    found = {name: max(values) if name.startswith("max:") else sum(values) for name, values in there.items()}
    return {**found, "norm": told[0]["norm"]}
