"""Seconds of the parts of an iteration. P weights that a token is multiplied with, R ranks, S servers of B rows each; p and c
tokens of a turn's prompt and completion, T turns, w seconds of the world.

    a decode step    b·P / (β·η_w) + B·(x·cache + logits) / (β·η_c) + L·t_layer + B·t_row, or where it is more 2·P·B / (π·η) + …
    a turn           B·p / prefill + c·step(B) + w
    rollout          waves · T · turn, where all episodes are alike and the rows of a server in step; at least the turns of the
                     longest episode, one row a server, and N·T·h, where the one process that drives takes h for a turn
    update           N·(6·P + 6·L·H·d·x) / (R·π·η(D)), 8 with recompute, 4 with adapters; what ranks send each other beside it
    push             b·P / network              a pipelined broadcast, however many servers
    iteration        rollout + update + push, or with overlap k ≥ 1 the longer of rollout and update, and push

π, β: peak and bandwidth of the device; η: shares that were reached (`devices.Reached`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tacit.planning.shapes import Device, ModelShape, Reached
from tacit.planning.workload import Workload

# What lies in the memory of a rank and of a server, in bytes. P weights, R ranks, A weights of adapters, b bytes of a number
# in use; D, F, H, d, L as in `ModelShape`.
#
# A rank that trains all weights (FSDP2 as engines/sharded has it; one rank is what the local engine holds):
#
#     weights + gradients + moments   (4 + 4 + 2m)·P / R         float32, m bytes of a moment
#     gathered, whole                 (2b + 8)·P                 weights in use, gradients, their sum, what is sent of it
#     gathered, layer by layer        2·(b + 4)·layer + b·V·D·(1 or 2)
#     with adapters                   b·P / R + (b + 4 + 4 + 2m)·A, gathered b·P or 2·b·layer + …
#     activations                     tokens · L·(4·D + 5·H·d + 4·F)·b, or with recompute tokens · L·D·b + those of one layer
#     logits                          3 · 4 · min(tokens · V, 2²⁷)   in chunks, with their gradient
#
# A server: b·P / g on each of its g devices, and b·2·L·K·d / g for every token that a row has in the cache.

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


SUM_S = 12e-6
"""of one sum over the devices of a server, however small: our estimate for NVLink"""
LOGIT_BYTES = 20
"""traffic for each logit of a decode step: written, widened, its softmax, the noise, the choice"""


@dataclass(frozen=True)
class Network:
    """Between machines."""

    bandwidth: float = 50e9
    """bytes a second of each device's own link, one way: 400 Gb/s"""
    per_machine: int = 8
    """devices of one machine, which reach each other by its own links"""
    transport: Literal["nccl", "file"] = "nccl"
    """how weights get to servers: sent by the network, or as a file on shared storage"""
    storage: float = 5e9
    """bytes a second that the shared storage gives, all readers together"""

    def between(self, device: Device, ranks: int) -> float:
        """bytes a second that each of so many ranks sends to its neighbour in a ring"""
        return device.link if ranks <= self.per_machine else min(device.link, self.bandwidth)


@dataclass(frozen=True)
class Server:
    """How fast one server is, as functions of its rows: all that a simulation needs of it. A decode step takes the longer of
    reading (`fixed_s`, `row_s`) and computing (`compute_fixed_s`, `compute_s`)."""

    prefill_rate: float
    """prompt tokens a second: π·η / 2·P"""
    fixed_s: float
    """of a decode step, whatever its rows"""
    row_s: float
    """of a decode step, for each row"""
    compute_s: float
    """for each row, where arithmetic and not memory is the limit"""
    compute_fixed_s: float
    slots: int
    """most rows"""

    def step_s(self, rows: int) -> float:
        return max(self.fixed_s + self.row_s * rows, self.compute_fixed_s + self.compute_s * rows) if rows else 0.0

    def turn_s(self, rows: int, prompt: float, completion: float) -> float:
        """Of `rows` rows in step: their prompts one after the other, then their completions together."""
        return rows * prompt / self.prefill_rate + completion * self.step_s(rows)


def server(shape: ModelShape, device: Device, reached: Reached, context: float, slots: int, devices: int = 1) -> Server:
    b = device.number_bytes
    sums = 2 * shape.layers if devices > 1 else 0  # two sums over a server's devices in each layer
    sent = sums * 2 * (devices - 1) / devices * shape.width * b / device.link
    weights = b * shape.pass_weights / devices / (device.bandwidth * reached.weights)
    traffic = (context * shape.cache_bytes(b) + shape.vocabulary * LOGIT_BYTES) / devices / (device.bandwidth * reached.cache)
    launches = shape.layers * reached.layer_s + sums * SUM_S
    computing = 2 * shape.pass_weights / (devices * device.peak * reached.prefill_share(shape.width))
    row = reached.row_s + sent
    return Server(1 / (computing + sent), weights + launches, traffic + row, computing + row, launches, max(1, slots))


def rollout_s(work: Workload, one: Server, servers: int) -> float:
    """Were all episodes alike and each server's rows in step: waves · T · (B·p / prefill + c·step(B) + w). At least what the
    longest episode takes with a server to itself, and what the driver takes for all turns; where the driver samples itself
    (no servers), that comes on top."""
    rows = math.ceil(work.episodes / max(1, servers))
    waves = math.ceil(rows / one.slots)
    together = math.ceil(rows / waves)
    served = waves * work.turns * (one.turn_s(together, work.prompt, work.completion) + work.world_s)
    alone = work.longest_of_all * (one.turn_s(1, work.prompt, work.completion) + work.world_s)
    longest = max(served, alone)
    return max(longest, driving_s(work)) if servers else longest + driving_s(work)


def driving_s(work: Workload) -> float:
    """The driver's part of a rollout, one turn after the other."""
    return work.episodes * work.turns * work.driver_s


def update_s(
    shape: ModelShape,
    device: Device,
    reached: Reached,
    ranks: int,
    work: Workload,
    training: Training,
    micro_tokens: float,
    network: Network,
    scorings: int = 0,
) -> dict[str, float]:
    """By part: computing, what ranks send, and the optimiser's own pass. `scorings` are passes forward beside the update's own:
    a reference, a skill."""
    context = work.prompt + work.completion
    operations = (4 if training.lora_rank else 6) + (2 if training.recompute else 0) + 2 * scorings
    attention = shape.layers * shape.heads * shape.head_dim * context
    computing = work.tokens * operations * (shape.pass_weights + attention)
    computing /= ranks * device.peak * reached.learning_share(shape.width)
    if ranks == 1:
        sending = 0.0
    else:
        b, lora = device.number_bytes, training.lora_rank
        passes = max(1, math.ceil(work.tokens / (ranks * micro_tokens)))
        gathers = 2 * passes if training.by_layer(shape, device) else 1
        sums = 0 if lora else passes if training.by_layer(shape, device) else 1
        sent = gathers * b * shape.weights + sums * 4 * shape.weights + (8 * shape.lora_weights(lora) if lora else 0)
        sending = sent * (ranks - 1) / ranks / network.between(device, ranks)
    moved = shape.lora_weights(training.lora_rank) if training.lora_rank else shape.weights / ranks
    return {"computing": computing, "sending": sending, "optimiser": moved * 32 / device.bandwidth}


def together_s(parts: dict[str, float], by_layer: bool) -> float:
    """Layer by layer the next weights come while the last are computed with; whole, everybody waits for them."""
    busy = max(parts["computing"], parts["sending"]) if by_layer else parts["computing"] + parts["sending"]
    return busy + parts["optimiser"]


def push_s(shape: ModelShape, device: Device, training: Training, network: Network, servers: int) -> float:
    """All weights, or the adapter alone, from ranks to servers."""
    if not servers:
        return 0.0
    moved = device.number_bytes * (shape.lora_weights(training.lora_rank) if training.lora_rank else shape.weights)
    if network.transport == "file":
        return moved * (1 + servers) / network.storage
    return moved / network.bandwidth


def iteration_s(rollout: float, update: float, push: float, overlap: int) -> float:
    """k = 0: one after the other. k ≥ 1: the next rollout is under way during the update, and the longer decides."""
    return (rollout + update if overlap == 0 else max(rollout, update)) + push
