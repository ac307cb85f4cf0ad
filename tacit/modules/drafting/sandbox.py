"""Run a draft in a sandbox: a process with limits that handles one call at a time and is killed if it does not answer.

The sandbox stops accidents and cheating drafts: no files, no network, no other programs, limited time and memory
(`sandbox_process.py` says how). It does not stop an attacker who knows a hole in Python or the system, and the kernel enforces
less outside Linux. So a draft is always shown before it is run.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tacit.core.errors import TacitError
from tacit.modules.drafting.sandbox_process import MAX_SOURCE

Kind = Literal["tracker", "rewards"]
"""a tracker with rewards, or only rewards for the state blocks of an existing tracker (`sandbox_process.PARTS`)"""
PROCESS = Path(__file__).with_name("sandbox_process.py")
MAX_ANSWER_BYTES = 1_000_000
START_S = 10.0  # extra time for the process to start on a busy machine


class DraftError(TacitError):
    """A draft raised an exception, or could not be loaded."""


class DraftTimeout(DraftError):
    """A draft did not answer in time, or its process ended."""


@dataclass(frozen=True)
class Limits:
    call_s: float = 2.0  # per call
    memory: int = 512 << 20  # bytes
    cpu_s: int = 600  # CPU time of the process


class Sandbox(contextlib.AbstractContextManager["Sandbox"]):
    def __init__(
        self, source: str, limits: Limits | None = None, seed: int = 0, run: bool = True, kind: Kind = "tracker"
    ) -> None:
        """`seed` sets PYTHONHASHSEED. With `run=False` the source is checked but not executed."""
        if sys.platform == "win32":
            raise TacitError("the sandbox for drafts needs limits that Windows does not have; use Linux or macOS.")
        self.limits = limits or Limits()
        self._directory = tempfile.TemporaryDirectory(prefix="tacit-draft-")
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-s", "-P", "-B", str(PROCESS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._directory.name,
            env={"PYTHONHASHSEED": str(seed)},
            start_new_session=True,
        )
        self._buffer = b""
        setup = {"source": source, "kind": kind, "limits": asdict(self.limits), "run": run}
        try:
            reply = self._exchange(setup, self.limits.call_s + START_S)
        except BaseException:
            self.close()
            raise
        self.findings: tuple[str, ...] = tuple(reply["findings"])
        """forbidden code in the source; if there is any, nothing was run"""
        self.enforced_limits: Mapping[str, bool] = reply["held"]  # limit -> whether the kernel enforces it here
        self.constants: Mapping[str, Any] = reply.get("constants", {})
        if "error" in reply:
            self.close()
            raise DraftError(reply["error"])

    def call(self, name: str, **arguments: Any) -> Any:
        reply = self._exchange({"call": name, **arguments}, self.limits.call_s)
        if "error" in reply:
            raise DraftError(reply["error"])
        return reply["answer"]

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        if self.alive:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._directory.cleanup()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _exchange(self, document: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(document).encode() + b"\n")
            self._process.stdin.flush()
            return json.loads(self._read_line(seconds))
        except (OSError, ValueError) as error:
            self.close()
            raise DraftTimeout(f"its process ended ({error})") from error

    def _read_line(self, seconds: float) -> bytes:
        """The next line of output. Kills the process if it takes too long or writes too much."""
        assert self._process.stdout is not None
        deadline, pipe = time.monotonic() + seconds, self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.close()
                raise DraftTimeout(f"no answer within {seconds:g} s")
            chunk = os.read(pipe, 65536)
            if not chunk:
                self.close()
                raise DraftTimeout("its process ended: it ran out of memory or of processor time")
            self._buffer += chunk
            if len(self._buffer) > MAX_ANSWER_BYTES:
                self.close()
                raise DraftTimeout(f"it answers with more than {MAX_ANSWER_BYTES} bytes")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def check_source(source: str) -> tuple[str, ...]:
    """Forbidden code in a draft's source. Runs nothing."""
    with Sandbox(source, run=False) as sandbox:
        return sandbox.findings


def truncate_for_display(source: str) -> str:
    """The source, up to the length that may be run."""
    excess = len(source) - MAX_SOURCE
    return source if excess <= 0 else f"{source[:MAX_SOURCE]}\n… and {excess} more characters, too long to run"
