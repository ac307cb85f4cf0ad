"""Starting ranks and servers. What they do is the same however they were started: they call the driver and serve it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import tacit
from tacit.core.errors import TacitError
from tacit.core.platform import import_path

QUOTED_CHARACTERS = 600
"""characters of a process's own output that are quoted when it is lost"""


@dataclass(frozen=True)
class Role:
    """What kind of process is started."""

    name: str
    """how to speak of one: `rank`, `server`"""
    module: str
    """whose `serve(number, address, key)` it runs"""
    threads: int
    on_gpu: bool = False
    """whether each needs a GPU of its own, where somebody hands them out"""
    python: str = ""
    """the interpreter it runs in; empty is this one, with all that can be imported here"""
    environment: Mapping[str, str] = field(default_factory=dict)
    visible_gpus: tuple[str, ...] = ()
    """what process n sees of this machine's GPUs, where it does not pick one itself"""

    def variables(self) -> dict[str, str]:
        """Its environment, wherever it runs."""
        # What the user's losses are defined in must be found there as it is here; another interpreter has packages of its own.
        path = str(Path(tacit.__file__).parents[1]) if self.python else import_path()
        threads = {"OMP_NUM_THREADS": str(self.threads), "TOKENIZERS_PARALLELISM": "false"}
        return {**threads, "PYTHONPATH": path, **self.environment}


class LaunchedProcess(Protocol):
    """A process that was started."""

    @property
    def name(self) -> str:
        """how to speak of it: `process 4711`"""
        ...

    def exit_reason(self) -> str | None:
        """How it ended, where it has: `killed by SIGKILL`."""
        ...

    def last_output(self) -> str:
        """The end of what it wrote to its output."""
        ...

    def stop(self) -> None:
        """End it at once, whatever it does."""
        ...


class Launcher(Protocol):
    """Starts processes of one role, somewhere."""

    @property
    def role(self) -> Role: ...

    @property
    def host(self) -> str:
        """the address of this machine, as they reach it"""
        ...

    def start(self, number: int, address: tuple[str, int], key: bytes) -> LaunchedProcess:
        """Have the role's `serve(number, address, key)` run in a process of its own."""
        ...


class ProcessLauncher:
    """Plain processes on this machine."""

    host = "127.0.0.1"

    def __init__(self, role: Role):
        self.role = role
        self._logs = tempfile.TemporaryDirectory(prefix=f"tacit-{role.name}s-", ignore_cleanup_errors=True)

    def start(self, number: int, address: tuple[str, int], key: bytes) -> LaunchedProcess:
        log = Path(self._logs.name) / f"{self.role.name}-{number}.log"
        environment = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", **os.environ, **self.role.variables()}
        if self.role.visible_gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.role.visible_gpus[number]
        command = [self.role.python or sys.executable, "-m", self.role.module]
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is the driver's to hear
                )
        except OSError as error:
            raise TacitError(f"cannot start a {self.role.name} with {command[0]}: {error}.") from error
        # The key goes where no other user can read it: neither in the arguments nor in the environment.
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as told:  # it may have ended already
            told.write(json.dumps({"number": number, "address": address, "key": key.hex()}).encode())
        return _Process(process, log)


class _Process:
    def __init__(self, process: subprocess.Popen[bytes], log: Path):
        self._process, self._log = process, log
        self.name = f"process {process.pid}"

    def exit_reason(self) -> str | None:
        code = self._process.poll()
        if code is None:
            return None
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"it left with exit code {code}"

    def last_output(self) -> str:
        try:
            return self._log.read_text(errors="replace").strip()[-QUOTED_CHARACTERS:]
        except OSError:
            return ""

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
