"""`tacit` commands in fresh processes, forked from a server that has imported everything once (see `warm`): a small run would
else take longer to import torch than to train, and an edit of the code would divide a comparison into before and after.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from tacit.core.cpus import usable_cpus


class Processes:
    """Starts commands, `most` of them at a time. Made before anything heavy is imported, so that the environment it sets is the
    one they see."""

    def __init__(self, main: Callable[[list[str]], int], most: int) -> None:
        """`main` does a command, given its words; each new process finds it by its name."""
        self._main, self.most = main, most
        # A run's texts are encoded together, on as many cores as are its share.
        each = max(1, usable_cpus() // most)
        self._share = {"TOKENIZERS_PARALLELISM": "true" if each > 1 else "false", "RAYON_NUM_THREADS": str(each)}
        # A library that only asks whether there is a GPU must not begin to use it: a driver in use does not survive a fork.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        if most > 1:
            # Several runs on the same cores: threads of one would only wait for those of another.
            os.environ["OMP_NUM_THREADS"] = "1"
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tacit.comparison.warm"])

    def start(self, words: Sequence[str], log: Path) -> Command:
        # The server may be older than this environment: it serves all that a process and its parents ever start.
        told = (self._main, list(words), str(log), {**self._share, **os.environ})
        process = self._context.Process(target=_run, args=told, name=" ".join(words))
        with _without_our_main():
            process.start()
        return Command(process)


class Command:
    def __init__(self, process: Any) -> None:
        self._process = process

    @property
    def code(self) -> int | None:
        """None while it runs; −n where signal n ended it."""
        return self._process.exitcode

    def stop(self) -> None:
        """As Ctrl-C would."""
        if self.code is None:
            os.kill(self._process.pid, signal.SIGINT)

    def wait(self, seconds: float) -> None:
        """Until it has ended; after so long it is killed."""
        self._process.join(seconds)
        if self.code is None:
            self._process.kill()
            self._process.join()


@contextmanager
def _without_our_main() -> Iterator[None]:
    """A new process would first run the main module of whoever starts it, in case its work is defined there. Ours is defined
    here; and where we were started as `python -m tacit.cli.main`, Python warns that the server has imported that already."""
    ours = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = ours


def _run(main: Callable[[list[str]], int], words: list[str], log: str, environment: dict[str, str]) -> None:
    """In the new process: one command, whatever it prints going to the log."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    for stream in (1, 2):
        os.dup2(file, stream)
    os.write(file, f"$ tacit {' '.join(words)}\n".encode())
    code = main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)
