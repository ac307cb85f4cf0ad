"""What the driver and a server say to each other. Light: nothing heavy is imported, and nothing but plain data travels, since
a server may run in another interpreter."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.core.protocols import Sampling


@dataclass(frozen=True)
class Opening:
    """What a server is told first."""

    checkpoint: str
    device: str
    dtype: str
    context: int
    """longest prompt plus completion, in tokens"""
    max_batch: int
    end_tokens: tuple[int, ...]
    lora_rank: int
    """of adapters; 0: all parameters are trained, and the weights themselves are handed over"""
    memory: float
    """share of the GPU's memory that it may take"""


@dataclass(frozen=True)
class Order:
    """One completion to be written."""

    ticket: int
    member: str
    prompt: tuple[int, ...]
    seed: int
    max_tokens: int
    sampling: Sampling


@dataclass(frozen=True)
class Delivery:
    """A completion that was written, by one version of the weights from its first token to its last."""

    ticket: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool
    version: int
