"""Settings of the sharded engine. Importing this file imports no torch, so `--help` stays quick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tacit.core.errors import TacitError
from tacit.engines.local.settings import EngineSettings


@dataclass(frozen=True)
class ShardedSettings(EngineSettings):
    """How the sharded engine spreads a model over processes, trains it and samples from it."""

    ranks: int = 1
    """processes that hold the weights in shards; on GPUs, one each"""
    servers: int = 0
    """processes that only sample; 0 samples in the process that drives the ranks, from its own copy of the weights"""
    address: str = ""
    """where ranks are started: empty for plain processes on this machine, local for a Ray of its own, auto or ray://HOST:PORT
    for a Ray cluster that is there"""
    gather: Literal["auto", "layer", "whole"] = "auto"
    """how a pass gets the weights: layer by layer (least memory, any architecture), or the whole model at once (quicker, where
    one device can hold it); auto is whole up to a billion weights"""
    start_timeout_s: float = 300.0
    """how long the ranks may take to start and find each other"""
    timeout_s: float = 1800.0
    """how long the ranks may take for one piece of work; whoever has not answered by then is named, and the ranks are ended"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ranks < 1:
            raise TacitError(f"engine setting ranks = {self.ranks} must be at least 1.")
        if self.servers != 0:
            raise TacitError(
                f"engine setting servers = {self.servers}: this engine has no sampling servers yet; use 0, which samples in "
                "the process that drives the ranks."
            )
        for name in ("start_timeout_s", "timeout_s"):
            if getattr(self, name) <= 0:
                raise TacitError(f"engine setting {name} = {getattr(self, name)} must be above 0.")
        if self.gather not in ("auto", "layer", "whole"):
            raise TacitError(f"engine setting gather = {self.gather!r} must be one of auto, layer, whole.")
        if self.compile:
            raise TacitError("engine setting compile is for the local engine; the sharded engine goes without.")
