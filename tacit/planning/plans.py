"""Plans: how to divide devices into ranks and servers, whether everything fits, and the time of an iteration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tacit.core.errors import TacitError
from tacit.planning.shapes import DEVICES, SAMPLERS, Device, Efficiency, ModelShape, shape_of_config
from tacit.planning.timing import (
    USABLE,
    Network,
    Server,
    Training,
    Workload,
    combined_s,
    devices_of_a_server,
    iteration_s,
    most_micro_tokens,
    push_s,
    rank_memory,
    rank_state,
    rollout_s,
    rows_that_fit,
    server,
    update_s,
)

TOKEN_BUDGET = {True: 2048, False: 65_536}  # the engine's initial token budget, on a CPU and on a GPU
MAX_DEVICES, MAX_ROWS = 8, 1024  # maximum per server, even if more rows fit


@dataclass(frozen=True)
class Cluster:
    shape: ModelShape
    device: Device
    reached: Efficiency
    network: Network = field(default_factory=Network)
    training: Training = field(default_factory=Training)
    overlap: int = 0  # updates that rollouts may lag behind
    scorings: int = 0  # extra forward passes per update


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
    shape, device, training = cluster.shape, cluster.device, cluster.training
    room = most_micro_tokens(shape, device, ranks, training, samples=not servers)
    row, context = work.longest_row, work.prompt + work.completion / 2
    per_server = (wide or devices_of_a_server(shape, device, row, MAX_DEVICES)) if servers else 1
    fitting = rows_that_fit(shape, device, row, per_server or 1)
    if not servers:  # while the driver samples on a rank's device, the rank has no activations
        left = USABLE * device.memory - sum(rank_state(shape, device, ranks, training, samples=True).values())
        fitting = int(max(0.0, left) / (row * shape.cache_bytes(device.number_bytes)))
    trouble = _trouble(cluster, ranks, not servers, row, room, per_server, fitting)
    micro = int(min(max(room, row), TOKEN_BUDGET[device.name == "cpu"]))
    memory = rank_memory(shape, device, ranks, training, micro, samples=not servers)
    if trouble:
        return Plan(ranks, servers, per_server or MAX_DEVICES, micro, memory, None, 0.0, {}, 0.0, 0.0, 0.0, trouble=trouble)
    one = server(shape, device, cluster.reached, context, min(fitting, MAX_ROWS), per_server)
    rollout = rollout_s(work, one, servers)
    update = update_s(shape, device, cluster.reached, ranks, work, training, micro, cluster.network, cluster.scorings)
    busy = combined_s(update, training.by_layer(shape, device))
    push = push_s(shape, device, training, cluster.network, servers)
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
    least = devices_of_a_server(cluster.shape, cluster.device, work.longest_row, MAX_DEVICES) or MAX_DEVICES
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
        needed = sum(rank_memory(shape, device, ranks, cluster.training, row, samples).values())
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
    shape, device, own = cluster.shape, cluster.device, cluster.training

    def fits(training: Training, ranks: int = ranks, device: Device = device, samples: bool = samples) -> bool:
        return most_micro_tokens(shape, device, ranks, training, samples) >= row

    def describe_need(training: Training, ranks: int = ranks, samples: bool = samples) -> str:
        return f"{sum(rank_memory(shape, device, ranks, training, row, samples).values()) / 1e9:,.0f} GB a rank"

    both = replace(own, lora_rank=own.lora_rank or LORA_RANK, recompute=True)
    changes = {
        "--engine.gradient-checkpointing (recompute)": replace(own, recompute=True),
        "--engine.gather layer": replace(own, gather="layer"),
        f"--engine.lora-rank {both.lora_rank} (adapters)": replace(both, recompute=own.recompute),
        f"--engine.lora-rank {both.lora_rank} with gradient-checkpointing": both,
    }
    for words, changed in changes.items():
        if changed != own and fits(changed):
            yield f"{words}: {describe_need(changed)}"
    if samples and ranks > 1 and fits(own, samples=False):
        yield f"servers on separate devices, so that no rank holds a sampling copy: {describe_need(own, samples=False)}"
    for words, changed in (("", own), (f" with --engine.lora-rank {both.lora_rank} and gradient-checkpointing", both)):
        more = next((n for n in (ranks << i for i in range(1, 13)) if n <= MAX_RANKS and fits(changed, n, samples=False)), 0)
        if more:
            yield f"--engine.ranks {more}{words}, and servers on further devices: {describe_need(changed, more, samples=False)}"
    larger = [other for other in DEVICES.values() if other.memory > device.memory and other.name != "cpu"]
    for other in sorted(larger, key=lambda candidate: candidate.memory):
        if fits(own, ranks, other):
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
    if most_micro_tokens(cluster.shape, device, ranks, training, samples) >= row_tokens:
        return
    least = sum(rank_memory(cluster.shape, device, ranks, training, row_tokens, samples).values())
    remedies = "; ".join(find_remedies(cluster, ranks, row_tokens, samples)) or "no known change"
    raise TacitError(
        f"{name!r} ({cluster.shape.weights / 1e9:.2f}B weights) does not fit: each of {ranks} ranks needs {least / 1e9:,.0f} "
        f"GB for rows of {row_tokens} tokens, but its device has {device_bytes / 1e9:,.0f} GB, "
        f"{USABLE * device_bytes / 1e9:,.0f} of them usable. What would fit: {remedies}. See `tacit plan` for details."
    )
