"""Workers as Ray actors, spread over the machines of a cluster: for worlds so slow or so many that one machine is not enough.

An actor whose machine is gone has died as a process has: its pool starts another, wherever there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tacit.core.clusters import OWN, import_path, join_cluster
from tacit.core.errors import TacitError
from tacit.core.world import World
from tacit.rollout.stages import NOTHING, READY, Call, Ended, Stage

SETTING = "--workers-at"


class Actors:
    def __init__(self, address: str, workers: int) -> None:
        self._ray = join_cluster(address, SETTING, workers)
        own = address == OWN
        free = int(self._ray.available_resources().get("CPU", 0))
        if not own and free < workers:
            raise TacitError(
                f"workers = {workers}, but the Ray cluster at {address!r} has {free} CPU(s) free, and each worker needs one of "
                f"its own; use --workers {max(1, free)}, or a larger cluster."
            )
        self._remote = self._ray.remote(_Playing).options(
            num_cpus=0 if own else 1,  # a Ray of one's own is this machine, which the engine may have counted already
            max_restarts=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": {"PYTHONPATH": import_path()}},
        )

    def start(self, make: Callable[[], World]) -> Actor:
        return Actor(self._ray, self._remote.remote(make))

    def wait(self, workers: Sequence[Actor], limit_s: float) -> None:
        self._ray.wait([worker.due[0] for worker in workers], timeout=limit_s)


class Actor:
    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self.due = [actor.ready.remote()]
        """what it has not said yet, in order"""

    def send(self, call: Call) -> None:
        self.due.append(self._actor.call.remote(*call))

    def answer(self) -> Any:
        if not self._ray.wait(self.due[:1], timeout=0)[0]:
            return NOTHING
        try:
            return self._ray.get(self.due.pop(0))
        except self._ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines() or [""]
            raise Ended(f"its Ray actor died: {type(error).__name__}: {lines[0]}") from error

    def leave(self) -> None:
        if self._ray.is_initialized():  # otherwise it went with its Ray
            self.due = [self._actor.close.remote()]

    def stop(self, grace_s: float = 0.0) -> None:
        if not self._ray.is_initialized():
            return
        if grace_s:
            self._ray.wait(self.due[:1], timeout=grace_s)
        self._ray.kill(self._actor)


class _Playing:
    def __init__(self, make: Callable[[], World]) -> None:
        self._stage = Stage(make)

    def ready(self) -> str:
        return READY

    def call(self, slot: int, what: tuple[str, Any]) -> Any:
        return self._stage.call(slot, what)

    def close(self) -> None:
        self._stage.close()
