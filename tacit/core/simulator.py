"""One expensive simulator shared by many episodes: a JVM, a game server, a browser.

    Environment(..., make=Served(open_server, Episode))

`open_server()` starts the simulator, which may take seconds; `Episode(server)` is a cheap world that uses it. Each process that
runs worlds starts one simulator before its first episode and closes it after its last world. If it dies, its episodes end with
the reason, and the next episode starts it again. Calls are serialized, unless `threads` is more than 1.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import RLock
from typing import Any, Generic, Protocol, TypeVar

from tacit.core.types import Observation, Task, Transition

START_S = 120.0  # seconds a pool waits for a simulator to start


class Simulator(Protocol):
    """Its process should exit when the process that started it does, for example when a pipe closes."""

    @property
    def alive(self) -> bool:
        """False once it has failed to answer a call"""

    def close(self) -> None: ...


class SimulatorDied(Exception):
    """The simulator died, which ends its episodes."""


S = TypeVar("S", bound=Simulator)


class Served(Generic[S]):
    """Makes worlds that share a simulator. Pickling keeps only the two functions: each process starts its own simulator."""

    def __init__(self, open_simulator: Callable[[], S], make: Callable[[S], Any], threads: int = 1) -> None:
        """`threads`: episodes that a worker process steps at the same time; above 1 the simulator must be thread-safe."""
        self._open, self._make, self.threads = open_simulator, make, threads
        self.simulator: S | None = None
        self.lock = RLock()
        self.call_lock: AbstractContextManager[Any] = self.lock if threads == 1 else contextlib.nullcontext()
        """held during calls"""
        self._abandoned: list[S] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._open, self._make, self.threads)

    def __call__(self) -> _Episode[S]:
        return _Episode(self, self._make)

    def start(self) -> S:
        """The running simulator, started if necessary."""
        with self.lock:
            if self.simulator is not None and not self.simulator.alive:
                self.abandon()
            while self._abandoned:
                with contextlib.suppress(Exception):
                    self._abandoned.pop().close()
            if self.simulator is None:
                self.simulator = self._open()
                atexit.register(self.close)  # for worlds outside a pool
            return self.simulator

    def abandon(self) -> None:
        """Stop using the current simulator. It is closed before the next one starts, because closing may be slow."""
        with self.lock:
            if self.simulator is not None:
                self._abandoned.append(self.simulator)
                self.simulator = None

    def close(self) -> None:
        """Call after its worlds are closed. A world made later starts another simulator."""
        with self.lock:
            self.abandon()
            atexit.unregister(self.close)
            while self._abandoned:
                self._abandoned.pop().close()


class _Episode(Generic[S]):
    """A world whose episodes each use the simulator running at their start."""

    def __init__(self, served: Served[S], make: Callable[[S], Any]) -> None:
        self._served, self._make = served, make
        self._simulator: S | None = None
        self.world: Any = None

    def reset(self, task: Task) -> Observation:
        with self._served.call_lock:
            simulator = self._served.start()
            if simulator is not self._simulator:
                self._simulator, self.world = simulator, None
                self.world = self._call(lambda: self._make(simulator))
            return self._call(lambda: self.world.reset(task))

    def step(self, action: str) -> Transition:
        with self._served.call_lock:
            if self._simulator is None or self._simulator is not self._served.simulator:
                raise SimulatorDied("the simulator of this episode is gone")
            return self._call(lambda: self.world.step(action))

    def close(self) -> None:
        with self._served.call_lock:
            world, self.world = self.world, None
            simulator, self._simulator = self._simulator, None
            if world is not None and simulator is self._served.simulator:
                world.close()

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            if self._simulator is not None and self._simulator.alive:
                raise  # only this episode broke
            self._abandon()
            raise SimulatorDied(f"the simulator died: {type(error).__name__}: {error}") from error
        except BaseException:
            # Interrupted during a call, e.g. by an alarm: the simulator's next answer might belong to this call.
            self._abandon()
            raise

    def _abandon(self) -> None:
        with self._served.lock:
            if self._served.simulator is self._simulator:  # else another thread has already replaced it
                self._served.abandon()


def start_simulator(make: Callable[[], Any]) -> None:
    """Start the shared simulator of these worlds, if they have one. If that fails, the episodes report why."""
    if isinstance(make, Served):
        with contextlib.suppress(Exception):
            make.start()


def close_simulator(make: Callable[[], Any]) -> None:
    """Close the shared simulator of these worlds, if any, after the worlds themselves."""
    if isinstance(make, Served):
        with contextlib.suppress(Exception):
            make.close()
