"""Starting ranks. What a rank does is the same however it was started: it calls the driver and serves it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Protocol

LAST_WORDS = 600
"""characters of a rank's own output that are quoted when it is lost"""


class Started(Protocol):
    """A rank that was started."""

    @property
    def name(self) -> str:
        """how to speak of it: `process 4711`"""
        ...

    def ended(self) -> str | None:
        """How it ended, where it has: `killed by SIGKILL`."""
        ...

    def last_words(self) -> str:
        """The end of what it wrote to its output."""
        ...

    def stop(self) -> None:
        """End it at once, whatever it does."""
        ...


class Launcher(Protocol):
    """Starts ranks, somewhere."""

    @property
    def host(self) -> str:
        """the address of this machine, as ranks reach it"""
        ...

    def start(self, rank: int, address: tuple[str, int], key: bytes) -> Started:
        """Have `ranks.serving.serve(rank, address, key)` run in a process of its own."""
        ...


class ProcessLauncher:
    """Ranks as plain processes on this machine."""

    host = "127.0.0.1"

    def __init__(self, threads: int):
        """`threads` of each rank"""
        self.threads = threads
        self._logs = tempfile.TemporaryDirectory(prefix="tacit-ranks-", ignore_cleanup_errors=True)

    def start(self, rank: int, address: tuple[str, int], key: bytes) -> Started:
        log = Path(self._logs.name) / f"rank-{rank}.log"
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(self.threads),
            "TOKENIZERS_PARALLELISM": "false",
            # What the user's losses are defined in must be found there as it is here.
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tacit.engines.sharded.ranks.serving"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C is the driver's to hear
            )
        # The key goes where no other user can read it: neither in the arguments nor in the environment.
        assert process.stdin is not None
        with process.stdin as told:
            told.write(json.dumps({"rank": rank, "address": address, "key": key.hex()}).encode())
        return _Process(process, log)


class _Process:
    def __init__(self, process: subprocess.Popen[bytes], log: Path):
        self._process, self._log = process, log
        self.name = f"process {process.pid}"

    def ended(self) -> str | None:
        code = self._process.poll()
        if code is None:
            return None
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"it left with exit code {code}"

    def last_words(self) -> str:
        try:
            return self._log.read_text(errors="replace").strip()[-LAST_WORDS:]
        except OSError:
            return ""

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
