"""One model in shards: every weight is cut along its first dimension, and gathered for as long as a pass reads it (FSDP2).

Whatever reads weights runs inside `Sharded.run`, where they are whole: passes, heads and losses are those of the local engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from tacit.core.errors import TacitError
from tacit.engines.local.passes.models import LanguageModel, load_pretrained
from tacit.engines.sharded.settings import ShardedSettings

WHOLE_UP_TO = 1_000_000_000
"""weights of a model that `gather = auto` takes whole"""

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
        self.by_layer = settings.gather == "layer" or (settings.gather == "auto" and weights > WHOLE_UP_TO)
        if settings.gradient_checkpointing:
            self.hf.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.model = LanguageModel(self.hf, lean=not (self.by_layer or settings.gradient_checkpointing))
        self._root = _Root(self.hf)
        rounded = (
            MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32) if kept != dtype else MixedPrecisionPolicy()
        )
        for module in (*(_layers(self.hf) if self.by_layer else ()), self._root):
            fully_shard(module, mesh=mesh, mp_policy=rounded)
        for module in self._modules():
            # Losses are sums over totals of the whole batch: the gradients of the ranks are added, not averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other sum
        self.model.device = device
        self.parameters: dict[str, nn.Parameter] = dict(self.hf.named_parameters())
        """in shards, as long as no pass has them gathered"""

    def run(self, work: Callable[[], Answer]) -> Answer:
        """Do what reads weights. All ranks must, with as many passes each."""
        return self._root(work)

    def let_go(self) -> None:
        """After passes without a gradient, which leave gathered what the next one would need."""
        for module in self._modules():
            module.reshard()

    def sync_gradients(self, last: bool) -> None:
        """Whether the next backward pass adds up the gradients of all ranks, or keeps them until the last one does. Whole
        gradients of a model that is gathered layer by layer are not kept."""
        if not self.by_layer:
            root: Any = self._root
            root.set_requires_gradient_sync(last)
            root.set_reshard_after_backward(last)

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
