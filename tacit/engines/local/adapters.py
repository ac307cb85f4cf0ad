"""Named LoRA adapters on one base: made deterministically, switched only when another one is wanted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tacit.core.errors import TacitError
from tacit.core.seeds import derive
from tacit.engines.local.settings import EngineSettings

MAIN = "default"
"""the adapter a policy starts with"""
FROZEN_SUFFIX = "--frozen"
"""suffix of the adapter that holds the frozen reference of another"""


class LoraAdapters:
    """The LoRA adapters inside one model. One is active at a time, or none."""

    def __init__(self, hf: Any, settings: EngineSettings, seed: int, switched: Callable[[], None]):
        self.hf, self.settings, self.seed, self._switched = hf, settings, seed, switched
        self.names: list[str] = []
        self.peft: Any = None
        self._active: str | None = None
        self.make(MAIN)

    def make(self, name: str) -> None:
        """A new adapter that changes nothing yet (its B matrices are zero); a seed of its own, so that order does not
        matter."""
        import peft

        if name in self.names:
            return
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise TacitError(f"adapter name {name!r} may only have letters, digits, '-' and '_'.")
        rank = self.settings.lora_rank
        config = peft.LoraConfig(
            r=rank,
            lora_alpha=self.settings.lora_alpha or 2 * rank,  # type: ignore[arg-type]
            lora_dropout=self.settings.lora_dropout,
            target_modules=list(self.settings.lora_targets),
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.seed, "adapter", name))
            try:
                # Adapters in the base's own format: the float32 masters of TrainedWeights keep the precision.
                if self.peft is None:
                    self.peft = peft.get_peft_model(self.hf, config, adapter_name=name, autocast_adapter_dtype=False)
                else:
                    self.peft.add_adapter(name, config, autocast_adapter_dtype=False)
            except ValueError as error:
                linear = {n.rsplit(".", 1)[-1] for n, m in self.hf.named_modules() if isinstance(m, nn.Linear)}
                raise TacitError(
                    f"cannot put a LoRA adapter on {', '.join(self.settings.lora_targets)}: {error} "
                    f"Linear modules of this model: {', '.join(sorted(linear))}."
                ) from error
        self.peft.eval()
        self.names.append(name)
        self._active = ""  # adding an adapter may have moved the switch: set it anew on the next use

    def drop(self, name: str) -> None:
        """Take an adapter off the model and give up its memory."""
        self.peft.delete_adapter(name)
        self.names.remove(name)
        self._active = ""

    def activate(self, name: str | None) -> None:
        """Make this adapter the active one, or none: the bare base."""
        if name == self._active:
            return
        if name is None:
            self.peft.base_model.disable_adapter_layers()
        else:
            self.peft.base_model.enable_adapter_layers()
            self.peft.set_adapter(name)
        self._active = name
        self._switched()

    def parameters(self, name: str) -> dict[str, nn.Parameter]:
        mark = f".{name}."
        return {n: p for n, p in self.hf.named_parameters() if ".lora_" in n and mark in n}

    @torch.no_grad()
    def copy(self, source: str, target: str) -> None:
        """Make `target` (on first use) and give it the weights of `source`."""
        self.make(target)
        theirs = self.parameters(target)
        for name, parameter in self.parameters(source).items():
            theirs[name.replace(f".{source}.", f".{target}.")].copy_(parameter)
        if self._active in (target, ""):
            self._switched()
