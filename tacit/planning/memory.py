"""What lies in the memory of a rank and of a server, in bytes. P weights, R ranks, A weights of adapters, b bytes of a number
in use; D, F, H, d, L as in `ModelShape`.

A rank that trains all weights (FSDP2 as engines/sharded has it; one rank is what the local engine holds):

    weights + gradients + moments   (4 + 4 + 2m)·P / R         float32, m bytes of a moment
    gathered, whole                 (2b + 8)·P                 weights in use, gradients, their sum, what is sent of it
    gathered, layer by layer        2·(b + 4)·layer + b·V·D·(1 or 2)
    with adapters                   b·P / R + (b + 4 + 4 + 2m)·A, gathered b·P or 2·b·layer + …
    activations                     tokens · L·(4·D + 5·H·d + 4·F)·b, or with recompute tokens · L·D·b + those of one layer
    logits                          3 · 4 · min(tokens · V, 2²⁷)   in chunks, with their gradient

A server: b·P / g on each of its g devices, and b·2·L·K·d / g for every token that a row has in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tacit.planning.devices import Device
from tacit.planning.shapes import ModelShape

WHOLE_UP_TO, WHOLE_SHARE = 1e9, 0.125
"""weights of a model that `gather = auto` takes whole on CPUs, and the share of a GPU that they may take with their gradients:
as engines/sharded does"""
LOGIT_ELEMENTS = {True: 1 << 23, False: 1 << 27}
"""most logits held at once, on a CPU and on a GPU"""
USABLE = 0.92
"""share of a device's memory that allocations reach before fragments stop them"""


@dataclass(frozen=True)
class Training:
    """How the weights are trained."""

    lora_rank: int = 0
    """0 trains all weights"""
    recompute: bool = False
    """gradient_checkpointing"""
    gather: Literal["auto", "layer", "whole"] = "auto"
    moment_bytes: int = 4
    """of each of AdamW's two moments; 2 in bfloat16"""
    reference: bool = False
    """a frozen copy of all weights is kept, for a KL penalty; adapters are their own reference"""

    def by_layer(self, shape: ModelShape, device: Device) -> bool:
        b, most = device.number_bytes, WHOLE_SHARE * device.memory
        whole = (b if self.lora_rank else 2 * b + 8) * shape.weights
        large = shape.weights > WHOLE_UP_TO if device.name == "cpu" else whole > most
        return self.gather == "layer" or (self.gather == "auto" and large)


def rank_state(shape: ModelShape, device: Device, ranks: int, training: Training, samples: bool = False) -> dict[str, float]:
    """What lies on a rank whatever the batch, by name. `samples`: there are no servers, and the driver's own copy of the
    weights, from which it samples, lies beside the first of several ranks."""
    own, b, m = shape.weights / ranks, device.number_bytes, training.moment_bytes
    roots = b * shape.vocabulary * shape.width * (1 if shape.tied else 2)
    if training.lora_rank:
        adapters = shape.lora_weights(training.lora_rank)
        gathered = 2 * b * shape.layer_weights + roots if training.by_layer(shape, device) else b * shape.weights
        parts = {
            "weights": b * own + (b + 4) * adapters,
            "gradients": 4 * adapters,
            "optimiser": 2 * m * adapters,
            "gathered": gathered if ranks > 1 else 0.0,
        }
    else:
        layers = 2 * (b + 4) * shape.layer_weights + roots
        # On one rank nothing is gathered, but the weights in use are a copy of the float32 ones where b is 2.
        alone = (2 * b if b < 4 else 0.0) * shape.weights
        whole = (2 * b + 8) * shape.weights if ranks > 1 else alone
        parts = {
            "weights": 4 * own,
            "gradients": 4 * own,
            "optimiser": 2 * m * own,
            "gathered": layers if training.by_layer(shape, device) and ranks > 1 else whole,
            "reference": 4 * own if training.reference else 0.0,
        }
    copy = b * shape.weights if samples and ranks > 1 else 0.0
    return {**parts, "driver's copy": copy, "runtime": device.overhead}


def activation_bytes(shape: ModelShape, device: Device, recompute: bool) -> float:
    """Of one token that is trained on, kept from the pass forward for the pass back."""
    layer = (4 * shape.width + 5 * shape.heads * shape.head_dim + 4 * shape.inner) * device.number_bytes
    return shape.layers * shape.width * device.number_bytes + layer if recompute else shape.layers * layer


def logit_bytes(shape: ModelShape, device: Device, tokens: float) -> float:
    return 3 * 4 * min(tokens * shape.vocabulary, LOGIT_ELEMENTS[device.name == "cpu"])


def rank_memory(
    shape: ModelShape, device: Device, ranks: int, training: Training, micro_tokens: float, samples: bool = False
) -> dict[str, float]:
    """All of it with `micro_tokens` in one pass."""
    return {
        **rank_state(shape, device, ranks, training, samples),
        "activations": micro_tokens * activation_bytes(shape, device, training.recompute),
        "logits": logit_bytes(shape, device, micro_tokens),
    }


def most_micro_tokens(shape: ModelShape, device: Device, ranks: int, training: Training, samples: bool = False) -> float:
    """Tokens of one pass that fit beside the rest; below 0 where the rest does not fit."""
    state = total(rank_state(shape, device, ranks, training, samples))
    room = USABLE * device.memory - state - logit_bytes(shape, device, 1e9)
    return room / activation_bytes(shape, device, training.recompute)


def server_weights(shape: ModelShape, device: Device, devices: int = 1) -> float:
    """On each of a server's devices."""
    return device.number_bytes * shape.weights / devices


def rows_that_fit(shape: ModelShape, device: Device, row_tokens: float, devices: int = 1) -> int:
    """Rows of so many tokens that a server can write at a time; 0 where its weights alone do not fit."""
    room = USABLE * device.memory - device.overhead - server_weights(shape, device, devices)
    return max(0, int(room / (row_tokens * shape.cache_bytes(device.number_bytes) / devices)))


def devices_of_a_server(shape: ModelShape, device: Device, row_tokens: float, most: int) -> int:
    """The least power of two of devices on which a server has room for weights and at least 16 rows; 0 where even `most` do
    not do."""
    devices = 1
    while devices <= most:
        if rows_that_fit(shape, device, row_tokens, devices) >= 16:
            return devices
        devices *= 2
    return 0


def total(parts: Mapping[str, float]) -> float:
    return sum(parts.values())
