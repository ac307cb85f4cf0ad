"""The world: an episode in ScienceWorld's simulator, by its raw calls.

An episode begins as the package's does, with a `look around` that costs a move of simulated time. A score below zero ends it:
the wrong thing was focused on. The package calls that -100; here the score stays in [0, 1], and the label says it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import struct
import subprocess
import tempfile
import weakref
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError, install
from tacit.core.types import Observation, Task, Transition

# One class of ScienceWorld's simulator, mended: things hash by their number.
#
# `EnvObject.equals` compares numbers, but `hashCode` is the JVM's own, drawn at random. So the order of things in a set differs
# from run to run; and where all hashes are made equal, a set is a list, and a step takes longer. Here the class is given
#
#     public int hashCode() { return (int) uuid; }
#
# in a copy of its class file, which the JVM finds before the jar's (the format: JVM specification, chapter 4).

NAME = "scienceworld.struct.EnvObject"
_FILE = f"{NAME.replace('.', '/')}.class"
_TEXT, _WIDE = 1, (5, 6)
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 18: 4}
"""tag of a constant -> its bytes; a text has its length before it"""


def lay_out(jar: Path, directory: Path) -> None:
    """Write the mended class where a classpath that begins with this directory finds it."""
    try:
        with zipfile.ZipFile(jar) as archive:
            mended = hashed_by(archive.read(_FILE), "uuid")
    except (OSError, KeyError, struct.error, zipfile.BadZipFile) as error:
        raise TacitError(f"{jar} is not the simulator of scienceworld 1.2.3: {_FILE} could not be read ({error}).") from error
    (directory / _FILE).parent.mkdir(parents=True)
    (directory / _FILE).write_bytes(mended)


def hashed_by(compiled: bytes, field: str) -> bytes:
    """The class with a `hashCode` that is the value of one of its fields, a long."""
    (count,) = struct.unpack_from(">H", compiled, 8)
    end, at = 10, 1
    while at < count:
        tag = compiled[end]
        end += 3 + struct.unpack_from(">H", compiled, end + 1)[0] if tag == _TEXT else 1 + _SIZES[tag]
        at += 2 if tag in _WIDE else 1
    own, _, interfaces = struct.unpack_from(">HHH", compiled, end + 2)
    methods = _after_members(compiled, end + 8 + 2 * interfaces)

    name, kind, code, value, long, both, taken = range(count, count + 7)
    texts = (word.encode() for word in ("hashCode", "()I", "Code", field, "J"))
    constants = b"".join(struct.pack(">BH", _TEXT, len(text)) + text for text in texts)
    constants += struct.pack(">BHHBHH", 12, value, long, 9, own, both)
    body = struct.pack(">BBHBB", 0x2A, 0xB4, taken, 0x88, 0xAC)  # aload_0, getfield, l2i, ireturn
    method = struct.pack(">HHHHHIHHI", 1, name, kind, 1, code, len(body) + 12, 2, 1, len(body)) + body + bytes(4)

    (there,) = struct.unpack_from(">H", compiled, methods)
    head = compiled[:8] + struct.pack(">H", count + 7) + compiled[10:end] + constants
    return head + compiled[end:methods] + struct.pack(">H", there + 1) + method + compiled[methods + 2 :]


def _after_members(compiled: bytes, at: int) -> int:
    """Where a list of fields ends."""
    (members,) = struct.unpack_from(">H", compiled, at)
    at += 2
    for _ in range(members):
        (attributes,) = struct.unpack_from(">H", compiled, at + 6)
        at += 8
        for _ in range(attributes):
            at += 6 + struct.unpack_from(">I", compiled, at + 2)[0]
    return at


# ScienceWorld's simulator: one JVM, many episodes (the `scienceworld` package's jar behind py4j).
#
# The package's `ScienceWorldEnv.step` asks for all valid actions after every action, which takes many times as long
# as the action itself. Here the server inside it is asked directly, and for nothing that is not needed.
#
# What makes an episode the same whoever plays beside it, and in every process:
#
# - the simulator draws from one random generator of the whole JVM, and numbers things by one counter, which begins again
#   whenever anybody loads a task: a thing made later, in another episode, could get the number of the agent, who then cannot be
#   found. Each episode has a generator and a count of its own, put in their places before it is asked something;
# - the order of things depends on their hashes, which the JVM draws at random. Here a thing's hash is its number
# (`numbered.py`),
#   and what else is hashed by identity has equal hashes (`hashCode=2`), so that it stays in the order it was made in.

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
        names = ("scala.util.Random$", "util.UniqueIdentifier$", NAME)  # the last only to have it read
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


# What the simulator's sentences say: the event of a turn, the room one is in, what one carries.

REFUSED = re.compile(
    r"^(?:No known action|Unknown action|It'?s not clear|I'm not sure how|You must |You can't |That can't |Connections must "
    r"|Something can't |That container is empty|There is only one thing|Mixing the contents of .* does not"
    r"|(?:The|A) .*(?: is not | is already | isn't | does not contain | appears broken))"
)
"""how an action is turned down, or said to change nothing"""
UNREADABLE = re.compile(r"^(?:No known action|Unknown action)")
AMBIGUOUS = "Ambiguous request"

_EVENTS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("went", r"^You move (?:through the door )?to the (.+)\.$"),
        ("took", r"^(?:\(.*?\))?You move the (.+?) to the inventory\.$"),
        ("moved", r"^(?:\(.*?\))?You move the (.+?) to the (.+)\.$"),
        ("poured", r"^You pour the contents of the (.+?) into the (.+)\.$"),
        ("focused", r"^You focus on the (.+)\.$"),
        ("opened", r"^The (.+) is now open\.$"),
        ("started", r"^The (.+) is now activated\.$"),
        ("stopped", r"^The (.+) is now deactivated\.$"),
        ("connected", r"^.+? on (.+) is now connected to .+? on (.+?)\.?$"),
        ("measured", r"^the (?:.+) measures a temperature of (-?\d+) degrees celsius"),
        ("timed", r"^a stopwatch.*The time reads (\d+) ticks"),
        ("mixed", r"^(.+) mix to produce (.+)\.$"),
        ("read", r"^The (.+) reads:"),
        ("waited", r"^You decide to wait for (\d+)"),
    )
)
_ROOM = re.compile(r"^This (?:room|outside location) is called the (.+?)\.")
_CARRIED = re.compile(r"^In your inventory, you see:")
_ARTICLE = re.compile(r"^(?:an?|the|some) (?:substance called )?", re.IGNORECASE)
_MORE = re.compile(r"[,.(].*")
_DOOR = re.compile(r"A door to the (.+?) \(that is (open|closed)\)")


@dataclass(frozen=True)
class Event:
    """`took thermometer`, `moved lead (to) metal pot`, `connected battery (to) red wire`, `measured 83`; nothing where
    nothing of that kind happened."""

    kind: str = ""
    what: str = ""
    where: str = ""


def read_event(text: str) -> Event:
    if REFUSED.match(text):
        return Event("refused")
    for kind, pattern in _EVENTS:
        found = pattern.match(text)
        if found:
            return Event(kind, *found.groups()[:2])
    return Event("room", found[1]) if (found := _ROOM.match(text)) else Event()


def read_room(text: str) -> str:
    """The room that is seen or entered, empty where the text is of something else."""
    event = read_event(text)
    return event.what if event.kind in ("went", "room") else ""


def read_doors(text: str) -> dict[str, bool]:
    """room beyond -> whether the door is open"""
    return {room: state == "open" for room, state in _DOOR.findall(text)}


def read_inventory(text: str) -> tuple[str, ...] | None:
    """What is carried, by its plain names; None where the text is no inventory."""
    if not _CARRIED.match(text):
        return None
    lines = (line.strip() for line in text.split("\n")[1:] if line.startswith("\t"))
    return tuple(plain(line) for line in lines if plain(line) != "nothing")


def plain(line: str) -> str:
    """`a metal pot (containing nothing)` -> `metal pot`"""
    return _MORE.sub("", _ARTICLE.sub("", line.strip())).strip()


def is_refused(text: str) -> bool:
    return bool(REFUSED.match(text))


WRONG_FOCUS = "wrong_focus"
OUT_OF_STEPS = "out_of_steps"
LONGEST = 300
"""characters of an action that are read; the longest that is any use has a hundred"""


class ScienceWorld:
    """Plays one variation of one task at a time, beside others in the same simulator."""

    def __init__(self, laboratory: Laboratory) -> None:
        self._laboratory = laboratory
        self._seat = laboratory.lend()
        self._hand_back = weakref.finalize(self, laboratory.take_back, self._seat)
        """done once: by `close`, or when a world that nobody closed is forgotten"""
        self._steps = self._limit = 0
        self._score = 0.0
        self._playing = False

    def reset(self, task: Task) -> Observation:
        if not {"task", "variation"} <= set(task.data):
            raise TacitError(f"task {task.id!r} is none of ScienceWorld: its data has no 'task' and 'variation'.")
        name, variation = str(task.data["task"]), int(task.data["variation"])
        said = self._ask("load", name, variation, "", False)
        text = self._ask("step", "look around")
        if said or text.startswith("ERROR"):
            self._playing = False
            raise TacitError(f"ScienceWorld has no variation {variation} of {name!r}: {said or text}")
        self._steps, self._limit, self._playing = 0, int(task.data.get("limit", 0)), True
        self._score = self._ask("getScore")
        return Observation(text)

    def step(self, action: str) -> Transition:
        if not self._playing:
            raise TacitError("this ScienceWorld episode is over or has not begun: call reset(task) first.")
        text = self._ask("step", _command(action))
        score = self._ask("getScore")
        earned, self._score = score - self._score, score
        self._steps += 1
        late = 0 < self._limit <= self._steps and 0.0 <= score < 1.0
        done = late or not 0.0 <= score < 1.0
        self._playing = not done
        return Transition(
            Observation(text),
            done=done,
            success=score >= 1.0,
            score=min(max(score, 0.0), 1.0),
            effective=not is_refused(text),
            label=WRONG_FOCUS if score < 0 else OUT_OF_STEPS if late else "",
            reward=earned,
        )

    def close(self) -> None:
        self._playing = False
        self._hand_back()

    def _ask(self, function: str, *arguments: Any) -> Any:
        return self._laboratory.ask(self._seat, function, *arguments)


def _command(action: str) -> str:
    """On one line, without what no parser reads: half characters and control characters."""
    printable = "".join(c if c.isprintable() else " " for c in action[:LONGEST])
    return " ".join(printable.encode("utf-8", "ignore").decode("utf-8").split())
