"""Starting ranks and servers: processes of this machine or Ray actors, which connect to the driver and serve its calls; and the
driver's side of the ranks."""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

import tacit
from tacit.core.errors import EngineLost, TacitError, first_line
from tacit.core.platform import import_path, join_cluster
from tacit.engines.sharded.messages import Channel, ConnectionLost, accept_channel, serialize
from tacit.engines.sharded.settings import ShardedSettings

POLL_S = 1.0  # seconds between checks that awaited processes are alive
EXIT_S = 2.0  # seconds to wait for a process to exit after its connection closed
QUOTED_CHARACTERS = 600  # characters of a lost process's output in the error message


@dataclass(frozen=True)
class Role:
    name: str  # for messages: `rank`, `server`
    module: str  # module whose `serve(number, address, key)` it runs
    threads: int
    on_gpu: bool = False  # whether Ray reserves a GPU for each process
    python: str = ""  # the interpreter; empty is this one, with the same import path
    environment: Mapping[str, str] = field(default_factory=dict)
    visible_gpus: tuple[str, ...] = ()  # CUDA_VISIBLE_DEVICES of process n; empty: the process chooses its GPU

    def variables(self) -> dict[str, str]:
        # The user's losses must be importable; another interpreter has its own packages.
        path = str(Path(tacit.__file__).parents[1]) if self.python else import_path()
        threads = {"OMP_NUM_THREADS": str(self.threads), "TOKENIZERS_PARALLELISM": "false"}
        return {**threads, "PYTHONPATH": path, **self.environment}


# A launcher runs the role's `serve(number, address, key)` in processes, which reach this machine at `host`. Its `start` returns
# a running rank or server: `name` is for messages (`process 4711`), `exit_reason` is None while it runs.


class ProcessLauncher:
    """Plain processes on this machine."""

    host = "127.0.0.1"

    def __init__(self, role: Role):
        self.role = role
        self._logs = tempfile.TemporaryDirectory(prefix=f"tacit-{role.name}s-", ignore_cleanup_errors=True)

    def start(self, number: int, address: tuple[str, int], key: bytes) -> _Process:
        log = Path(self._logs.name) / f"{self.role.name}-{number}.log"
        environment = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", **os.environ, **self.role.variables()}
        if self.role.visible_gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.role.visible_gpus[number]
        command = [self.role.python or sys.executable, "-m", self.role.module]
        try:
            with log.open("wb") as output:  # start_new_session: Ctrl-C should reach the driver only
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            raise TacitError(f"cannot start a {self.role.name} with {command[0]}: {error}.") from error
        # By stdin: other users can read arguments and environments.
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as stdin:  # it may have exited already
            stdin.write(json.dumps({"number": number, "address": address, "key": key.hex()}).encode())
        return _Process(process, log)


class _Process:
    def __init__(self, process: subprocess.Popen[bytes], log: Path):
        self._process, self._log = process, log
        self.name = f"process {process.pid}"

    def exit_reason(self) -> str | None:
        code = self._process.poll()
        if code is None:
            return None
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"it exited with code {code}"

    def last_output(self) -> str:
        try:
            return self._log.read_text(errors="replace").strip()[-QUOTED_CHARACTERS:]
        except OSError:
            return ""

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class RayLauncher:
    """Ray actors with the same connections as processes; Ray only places them."""

    def __init__(self, role: Role, settings: ShardedSettings):
        address, needed = settings.address, settings.ranks + settings.servers
        self.role, self._ray = role, (ray := join_cluster(address, "--engine.address", needed))
        kind = "GPU" if role.on_gpu else "CPU"
        available = int(ray.cluster_resources().get(kind, 0))
        if available < needed:
            servers = f" and servers = {settings.servers}" if settings.servers else ""
            raise TacitError(
                f"engine setting ranks = {settings.ranks}{servers}, but the Ray cluster at {address!r} has {available} "
                f"{kind}(s), and each process needs one; use --engine.ranks {max(1, available - settings.servers)}, or a "
                "larger cluster."
            )
        self.host: str = ray.util.get_node_ip_address()

    def start(self, number: int, address: tuple[str, int], key: bytes) -> _Actor:
        cpus, gpus = (0, 1) if self.role.on_gpu else (1, 0)
        environment = {"env_vars": self.role.variables()}
        remote = self._ray.remote(_Serving).options(num_cpus=cpus, num_gpus=gpus, max_restarts=0, runtime_env=environment)
        actor = remote.remote()
        return _Actor(self._ray, actor, actor.serve.remote(self.role.module, number, address, key))


class _Serving:
    def serve(self, module: str, number: int, address: tuple[str, int], key: bytes) -> None:
        import_module(module).serve(number, address, key)


class _Actor:
    def __init__(self, ray: Any, actor: Any, serving: Any):
        self._ray, self._actor, self._serving = ray, actor, serving
        self.name = f"Ray actor {actor._actor_id.hex()[:8]}"

    def exit_reason(self) -> str | None:
        if not self._ray.wait([self._serving], timeout=0)[0]:
            return None
        try:
            self._ray.get(self._serving)
        except Exception as error:
            return f"{type(error).__name__}: {first_line(error)}"
        return "it exited"

    def last_output(self) -> str:
        return ""

    def stop(self) -> None:
        if self._ray.is_initialized():
            self._ray.kill(self._actor)


Launcher = ProcessLauncher | RayLauncher


class WorkerLost(Exception):
    """A rank or server exited, broke its connection or did not answer in time; the message says which."""

    def __init__(self, worker: Any, reason: str):
        super().__init__(reason)
        self.worker = worker


class Worker:
    """The driver's end of one rank or server: its process and its channel."""

    def __init__(self, number: int, launcher: Launcher):
        self.number, self._launcher = number, launcher
        self._started: _Process | _Actor | None = None
        self._channel: Channel | None = None

    def __str__(self) -> str:
        return f"{self._launcher.role.name} {self.number} ({self._started.name if self._started else 'not started'})"

    @property
    def started(self) -> _Process | _Actor:
        assert self._started is not None
        return self._started

    @property
    def channel(self) -> Channel:
        assert self._channel is not None
        return self._channel

    def launch(self) -> None:
        """Start its process without waiting for it, so that several can start at once; see `await_connections`."""
        host, self._key, self._channel = self._launcher.host, secrets.token_bytes(32), None
        self._listener = socket.create_server((host, 0), backlog=1)
        self._started = self._launcher.start(self.number, (host, self._listener.getsockname()[1]), self._key)

    def send(self, message: bytes, limit_s: float) -> None:
        try:
            self.channel.set_timeout(max(0.1, limit_s))
            self.channel.send(message)
        except ConnectionLost as error:
            raise self._broken(error) from error

    def receive(self) -> Any:
        """The next message, which must have arrived."""
        try:
            return self.channel.receive()
        except ConnectionLost as error:
            raise self._broken(error) from error

    def check_alive(self) -> None:
        if (reason := self.started.exit_reason()) is not None:
            raise WorkerLost(self, reason)

    def last_output(self) -> str:
        output = self._started.last_output() if self._started else ""
        return f" Its last output: {output}" if output else ""

    def stop(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._started is not None:
            self._started.stop()

    def _broken(self, error: BaseException) -> WorkerLost:
        deadline = time.monotonic() + EXIT_S
        while (reason := self.started.exit_reason()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        return WorkerLost(self, reason or f"its connection broke ({type(error).__name__}: {error})")


def await_connections(workers: Sequence[Worker], deadline: float) -> list[Worker]:
    """Wait until all workers have connected, or until the deadline. Returns those that have not."""
    while missing := [worker for worker in workers if worker._channel is None]:
        for worker in missing:
            worker.check_alive()
        if time.monotonic() > deadline:
            return missing
        ready = select.select([worker._listener for worker in missing], [], [], POLL_S)[0]
        for worker in missing:
            if worker._listener in ready:
                worker._channel = accept_channel(worker._listener, worker._key, max(0.1, deadline - time.monotonic()))
                if worker._channel is not None:
                    worker._listener.close()
    return []


def stop_workers(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.stop()


GRACE_S = 20.0  # seconds for the other ranks to answer once one has failed: bad input fails on all ranks at about the same time
REMEDY = "Resume from the last checkpoint with `tacit train --resume RUN`; if there is none yet, repeat the command."


class RankGroup:
    """The driver's side of the ranks: every call goes to all ranks, and all must answer within a timeout.

    If a rank is lost, fails or does not answer in time, the error names it, and all ranks are stopped, because the others are
    stuck in a collective operation.
    """

    def __init__(self, launcher: Launcher, ranks: int, device: str, start_timeout_s: float, timeout_s: float):
        self.size, self.timeout_s, self.closed = ranks, timeout_s, ""
        self.lock = threading.RLock()  # held during a call, since another thread may request hidden states during an update
        self.ranks = [Worker(number, launcher) for number in range(ranks)]
        self._finalizer = weakref.finalize(self, stop_workers, self.ranks)
        deadline = time.monotonic() + start_timeout_s
        try:
            for rank in self.ranks:
                rank.launch()
            try:
                if late := await_connections(self.ranks, deadline):
                    self._fail_late(late, "starting", "start_timeout_s")
            except WorkerLost as lost:
                self._fail_lost(lost, "starting")
            address = self._call("open_store", (), deadline, "start_timeout_s")[0]
            self._call("join", (ranks, address, device, timeout_s), deadline, "start_timeout_s")
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method on every rank. Returns their results in order of the ranks."""
        if self.closed:
            raise EngineLost(f"the ranks of this policy were stopped: {self.closed} {REMEDY}")
        with self.lock:
            return self._call(method, arguments, time.monotonic() + self.timeout_s, "timeout_s")

    def _call(self, method: str, arguments: tuple[Any, ...], deadline: float, setting: str) -> list[Any]:
        message = serialize((method, arguments))
        try:
            for rank in self.ranks:
                rank.send(message, deadline - time.monotonic())
            return self._collect_results(method, deadline, setting)
        except WorkerLost as lost:
            self._fail_lost(lost, method)
        except (TacitError, ValueError):
            raise
        except BaseException:  # Ctrl-C: pending answers would be taken for those of the next call
            self.close(f"they were interrupted in {method!r}.")
            raise

    def close(self, why: str = "they were closed.") -> None:
        self.closed = self.closed or why
        self._finalizer()

    def _collect_results(self, method: str, deadline: float, setting: str) -> list[Any]:
        results: dict[int, Any] = {}
        failures: dict[int, tuple[BaseException | None, str]] = {}
        pending: dict[Any, Worker] = {rank.channel.connection: rank for rank in self.ranks}
        while pending:
            arrived = wait(list(pending), timeout=max(0.0, min(POLL_S, deadline - time.monotonic())))
            for connection in arrived:
                rank = pending[connection]
                ok, result = rank.receive()
                del pending[connection]
                if ok:
                    results[rank.number] = result
                else:
                    failures[rank.number] = result
                    deadline = min(deadline, time.monotonic() + GRACE_S)
            late = time.monotonic() > deadline
            if pending and (late or not (arrived or failures)):  # if a machine is lost, its connection is not closed
                for rank in pending.values():
                    rank.check_alive()
            if pending and late:
                if failures:
                    break
                self._fail_late(list(pending.values()), method, setting)
        if failures:
            self._fail(method, failures)
        return [results[number] for number in range(self.size)]

    def _fail(self, method: str, failures: dict[int, tuple[BaseException | None, str]]) -> NoReturn:
        """Raise the error. If all ranks failed (bad input), they keep running. Otherwise they are stopped, and an EngineLost,
        which may suggest a setting, is preferred to other errors."""
        number, (error, text) = min(failures.items(), key=lambda item: (not isinstance(item[1][0], EngineLost), item[0]))
        all_failed = len(failures) == self.size and all(e is not None for e, _ in failures.values())
        if error is not None and all_failed and not isinstance(error, EngineLost):
            raise error
        others = f" The other {self.size - len(failures)} waited for it." if len(failures) < self.size else ""
        why = f"rank {number} of {self.size} ({self.ranks[number].started.name}) failed in {method!r}: {text}.{others}"
        self.close(why)
        settings = error.settings if isinstance(error, EngineLost) else {}
        raise EngineLost(f"{why} All ranks were stopped. {REMEDY}", settings) from error

    def _fail_lost(self, lost: WorkerLost, method: str) -> NoReturn:
        rank, output = lost.worker, lost.worker.last_output()
        why = f"rank {rank.number} of {self.size} ({rank.started.name}) was lost in {method!r}: {lost}."
        self.close(why)
        raise EngineLost(f"{why}{output} All ranks were stopped. {REMEDY}") from lost

    def _fail_late(self, ranks: Sequence[Worker], method: str, setting: str) -> NoReturn:
        names = " and ".join(map(str, ranks))
        why = f"waited in {method!r} for {names} of {self.size}, until the limit of --engine.{setting}."
        self.close(why)
        raise EngineLost(f"{why} All ranks were stopped. Raise the limit, or find out what they wait for. {REMEDY}")
