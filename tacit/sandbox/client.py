"""Client of the sandbox server: creates workspaces and runs commands in them."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Self

from tacit.core.errors import TacitError, unknown
from tacit.sandbox.server import remove_tree

AT = "/testbed"  # path of the workspace inside the sandbox
PYTHON = "/opt/python"  # path of the Python installation inside the sandbox
SHARED_MEMORY = Path("/dev/shm")
CPU_LIMIT = "cpu limit"  # `Result.killed` if a process used more than `Limits.cpu_s`
AUTO, NAMESPACES, BUBBLEWRAP, NONE = MODES = ("auto", "namespaces", "bubblewrap", "none")


@dataclass(frozen=True)
class Limits:
    wall_s: float = 30.0  # per command
    cpu_s: int = 30  # per process
    memory_mb: int = 1024  # per process, and for all processes of a command together
    processes: int = 64  # concurrent processes and threads
    file_mb: int = 16  # per file
    disk_mb: int = 64  # for the workspace, and for /tmp
    output_kb: int = 256  # output kept; a command that writes more than 64 times as much is killed


@dataclass(frozen=True)
class Result:
    code: int  # exit status; 128 + N if signal N ended the command
    output: str = ""  # stdout and stderr together, in the order they were written
    killed: str = ""  # the limit that ended the command; empty if none did
    report: str = ""  # what a preloaded function wrote to its report pipe; empty for programs
    dropped: int = 0  # bytes of output discarded beyond `output_kb`
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Workspace:
    """The directory of one episode."""

    sandbox: Sandbox
    folder: Path

    def run(self, arguments: Sequence[str], **more: Any) -> Result:
        return self.sandbox.start(self, arguments, **more).result()

    def close(self) -> None:
        remove_tree(self.folder)


def remove_stale(base: Path) -> None:
    """Remove folders left by killed processes: the process id is gone and nobody holds the folder's lock."""
    for folder in base.glob("tacit-sandbox-*-*"):
        pid = folder.name.split("-")[2]
        if not pid.isdigit() or Path(f"/proc/{pid}").exists():
            continue
        with suppress(OSError):
            held = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(folder)
            finally:
                os.close(held)


@dataclass
class Sandbox:
    """One server process. Thread-safe; commands in different workspaces run concurrently."""

    limits: Limits = field(default_factory=Limits)
    binds: Mapping[str, Path] = field(default_factory=dict)  # path inside -> file or directory outside, read-only
    preload: Sequence[str] = ()
    """functions that the server imports once: `module:function`, or `module:maker=argument` for what `maker(argument)` returns;
    `start(function=…)` calls one in a fork, with the arguments and the descriptor of the report pipe"""
    python_path: Sequence[str] = ()  # PYTHONPATH inside
    mode: str = AUTO
    """namespaces, bubblewrap (slower: it starts Python anew for preloaded functions) or none (limits, no isolation);
    auto takes namespaces if the kernel allows them, else bubblewrap if it is installed"""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise unknown("mode of the sandbox", self.mode, MODES)
        self._bwrap = shutil.which("bwrap") or ""
        if self.mode == BUBBLEWRAP and not self._bwrap:
            raise TacitError("bubblewrap is not installed (no bwrap on PATH); install it, or choose another mode.")
        base = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
        remove_stale(base or Path(tempfile.gettempdir()))
        self.folder = Path(tempfile.mkdtemp(prefix=f"tacit-sandbox-{os.getpid()}-", dir=base))
        self._held = os.open(self.folder, os.O_RDONLY)
        fcntl.flock(self._held, fcntl.LOCK_SH)
        self.folder.chmod(0o711)
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Result]] = {}
        self._lock = threading.Lock()
        self._line, theirs = Pipe()
        with theirs:
            server = Path(__file__).with_name("server.py")
            binds = {PYTHON: sys.base_prefix, **{inside: str(outside) for inside, outside in self.binds.items()}}
            binds = {} if self.mode == NONE else binds
            if self.mode in (AUTO, BUBBLEWRAP) and self._bwrap:  # bubblewrap starts preloaded functions from these files
                modules = [name.partition(":")[0] for name in self.preload if ".py:" in name]
                binds |= {path: path for path in (str(server), *modules)}
            words = [sys.executable, "-s", "-P", str(server), str(theirs.fileno()), str(self.folder), json.dumps(binds)]
            self.process = subprocess.Popen(
                [*words, *self.preload],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={"PATH": os.environ.get("PATH", ""), "PYTHONHASHSEED": "0"},
            )
        threading.Thread(target=self._listen, name="sandbox", daemon=True).start()
        self._check()

    def copy(self, tree: Path) -> Workspace:
        folder = self.folder / f"work-{next(self._numbers)}"
        shutil.copytree(tree, folder, symlinks=True)
        folder.chmod(0o700)
        return Workspace(self, folder)

    def start(
        self,
        workspace: Workspace,
        arguments: Sequence[str],
        function: str = "",
        environment: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> Future[Result]:
        """Start a command: the preloaded `function` with these arguments, or, without one, a program and its arguments."""
        defaults = {
            "PATH": f"{PYTHON}/bin:/usr/local/bin:/usr/bin:/bin",
            "LD_LIBRARY_PATH": f"{PYTHON}/lib",
            "HOME": "/home/agent",
            "LANG": "C.UTF-8",
            "PYTHONPATH": ":".join(self.python_path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
        }
        number, folder = next(self._numbers), str(workspace.folder)
        at = folder if self.mode == NONE else AT  # without isolation nothing is mounted
        if self.mode == NONE:
            path = f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '')}"
            environment = {**(environment or {}), "PATH": path, "PYTHONPATH": f"{folder}/src:{folder}", "HOME": folder}
            environment["LD_LIBRARY_PATH"] = ""
        order: dict[str, Any] = {
            "id": number,
            "workspace": folder,
            "at": at,
            "arguments": [text.replace(AT, at) for text in arguments],
            "function": function,
            "environment": {**defaults, **(environment or {})},
            "limits": asdict(limits or self.limits),
            "mode": self.mode,
            "show": (at, AT),
            "bwrap": self._bwrap,
        }
        future: Future[Result] = Future()
        body = json.dumps(order).encode()
        with self._lock:
            self._waiting[number] = future
            try:
                self._line.send_bytes(body)
            except OSError as error:
                del self._waiting[number]
                raise TacitError("the sandbox server has exited; open a new Sandbox.") from error
        return future

    @property
    def alive(self) -> bool:
        """False once the server has exited"""
        return self.process.poll() is None

    def close(self) -> None:
        self._line.close()
        self.process.terminate()
        self.process.wait()
        remove_tree(self.folder)
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _check(self) -> None:
        """Run a probe command; raise TacitError if commands cannot be isolated."""
        probe = self.folder / "probe"
        probe.mkdir(mode=0o700)
        try:
            if self.mode == AUTO:
                self.mode = NAMESPACES
                try:
                    Workspace(self, probe).run(["true"])
                except TacitError:
                    if not self._bwrap:
                        raise
                    self.mode = BUBBLEWRAP
            result = Workspace(self, probe).run(["true"])
            if result.code != 0:
                raise TacitError(f"commands cannot be isolated by {self.mode} here ({result.output.strip() or result.code}).")
        except TacitError:
            self.close()
            raise
        shutil.rmtree(probe)

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._answer(json.loads(self._line.recv_bytes()))
        with self._lock:
            lost, self._waiting = list(self._waiting.values()), {}
        for future in lost:
            future.set_exception(TacitError("the sandbox server exited while a command was running; open a new Sandbox."))

    def _answer(self, answer: dict[str, Any]) -> None:
        with self._lock:
            future = self._waiting.pop(answer.pop("id"))
        error = answer.pop("error", "")
        if error:
            future.set_exception(
                TacitError(
                    f"commands cannot be isolated here ({error}). The kernel must allow unprivileged user namespaces "
                    "(sysctl kernel.unprivileged_userns_clone=1, or user.max_user_namespaces above 0), or install bubblewrap. "
                    "--sandbox none runs commands without isolation: only for models and repositories you trust."
                )
            )
        else:
            future.set_result(Result(**answer))
