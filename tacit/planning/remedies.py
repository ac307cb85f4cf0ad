"""What would make a model fit that does not: the same plan with one thing changed, tried out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tacit.core.errors import TacitError
from tacit.planning.devices import DEVICES, SAMPLERS, Device
from tacit.planning.memory import USABLE, Training, most_micro_tokens, rank_memory, total
from tacit.planning.plans import Cluster, Plan, best_division
from tacit.planning.shapes import ModelShape, shape_of_config
from tacit.planning.workload import Workload

LORA_RANK = 16
"""of the adapters that are tried"""
MOST_RANKS = 4096


def remedies(cluster: Cluster, work: Workload, plan: Plan) -> list[str]:
    """What would fit in the place of a plan that does not, each with what it takes; most like the plan first."""
    return list(_remedies(cluster, plan.ranks, work.longest_row, not plan.servers)) if plan.trouble else []


def quicker(cluster: Cluster, work: Workload, plan: Plan, devices: int) -> list[str]:
    """What would save at least a tenth of an iteration on the same devices, divided as is best then."""
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


def _remedies(cluster: Cluster, ranks: int, row: int, samples: bool) -> Iterator[str]:
    shape, device, own = cluster.shape, cluster.device, cluster.training

    def fits(training: Training, ranks: int = ranks, device: Device = device, samples: bool = samples) -> bool:
        return most_micro_tokens(shape, device, ranks, training, samples) >= row

    def told(training: Training, ranks: int = ranks, samples: bool = samples) -> str:
        return f"{needs(shape, device, ranks, training, row, samples) / 1e9:,.0f} GB a rank"

    both = replace(own, lora_rank=own.lora_rank or LORA_RANK, recompute=True)
    changes = {
        "--engine.gradient-checkpointing (recompute)": replace(own, recompute=True),
        "--engine.gather layer": replace(own, gather="layer"),
        f"--engine.lora-rank {both.lora_rank} (adapters)": replace(both, recompute=own.recompute),
        f"--engine.lora-rank {both.lora_rank} with gradient-checkpointing": both,
        "moments in bfloat16 (which no engine here has)": replace(own, moment_bytes=2),
    }
    for words, changed in changes.items():
        if changed != own and fits(changed):
            yield f"{words}: {told(changed)}"
    if samples and ranks > 1 and fits(own, samples=False):
        yield f"servers on devices of their own, so that no copy to sample from lies beside a rank: {told(own, samples=False)}"
    for words, changed in (("", own), (f" with --engine.lora-rank {both.lora_rank} and gradient-checkpointing", both)):
        more = next((n for n in (ranks << i for i in range(1, 13)) if n <= MOST_RANKS and fits(changed, n, samples=False)), 0)
        if more:
            yield f"--engine.ranks {more}{words}, and servers beside them: {told(changed, more, samples=False)}"
    larger = [other for other in DEVICES.values() if other.memory > device.memory and other.name != "cpu"]
    for other in sorted(larger, key=lambda candidate: candidate.memory):
        if fits(own, ranks, other):
            yield f"{other.name} in the place of {device.name}: {other.memory / 1e9:,.0f} GB"
            break


def needs(shape: ModelShape, device: Device, ranks: int, training: Training, row: int, samples: bool) -> float:
    """Bytes that a rank needs at least: with one row in a pass."""
    return total(rank_memory(shape, device, ranks, training, row, samples))


def refuse_unless_it_fits(
    config: Mapping[str, Any],
    name: str,
    ranks: int,
    device_bytes: float,
    training: Training,
    row_tokens: int,
    number_bytes: int = 2,
    samples: bool = False,
) -> None:
    """For an engine, before it loads anything: `config` is the model's config.json, `device_bytes` what a rank's device has,
    `row_tokens` the longest row it will learn from, `samples` whether the driver samples beside the first rank. A model that
    does not fit is refused with what would."""
    device = replace(
        DEVICES["h200"], name=f"device of {device_bytes / 1e9:.0f} GB", memory=device_bytes, number_bytes=number_bytes
    )
    cluster = Cluster(shape_of_config(config, name), device, SAMPLERS["local"], training=training)
    if most_micro_tokens(cluster.shape, device, ranks, training, samples) >= row_tokens:
        return
    least = needs(cluster.shape, device, ranks, training, row_tokens, samples)
    would = "; ".join(_remedies(cluster, ranks, row_tokens, samples)) or "nothing that a plan knows of"
    raise TacitError(
        f"{name!r} ({cluster.shape.weights / 1e9:.2f}B weights) does not fit: each of {ranks} ranks needs {least / 1e9:,.0f} "
        f"GB for rows of {row_tokens} tokens, and of its device's {device_bytes / 1e9:,.0f} it can use "
        f"{USABLE * device_bytes / 1e9:,.0f}. What would: {would}. `tacit plan` has the rest."
    )
