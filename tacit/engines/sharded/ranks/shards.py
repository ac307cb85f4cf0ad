"""One model in shards: every weight is cut along its first dimension, and gathered for as long as a pass reads it (FSDP2).

Whatever reads weights runs inside `Sharded.run`, where they are whole: passes, heads and losses are those of the local engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from tacit.core.errors import EngineLost, TacitError
from tacit.engines.local.memory import ran_out
from tacit.engines.local.passes.models import LanguageModel, load_pretrained
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
        with torch.no_grad():
            self.model = self._root(lambda: LanguageModel(self.hf, lean=lean))
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
            if not ran_out(error):
                raise
            lost = EngineLost("out of GPU memory for the whole weights at once (--engine.gather)")
            lost.settings = {"gather": "layer"}
            raise lost from error
        return work()

    def let_go(self) -> None:
        """After passes without a gradient, which leave gathered what the next one would need."""
        for module in self._modules():
            module.reshard()

    def collect(self) -> None:
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
