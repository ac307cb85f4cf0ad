"""The fence around a draft: a process with limits, asked one call at a time, and ended when it does not answer.

What it keeps in is an accident, and a draft that cheats or goes astray: no files, no network, no other programs, so much
time and memory (`cell.py` says how each is held). It is no prison for somebody who knows a hole in Python or in the system,
and on systems other than Linux less of it is the kernel's. So a draft is shown before it is run, whatever the fence.
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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tacit.core.errors import TacitError
from tacit.modules.drafting.cell import LONGEST_SOURCE

Kind = Literal["tracker", "rewards"]
"""a whole draft, or rewards alone, over the state blocks of a tracker that is not drafted (`cell.PARTS`)"""
CELL = Path(__file__).with_name("cell.py")
LONGEST_ANSWER = 1_000_000
"""bytes"""


class DraftFailed(TacitError):
    """A draft raised, or could not be run at all."""


class DraftHung(DraftFailed):
    """It did not answer in time, or its process ended."""


@dataclass(frozen=True)
class Limits:
    call_s: float = 2.0
    """how long one call may take"""
    memory: int = 512 << 20
    """bytes"""
    cpu_s: int = 600
    """processor time of the whole process"""


class Fence:
    def __init__(
        self,
        sources: Sequence[str],
        limits: Limits | None = None,
        seed: int = 0,
        run: bool = True,
        kind: Kind = "tracker",
    ) -> None:
        """`seed` of the order of sets and such, in which a draft may not differ. `run` False: its text is read, and no more."""
        if sys.platform == "win32":
            raise TacitError("drafts are run behind limits that Windows has not; use Linux or macOS.")
        self.limits = limits or Limits()
        self._room = tempfile.TemporaryDirectory(prefix="tacit-draft-")
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-s", "-P", "-B", str(CELL)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._room.name,
            env={"PYTHONHASHSEED": str(seed)},
            start_new_session=True,
        )
        self._left = b""
        begin = {"sources": list(sources), "kind": kind, "limits": asdict(self.limits), "run": run}
        try:
            first = self._exchange(begin, self.limits.call_s + STARTING_S)
        except BaseException:
            self.close()
            raise
        self.findings: tuple[str, ...] = tuple(first["findings"])
        """what its text may not have; then it was not run"""
        self.held: Mapping[str, bool] = first["held"]
        """which of the kernel's limits hold on this system"""
        self.constants: Mapping[str, Any] = first.get("constants", {})
        if "error" in first:
            self.close()
            raise DraftFailed(first["error"])

    def call(self, name: str, **arguments: Any) -> Any:
        said = self._exchange({"call": name, **arguments}, self.limits.call_s)
        if "error" in said:
            raise DraftFailed(said["error"])
        return said["answer"]

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
        self._room.cleanup()

    def __enter__(self) -> Fence:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _exchange(self, document: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(document).encode() + b"\n")
            self._process.stdin.flush()
            return json.loads(self._line(seconds))
        except (OSError, ValueError) as error:
            self.close()
            raise DraftHung(f"its process ended ({error})") from error

    def _line(self, seconds: float) -> bytes:
        """The next line it writes; a draft that takes longer, or writes without end, is ended."""
        assert self._process.stdout is not None
        deadline, pipe = time.monotonic() + seconds, self._process.stdout.fileno()
        while b"\n" not in self._left:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.close()
                raise DraftHung(f"no answer within {seconds:g} s")
            more = os.read(pipe, 65536)
            if not more:
                self.close()
                raise DraftHung("its process ended: it ran out of memory or of processor time")
            self._left += more
            if len(self._left) > LONGEST_ANSWER:
                self.close()
                raise DraftHung(f"it answers with more than {LONGEST_ANSWER} bytes")
        line, _, self._left = self._left.partition(b"\n")
        return line


STARTING_S = 10.0
"""for the process to begin, on a machine with other things to do"""


def read_only(source: str) -> tuple[str, ...]:
    """What a draft's text may not have; nothing of it is run."""
    with Fence([source], run=False) as fence:
        return fence.findings


def to_be_shown(source: str) -> str:
    """All of a draft that may be run. One that is too long for it never is, and need not fill a terminal."""
    more = len(source) - LONGEST_SOURCE
    return source if more <= 0 else f"{source[:LONGEST_SOURCE]}\n… and {more} characters more, which is too much to be run"
