"""Ranks as Ray actors, on this machine or on a cluster. They are spoken to as plain processes are; Ray only places them."""

from __future__ import annotations

import os
import sys
from typing import Any

from tacit.core.errors import TacitError, install
from tacit.engines.sharded.driver.launching import Started

OWN = "local"
"""the address that stands for a Ray of one's own, on this machine"""


class RayLauncher:
    def __init__(self, address: str, ranks: int, threads: int, gpus: bool):
        try:
            import ray
        except ImportError as error:
            raise TacitError(f"--engine.address {address} needs Ray, which is not installed: {install('cluster')}.") from error
        self._ray, self._gpus = ray, gpus
        if not ray.is_initialized():
            own: dict[str, Any] = {"num_cpus": max(ranks, os.cpu_count() or 1), "include_dashboard": False}
            try:
                ray.init(log_to_driver=False, logging_level="ERROR", **(own if address == OWN else {"address": address}))
            except Exception as error:
                first = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise TacitError(
                    f"no Ray cluster answers at {address!r}: {first} Start one with `ray start --head` and give its address, "
                    f"or use --engine.address {OWN} for one of this run's own."
                ) from error
        kind = "GPU" if gpus else "CPU"
        there = int(ray.cluster_resources().get(kind, 0))
        if there < ranks:
            raise TacitError(
                f"engine setting ranks = {ranks}, but the Ray cluster at {address!r} has {there} {kind}(s), and each rank "
                f"needs one of its own; use --engine.ranks {there}, or a larger cluster."
            )
        self.host: str = ray.util.get_node_ip_address()
        self._environment = {
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }

    def start(self, rank: int, address: tuple[str, int], key: bytes) -> Started:
        remote = self._ray.remote(_Serving).options(
            num_cpus=0 if self._gpus else 1,
            num_gpus=1 if self._gpus else 0,
            max_restarts=0,
            runtime_env={"env_vars": self._environment},
        )
        actor = remote.remote()
        return _Actor(self._ray, actor, actor.serve.remote(rank, address, key))


class _Serving:
    def serve(self, rank: int, address: tuple[str, int], key: bytes) -> None:
        from tacit.engines.sharded.ranks.serving import serve

        serve(rank, address, key)


class _Actor:
    def __init__(self, ray: Any, actor: Any, served: Any):
        self._ray, self._actor, self._served = ray, actor, served
        self.name = f"Ray actor {actor._actor_id.hex()[:8]}"

    def ended(self) -> str | None:
        if not self._ray.wait([self._served], timeout=0)[0]:
            return None
        try:
            self._ray.get(self._served)
        except Exception as error:
            return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        return "it left"

    def last_words(self) -> str:
        return ""

    def stop(self) -> None:
        if self._ray.is_initialized():
            self._ray.kill(self._actor)
