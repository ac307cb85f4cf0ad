"""What a plan is asked for. A string under a field is its documentation, here and in `--help`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tacit.core.bounds import AtLeastOne, Count, NotNegative, Positive, Share, check_bounds
from tacit.core.errors import TacitError
from tacit.planning.plans import Cluster
from tacit.planning.shapes import ModelShape, device_named, reached_on
from tacit.planning.timing import Network, Training


@dataclass(frozen=True)
class PlanSettings:
    """What there is, and how it would be used."""

    gpus: tuple[int, ...] = (8,)
    """devices, ranks and servers together; several numbers, as 8,64,512, make a table"""
    device: str = "h100"
    """which: h200, h100, a100, 4090, or cpu for one core each"""
    ranks: Count = 0
    """of them, how many train; 0 is what makes the quickest iteration"""
    servers: int = -1
    """how many sample; -1 is what makes the quickest iteration, 0 lets the driver sample beside the first rank"""
    server_gpus: Count = 0
    """devices of each server; 0 is what makes the quickest iteration, of 1, 2, 4 and 8 (vLLM's tensor parallelism)"""
    sampler: Literal["vllm", "local"] = "vllm"
    """who samples on the servers"""
    overlap: Count = 0
    """updates that rollouts may be behind; 0 is on-policy"""
    lora_rank: Count = 0
    """rank of adapters; 0 trains all weights"""
    recompute: bool = False
    """recompute activations in the pass back (--engine.gradient-checkpointing)"""
    moments: Literal["float32", "bfloat16"] = "float32"
    """what AdamW's moments are kept in; the engines have float32"""
    gather: Literal["auto", "layer", "whole"] = "auto"
    """how a pass gets the weights, as --engine.gather"""
    reference: bool = False
    """keep a frozen copy of all weights and score with it at every update, as a KL penalty does"""
    scorings: Count = 0
    """further passes forward at every update, as OPID's two"""
    network: Positive = 400.0
    """Gb/s of each device's link to other machines"""
    per_machine: AtLeastOne = 8
    """devices of one machine"""
    transport: Literal["nccl", "file"] = "nccl"
    """how weights get to servers"""
    storage: Positive = 5.0
    """GB/s of the shared storage, all readers together (--transport file)"""
    episodes: Count = 0
    """of one iteration; 0 is --groups times --group-size"""
    turns: NotNegative = 0.0
    """mean turns of an episode; 0 is as measured"""
    prompt_tokens: NotNegative = 0.0
    """mean prompt tokens of a turn; 0 is as measured"""
    completion_tokens: NotNegative = 0.0
    """mean completion tokens of a turn; 0 is as measured, which for an expert is the bare action"""
    world_s: float = -1.0
    """seconds of a world's step; -1 is as measured"""
    driver_ms: NotNegative = 2.5
    """milliseconds that the driver takes for a turn: a prompt made and encoded, an answer read"""
    measure: AtLeastOne = 64
    """tasks that the world's expert plays to measure turns and tokens"""
    from_: str = ""
    """measure a run's recorded episodes instead: its directory, or one of its trajectories/*.jsonl.gz"""
    simulate: Count = 0
    """iterations to simulate with episodes as they were measured, stragglers and all; 0 simulates none"""
    worlds: Count = 0
    """simulated: episodes under way at a time; 0 is as many as an iteration has"""
    world_workers: Count = 0
    """simulated: steps of worlds computed at a time; 0 is all"""
    server_life_h: NotNegative = 0.0
    """simulated: mean hours until a server dies; 0 is never"""
    restart_s: NotNegative = 60.0
    """simulated: seconds until it is back"""
    world_deaths: Share = 0.0
    """simulated: share of turns in which the world dies"""
    seed: int = 0
    """of the tasks measured and of the simulation"""

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.gpus or min(self.gpus) < 1:
            raise TacitError(f"gpus = {', '.join(map(str, self.gpus)) or 'none'} must be at least 1.")
        if self.servers < -1:
            raise TacitError(f"servers = {self.servers} must be 0 or more, or -1 for what is best.")
        if self.world_s < 0 and self.world_s != -1:
            raise TacitError(f"world_s = {self.world_s} must not be negative, or -1 for what is measured.")

    def cluster(self, shape: ModelShape) -> Cluster:
        device = device_named(self.device)
        training = Training(self.lora_rank, self.recompute, self.gather, 4 if self.moments == "float32" else 2, self.reference)
        network = Network(self.network * 1e9 / 8, self.per_machine, self.transport, self.storage * 1e9)
        return Cluster(
            shape,
            device,
            reached_on(device, self.sampler),
            network,
            training,
            self.overlap,
            self.scorings + int(self.reference),
        )
