"""Settings of the local engine. Importing this file imports no torch, so `--help` stays quick."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tacit.core.errors import TacitError
from tacit.core.protocols import CAPABILITIES, VALUES, Engine, ModelSource, Policy

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class EngineSettings:
    """How the local engine holds a model, trains it and samples from it."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where the model lives; auto takes a GPU where there is one"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """number format of the weights in use; auto is float32 on CPU and bfloat16 on a GPU (trained in float32 either way)"""
    threads: int = 0
    """CPU threads; 0 takes OMP_NUM_THREADS where it is set, else the CPUs this process may use"""
    lora_rank: int = 0
    """rank of the LoRA adapters; 0 trains all parameters"""
    lora_alpha: float = 0.0
    """scale of the LoRA adapters; 0 is twice the rank"""
    lora_dropout: float = 0.0
    """dropout on the LoRA input while imitating; off in practice, where ratios are taken against what the sampler saw. Its
    masks are drawn pass by pass: above 0, and only then, a gradient depends on how its batch is cut (token_budget, ranks)"""
    lora_targets: tuple[str, ...] = PROJECTIONS
    """modules that get a LoRA adapter"""
    token_budget: int = 0
    """most tokens in one pass; 0 is 2,048 on CPU, on a GPU 65,536 or, in an update, what two fifths of what is free hold"""
    max_batch: int = 256
    """most sequences sampled at once"""
    clip_norm: float = 1.0
    """largest global norm of the gradient; 0 does not clip"""
    weight_decay: float = 0.01
    """AdamW weight decay on matrices; vectors (norms, biases) have none"""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW moment decays"""
    value_head: bool = False
    """add a linear value head on the last hidden state of the prompt, as PPO needs"""
    compile: bool = False
    """on a GPU compile all that lies between two attentions as one (torch.compile), for passes that wait for the host; of an
    architecture that has no lean pass here the whole decoder, wherever it runs: minutes of warm-up"""
    repeatable: bool = False
    """on a GPU: sums in a fixed order, so that a run again has the same bits there; give token_budget too. Some slower"""
    gradient_checkpointing: bool = False
    """recompute activations in the backward pass: less memory, about a third more time"""

    def __post_init__(self) -> None:
        for name in ("threads", "lora_rank", "lora_alpha", "token_budget", "clip_norm", "weight_decay"):
            if getattr(self, name) < 0:
                raise TacitError(f"engine setting {name} = {getattr(self, name)} must not be negative.")
        if self.max_batch < 1:
            raise TacitError(f"engine setting max_batch = {self.max_batch} must be at least 1.")
        if not 0.0 <= self.lora_dropout < 1.0:
            raise TacitError(f"engine setting lora_dropout = {self.lora_dropout} must be in [0, 1).")
        if len(self.betas) != 2 or not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise TacitError(f"engine setting betas = {self.betas} must be two numbers in [0, 1).")
        if self.lora_rank and not self.lora_targets:
            raise TacitError("engine setting lora_targets is empty: name at least one module, or set lora_rank to 0.")
        for name, choices in (("device", ("auto", "cpu", "cuda")), ("dtype", ("auto", "float32", "bfloat16"))):
            if getattr(self, name) not in choices:
                raise TacitError(f"engine setting {name} = {getattr(self, name)!r} must be one of {', '.join(choices)}.")


# The local engine, as it is found by name. No torch is imported here.


def _load(model: ModelSource, settings: EngineSettings) -> Policy:
    from tacit.engines.local.policy import load_policy

    return load_policy(model.name, settings, model.seed, world_texts=model.texts, tiny=model.sizes)


def with_value_head(settings: EngineSettings, needs: frozenset[str]) -> tuple[EngineSettings, tuple[str, ...]]:
    """A method that learns a value needs a head for it."""
    if VALUES not in needs or settings.value_head:
        return settings, ()
    return replace(settings, value_head=True), ("the method learns a value, so engine.value_head = true",)


ENGINE = Engine(
    name="local",
    summary="transformers and peft in this process, on CPU or one GPU",
    capabilities=frozenset(CAPABILITIES),
    settings=EngineSettings,
    load=_load,
    fit=with_value_head,
    can_pin_weights=lambda settings: False,
)
