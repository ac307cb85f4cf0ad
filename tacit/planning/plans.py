"""The workload of an iteration, and the memory and time of its parts. docs/guides/planning.md has the equations.

P weights, A of them in adapters, R ranks, b bytes per number, L layers of width D (`ModelShape`); servers with B rows; p and c
tokens of a turn's prompt and completion, T turns, w seconds per world step; π and β peak and bandwidth of the device; η
achieved shares of them (`Efficiency`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from tacit.core.errors import TacitError
from tacit.planning.shapes import DEVICES, SAMPLERS, Device, Efficiency, ModelShape, shape_of_config


@dataclass(frozen=True)
class Workload:
    """The episodes of one iteration."""

    episodes: int
    turns: float  # mean per episode
    prompt: float  # mean tokens per turn
    completion: float  # mean tokens per turn
    longest_row: int  # maximum tokens of one turn, prompt and completion
    longest_episode: int  # turns
    longest_of_all: int  # expected turns of the longest of N = `episodes` episodes: the quantile 1 − 1/N
    world_s: float = 0.0  # seconds of one world step
    driver_s: float = 0.0  # seconds of the driver per turn: render and encode the prompt, parse the answer
    source: str = "as given"  # where the numbers come from

    @classmethod
    def measured(cls, episodes: int, played: Sequence[np.ndarray], world_s: float = 0.0, source: str = "as given") -> Workload:
        """A workload of episodes distributed as in `played`: per episode [T, 2] prompt and completion tokens of its turns."""
        if episodes < 1 or not played or not all(map(len, played)):
            raise TacitError(
                f"nothing to plan: {episodes} episodes, {len(played)} measured; give at least one of each, with a turn."
            )
        turns_E, rows = [len(own) for own in played], np.concatenate(list(played))
        prompt, completion = rows.mean(0).tolist()
        longest = int(np.quantile(turns_E, 1 - 1 / episodes, method="higher"))
        row = int(rows.sum(1).max())
        return cls(episodes, len(rows) / len(played), prompt, completion, row, max(turns_E), longest, world_s, source=source)

    @property
    def tokens(self) -> float:
        """prompt and completion tokens of an iteration, without prefix sharing"""
        return self.episodes * self.turns * (self.prompt + self.completion)

    @property
    def driving_s(self) -> float:
        return self.episodes * self.turns * self.driver_s

    def scale(self, turns: float = 0.0, prompt: float = 0.0, completion: float = 0.0, most_turns: int = 0) -> Workload:
        """The same with other means (0 keeps a mean). Maxima scale in proportion, turns up to `most_turns`."""
        if min(turns, prompt, completion) < 0:
            raise TacitError(f"turns = {turns}, prompt = {prompt} and completion = {completion} must not be negative.")
        if most_turns and turns > most_turns:
            raise TacitError(f"a mean of {turns:g} turns is too long: this world ends episodes after {most_turns}.")
        turns, prompt, completion = turns or self.turns, prompt or self.prompt, completion or self.completion
        ends = [math.ceil(end * turns / self.turns) for end in (self.longest_episode, self.longest_of_all)]
        episode, of_all = (min(end, most_turns or end) for end in ends)
        row = math.ceil(self.longest_row * (prompt + completion) / (self.prompt + self.completion))
        return replace(
            self, turns=turns, prompt=prompt, completion=completion, longest_row=row, longest_episode=episode,
            longest_of_all=of_all,
        )  # fmt: skip


def uniform(episodes: int, turns: int, prompt: int, completion: int, world_s: float = 0.0) -> Workload:
    """A workload of identical episodes with identical turns."""
    if min(turns, prompt, completion) < 1:
        raise TacitError(f"turns, prompt and completion tokens must be at least 1, not {turns}, {prompt} and {completion}.")
    return Workload.measured(episodes, [np.tile([prompt, completion], (turns, 1))], world_s)


# Memory.

GATHER_WHOLE_MAX_WEIGHTS, GATHER_WHOLE_MAX_MEMORY = 1e9, 0.125
"""`gather = auto` gathers whole models up to this many weights on CPUs, or up to this share of a GPU's memory for weights and
gradients; the engine `sharded` uses them too"""
LOGIT_ELEMENTS = {True: 1 << 23, False: 1 << 27}  # largest number of logits held at once, on a CPU and on a GPU
USABLE = 0.92  # usable share of device memory before fragmentation


@dataclass(frozen=True)
class Training:
    lora_rank: int = 0  # 0 trains all weights
    recompute: bool = False  # gradient_checkpointing
    gather: Literal["auto", "layer", "whole"] = "auto"
    reference: bool = False  # a frozen copy of all weights for a KL penalty; adapters need none


@dataclass(frozen=True)
class Network:
    bandwidth: float = 50e9  # bytes per second of each device's link, one way: 400 Gb/s
    per_machine: int = 8  # devices of one machine, connected by its own links
    storage: float = 5e9  # bytes per second of the shared storage for all readers

    def between(self, device: Device, ranks: int) -> float:
        """bytes per second between neighbors in a ring of `ranks` ranks"""
        return device.link if ranks <= self.per_machine else min(device.link, self.bandwidth)


@dataclass(frozen=True)
class Cluster:
    """What to run on which devices; a plan adds how many of them train and sample."""

    shape: ModelShape
    device: Device
    reached: Efficiency
    network: Network = field(default_factory=Network)
    training: Training = field(default_factory=Training)
    overlap: int = 0  # updates that rollouts may lag behind
    scorings: int = 0  # extra forward passes per update, for a reference or a skill

    @property
    def by_layer(self) -> bool:
        """whether a pass gathers the weights layer by layer"""
        shape, device, training = self.shape, self.device, self.training
        whole = (device.number_bytes if training.lora_rank else 2 * device.number_bytes + 8) * shape.weights
        on_cpu = device.name == "cpu"
        large = shape.weights > GATHER_WHOLE_MAX_WEIGHTS if on_cpu else whole > GATHER_WHOLE_MAX_MEMORY * device.memory
        return training.gather == "layer" or (training.gather == "auto" and large)

    @property
    def trained_weights(self) -> int:
        return self.shape.lora_weights(self.training.lora_rank) if self.training.lora_rank else self.shape.weights

    @property
    def activation_bytes(self) -> float:
        """Bytes per trained token kept for the backward pass."""
        shape, b = self.shape, self.device.number_bytes
        layer = (4 * shape.width + 5 * shape.heads * shape.head_dim + 4 * shape.inner) * b
        return shape.layers * shape.width * b + layer if self.training.recompute else shape.layers * layer

    def logit_bytes(self, tokens: float) -> float:
        return 3 * 4 * min(tokens * self.shape.vocabulary, LOGIT_ELEMENTS[self.device.name == "cpu"])

    def rank_state(self, ranks: int, samples: bool = False) -> dict[str, float]:
        """Bytes on a rank that do not depend on the batch, by part. `samples`: the driver's sampling copy is on this rank's
        device, as on the first of several ranks without servers."""
        shape, training = self.shape, self.training
        own, b = shape.weights / ranks, self.device.number_bytes
        roots = b * shape.vocabulary * shape.width * (1 if shape.tied else 2)
        if training.lora_rank:
            gathered = 2 * b * shape.layer_weights + roots if self.by_layer else b * shape.weights
            parts = {
                "weights": b * own + (b + 4) * self.trained_weights,
                "gradients": 4 * self.trained_weights,
                "optimizer": 8 * self.trained_weights,
                "gathered": gathered if ranks > 1 else 0.0,
            }
        else:
            layers = 2 * (b + 4) * shape.layer_weights + roots
            # One rank gathers nothing, but bfloat16 needs a copy of the float32 weights.
            alone = (2 * b if b < 4 else 0.0) * shape.weights
            whole = (2 * b + 8) * shape.weights if ranks > 1 else alone
            parts = {
                "weights": 4 * own,
                "gradients": 4 * own,
                "optimizer": 8 * own,
                "gathered": layers if self.by_layer and ranks > 1 else whole,
                "reference": 4 * own if training.reference else 0.0,
            }
        copy = b * shape.weights if samples and ranks > 1 else 0.0
        return {**parts, "driver's copy": copy, "runtime": self.device.overhead}

    def rank_memory(self, ranks: int, micro_tokens: float, samples: bool = False) -> dict[str, float]:
        """Bytes on a rank by part, with `micro_tokens` tokens per pass."""
        activations, logits = micro_tokens * self.activation_bytes, self.logit_bytes(micro_tokens)
        return {**self.rank_state(ranks, samples), "activations": activations, "logits": logits}

    def most_micro_tokens(self, ranks: int, samples: bool = False) -> float:
        """Maximum tokens per pass; negative if even the state does not fit."""
        state = sum(self.rank_state(ranks, samples).values())
        return (USABLE * self.device.memory - state - self.logit_bytes(1e9)) / self.activation_bytes

    def rows_that_fit(self, row_tokens: float, devices: int = 1) -> int:
        """Number of rows of `row_tokens` tokens that fit a server of `devices` devices; 0 if its weights do not fit."""
        shape, device = self.shape, self.device
        room = USABLE * device.memory - device.overhead - device.number_bytes * shape.weights / devices
        return max(0, int(room / (row_tokens * shape.cache_bytes(device.number_bytes) / devices)))

    def devices_of_a_server(self, row_tokens: float, most: int) -> int:
        """The smallest power of two of devices that fits the weights and 16 rows; 0 if `most` devices do not."""
        counts = (1 << i for i in range(most.bit_length()))
        return next((n for n in counts if n <= most and self.rows_that_fit(row_tokens, n) >= 16), 0)


# Time.

SUM_S = 12e-6  # seconds of one all-reduce over a server's devices (estimate for NVLink)
LOGIT_BYTES = 20  # bytes of memory traffic per logit in a decode step: write, cast, softmax, noise, argmax


@dataclass(frozen=True)
class Server:
    """Speed of one server as functions of its rows. A decode step takes the longer of memory (`fixed_s`, `row_s`) and
    compute (`compute_fixed_s`, `compute_s`)."""

    prefill_rate: float  # prompt tokens per second: π·η / 2·P
    fixed_s: float  # of a decode step
    row_s: float  # of a decode step, per row
    compute_s: float  # per row, if compute-bound
    compute_fixed_s: float
    slots: int  # maximum rows

    def step_s(self, rows: int) -> float:
        return max(self.fixed_s + self.row_s * rows, self.compute_fixed_s + self.compute_s * rows) if rows else 0.0

    def turn_s(self, rows: int, prompt: float, completion: float) -> float:
        """Seconds for one turn of `rows` rows: prefills one after another, then all decode together."""
        return rows * prompt / self.prefill_rate + completion * self.step_s(rows)


def server(cluster: Cluster, context: float, slots: int, devices: int = 1) -> Server:
    shape, device, reached = cluster.shape, cluster.device, cluster.reached
    b = device.number_bytes
    sums = 2 * shape.layers if devices > 1 else 0  # two all-reduces per layer
    sent = sums * 2 * (devices - 1) / devices * shape.width * b / device.link
    weights = b * shape.pass_weights / devices / (device.bandwidth * reached.weights)
    traffic = (context * shape.cache_bytes(b) + shape.vocabulary * LOGIT_BYTES) / devices / (device.bandwidth * reached.cache)
    launches = shape.layers * reached.layer_s + sums * SUM_S
    computing = 2 * shape.pass_weights / (devices * device.peak * reached.share("prefill", shape.width))
    row = reached.row_s + sent
    return Server(1 / (computing + sent), weights + launches, traffic + row, computing + row, launches, max(1, slots))


def split_into_waves(work: Workload, one: Server, servers: int) -> tuple[int, int]:
    """(waves, rows that decode together in a wave) of a rollout with equal episodes on every server."""
    rows = math.ceil(work.episodes / max(1, servers))
    waves = math.ceil(rows / one.slots)
    return waves, math.ceil(rows / waves)


def rollout_s(work: Workload, one: Server, servers: int) -> float:
    """waves · T · (B·p / prefill + c·step(B) + w) for equal episodes; at least the longest episode alone on a server, and at
    least the driver's time. Without servers, the driver's time is added."""
    waves, together = split_into_waves(work, one, servers)
    served = waves * work.turns * (one.turn_s(together, work.prompt, work.completion) + work.world_s)
    alone = work.longest_of_all * (one.turn_s(1, work.prompt, work.completion) + work.world_s)
    longest = max(served, alone)
    return max(longest, work.driving_s) if servers else longest + work.driving_s


def update_s(cluster: Cluster, ranks: int, work: Workload, micro_tokens: float) -> dict[str, float]:
    """Seconds by part: computing, sending, optimizer."""
    shape, device, training = cluster.shape, cluster.device, cluster.training
    operations = (4 if training.lora_rank else 6) + (2 if training.recompute else 0) + 2 * cluster.scorings
    attention = shape.layers * shape.heads * shape.head_dim * (work.prompt + work.completion)
    computing = work.tokens * operations * (shape.pass_weights + attention)
    computing /= ranks * device.peak * cluster.reached.share("learning", shape.width)
    sending = 0.0
    if ranks > 1:
        passes = max(1, math.ceil(work.tokens / (ranks * micro_tokens)))
        gathers = 2 * passes if cluster.by_layer else 1
        sums = passes if cluster.by_layer else 1
        summed = 8 * cluster.trained_weights if training.lora_rank else sums * 4 * shape.weights
        sent = gathers * device.number_bytes * shape.weights + summed
        sending = sent * (ranks - 1) / ranks / cluster.network.between(device, ranks)
    moved = cluster.trained_weights if training.lora_rank else shape.weights / ranks
    return {"computing": computing, "sending": sending, "optimizer": moved * 32 / device.bandwidth}


def combined_s(parts: dict[str, float], by_layer: bool) -> float:
    """Seconds of an update. Gathering layer by layer overlaps with compute; gathering whole does not."""
    busy = max(parts["computing"], parts["sending"]) if by_layer else parts["computing"] + parts["sending"]
    return busy + parts["optimizer"]


def push_s(cluster: Cluster, servers: int) -> float:
    """Seconds to write all weights, or only the adapter, to shared storage and read them in every server; 0 without servers."""
    if not servers:
        return 0.0
    return cluster.device.number_bytes * cluster.trained_weights * (1 + servers) / cluster.network.storage


def iteration_s(rollout: float, update: float, push: float, overlap: int) -> float:
    """Seconds of an iteration. overlap = 0: in sequence; ≥ 1: the next rollout overlaps the update."""
    return (rollout + update if overlap == 0 else max(rollout, update)) + push


# Plans: how to divide devices into ranks and servers, whether everything fits, and the time of an iteration.

TOKEN_BUDGET = {True: 2048, False: 65_536}  # the engine's initial token budget, on a CPU and on a GPU
MAX_DEVICES, MAX_ROWS = 8, 1024  # maximum per server, even if more rows fit


@dataclass(frozen=True)
class Plan:
    """One division of the devices into ranks and servers. Times are in seconds and assume equal episodes; they are 0 if the
    plan does not fit."""

    ranks: int
    servers: int
    server_devices: int
    micro_tokens: int  # tokens per pass of a rank
    memory: dict[str, float]  # bytes of a rank, by part
    server: Server | None
    rollout: float
    update: dict[str, float]
    update_total: float
    push: float
    iteration: float
    driving: float = 0.0  # the driver's part of the rollout
    trouble: str = ""  # why it does not fit; empty if it does

    @property
    def devices(self) -> int:
        return self.ranks + self.servers * self.server_devices

    @property
    def rank_bytes(self) -> float:
        return sum(self.memory.values())

    @property
    def bottleneck(self) -> str:
        """The part of the iteration to speed up first; `memory` if the plan does not fit."""
        if self.trouble:
            return "memory"
        update, sent = self.update_total, self.update["sending"] > self.update["computing"]
        if self.rollout <= self.driving and self.rollout >= max(update, self.push):
            return "the driver"
        longest = max(("rollout", self.rollout), ("update", update), ("push", self.push), key=lambda part: part[1])[0]
        return "network between ranks" if longest == "update" and sent else longest


def make_plan(cluster: Cluster, work: Workload, ranks: int, servers: int, wide: int = 0) -> Plan:
    """The plan for this many ranks, and servers of `wide` devices each (0: the fewest that fit). Without servers, the driver
    samples on the first rank's device."""
    device, row = cluster.device, work.longest_row
    room = cluster.most_micro_tokens(ranks, samples=not servers)
    per_server = (wide or cluster.devices_of_a_server(row, MAX_DEVICES)) if servers else 1
    fitting = cluster.rows_that_fit(row, per_server or 1)
    if not servers:  # while the driver samples on a rank's device, the rank has no activations
        left = USABLE * device.memory - sum(cluster.rank_state(ranks, samples=True).values())
        fitting = int(max(0.0, left) / (row * cluster.shape.cache_bytes(device.number_bytes)))
    trouble = _trouble(cluster, ranks, not servers, row, room, per_server, fitting)
    micro = int(min(max(room, row), TOKEN_BUDGET[device.name == "cpu"]))
    memory = cluster.rank_memory(ranks, micro, samples=not servers)
    if trouble:
        return Plan(ranks, servers, per_server or MAX_DEVICES, micro, memory, None, 0.0, {}, 0.0, 0.0, 0.0, trouble=trouble)
    one = server(cluster, work.prompt + work.completion / 2, min(fitting, MAX_ROWS), per_server)
    rollout = rollout_s(work, one, servers)
    update = update_s(cluster, ranks, work, micro)
    busy = combined_s(update, cluster.by_layer)
    push = push_s(cluster, servers)
    overlap = cluster.overlap if servers else 0  # without servers, sampling waits for the update
    seconds = iteration_s(rollout, busy, push, overlap)
    return Plan(ranks, servers, per_server, micro, memory, one, rollout, update, busy, push, seconds, work.driving_s)


def best_division(
    cluster: Cluster, work: Workload, devices: int, ranks: int = 0, servers: int = -1, server_devices: int = 0
) -> Plan:
    """The fastest division of `devices` that fits, with fixed `ranks` or `servers` if given; else the one closest to
    fitting."""
    if devices < 1:
        raise TacitError(f"cannot plan for {devices} devices; give at least one: --gpus N.")
    divisions = _divisions(cluster, work, devices, ranks, servers, server_devices)
    plans = [make_plan(cluster, work, *division) for division in divisions]
    if not plans:
        wanted = f"{ranks or 'some'} ranks and {servers if servers >= 0 else 'some'} servers"
        raise TacitError(f"{wanted} do not fit on {devices} devices; give more devices (--gpus), or fewer ranks or servers.")
    return min(plans, key=lambda plan: (bool(plan.trouble), plan.rank_bytes if plan.trouble else plan.iteration))


def _divisions(
    cluster: Cluster, work: Workload, devices: int, ranks: int, servers: int, server_devices: int
) -> Iterator[tuple[int, int, int]]:
    """(ranks, servers, devices per server)"""
    least = cluster.devices_of_a_server(work.longest_row, MAX_DEVICES) or MAX_DEVICES
    for wide in [server_devices] if server_devices else (n for n in (1, 2, 4, MAX_DEVICES) if n >= least):
        for count in [servers] if servers > 0 else range(1, devices // wide + 1) if servers < 0 else ():
            own = ranks or devices - count * wide
            if own >= 1 and own + count * wide <= devices:
                yield own, count, wide
    if servers <= 0 and (ranks or devices) <= devices:
        yield ranks or devices, 0, 1


def _trouble(cluster: Cluster, ranks: int, samples: bool, row: int, room: float, per_server: int, fitting: int) -> str:
    shape, device = cluster.shape, cluster.device
    if room < row:
        needed = sum(cluster.rank_memory(ranks, row, samples).values())
        return (
            f"each of {ranks} ranks needs {needed / 1e9:,.0f} GB for {shape.name} with one row of {row} tokens, but a "
            f"{device.name} has {device.memory / 1e9:,.0f} GB, {USABLE * device.memory / 1e9:,.0f} of them usable"
        )
    if not per_server:
        return f"a server of {MAX_DEVICES} {device.name} has no room for {shape.name} and 16 rows of {row} tokens"
    if not fitting:
        return f"a {device.name} has no room for {shape.name} and one row of {row} tokens to sample from"
    return ""


LORA_RANK, MAX_RANKS = 16, 4096


def find_faster(cluster: Cluster, work: Workload, plan: Plan, devices: int) -> list[str]:
    """Changes that save at least a tenth of an iteration on the same devices."""
    own = cluster.training
    changes = [("--overlap 1", replace(cluster, overlap=1))] if not cluster.overlap and plan.servers else []
    if not own.recompute:
        changes.append(("--recompute", replace(cluster, training=replace(own, recompute=True))))
    if not own.lora_rank:
        changes.append((f"--lora-rank {LORA_RANK}", replace(cluster, training=replace(own, lora_rank=LORA_RANK))))
    tried = ((words, best_division(changed, work, devices)) for words, changed in changes)
    return [
        f"{words}: {other.iteration:,.1f} s with {other.ranks} ranks and {other.servers} servers"
        for words, other in tried
        if not other.trouble and other.iteration < 0.9 * plan.iteration
    ]


def find_remedies(cluster: Cluster, ranks: int, row: int, samples: bool) -> Iterator[str]:
    """Changes that make rows of `row` tokens fit a rank; the most similar plan first."""
    device, own = cluster.device, cluster.training

    def fits(changed: Cluster, ranks: int = ranks, samples: bool = samples) -> bool:
        return changed.most_micro_tokens(ranks, samples) >= row

    def describe_need(changed: Cluster, ranks: int = ranks, samples: bool = samples) -> str:
        return f"{sum(changed.rank_memory(ranks, row, samples).values()) / 1e9:,.0f} GB a rank"

    both = replace(own, lora_rank=own.lora_rank or LORA_RANK, recompute=True)
    changes = {
        "--engine.gradient-checkpointing (recompute)": replace(own, recompute=True),
        "--engine.gather layer": replace(own, gather="layer"),
        f"--engine.lora-rank {both.lora_rank} (adapters)": replace(both, recompute=own.recompute),
        f"--engine.lora-rank {both.lora_rank} with gradient-checkpointing": both,
    }
    for words, training in changes.items():
        if training != own and fits(changed := replace(cluster, training=training)):
            yield f"{words}: {describe_need(changed)}"
    if samples and ranks > 1 and fits(cluster, samples=False):
        yield f"servers on separate devices, so that no rank holds a sampling copy: {describe_need(cluster, samples=False)}"
    for words, training in (("", own), (f" with --engine.lora-rank {both.lora_rank} and gradient-checkpointing", both)):
        changed = replace(cluster, training=training)
        more = next((n for n in (ranks << i for i in range(1, 13)) if n <= MAX_RANKS and fits(changed, n, samples=False)), 0)
        if more:
            yield f"--engine.ranks {more}{words}, and servers on further devices: {describe_need(changed, more, samples=False)}"
    larger = [other for other in DEVICES.values() if other.memory > device.memory and other.name != "cpu"]
    for other in sorted(larger, key=lambda candidate: candidate.memory):
        if fits(replace(cluster, device=other)):
            yield f"{other.name} instead of {device.name}: {other.memory / 1e9:,.0f} GB"
            break


def check_memory_fits(
    config: Mapping[str, Any],
    name: str,
    ranks: int,
    device_bytes: float,
    training: Training,
    row_tokens: int,
    number_bytes: int = 2,
    samples: bool = False,
) -> None:
    """Raise with remedies if the model does not fit. An engine calls it before loading.

    `config`: the model's config.json. `device_bytes`: memory of a rank's device. `row_tokens`: longest training row. `samples`:
    the driver samples on the first rank's device.
    """
    named = f"device of {device_bytes / 1e9:.0f} GB"
    device = replace(DEVICES["h200"], name=named, memory=device_bytes, number_bytes=number_bytes)
    cluster = Cluster(shape_of_config(config, name), device, SAMPLERS["local"], training=training)
    if cluster.most_micro_tokens(ranks, samples) >= row_tokens:
        return
    least = sum(cluster.rank_memory(ranks, row_tokens, samples).values())
    remedies = "; ".join(find_remedies(cluster, ranks, row_tokens, samples)) or "no known change"
    raise TacitError(
        f"{name!r} ({cluster.shape.weights / 1e9:.2f}B weights) does not fit: each of {ranks} ranks needs {least / 1e9:,.0f} "
        f"GB for rows of {row_tokens} tokens, but its device has {device_bytes / 1e9:,.0f} GB, "
        f"{USABLE * device_bytes / 1e9:,.0f} of them usable. What would fit: {remedies}. See `tacit plan` for details."
    )
