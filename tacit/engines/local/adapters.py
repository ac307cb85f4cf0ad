"""Named LoRA adapters on one base model, each initialized from its own seed."""

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
    """The LoRA adapters of one model. At most one is active. `on_switch` is called when the active adapter changes."""

    def __init__(self, hf: Any, settings: EngineSettings, seed: int, on_switch: Callable[[], None]):
        self.hf, self.settings, self.seed, self._on_switch = hf, settings, seed, on_switch
        self.names: list[str] = []
        self.peft: Any = None
        self._active: str | None = None
        self.add(MAIN)

    def add(self, name: str) -> None:
        """Create an adapter with B = 0, so it has no effect yet, unless it exists. Its seed depends on its name only."""
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
                # In the base model's dtype: MasterWeights holds the float32 copies.
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
        self._active = ""  # peft may have activated it, so activate explicitly on the next use

    def remove(self, name: str) -> None:
        if self._active == name:
            self.activate(MAIN)
        self.peft.delete_adapter(name)
        self.names.remove(name)
        self._active = ""

    def activate(self, name: str | None) -> None:
        """Activate this adapter; None activates the bare base model."""
        if name == self._active:
            return
        if name is None:
            self.peft.base_model.disable_adapter_layers()
        else:
            self.peft.base_model.enable_adapter_layers()
            self.peft.set_adapter(name)
        self._active = name
        self._on_switch()

    def parameters(self, name: str) -> dict[str, nn.Parameter]:
        mark = f".{name}."
        return {n: p for n, p in self.hf.named_parameters() if ".lora_" in n and mark in n}

    @torch.no_grad()
    def copy(self, source: str, target: str) -> None:
        """Copy the weights of `source` to `target`, which is created if needed."""
        self.add(target)
        theirs = self.parameters(target)
        for name, parameter in self.parameters(source).items():
            theirs[name.replace(f".{source}.", f".{target}.")].copy_(parameter)
        if self._active in (target, ""):
            self._on_switch()
