"""Settings of `tacit plan`. The string under a field is its `--help`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tacit.core.bounds import AtLeastOne, Count, NotNegative, Positive, Share, check_bounds
from tacit.core.errors import TacitError
from tacit.planning.plans import Cluster
from tacit.planning.shapes import ON_CPU, SAMPLERS, Device, ModelShape
from tacit.planning.timing import Network, Training


@dataclass(frozen=True)
class PlanSettings:
    gpus: tuple[int, ...] = ()
    """GPUs for ranks and servers together; several numbers, such as 8,64,512, make a table. None: those found here, else 8"""
    gpu: str = ""
    """b200, h200, h100, a100, a100-40, l40s, l4, 4090, or cpu (one core). None: the one found here, else h100"""
    ranks: Count = 0
    """devices that train; 0 chooses the fastest"""
    servers: int = -1
    """servers that sample; -1 chooses the fastest, 0 samples on the first rank"""
    server_gpus: Count = 0
    """devices per server (tensor parallelism): 1, 2, 4 or 8; 0 chooses the fastest"""
    sampler: Literal["vllm", "local"] = "vllm"
    """engine of the servers"""
    overlap: Count = 0
    """updates that rollouts may lag behind; 0 is on-policy"""
    lora_rank: Count = 0
    """LoRA rank; 0 trains all weights"""
    recompute: bool = False
    """recompute activations in the backward pass (--engine.gradient-checkpointing)"""
    gather: Literal["auto", "layer", "whole"] = "auto"
    """how a pass gathers the weights, as --engine.gather"""
    reference: bool = False
    """keep a frozen reference copy and score with it in every update, as a KL penalty does"""
    scorings: Count = 0
    """further forward passes per update; OPID has two"""
    network: Positive = 400.0
    """Gb/s of each device's link to other machines"""
    per_machine: AtLeastOne = 8
    """devices of one machine"""
    transport: Literal["nccl", "file"] = "nccl"
    """how weights reach the servers"""
    storage: Positive = 5.0
    """GB/s of the shared storage for all readers (--transport file)"""
    episodes: Count = 0
    """episodes per iteration; 0 is --groups times --group-size"""
    turns: NotNegative = 0.0
    """mean turns per episode; 0 is as measured"""
    prompt_tokens: NotNegative = 0.0
    """mean prompt tokens per turn; 0 is as measured"""
    completion_tokens: NotNegative = 0.0
    """mean completion tokens per turn; 0 is as recorded (--from), else an assumption that the plan states"""
    world_s: float = -1.0
    """seconds of a world step; -1 is as measured"""
    driver_ms: NotNegative = 2.5
    """milliseconds of the driver per turn: render and encode the prompt, parse the answer"""
    measure: AtLeastOne = 64
    """tasks the expert plays to measure turns and tokens"""
    from_: str = ""
    """measure a run's recorded episodes instead: a run directory or a trajectories/*.jsonl.gz"""
    simulate: Count = 0
    """iterations to simulate with the measured episodes, including stragglers; 0 simulates none"""
    worlds: Count = 0
    """simulated: concurrent episodes; 0 is all of an iteration"""
    world_workers: Count = 0
    """simulated: concurrent world steps; 0 is all"""
    server_life_h: NotNegative = 0.0
    """simulated: mean hours until a server dies; 0 is never"""
    restart_s: NotNegative = 60.0
    """simulated: seconds until a server is back"""
    world_deaths: Share = 0.0
    """simulated: share of turns in which a world dies"""
    seed: int = 0
    """of the measured tasks and the simulation"""

    def __post_init__(self) -> None:
        check_bounds(self)
        if min(self.gpus, default=1) < 1:
            raise TacitError(f"gpus = {', '.join(map(str, self.gpus))} must be at least 1.")
        if self.servers < -1:
            raise TacitError(f"servers = {self.servers} must be 0 or more, or -1 for what is best.")
        if self.world_s < 0 and self.world_s != -1:
            raise TacitError(f"world_s = {self.world_s} must not be negative, or -1 for what is measured.")

    def cluster(self, shape: ModelShape, device: Device) -> Cluster:
        training = Training(self.lora_rank, self.recompute, self.gather, self.reference)
        network = Network(self.network * 1e9 / 8, self.per_machine, self.transport, self.storage * 1e9)
        reached = ON_CPU if device.name == "cpu" else SAMPLERS[self.sampler]
        return Cluster(shape, device, reached, network, training, self.overlap, self.scorings + int(self.reference))
