"""Ranks and servers as Ray actors, on this machine or on a cluster. They are spoken to as plain processes are; Ray only places
them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.platform import join_cluster
from tacit.engines.sharded.launch import LaunchedProcess, Role
from tacit.engines.sharded.settings import ShardedSettings


class RayLauncher:
    def __init__(self, role: Role, settings: ShardedSettings):
        address, needed = settings.address, settings.ranks + settings.servers
        self.role, self._ray = role, (ray := join_cluster(address, "--engine.address", needed))
        kind = "GPU" if role.on_gpu else "CPU"
        there = int(ray.cluster_resources().get(kind, 0))
        if there < needed:
            servers = f" and servers = {settings.servers}" if settings.servers else ""
            raise TacitError(
                f"engine setting ranks = {settings.ranks}{servers}, but the Ray cluster at {address!r} has {there} {kind}(s), "
                f"and each process needs one of its own; use --engine.ranks {max(1, there - settings.servers)}, or a larger "
                "cluster."
            )
        self.host: str = ray.util.get_node_ip_address()

    def start(self, number: int, address: tuple[str, int], key: bytes) -> LaunchedProcess:
        remote = self._ray.remote(_Serving).options(
            num_cpus=0 if self.role.on_gpu else 1,
            num_gpus=1 if self.role.on_gpu else 0,
            max_restarts=0,
            runtime_env={"env_vars": self.role.variables()},
        )
        actor = remote.remote()
        return _Actor(self._ray, actor, actor.serve.remote(self.role.module, number, address, key))


class _Serving:
    def serve(self, module: str, number: int, address: tuple[str, int], key: bytes) -> None:
        import_module(module).serve(number, address, key)


class _Actor:
    def __init__(self, ray: Any, actor: Any, served: Any):
        self._ray, self._actor, self._served = ray, actor, served
        self.name = f"Ray actor {actor._actor_id.hex()[:8]}"

    def exit_reason(self) -> str | None:
        if not self._ray.wait([self._served], timeout=0)[0]:
            return None
        try:
            self._ray.get(self._served)
        except Exception as error:
            return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        return "it left"

    def last_output(self) -> str:
        return ""

    def stop(self) -> None:
        if self._ray.is_initialized():
            self._ray.kill(self._actor)
