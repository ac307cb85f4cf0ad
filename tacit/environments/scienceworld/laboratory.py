"""ScienceWorld's simulator: one JVM, many episodes (the `scienceworld` package's jar behind py4j).

The package's `ScienceWorldEnv.step` asks for all valid actions after every action, which takes many times as long
as the action itself. Here the server inside it is asked directly, and for nothing that is not needed.

What makes an episode the same whoever plays beside it, and in every process:

- the simulator draws from one random generator of the whole JVM, and numbers things by one counter, which begins again
  whenever anybody loads a task: a thing made later, in another episode, could get the number of the agent, who then cannot be
  found. Each episode has a generator and a count of its own, put in their places before it is asked something;
- the order of things depends on their hashes, which the JVM draws at random. Here a thing's hash is its number (`numbered.py`),
  and what else is hashed by identity has equal hashes (`hashCode=2`), so that it stays in the order it was made in.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError, install
from tacit.environments.scienceworld.numbered import NAME as THING
from tacit.environments.scienceworld.numbered import lay_out

HEAP_MB = 2048
"""the most memory the JVM takes for objects; an episode takes about 11 MB of it"""
MOST_EPISODES = 128
"""at the same time in one JVM"""
REQUIRES, EXTRA = ("scienceworld", "py4j"), "scienceworld"
JAVA = "`apt install openjdk-17-jre-headless` on Debian and Ubuntu, `conda install openjdk=17` with conda; 11 or later will do"
OPTIONS = (
    f"-Xmx{HEAP_MB}m",
    "-Xmn256m",  # most of what a step makes is garbage at once
    "-XX:+UseSerialGC",  # others keep several times the memory for the same speed
    "-XX:+ExitOnOutOfMemoryError",  # half an episode is worth nothing: whoever waits is told that it died
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
)
_LEAVE_S = 5.0


class Seat:
    """What an episode has of its own in the simulator."""

    def __init__(self, generator: Any) -> None:
        self.generator, self.numbered = generator, 0
        """what it draws from, and how many things it has numbered"""
        self.interface: Any = None


class Laboratory:
    """A running JVM. Interfaces are kept for the next episode: making one takes longer than loading a task into it."""

    def __init__(self, gateway: Any, process: subprocess.Popen[bytes]) -> None:
        self._gateway, self.process = gateway, process
        self._idle: list[Any] = []
        self._lent: set[Seat] = set()
        self._turn: Seat | None = None
        """whose generator and count are in place now"""
        java = gateway.jvm.java
        # The simulator prints at every step, and nobody reads it.
        java.lang.System.setOut(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))
        names = ("scala.util.Random$", "util.UniqueIdentifier$", THING)  # the last only to have it read
        drawing, numbering, _ = (java.lang.Class.forName(name) for name in names)
        self._drawing, self._numbers = (of.getField("MODULE$").get(None) for of in (drawing, numbering))
        self._generator = drawing.getSuperclass().getDeclaredField("self")
        self._generator.setAccessible(True)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, seat: Seat, function: str, *arguments: Any) -> Any:
        """What a function of an episode's interface answers."""
        return self._in_turn(seat, lambda: getattr(seat.interface, function)(*arguments))

    def _in_turn(self, seat: Seat, call: Callable[[], Any]) -> Any:
        from py4j.protocol import Py4JNetworkError

        if not self.alive:  # py4j would try again and again, and log each failure
            raise self._lost("it is dead")
        try:
            if self._turn is not seat:
                if self._turn is not None:
                    self._turn.numbered = self._numbers.count()
                self._generator.set(self._drawing, seat.generator)
                getattr(self._numbers, "count_$eq")(seat.numbered)
                self._turn = seat
            return call()
        except Py4JNetworkError as error:
            raise self._lost(str(error)) from error

    def lend(self) -> Seat:
        """For one episode after another."""
        if len(self._lent) >= MOST_EPISODES:
            raise TacitError(
                f"{MOST_EPISODES} ScienceWorld episodes are being played in one process already, and its JVM has memory for no "
                "more: play fewer at a time, or in more worker processes."
            )
        seat = Seat(self._gateway.jvm.java.util.Random(0))
        make = self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface
        seat.interface = self._idle.pop() if self._idle else self._in_turn(seat, make)
        self._lent.add(seat)
        return seat

    def take_back(self, seat: Seat) -> None:
        self._lent.discard(seat)
        self._idle.append(seat.interface)

    def kill(self) -> None:
        self._hang_up()
        self.process.kill()
        self.process.wait()

    def _lost(self, why: str) -> SimulatorLost:
        self.kill()
        return SimulatorLost(f"the JVM no longer answers (exit code {self.process.returncode}): {why}")

    def _hang_up(self) -> None:
        """What is garbage in Python is otherwise reported to the JVM, whether it is there or not."""
        self._gateway._gateway_client.is_connected = False

    def close(self) -> None:
        """A JVM whose standard input is closed ends by itself: that is also how it notices that we are gone."""
        self._hang_up()
        self._gateway.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self.kill()


class SimulatorLost(Exception):
    """The JVM is gone, or cannot be reached."""


def open_laboratory() -> Laboratory:
    """Start it, which takes a few seconds. What is missing is named, with how to get it."""
    try:
        from py4j.java_gateway import GatewayParameters, JavaGateway, find_jar_path
    except ImportError as error:
        raise TacitError(f"ScienceWorld needs the packages {' and '.join(REQUIRES)} ({error}): {install(EXTRA)}.") from error
    missing = lacks()
    if missing:
        raise TacitError(f"ScienceWorld needs {missing}.")
    jar = find_jar()
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory() as mended:
        lay_out(jar, Path(mended))
        command = [find_java(), "-classpath", os.pathsep.join((mended, find_jar_path(), str(jar))), *OPTIONS]
        command += ["py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"]
        # A group of its own, since Ctrl-C is ours to handle; no session, since Linux shares a busy machine out by sessions.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=jar.parent, process_group=0
        )
        assert process.stdout is not None
        port, token = (process.stdout.readline().decode().strip() for _ in range(2))
        if not port.isdigit():
            process.kill()
            code = process.wait()
            errors.seek(0)
            told = errors.read().decode(errors="replace").strip() or f"it ended with code {code} and said {port!r}"
            raise TacitError(f"{command[0]} could not start ScienceWorld's simulator: {told[-500:]}. A Java that can: {JAVA}.")
        parameters = GatewayParameters(port=int(port), auth_token=token, auto_field=True)
        return Laboratory(JavaGateway(gateway_parameters=parameters, java_process=process), process)


def lacks() -> str:
    """What is not here besides the packages, and how to get it: Java, or the simulator that the package should bring."""
    parts = []
    jar, home = find_jar(), os.environ.get("JAVA_HOME", "")
    if jar.name and not jar.is_file():
        parts.append(f"the simulator {jar}, which its package should bring: install that again, {install(EXTRA)}")
    if not find_java():
        where = f"JAVA_HOME is {home!r}, which has no bin/java" if home else "there is no `java` on the path"
        parts.append(f"Java, and {where}: {JAVA}")
    return ", and ".join(parts)


def find_jar() -> Path:
    """Where the package has its simulator; an empty path where there is no package. It is not imported to find out."""
    spec = importlib.util.find_spec("scienceworld")
    return Path(spec.origin).parent / "scienceworld.jar" if spec and spec.origin else Path()


def find_java() -> str:
    """The `java` of JAVA_HOME, else the one on the path; empty where there is none."""
    home = os.environ.get("JAVA_HOME", "")
    return shutil.which(str(Path(home) / "bin" / "java") if home else "java") or ""
