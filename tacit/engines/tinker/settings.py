"""How a service that speaks the Tinker API is asked."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.core.bounds import AtLeastOne, NotNegative, Positive
from tacit.core.errors import TacitError


@dataclass(frozen=True)
class TinkerSettings:
    url: str = ""
    """its address; empty is the client's own: TINKER_BASE_URL, or the hosted service"""
    key_variable: str = "TINKER_API_KEY"
    """environment variable that holds the key"""
    lora_rank: AtLeastOne = 32
    """rank of the adapters: the API trains nothing else"""
    tokenizer: str = ""
    """directory or hub id of the tokenizer, where the client cannot find the model's"""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW moment decays"""
    weight_decay: NotNegative = 0.01
    """AdamW weight decay"""
    clip_norm: NotNegative = 1.0
    """largest global norm of the gradient; 0 does not clip"""
    context: AtLeastOne = 32_768
    """longest prompt plus completion, where neither the service nor the tokenizer says less"""
    timeout_s: Positive = 1800.0
    """how long one answer may take"""
    probe: bool = True
    """at connection, make sure that ten times the loss gives ten times the gradient; takes an adapter of its own for a
    moment"""

    def __post_init__(self) -> None:
        if self.lora_rank < 1:
            raise TacitError(
                f"engine setting lora_rank = {self.lora_rank}: the Tinker API trains adapters only; give a rank of at least 1."
            )
        if len(self.betas) != 2 or not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise TacitError(f"engine setting betas = {self.betas} must be two numbers in [0, 1).")
