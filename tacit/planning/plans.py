"""A plan: how devices are best divided into ranks and servers, whether everything fits, and how long an iteration takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tacit.core.errors import TacitError
from tacit.planning.devices import Device, Reached
from tacit.planning.memory import (
    USABLE,
    Training,
    devices_of_a_server,
    most_micro_tokens,
    rank_memory,
    rank_state,
    rows_that_fit,
    total,
)
from tacit.planning.shapes import ModelShape
from tacit.planning.timing import Network, Server, driving_s, iteration_s, push_s, rollout_s, server, together_s, update_s
from tacit.planning.workload import Workload

TOKEN_BUDGET = {True: 2048, False: 65_536}
"""tokens in one pass that the engine tries first, on a CPU and on a GPU"""
MOST_DEVICES = 8
"""of one server"""
MOST_ROWS = 1024
"""rows that a server is given at a time, however many fit"""


@dataclass(frozen=True)
class Cluster:
    """What there is, and how it is used."""

    shape: ModelShape
    device: Device
    reached: Reached
    network: Network = field(default_factory=Network)
    training: Training = field(default_factory=Training)
    overlap: int = 0
    """updates that rollouts may be behind"""
    scorings: int = 0
    """passes forward of each update beside its own"""


@dataclass(frozen=True)
class Plan:
    """One division of the devices. Seconds are those of an iteration whose episodes are all alike (`simulation.py` has the
    others); a plan that does not fit has none."""

    ranks: int
    servers: int
    server_devices: int
    micro_tokens: int
    """tokens in one pass of a rank"""
    memory: dict[str, float]
    """of a rank, by part"""
    server: Server | None
    rollout: float
    update: dict[str, float]
    update_total: float
    push: float
    iteration: float
    driving: float = 0.0
    """the driver's own part of the rollout"""
    trouble: str = ""
    """why it does not fit; empty where it does"""

    @property
    def devices(self) -> int:
        return self.ranks + self.servers * self.server_devices

    @property
    def bottleneck(self) -> str:
        """What to have more of first."""
        if self.trouble:
            return "memory"
        update, sent = self.update_total, self.update["sending"] > self.update["computing"]
        if self.rollout <= self.driving and self.rollout >= max(update, self.push):
            return "the driver"
        longest = max(("rollout", self.rollout), ("update", update), ("push", self.push), key=lambda part: part[1])[0]
        return "network between ranks" if longest == "update" and sent else longest


def divided(cluster: Cluster, work: Workload, ranks: int, servers: int, wide: int = 0) -> Plan:
    """The plan for so many ranks, and servers of `wide` devices each (0: as few as do). Without servers the driver samples
    beside the first rank, as engines/sharded does."""
    shape, device, training = cluster.shape, cluster.device, cluster.training
    room = most_micro_tokens(shape, device, ranks, training, samples=not servers)
    row, context = work.longest_row, work.prompt + work.completion / 2
    per_server = (wide or devices_of_a_server(shape, device, row, MOST_DEVICES)) if servers else 1
    fitting = rows_that_fit(shape, device, row, per_server or 1)
    if not servers:  # while the driver samples beside a rank, the rank's activations are not there
        left = USABLE * device.memory - total(rank_state(shape, device, ranks, training, samples=True))
        fitting = int(max(0.0, left) / (row * shape.cache_bytes(device.number_bytes)))
    trouble = _trouble(cluster, ranks, not servers, row, room, per_server, fitting)
    micro = int(min(max(room, row), TOKEN_BUDGET[device.name == "cpu"]))
    memory = rank_memory(shape, device, ranks, training, micro, samples=not servers)
    if trouble:
        return Plan(ranks, servers, per_server or MOST_DEVICES, micro, memory, None, 0.0, {}, 0.0, 0.0, 0.0, trouble=trouble)
    one = server(shape, device, cluster.reached, context, min(fitting, MOST_ROWS), per_server)
    rollout = rollout_s(work, one, servers)
    update = update_s(shape, device, cluster.reached, ranks, work, training, micro, cluster.network, cluster.scorings)
    busy = together_s(update, training.by_layer(shape, device))
    push = push_s(shape, device, training, cluster.network, servers)
    overlap = cluster.overlap if servers else 0  # who samples beside a rank cannot do it while the rank learns
    return Plan(
        ranks,
        servers,
        per_server,
        micro,
        memory,
        one,
        rollout,
        update,
        busy,
        push,
        iteration_s(rollout, busy, push, overlap),
        driving_s(work),
    )


def best_division(
    cluster: Cluster, work: Workload, devices: int, ranks: int = 0, servers: int = -1, server_devices: int = 0
) -> Plan:
    """Of all divisions of `devices` that fit, the one with the quickest iteration; with `ranks` or `servers` given, of those.
    Where none fits, the one that is nearest to it, with its trouble."""
    if devices < 1:
        raise TacitError(f"a plan for {devices} devices is none; say how many there are: --gpus N.")
    plans = [
        divided(cluster, work, *division) for division in _divisions(cluster, work, devices, ranks, servers, server_devices)
    ]
    if not plans:
        asked = f"{ranks or 'some'} ranks and {servers if servers >= 0 else 'some'} servers"
        raise TacitError(f"{asked} do not go into {devices} devices; give more with --gpus, or ask for fewer.")
    fitting = [plan for plan in plans if not plan.trouble]
    if fitting:
        return min(fitting, key=lambda plan: plan.iteration)
    return min(plans, key=lambda plan: total(plan.memory))


def _divisions(
    cluster: Cluster, work: Workload, devices: int, ranks: int, servers: int, server_devices: int
) -> Iterator[tuple[int, int, int]]:
    """(ranks, servers, devices of each server)"""
    least = devices_of_a_server(cluster.shape, cluster.device, work.longest_row, MOST_DEVICES) or MOST_DEVICES
    for wide in [server_devices] if server_devices else (n for n in (1, 2, 4, MOST_DEVICES) if n >= least):
        for count in [servers] if servers > 0 else range(1, devices // wide + 1) if servers < 0 else ():
            own = ranks or devices - count * wide
            if own >= 1 and own + count * wide <= devices:
                yield own, count, wide
    if servers <= 0 and (ranks or devices) <= devices:
        yield ranks or devices, 0, 1


def _trouble(cluster: Cluster, ranks: int, samples: bool, row: int, room: float, per_server: int, fitting: int) -> str:
    shape, device = cluster.shape, cluster.device
    if room < row:
        needed = total(rank_memory(shape, device, ranks, cluster.training, row, samples))
        return (
            f"a rank of {ranks} needs {needed / 1e9:,.0f} GB for {shape.name} with one row of {row} tokens, and of a "
            f"{device.name}'s {device.memory / 1e9:,.0f} it can use {USABLE * device.memory / 1e9:,.0f}"
        )
    if not per_server:
        return f"a server of {MOST_DEVICES} {device.name} has no room for {shape.name} and 16 rows of {row} tokens"
    if not fitting:
        return f"a {device.name} has no room for {shape.name} and one row of {row} tokens to sample from"
    return ""
