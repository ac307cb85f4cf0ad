"""Settings and registration of the local engine. No torch import here, so `--help` stays quick."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

from tacit.core.bounds import AtLeastOne, Basic, Bound, Count, NotNegative, check_bounds
from tacit.core.errors import TacitError
from tacit.core.protocols import VALUES

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MAX_RANK = 4096
"""maximum rank of a LoRA adapter, since untrusted files can set ranks too"""
LoraRank = Annotated[Count, Bound(lambda v: v <= MAX_RANK, f"must be at most {MAX_RANK}")]


@dataclass(frozen=True)
class EngineSettings:
    """How the local engine loads, trains and samples a model."""

    device: Basic[Literal["auto", "cpu", "cuda"]] = "auto"
    """device of the model; auto uses a GPU if there is one"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """dtype of the weights; auto is float32 on CPU and bfloat16 on a GPU (with float32 master weights)"""
    threads: Count = 0
    """CPU threads; 0 uses OMP_NUM_THREADS if set, else the CPUs this process may use"""
    lora_rank: Basic[LoraRank] = 0
    """rank of the LoRA adapters; 0 trains all parameters"""
    lora_alpha: NotNegative = 0.0
    """alpha of the LoRA adapters; 0 is twice the rank"""
    lora_dropout: Annotated[float, Bound(lambda v: 0 <= v < 1, "must be in [0, 1)")] = 0.0
    """dropout on the LoRA input during imitation; off in RL training. Above 0, gradients depend on how a batch is split into
    micro-batches (token_budget, ranks), because masks are drawn per forward pass"""
    lora_targets: tuple[str, ...] = PROJECTIONS
    """modules that get a LoRA adapter"""
    token_budget: Basic[Count] = 0
    """maximum tokens per micro-batch; 0 is 2,048 on CPU, 65,536 on a GPU (an update uses at most two fifths of free memory)"""
    max_batch: AtLeastOne = 256
    """maximum sequences sampled at once"""
    clip_norm: NotNegative = 1.0
    """clip the global gradient norm to this; 0 does not clip"""
    weight_decay: NotNegative = 0.01
    """AdamW weight decay on matrices; vectors (norms, biases) are not decayed"""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW moment decays"""
    value_head: bool = False
    """add a linear value head on the last hidden state of the prompt (for PPO)"""
    repeatable: bool = False
    """use deterministic GPU algorithms, so that runs repeat bit for bit; somewhat slower; set token_budget too"""
    gradient_checkpointing: bool = False
    """recompute activations in the backward pass: less memory, about a third slower"""
    fast: Literal["auto", "off"] = "auto"
    """off uses plain torch and transformers: no Triton kernels, packed passes, compiled regions or CUDA graphs; slower, for
    debugging and comparison"""

    def __post_init__(self) -> None:
        check_bounds(self, "engine setting ")
        check_betas(self.betas)
        if self.lora_rank and not self.lora_targets:
            raise TacitError("engine setting lora_targets is empty: name at least one module, or set lora_rank to 0.")
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal and getattr(self, name) not in (choices := get_args(hint)):
                raise TacitError(f"engine setting {name} = {getattr(self, name)!r} must be one of {', '.join(choices)}.")


def check_betas(betas: tuple[float, float]) -> None:
    if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
        raise TacitError(f"engine setting betas = {betas} must be two numbers in [0, 1).")


def with_value_head(settings: EngineSettings, needs: frozenset[str]) -> tuple[EngineSettings, tuple[str, ...]]:
    """Turn on `value_head` for methods that learn a value function."""
    if VALUES not in needs or settings.value_head:
        return settings, ()
    return replace(settings, value_head=True), ("the method learns a value, so engine.value_head = true",)
