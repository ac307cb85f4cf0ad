"""Settings and registration of the local engine. No torch import here, so `--help` stays quick."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tacit.core.bounds import Basic
from tacit.core.errors import TacitError
from tacit.core.protocols import VALUES

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


MAX_RANK = 4096
"""of a LoRA adapter; files of strangers name ranks too"""


@dataclass(frozen=True)
class EngineSettings:
    """How the local engine loads, trains and samples a model."""

    device: Basic[Literal["auto", "cpu", "cuda"]] = "auto"
    """device of the model; auto uses a GPU if there is one"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """dtype of the weights; auto is float32 on CPU and bfloat16 on a GPU (with float32 master weights)"""
    threads: int = 0
    """CPU threads; 0 uses OMP_NUM_THREADS if set, else the CPUs this process may use"""
    lora_rank: Basic[int] = 0
    """rank of the LoRA adapters; 0 trains all parameters"""
    lora_alpha: float = 0.0
    """alpha of the LoRA adapters; 0 is twice the rank"""
    lora_dropout: float = 0.0
    """dropout on the LoRA input during imitation; off in RL training. Above 0, gradients depend on how a batch is split into
    micro-batches (token_budget, ranks), because masks are drawn per forward pass"""
    lora_targets: tuple[str, ...] = PROJECTIONS
    """modules that get a LoRA adapter"""
    token_budget: Basic[int] = 0
    """most tokens per micro-batch; 0 is 2,048 on CPU, 65,536 on a GPU (an update uses at most two fifths of the free memory)"""
    max_batch: int = 256
    """most sequences sampled at once"""
    clip_norm: float = 1.0
    """clip the global gradient norm to this; 0 does not clip"""
    weight_decay: float = 0.01
    """AdamW weight decay on matrices; vectors (norms, biases) have none"""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW moment decays"""
    value_head: bool = False
    """add a linear value head on the last hidden state of the prompt (for PPO)"""
    repeatable: bool = False
    """deterministic GPU algorithms: a repeated run gives the same bits, somewhat slower; set token_budget too"""
    gradient_checkpointing: bool = False
    """recompute activations in the backward pass: less memory, about a third slower"""
    fast: Literal["auto", "off"] = "auto"
    """off uses plain torch and transformers everywhere: no Triton kernels, packed passes, compiled regions or CUDA graphs;
    slower, for debugging and comparison"""

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
        if self.lora_rank > MAX_RANK:
            raise TacitError(f"engine setting lora_rank = {self.lora_rank} must be at most {MAX_RANK}.")
        if self.lora_rank and not self.lora_targets:
            raise TacitError("engine setting lora_targets is empty: name at least one module, or set lora_rank to 0.")
        names = {"device": ("auto", "cpu", "cuda"), "dtype": ("auto", "float32", "bfloat16"), "fast": ("auto", "off")}
        for name, choices in names.items():
            if getattr(self, name) not in choices:
                raise TacitError(f"engine setting {name} = {getattr(self, name)!r} must be one of {', '.join(choices)}.")


def with_value_head(settings: EngineSettings, needs: frozenset[str]) -> tuple[EngineSettings, tuple[str, ...]]:
    """Turn on `value_head` for methods that learn a value function."""
    if VALUES not in needs or settings.value_head:
        return settings, ()
    return replace(settings, value_head=True), ("the method learns a value, so engine.value_head = true",)
