"""Commands and scripts in separate processes, forked from a server that has imported everything once.

Each is a normal process with its own environment, directory, output and status, and SIGKILL ends it. It only skips importing
torch, which takes longer than most tests. Commands started from scratch are tested in cli/test_main.py,
cli/test_eval_command.py, comparison/test_compare_command.py and distribution/test_installed.py.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from tacit.cli.main import main

WAIT_S = 300


class Forked:
    """A process that has been started."""

    def __init__(self, work: Callable[[list[str]], int | None], words: tuple[Any, ...], environment: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tacit.comparison.warm"])
        self._said = tempfile.NamedTemporaryFile("r", encoding="utf-8")  # noqa: SIM115 (it lives as long as this does)
        self._complained = tempfile.NamedTemporaryFile("r", encoding="utf-8")  # noqa: SIM115
        files = (self._said.name, self._complained.name)
        arguments = (work, [str(word) for word in words], {**os.environ, **environment}, files)
        self._process = context.Process(target=_do, args=arguments)
        # A new process would import the main module again, which is pytest here.
        ours, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            self._process.start()
        finally:
            sys.modules["__main__"] = ours
        atexit.register(self._process.kill)  # otherwise exit waits for processes of failed tests

    @property
    def out(self) -> str:
        """the output so far"""
        return _read(self._said)

    @property
    def err(self) -> str:
        return _read(self._complained)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def code(self) -> int | None:
        """exit status; None while it runs, −n if signal n ended it"""
        return self._process.exitcode

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait until the condition holds or the process ends."""
        deadline = time.monotonic() + WAIT_S
        while self.code is None and time.monotonic() < deadline and not reached():
            time.sleep(0.005)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self) -> int:
        self._process.join(WAIT_S)
        if self.code is None:
            self.kill()
            raise AssertionError(f"it did not end within {WAIT_S} s: {self.out}{self.err}")
        return self.code

    def stop(self) -> int:
        """Terminate the process if it still runs; returns its exit status."""
        if self.code is None:
            self.terminate()
        return self.wait()

    def address(self) -> str:
        """The address of a server, once it has printed it."""
        self.until(lambda: "http://" in self.out)
        addresses = [line.strip() for line in self.out.splitlines() if line.startswith("http://")]
        if not addresses:
            raise AssertionError(f"it did not start (status {self.wait()}): {self.err}")
        return addresses[0]

    def finish(self) -> str:
        """The output, after a successful end."""
        assert self.wait() == 0, self.out + self.err
        return self.out


def start(*words: Any, **environment: str) -> Forked:
    """`tacit WORDS …`"""
    return Forked(main, words, environment)


def start_script(file: Path, *words: Any, **environment: str) -> Forked:
    """`python FILE WORDS …`"""
    return Forked(_script, (file, *words), environment)


def run_script(file: Path, *words: Any, **environment: str) -> Forked:
    """`python FILE WORDS …`; waits for its end."""
    script = start_script(file, *words, **environment)
    script.wait()
    return script


def _script(words: list[str]) -> None:
    sys.argv[:] = words
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")


def _do(work: Callable, words: list[str], environment: dict[str, str], files: tuple[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for stream, file in ((sys.stdout, files[0]), (sys.stderr, files[1])):
        stream.flush()
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), stream.fileno())
    sys.exit(work(words))


def _read(file: Any) -> str:
    file.seek(0)
    return file.read()
