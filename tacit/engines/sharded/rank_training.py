"""One model in shards: every weight is cut along its first dimension, and gathered for as long as a pass reads it (FSDP2).

Whatever reads weights runs inside `Sharded.run`, where they are whole: passes, heads and losses are those of the local engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from tacit.core.credit import Batch
from tacit.core.errors import EngineLost, TacitError
from tacit.core.protocols import LossTerm
from tacit.core.seeds import derive
from tacit.engines.local.fast.kernels import fast_paths
from tacit.engines.local.memory import AdaptiveBudget, MemoryWait, empty_cache, is_out_of_memory
from tacit.engines.local.model import LanguageModel, load_pretrained
from tacit.engines.local.packing import input_lengths
from tacit.engines.local.scoring import longer_prompts
from tacit.engines.local.settings import EngineSettings
from tacit.engines.local.update import (
    LossMetrics,
    MasterWeights,
    Updater,
    dither,
    dither_noise,
    measure_activation_bytes,
    plan_token_budget,
    training_mode,
)
from tacit.engines.sharded.settings import ShardedSettings

WHOLE_UP_TO = 1_000_000_000
"""weights of a model that `gather = auto` takes whole on CPUs"""
WHOLE_SHARE = 0.125
"""of the smallest GPU's memory that whole weights and their gradients may take for `gather = auto`"""

Answer = TypeVar("Answer")


class _Root(nn.Module):
    def __init__(self, hf: Any):
        super().__init__()
        self.hf = hf

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


class Sharded:
    """A transformers model in shards, and the passes over it."""

    def __init__(self, checkpoint: str, settings: ShardedSettings, dtype: torch.dtype, mesh: DeviceMesh, device: torch.device):
        # Trained weights are float32 and are rounded as they are gathered; frozen ones are kept as they are used.
        kept = dtype if settings.lora_rank else torch.float32
        self.hf, self.tokenizer = load_pretrained(checkpoint, torch.device("cpu"), kept)
        self.dtype = dtype
        weights = sum(p.numel() for p in self.hf.parameters())
        self.whole_gradients = 0 if settings.lora_rank else weights * (dtype.itemsize + 4 + 4)
        """bytes of those of whole weights, of their sum in float32, and of what ranks send each other of that"""
        fits = weights <= WHOLE_UP_TO
        if device.type == "cuda":
            fits = weights * dtype.itemsize + self.whole_gradients <= WHOLE_SHARE * _smallest(device)
        self.by_layer = settings.gather == "layer" or (settings.gather == "auto" and not fits)
        if settings.gradient_checkpointing:
            self.hf.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self._root: Any = _Root(self.hf)
        rounded = (
            MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32) if kept != dtype else MixedPrecisionPolicy()
        )
        for module in (*(_layers(self.hf) if self.by_layer else ()), self._root):
            fully_shard(module, mesh=mesh, mp_policy=rounded)
        for module in self._modules():
            # Losses are sums over totals of the whole batch: the gradients of the ranks are added, not averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other sum
        self.parameters: dict[str, nn.Parameter] = dict(self.hf.named_parameters())
        """in shards, as long as no pass has them gathered"""
        lean = not (self.by_layer or settings.gradient_checkpointing)
        # On the device and in the format it computes in: a model is tried out as it is made, and kernels are chosen.
        with torch.no_grad(), fast_paths(settings.fast != "off"):
            self.model = self._root(lambda: LanguageModel(self.hf, packed=lean))
        self.let_go()

    def run(self, work: Callable[[], Answer]) -> Answer:
        """Do what reads weights. All ranks must, and, where they are gathered layer by layer, with as many passes each.

        Whole weights are gathered before it and stay until `let_go`, so in `work` no rank waits for another: one that runs out
        of memory there can go on."""
        if self.by_layer:
            return self._root(work)
        try:
            self._root.unshard()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            lost = EngineLost("out of GPU memory for the whole weights at once (--engine.gather)")
            lost.settings = {"gather": "layer"}
            raise lost from error
        return work()

    def let_go(self) -> None:
        """After passes without a gradient, which leave gathered what the next one would need."""
        for module in self._modules():
            module.reshard()

    def accumulate_gradients(self) -> None:
        """After a backward pass that others follow: gradients of whole weights are added up in float32, as they are between
        ranks. Those of a model that is gathered layer by layer have been."""
        if not self.by_layer and self.dtype != torch.float32:
            self._reduce(between_ranks=False)

    def add_up(self) -> None:
        """After the last backward pass: shards have the sum of all ranks' gradients, and whole weights go."""
        if not self.by_layer:
            self._reduce(between_ranks=True)
            self.let_go()

    @contextmanager
    def gradients_held(self) -> Iterator[None]:
        """As much memory is taken as the gradients of whole weights will be: for who asks meanwhile how much is left."""
        size = 0 if self.by_layer or self.model.device.type == "cpu" else self.whole_gradients
        held = torch.empty(size, dtype=torch.uint8, device=self.model.device)
        yield
        del held

    def _reduce(self, between_ranks: bool) -> None:
        """FSDP takes the gradients over at the end of a backward pass through its root: this one has nothing else in it.
        Between ranks it gives every trained weight a gradient, of zeros, so that all have them of the same."""
        self._root.set_requires_gradient_sync(between_ranks)
        self._root.set_reshard_after_backward(between_ranks)
        nothing = self._root(partial(self._nothing, between_ranks))
        if nothing.requires_grad:
            nothing.backward()

    def _nothing(self, of_all: bool) -> torch.Tensor:
        trained = [p for name, p in self.hf.named_parameters() if name in self.parameters and p.requires_grad]
        touched = trained if of_all else sorted(trained, key=lambda p: p.numel())[:1]
        return sum((p.flatten()[0] for p in touched), start=torch.zeros(())) * 0.0

    def _modules(self) -> Iterator[FSDPModule]:
        return (module for module in self._root.modules() if isinstance(module, FSDPModule))


def _smallest(device: torch.device) -> float:
    """Bytes of memory of the smallest GPU that a rank has: all must decide alike."""
    found = torch.tensor(float(torch.cuda.get_device_properties(device).total_memory), device=device)
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return float(found)


def _layers(hf: Any) -> nn.ModuleList:
    depth = int(hf.config.num_hidden_layers)
    for module in hf.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            return module
    raise TacitError(
        f"architecture {type(hf).__name__} has no list of {depth} layers to gather one by one; use --engine.gather whole."
    )


# The weights a rank trains: its shards of the model, or adapters and value heads, of which every rank has all.
#
# AdamW goes weight by weight, so each rank steps its own shards as plain tensors, and what is the same on all ranks stays so.


class ShardedWeights(MasterWeights):
    def __init__(
        self,
        sharded: Mapping[str, Any],
        replicated: Mapping[str, nn.Parameter],
        settings: EngineSettings,
        dtype: torch.dtype = torch.float32,
    ):
        """`sharded`: parameters that are DTensors. `dtype`: what passes round them to"""
        self._rounded = dtype
        self.sharded, self.replicated = dict(sorted(sharded.items())), dict(sorted(replicated.items()))
        # A shard of the model and the parameter that is stepped are one piece of memory.
        shards = {name: nn.Parameter(p.detach().to_local()) for name, p in self.sharded.items()}
        super().__init__({**shards, **self.replicated}, settings)

    @torch.no_grad()
    def dither_masters(self) -> None:
        super().dither_masters()
        if self.steps or self._rounded == torch.float32:
            return
        for name, p in self.sharded.items():
            places = dither_noise(name, p.shape, p.device)  # of the whole, so that it does not matter who has which part
            own = distribute_tensor(places, p.device_mesh, p.placements, src_data_rank=None).to_local()
            self.master[name].copy_(dither(self.master[name], own, self._rounded))

    def add_up(self) -> None:
        """After the last backward pass: shards get their gradients, and those of what all ranks have are added up."""
        for name, p in self.sharded.items():
            gradient: Any = p.grad
            self.master[name].grad = None if gradient is None else gradient.to_local()
        own = {name for name in self.replicated if self.master[name].grad is not None}
        for name in sorted(set().union(*from_all(own))):
            master = self.master[name]
            if master.grad is None:
                master.grad = torch.zeros_like(master)
            dist.all_reduce(master.grad)

    def gradient_norm(self) -> torch.Tensor:
        """Of the whole gradient: √(Σ over ranks of their shards' squares + the squares of what all have)."""
        device = next(iter(self.master.values())).device
        shards, shared = (torch.zeros((), dtype=torch.float64, device=device) for _ in range(2))
        for name, master in self.master.items():
            if master.grad is not None:
                total = shards if name in self.sharded else shared
                total += torch.linalg.vector_norm(master.grad, dtype=torch.float64).square()
        dist.all_reduce(shards)
        return (shards + shared).sqrt()

    def zero_grad(self) -> None:
        super().zero_grad()
        for p in self.sharded.values():
            p.grad = None

    def distributed(self, name: str, own: torch.Tensor) -> torch.Tensor:
        """What one rank has for a parameter (a moment, say), as its part of what all have."""
        whole = self.sharded.get(name)
        if whole is None:
            return own
        return DTensor.from_local(
            own, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )


@dataclass(eq=False)
class ShardMember:
    """What belongs to one adapter (or to the whole model, where all parameters are trained)."""

    sharded: dict[str, Any]
    replicated: dict[str, nn.Parameter]
    value_head: nn.Linear | None
    settings: EngineSettings
    dtype: torch.dtype = torch.float32
    """what passes round the model to"""
    reference: Sharded | str | None = None
    """a frozen copy of the model, or the name of the frozen adapter"""
    _weights: ShardedWeights | None = field(default=None, repr=False)

    @property
    def weights(self) -> ShardedWeights:
        """Made on first use: a policy that only plays needs no optimiser."""
        if self._weights is None:
            self._weights = ShardedWeights(self.sharded, self.replicated, self.settings, self.dtype)
        return self._weights

    @property
    def steps(self) -> int:
        return self._weights.steps if self._weights else 0

    def reset_training(self) -> None:
        self._weights = None

    def names(self) -> list[str]:
        return sorted({*self.sharded, *self.replicated})

    def own(self, name: str, masters: bool = True) -> torch.Tensor:
        """One trained tensor, in shards where it is."""
        if name in self.sharded:
            return self.sharded[name].detach()
        split = self._weights is not None and masters
        return (self._weights.master[name] if split and self._weights else self.replicated[name]).detach()

    def whole(self, masters: bool, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """Every trained tensor in the order of their names, gathered one after the other: all ranks must go through them.
        Without `masters` they are rounded to `dtype`, as passes use them."""
        for name in self.names():
            own = self.own(name, masters)
            whole = own.full_tensor() if isinstance(own, DTensor) else own
            yield name, whole if masters or name not in self.sharded else whole.to(dtype)


def from_all(own: Any) -> list[Any]:
    """What each rank has, in their order; all must ask."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found


# Who computes what: micro-batches go round the ranks, and every rank runs as many passes as every other.
#
# All ranks cut the rows alike. In turn t rank r takes part t·N + r; where there is none left it computes the last part once
# more, for nothing: the others could not gather a single weight without it.


def budget_for(ranks: int, lengths: np.ndarray, token_budget: int) -> int:
    """Tokens in one micro-batch, so that there is one for every rank where there are rows enough."""
    return max(1, min(token_budget, -(-int(lengths.sum()) // ranks)))


def turns(parts: Sequence[np.ndarray], rank: int, ranks: int) -> Iterator[tuple[np.ndarray, bool, bool]]:
    """(rows, whether they count, whether this is the last turn)"""
    rounds = -(-len(parts) // ranks)
    for turn in range(rounds):
        at = turn * ranks + rank
        counts = at < len(parts)
        yield parts[at if counts else -1], counts, turn == rounds - 1


# Learning on many ranks: each goes through its share of the rows, and gradients are added up.
#
# Every loss term divides by totals of the whole batch, so the gradients of the ranks, like those of micro-batches, simply add
# up to the gradient of the batch. What is not finite anywhere is known everywhere, before any weight moves.
#
# Nor does a rank cut a batch finer alone. Over whole weights it computes without the others: where its memory runs out all
# learn
# of it when they have been through their shares, throw their gradients away, and begin again with half the token budget; with
# the longest row alone they wait together, where other processes have the memory of whoever is short. Layer by layer the others
# would
# wait for it in the middle of a pass: so memory is only planned beforehand, and where that was not enough the ranks are lost,
# and a run goes on from its last checkpoint with half the budget.

Found = tuple[dict[str, float], int]


def short_of_memory(what: str, token_budget: int) -> EngineLost:
    """This rank has no memory left, in the middle of something that the others wait for."""
    lost = EngineLost(f"out of GPU memory in {what.format(token_budget)} (--engine.token-budget)")
    lost.settings = {"token_budget": max(1, token_budget // 2)}
    return lost


class AllShort(torch.OutOfMemoryError):
    """Memory ran out on some rank, and all of them know it."""


class RigidBudget(AdaptiveBudget):
    """Of passes over a model that is gathered layer by layer: one rank must not make two of one."""

    def run(self, work: Callable[[int], Any], least: int, what: str, *rest: Any, **more: Any) -> Any:
        try:
            return work(self.current)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise short_of_memory(what, self.current) from error


class ShardedLearning(Updater):
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
        if not all(from_all(self.budget.can_grow)):
            return
        rows = np.flatnonzero([len(completion) for completion in batch.completions])
        if self.sharded.by_layer and len(rows):  # where not even this fits on one rank, the others wait for it in vain
            try:
                self.sharded.run(lambda: measure_activation_bytes(self, batch, losses, rows))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise short_of_memory("trying out an update of few rows, its token_budget {}", self.budget.current) from error
        with self.sharded.gradients_held():
            fits = self.sharded.run(lambda: plan_token_budget(self, batch, losses))
        self.sharded.let_go()
        self.budget.set_current(min(from_all(fits)))

    def _run_within_budget(self, gradient: Callable[[int], Found], least: int) -> Found:
        patience = MemoryWait(self.model.device)
        while True:
            budget = self.budget.current
            try:
                return gradient(budget)
            except AllShort:
                if budget <= least and not all(from_all(patience.can_help or not self._is_short)):
                    raise
            # Outside of the handler: until it is left, the error holds on to every tensor of the attempt.
            empty_cache(self.model.device)
            if budget > least:
                self.budget.set_current(max(least, min(budget, self._cut) // 2))
            else:
                patience.wait("out of GPU memory in an update, of its longest row alone" if self._is_short else "")

    def _accumulate_gradient(
        self, batch: Batch, losses: Sequence[LossTerm], rows: np.ndarray, needs: frozenset[str], token_budget: int
    ) -> Found:
        self.weights.zero_grad()
        rank, ranks = dist.get_rank(), dist.get_world_size()
        reads = longer_prompts(batch, needs)
        lengths = input_lengths(reads, batch.completions, self.codec.context_limit)[rows]
        self._cut = budget_for(ranks, lengths, token_budget)
        parts = self.model.plan_micro_batches(reads, batch.completions, rows, self._cut)
        counted, for_nothing = LossMetrics(losses, batch.total_tokens), LossMetrics(losses, batch.total_tokens)
        computed = 0
        dropout = bool(self.settings.lora_dropout) and not batch.sampled

        def go_through() -> None:
            nonlocal computed
            for part, counts, last in turns(parts, rank, ranks):
                packed = self.model.make_micro_batch(batch.prompts, batch.completions, part, self.codec.pad)
                tally = counted if counts else for_nothing
                computed += packed.num_tokens if counts else 0
                total = self.sharded.run(partial(self._loss, batch, packed, needs, len(rows), tally))
                (total if counts else total * 0.0).backward()
                if not last:
                    self.sharded.accumulate_gradients()
                self.weights.accumulate_gradients()

        with training_mode(self.model, self.settings, dropout, derive(self.seed, "dropout", rank, self.weights.steps)):
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
            if not is_out_of_memory(error):
                raise
            short = str(error) or "out of GPU memory"
            if self.sharded.by_layer:
                raise short_of_memory("an update with a token_budget of {}", token_budget) from error
        self._is_short = bool(short)
        short = next(filter(None, from_all(short)), "")
        if short:
            empty_cache(self.model.device)
        self.sharded.add_up()  # also of what is thrown away: FSDP must not keep it
        if short:
            self.weights.zero_grad()
            raise AllShort(short)

    def _loss(self, batch: Batch, packed: Any, needs: frozenset[str], rows: int, tally: LossMetrics) -> torch.Tensor:
        view = self._forward(batch, packed, needs, rows)
        # A term may find nothing to learn from in this part; the ranks must still have gradients for the same weights.
        return tally.add(view, batch.sampled) + 0.0 * view.logprobs_T.sum()


def _summed(told: Sequence[dict[str, float]]) -> dict[str, float]:
    """Sums are added, of peaks the highest is taken; the norm is of the whole gradient on every rank."""
    names = list(dict.fromkeys(name for own in told for name in own))
    there = {name: [own[name] for own in told if name in own] for name in names}
    found = {name: max(values) if name.startswith("max:") else sum(values) for name, values in there.items()}
    return {**found, "norm": told[0]["norm"]}
