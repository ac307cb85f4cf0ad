"""Training on a rank: the FSDP2 model, its trained weights, how micro-batches are assigned to ranks, and the update.

Each weight is sharded along its first dimension. Code that reads weights runs inside `ShardedModel.run`, where they are
gathered; passes, heads and losses are those of the local engine.
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
from tacit.planning.plans import GATHER_WHOLE_MAX_MEMORY, GATHER_WHOLE_MAX_WEIGHTS

Result = TypeVar("Result")
GradientResult = tuple[dict[str, float], int]  # (metrics, tokens in the forward passes)


class _Root(nn.Module):
    def __init__(self, hf: Any):
        super().__init__()
        self.hf = hf

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


class ShardedModel:
    """A transformers model sharded with FSDP2."""

    def __init__(self, checkpoint: str, settings: ShardedSettings, dtype: torch.dtype, mesh: DeviceMesh, device: torch.device):
        # Trained weights are float32 and rounded when gathered; frozen ones are kept in the compute dtype.
        param_dtype = dtype if settings.lora_rank else torch.float32
        self.hf, self.tokenizer = load_pretrained(checkpoint, torch.device("cpu"), param_dtype)
        self.dtype = dtype
        weights = sum(p.numel() for p in self.hf.parameters())
        self.whole_gradient_bytes = 0 if settings.lora_rank else weights * (dtype.itemsize + 4 + 4)
        """bytes of the gradients of whole weights, of their float32 sum, and of the communication buffer"""
        fits = weights <= GATHER_WHOLE_MAX_WEIGHTS
        if device.type == "cuda":
            smallest = torch.tensor(float(torch.cuda.get_device_properties(device).total_memory), device=device)
            dist.all_reduce(smallest, dist.ReduceOp.MIN)  # all ranks must decide alike
            fits = weights * dtype.itemsize + self.whole_gradient_bytes <= GATHER_WHOLE_MAX_MEMORY * float(smallest)
        self.by_layer = settings.gather == "layer" or (settings.gather == "auto" and not fits)
        if settings.gradient_checkpointing:
            self.hf.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self._root: Any = _Root(self.hf)
        mixed = (
            MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
            if param_dtype != dtype
            else MixedPrecisionPolicy()
        )
        for module in (*(_layers(self.hf) if self.by_layer else ()), self._root):
            fully_shard(module, mesh=mesh, mp_policy=mixed)
        for module in self._modules():
            # Losses divide by totals of the whole batch, so gradients are summed over ranks, not averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other reduction
        self.parameters: dict[str, nn.Parameter] = dict(self.hf.named_parameters())  # shards, while no pass has gathered them
        packed = not (self.by_layer or settings.gradient_checkpointing)
        # With gathered weights, since LanguageModel runs a trial pass and chooses kernels by device and dtype.
        with torch.no_grad(), fast_paths(settings.fast != "off"):
            self.model = self._root(lambda: LanguageModel(self.hf, packed=packed))
        self.reshard()

    def run(self, work: Callable[[], Result]) -> Result:
        """Run `work` with gathered weights. All ranks must call it and, if gathering layer by layer, make equally many passes.

        Whole weights are gathered first and stay until `reshard`, so inside `work` no rank waits for another, and a rank that
        runs out of memory can continue."""
        if self.by_layer:
            return self._root(work)
        try:
            self._root.unshard()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            reason = "out of GPU memory for the whole weights at once (--engine.gather)"
            raise EngineLost(reason, {"gather": "layer"}) from error
        return work()

    def reshard(self) -> None:
        """Free gathered weights. Needed after passes without gradients, which leave them gathered."""
        for module in self._modules():
            module.reshard()

    def accumulate_gradients(self) -> None:
        """After a backward pass, except the last: accumulate gradients of whole weights in float32."""
        if not self.by_layer and self.dtype != torch.float32:
            self._reduce(between_ranks=False)

    def reduce_gradients(self) -> None:
        """After the last backward pass: reduce-scatter the gradients to the shards, and free whole weights."""
        if not self.by_layer:
            self._reduce(between_ranks=True)
            self.reshard()

    @contextmanager
    def reserve_gradients(self) -> Iterator[None]:
        """Within this context, reserve the memory of whole weights' gradients, so that it is not measured as free."""
        size = 0 if self.by_layer or self.model.device.type == "cpu" else self.whole_gradient_bytes
        reserved = torch.empty(size, dtype=torch.uint8, device=self.model.device)
        yield
        del reserved

    def _reduce(self, between_ranks: bool) -> None:
        """Make FSDP reduce gradients, which it does at the end of a backward pass through its root, with a zero loss. Between
        ranks, the loss uses every trained weight, so that all ranks have gradients for the same weights."""
        self._root.set_requires_gradient_sync(between_ranks)
        self._root.set_reshard_after_backward(between_ranks)
        zero = self._root(partial(self._zero_loss, between_ranks))
        if zero.requires_grad:
            zero.backward()

    def _zero_loss(self, all_weights: bool) -> torch.Tensor:
        trained = [p for name, p in self.hf.named_parameters() if name in self.parameters and p.requires_grad]
        used = trained if all_weights else sorted(trained, key=lambda p: p.numel())[:1]
        return sum((p.flatten()[0] for p in used), start=torch.zeros(())) * 0.0

    def _modules(self) -> Iterator[FSDPModule]:
        return (module for module in self._root.modules() if isinstance(module, FSDPModule))


def _layers(hf: Any) -> nn.ModuleList:
    depth = int(hf.config.num_hidden_layers)
    for module in hf.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            return module
    raise TacitError(
        f"architecture {type(hf).__name__} has no list of {depth} layers to gather one by one; use --engine.gather whole."
    )


class ShardedWeights(MasterWeights):
    def __init__(
        self,
        sharded: Mapping[str, Any],
        replicated: Mapping[str, nn.Parameter],
        settings: EngineSettings,
        dtype: torch.dtype = torch.float32,
    ):
        """A rank's trained weights: its shards of the model (`sharded`, DTensors), and adapters and value heads, which every
        rank has (`replicated`). AdamW is elementwise, so each rank steps its shards as plain tensors. `dtype`: the compute
        dtype."""
        self._dtype = dtype
        self.sharded, self.replicated = dict(sorted(sharded.items())), dict(sorted(replicated.items()))
        # The stepped parameter shares memory with the model's shard.
        shards = {name: nn.Parameter(p.detach().to_local()) for name, p in self.sharded.items()}
        super().__init__({**shards, **self.replicated}, settings)

    @torch.no_grad()
    def dither_masters(self) -> None:
        super().dither_masters()
        if self.steps or self._dtype == torch.float32:
            return
        for name, p in self.sharded.items():
            noise = dither_noise(name, p.shape, p.device)  # of the whole weight, so that it does not depend on the sharding
            shard = distribute_tensor(noise, p.device_mesh, p.placements, src_data_rank=None).to_local()
            self.master[name].copy_(dither(self.master[name], shard, self._dtype))

    def reduce_gradients(self) -> None:
        """After the last backward pass: take the shards' gradients, and sum those of replicated weights over ranks."""
        for name, p in self.sharded.items():
            gradient: Any = p.grad
            self.master[name].grad = None if gradient is None else gradient.to_local()
        with_gradient = {name for name in self.replicated if self.master[name].grad is not None}
        for name in sorted(set().union(*gather_objects(with_gradient))):
            master = self.master[name]
            if master.grad is None:
                master.grad = torch.zeros_like(master)
            dist.all_reduce(master.grad)

    def gradient_norm(self) -> torch.Tensor:
        """Norm of the whole gradient: √(Σ over ranks of the shards' squares + the squares of replicated weights)."""
        device = next(iter(self.master.values())).device
        shards, replicated = (torch.zeros((), dtype=torch.float64, device=device) for _ in range(2))
        for name, master in self.master.items():
            if master.grad is not None:
                total = shards if name in self.sharded else replicated
                total += torch.linalg.vector_norm(master.grad, dtype=torch.float64).square()
        dist.all_reduce(shards)
        return (shards + replicated).sqrt()

    def zero_grad(self) -> None:
        super().zero_grad()
        for p in self.sharded.values():
            p.grad = None

    def as_dtensor(self, name: str, local: torch.Tensor) -> torch.Tensor:
        """A rank's local tensor for a parameter (such as a moment) as a DTensor, sharded like the parameter."""
        p = self.sharded.get(name)
        if p is None:
            return local
        return DTensor.from_local(local, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())


@dataclass(eq=False)
class ShardMember:
    """The weights of one adapter, or of the whole model if all parameters are trained."""

    sharded: dict[str, Any]
    replicated: dict[str, nn.Parameter]
    value_head: nn.Linear | None
    settings: EngineSettings
    dtype: torch.dtype = torch.float32  # compute dtype
    reference: ShardedModel | str | None = None  # a frozen copy of the model, or the name of the frozen adapter
    _weights: ShardedWeights | None = field(default=None, repr=False)

    @property
    def weights(self) -> ShardedWeights:
        """Master weights and optimizer, created on first use, since a policy that only samples needs none."""
        if self._weights is None:
            self._weights = ShardedWeights(self.sharded, self.replicated, self.settings, self.dtype)
        return self._weights

    @property
    def steps(self) -> int:
        return self._weights.steps if self._weights else 0

    def reset(self) -> None:
        self._weights = self.reference = None

    def names(self) -> list[str]:
        return sorted({*self.sharded, *self.replicated})

    def tensor(self, name: str, masters: bool = True) -> torch.Tensor:
        """One trained tensor; a DTensor if it is sharded."""
        if name in self.sharded:
            return self.sharded[name].detach()
        return (self._weights.master[name] if self._weights and masters else self.replicated[name]).detach()

    def gather(self, masters: bool, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """All trained tensors, gathered one at a time; all ranks must iterate. Without `masters`, in the compute dtype."""
        for name in self.names():
            tensor = self.tensor(name, masters)
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            yield name, whole if masters or name not in self.sharded else whole.to(dtype)


def gather_objects(obj: Any) -> list[Any]:
    """`obj` of every rank, in order. A collective: all ranks must call it."""
    objects: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(objects, obj)
    return objects


def tokens_per_micro_batch(ranks: int, lengths: np.ndarray, token_budget: int) -> int:
    """Tokens per micro-batch: at most the budget, and few enough that every rank gets one if there are enough rows."""
    return max(1, min(token_budget, -(-int(lengths.sum()) // ranks)))


def assign_micro_batches(parts: Sequence[np.ndarray], rank: int, ranks: int) -> Iterator[tuple[np.ndarray, bool, bool]]:
    """(rows, whether they count, whether this is the last round) for this rank. Every rank makes equally many passes: in round
    t, rank r of N takes micro-batch t·N + r. If there is none left, it repeats the last one with weight zero, because the
    others cannot gather weights without it."""
    rounds = -(-len(parts) // ranks)
    for t in range(rounds):
        index = t * ranks + rank
        counts = index < len(parts)
        yield parts[index if counts else -1], counts, t == rounds - 1


def out_of_memory_error(what: str, token_budget: int) -> EngineLost:
    """The error if a rank runs out of memory during collective operations; suggests half the token budget."""
    reason = f"out of GPU memory in {what.format(token_budget)} (--engine.token-budget)"
    return EngineLost(reason, {"token_budget": max(1, token_budget // 2)})


class OutOfMemoryOnRanks(torch.OutOfMemoryError):
    """A rank ran out of memory; raised on all ranks."""


class FixedBudget(AdaptiveBudget):
    """For layer-by-layer gathering: no retries, because all ranks must make equally many passes."""

    def run(self, work: Callable[[int], Any], minimum: int, what: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return work(self.current)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise out_of_memory_error(what, self.current) from error


class ShardedUpdater(Updater):
    """Updates on several ranks. Loss terms divide by totals of the whole batch, so gradients of ranks and micro-batches add up
    to that of the batch. All ranks learn of a non-finite loss before any weight changes.

    Out of memory: with whole weights, all ranks learn of it after their passes, drop their gradients and retry with half the
    token budget; with a single row they wait together, if other processes hold the memory. With layer-by-layer gathering a
    rank cannot retry alone: the ranks are lost, and the run resumes from its last checkpoint with half the budget."""

    weights: ShardedWeights

    def __init__(self, sharded: ShardedModel, *rest: Any):
        super().__init__(sharded.model, *rest)
        self.sharded = sharded
        self._micro_batch_tokens = 0  # in the last attempt
        self._ran_out = False  # whether this rank ran out of memory in it

    def plan(self, batch: Batch, losses: Sequence[LossTerm]) -> None:
        """Set a token budget that fits on every rank, if none is planned yet or all ranks have clearly more memory."""
        if not all(gather_objects(self.budget.can_grow)):
            return
        rows = np.flatnonzero([len(completion) for completion in batch.completions])
        if self.sharded.by_layer and len(rows):  # if this does not fit on a rank, the ranks are lost
            try:
                self.sharded.run(lambda: measure_activation_bytes(self, batch, losses, rows))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                what = "trying out an update of few rows, its token_budget {}"
                raise out_of_memory_error(what, self.budget.current) from error
        with self.sharded.reserve_gradients():
            fits = self.sharded.run(lambda: plan_token_budget(self, batch, losses))
        self.sharded.reshard()
        self.budget.set_current(min(gather_objects(fits)))

    def _run_within_budget(self, gradient: Callable[[int], GradientResult], minimum: int) -> GradientResult:
        memory_wait = MemoryWait(self.model.device)
        while True:
            budget = self.budget.current
            try:
                return gradient(budget)
            except OutOfMemoryOnRanks:
                if budget <= minimum and not all(gather_objects(memory_wait.can_help or not self._ran_out)):
                    raise
            # Outside the handler: inside it, the error keeps every tensor of the attempt alive.
            empty_cache(self.model.device)
            if budget > minimum:
                self.budget.set_current(max(minimum, min(budget, self._micro_batch_tokens) // 2))
            else:
                memory_wait.wait("out of GPU memory in an update, of its longest row alone" if self._ran_out else "")

    def accumulate_gradient(
        self, batch: Batch, losses: Sequence[LossTerm], rows: np.ndarray, needs: frozenset[str], token_budget: int
    ) -> GradientResult:
        self.weights.zero_grad()
        rank, ranks = dist.get_rank(), dist.get_world_size()
        prompts = longer_prompts(batch, needs)
        lengths = input_lengths(prompts, batch.completions, self.codec.context_limit)[rows]
        self._micro_batch_tokens = tokens_per_micro_batch(ranks, lengths, token_budget)
        parts = self.model.plan_micro_batches(prompts, batch.completions, rows, self._micro_batch_tokens)
        counted, ignored = LossMetrics(losses, batch.total_tokens), LossMetrics(losses, batch.total_tokens)
        computed = 0
        dropout = bool(self.settings.lora_dropout) and not batch.sampled

        def run_passes() -> None:
            nonlocal computed
            for part, counts, last in assign_micro_batches(parts, rank, ranks):
                packed = self.model.make_micro_batch(batch.prompts, batch.completions, part, self.codec.pad)
                loss_metrics = counted if counts else ignored
                computed += packed.num_tokens if counts else 0

                def loss(packed: Any = packed, loss_metrics: LossMetrics = loss_metrics) -> torch.Tensor:
                    view = self._forward(batch, packed, needs, len(rows))
                    # A term may use nothing of this micro-batch; the ranks must still have gradients for the same weights.
                    return loss_metrics.add(view, batch.sampled) + 0.0 * view.logprobs_T.sum()

                total = self.sharded.run(loss)
                (total if counts else total * 0.0).backward()
                if not last:
                    self.sharded.accumulate_gradients()
                self.weights.accumulate_gradients()

        with training_mode(self.model, self.settings, dropout, derive(self.seed, "dropout", rank, self.weights.steps)):
            self._run_on_all_ranks(run_passes, token_budget)
        self.weights.reduce_gradients()
        statistics = counted.read(self.weights.gradient_norm())
        gathered = gather_objects((statistics, computed))
        # Sums are added, maxima (`max:`) maximized; every rank has the norm of the whole gradient.
        by_name: dict[str, list[float]] = {}
        for rank_statistics, _ in gathered:
            for name, value in rank_statistics.items():
                by_name.setdefault(name, []).append(value)
        reduced = {name: max(values) if name.startswith("max:") else sum(values) for name, values in by_name.items()}
        return counted.metrics({**reduced, "norm": statistics["norm"]}), sum(tokens for _, tokens in gathered)

    def _run_on_all_ranks(self, run_passes: Callable[[], None], token_budget: int) -> None:
        """Run this rank's passes, then reduce gradients; raises on all ranks if any ran out of memory."""
        out_of_memory = ""
        try:
            run_passes()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            out_of_memory = str(error) or "out of GPU memory"
            if self.sharded.by_layer:
                raise out_of_memory_error("an update with a token_budget of {}", token_budget) from error
        self._ran_out = bool(out_of_memory)
        out_of_memory = next(filter(None, gather_objects(out_of_memory)), "")
        if out_of_memory:
            empty_cache(self.model.device)
        self.sharded.reduce_gradients()  # also if they are dropped: FSDP must not keep them
        if out_of_memory:
            self.weights.zero_grad()
            raise OutOfMemoryOnRanks(out_of_memory)
