"""ScienceWorld: the simulator of the `scienceworld` package (a JVM behind py4j), parsing of its answers, the world, wordings,
and the simulator's gold paths.

As in the package, an episode begins with a `look around` that takes a step of simulated time. A negative score ends it: the
agent focused on a wrong object. The package reports -100; here the score stays in [0, 1], and the label is `wrong_focus`.
"""

from __future__ import annotations

import importlib.util
import json
import lzma
import os
import re
import shutil
import struct
import subprocess
import tempfile
import tomllib
import weakref
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tacit.core.errors import TacitError, install_command, unknown
from tacit.core.simulator import Served
from tacit.core.tasks import parse_panels, shuffle_key
from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Brief, Numbered

# Determinism: `EnvObject.equals` compares ids, but its `hashCode` is the JVM's random default, so the order of sets differs
# between runs. We add `public int hashCode() { return (int) uuid; }` to a copy of its class file (format: JVM specification,
# chapter 4), and put the copy before the jar on the class path.

PATCHED_CLASS = "scienceworld.struct.EnvObject"
_FILE = f"{PATCHED_CLASS.replace('.', '/')}.class"
_TEXT, _WIDE = 1, (5, 6)
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 18: 4}
"""constant tag -> its size in bytes; a text is preceded by its length"""


def write_patched_class(jar: Path, directory: Path) -> None:
    """Write the patched class below `directory`, which must be first on the class path."""
    try:
        with zipfile.ZipFile(jar) as archive:
            patched = add_hash_code(archive.read(_FILE), "uuid")
    except (OSError, KeyError, struct.error, zipfile.BadZipFile) as error:
        raise TacitError(f"{jar} is not the simulator of scienceworld 1.2.3: {_FILE} could not be read ({error}).") from error
    (directory / _FILE).parent.mkdir(parents=True)
    (directory / _FILE).write_bytes(patched)


def add_hash_code(compiled: bytes, field: str) -> bytes:
    """The compiled class with a `hashCode` method that returns a field of type long."""
    (count,) = struct.unpack_from(">H", compiled, 8)
    end, at = 10, 1
    while at < count:
        tag = compiled[end]
        end += 3 + struct.unpack_from(">H", compiled, end + 1)[0] if tag == _TEXT else 1 + _SIZES[tag]
        at += 2 if tag in _WIDE else 1
    own, _, interfaces = struct.unpack_from(">HHH", compiled, end + 2)
    methods = end + 10 + 2 * interfaces  # after the list of fields
    for _ in range(struct.unpack_from(">H", compiled, methods - 2)[0]):
        (attributes,) = struct.unpack_from(">H", compiled, methods + 6)
        methods += 8
        for _ in range(attributes):
            methods += 6 + struct.unpack_from(">I", compiled, methods + 2)[0]

    name, kind, code, value, long, both, taken = range(count, count + 7)
    texts = (word.encode() for word in ("hashCode", "()I", "Code", field, "J"))
    constants = b"".join(struct.pack(">BH", _TEXT, len(text)) + text for text in texts)
    constants += struct.pack(">BHHBHH", 12, value, long, 9, own, both)
    body = struct.pack(">BBHBB", 0x2A, 0xB4, taken, 0x88, 0xAC)  # aload_0, getfield, l2i, ireturn
    method = struct.pack(">HHHHHIHHI", 1, name, kind, 1, code, len(body) + 12, 2, 1, len(body)) + body + bytes(4)

    (there,) = struct.unpack_from(">H", compiled, methods)
    head = compiled[:8] + struct.pack(">H", count + 7) + compiled[10:end] + constants
    return head + compiled[end:methods] + struct.pack(">H", there + 1) + method + compiled[methods + 2 :]


# One JVM serves many episodes. We call the package's server directly: `ScienceWorldEnv.step` also lists all valid actions,
# which takes many times as long as the action. The simulator has one random generator and one object counter, so each
# episode has its own and installs them before each call. Objects hashed by identity get equal hashes (`hashCode=2`), so they
# keep creation order. So episodes are identical in every process.

HEAP_MB = 2048  # maximum heap of the JVM; an episode takes about 11 MB
MAX_EPISODES = 128  # maximum concurrent episodes in one JVM
REQUIRES, EXTRA = ("scienceworld", "py4j"), "scienceworld"
JAVA = "`apt install openjdk-17-jre-headless` on Debian and Ubuntu, `conda install openjdk=17` with conda; 11 or later will do"
OPTIONS = (
    f"-Xmx{HEAP_MB}m",
    "-Xmn256m",  # most objects of a step die at once
    "-XX:+UseSerialGC",  # other collectors take several times the memory for the same speed
    "-XX:+ExitOnOutOfMemoryError",  # fail instead of continuing a broken episode
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
)
_LEAVE_S = 5.0


@dataclass(eq=False)
class EpisodeSlot:
    generator: Any  # random number generator
    numbered: int = 0  # value of the object counter
    interface: Any = None


class Simulator:
    """A running JVM. Interfaces are reused: creating one takes longer than loading a task."""

    def __init__(self, gateway: Any, process: subprocess.Popen[bytes]) -> None:
        self._gateway, self.process = gateway, process
        self.idle_interfaces: list[Any] = []
        self.slots: set[EpisodeSlot] = set()
        self._turn: EpisodeSlot | None = None  # the slot whose generator and count are active
        java = gateway.jvm.java
        # Discard what the simulator prints at every step.
        java.lang.System.setOut(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))
        names = ("scala.util.Random$", "util.UniqueIdentifier$", PATCHED_CLASS)  # the last is only loaded
        drawing, numbering, _ = (java.lang.Class.forName(name) for name in names)
        self._drawing, self._numbers = (of.getField("MODULE$").get(None) for of in (drawing, numbering))
        self._generator = drawing.getSuperclass().getDeclaredField("self")
        self._generator.setAccessible(True)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def call(self, slot: EpisodeSlot, function: str, *arguments: Any) -> Any:
        """Call a function of an episode's interface. Without one, `PythonInterface` creates it. Raises SimulatorLost."""
        from py4j.protocol import Py4JNetworkError

        if not self.alive:  # py4j would retry and log each failure
            raise self._fail("it has exited")
        try:
            if self._turn is not slot:
                if self._turn is not None:
                    self._turn.numbered = self._numbers.count()
                self._generator.set(self._drawing, slot.generator)
                getattr(self._numbers, "count_$eq")(slot.numbered)
                self._turn = slot
            return getattr(slot.interface or self._gateway.jvm.scienceworld.runtime.pythonapi, function)(*arguments)
        except Py4JNetworkError as error:
            raise self._fail(str(error)) from error

    def acquire(self) -> EpisodeSlot:
        if len(self.slots) >= MAX_EPISODES:
            raise TacitError(
                f"too many ScienceWorld episodes in one process: its JVM has memory for {MAX_EPISODES}; run fewer, or "
                "use more worker processes."
            )
        slot = EpisodeSlot(self._gateway.jvm.java.util.Random(0))
        slot.interface = self.idle_interfaces.pop() if self.idle_interfaces else self.call(slot, "PythonInterface")
        self.slots.add(slot)
        return slot

    def release(self, slot: EpisodeSlot) -> None:
        self.slots.discard(slot)
        self.idle_interfaces.append(slot.interface)

    def kill(self) -> None:
        self._disconnect()
        self.process.kill()
        self.process.wait()

    def _fail(self, why: str) -> SimulatorLost:
        self.kill()
        return SimulatorLost(f"the JVM no longer answers (exit code {self.process.returncode}): {why}")

    def _disconnect(self) -> None:
        """Stop py4j from sending garbage-collection messages to a JVM that may have exited."""
        self._gateway._gateway_client.is_connected = False

    def close(self) -> None:
        """Close the JVM's standard input, which makes it exit (also if this process dies)."""
        self._disconnect()
        self._gateway.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self.kill()


class SimulatorLost(Exception):
    """The JVM has exited or cannot be reached."""


def start_simulator() -> Simulator:
    """Start the JVM; takes a few seconds. Raises TacitError naming what is missing and how to install it."""
    try:
        from py4j.java_gateway import GatewayParameters, JavaGateway, find_jar_path
    except ImportError as error:
        raise TacitError(
            f"ScienceWorld needs the packages {' and '.join(REQUIRES)} ({error}): {install_command(EXTRA)}."
        ) from error
    missing = lacks()
    if missing:
        raise TacitError(f"ScienceWorld needs {missing}.")
    jar = find_jar()
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory() as patched:
        write_patched_class(jar, Path(patched))
        command = [find_java(), "-classpath", os.pathsep.join((patched, find_jar_path(), str(jar))), *OPTIONS]
        command += ["py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"]
        # A separate process group, so that Ctrl-C does not reach it; no new session, since Linux schedules by session.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=jar.parent, process_group=0
        )
        assert process.stdout is not None
        port, token = (process.stdout.readline().decode().strip() for _ in range(2))
        if not port.isdigit():
            process.kill()
            code = process.wait()
            errors.seek(0)
            message = errors.read().decode(errors="replace").strip() or f"it exited with code {code}; its output was {port!r}"
            raise TacitError(
                f"{command[0]} could not start ScienceWorld's simulator: {message[-500:]}. Try another Java: {JAVA}."
            )
        parameters = GatewayParameters(port=int(port), auth_token=token, auto_field=True)
        return Simulator(JavaGateway(gateway_parameters=parameters, java_process=process), process)


def lacks() -> str:
    """What is missing besides the packages (Java, or the simulator's jar) and how to install it."""
    parts = []
    jar, home = find_jar(), os.environ.get("JAVA_HOME", "")
    if jar.name and not jar.is_file():
        parts.append(f"the simulator {jar}, which is part of its package: reinstall that, {install_command(EXTRA)}")
    if not find_java():
        where = f"JAVA_HOME is {home!r}, which has no bin/java" if home else "there is no `java` on the path"
        parts.append(f"Java, and {where}: {JAVA}")
    return ", and ".join(parts)


def find_jar() -> Path:
    """Path of the simulator's jar, without importing the package; an empty path if it is not installed."""
    spec = importlib.util.find_spec("scienceworld")
    return Path(spec.origin).parent / "scienceworld.jar" if spec and spec.origin else Path()


def find_java() -> str:
    """The `java` of JAVA_HOME, else the one on the path; empty if there is none."""
    home = os.environ.get("JAVA_HOME", "")
    return shutil.which(str(Path(home) / "bin" / "java") if home else "java") or ""


# Parsing of the simulator's answers. Name lengths are bounded, so that matching takes linear time.

REFUSED = re.compile(
    r"^(?:No known action|Unknown action|It'?s not clear|I'm not sure how|You must |You can't |That can't |Connections must "
    r"|Something can't |That container is empty|There is only one thing|Mixing the contents of .* does not"
    r"|(?:The|A) .*(?: is not | is already | isn't | does not contain | appears broken))"
)  # answers that refuse an action or report no change
UNREADABLE = re.compile(r"^(?:No known action|Unknown action)")
AMBIGUOUS = "Ambiguous request"

_EVENTS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("went", r"^You move (?:through the door )?to the (.+)\.$"),
        ("took", r"^(?:\(.{0,200}?\))?You move the (.{1,200}?) to the inventory\.$"),
        ("moved", r"^(?:\(.{0,200}?\))?You move the (.{1,200}?) to the (.{1,200})\.$"),
        ("poured", r"^You pour the contents of the (.{1,200}?) into the (.{1,200})\.$"),
        ("focused", r"^You focus on the (.+)\.$"),
        ("opened", r"^The (.+) is now open\.$"),
        ("started", r"^The (.+) is now activated\.$"),
        ("stopped", r"^The (.+) is now deactivated\.$"),
        ("connected", r"^.{1,80}? on (.{1,80}) is now connected to .{1,80}? on (.{1,80}?)\.?$"),
        ("measured", r"^the (?:.+) measures a temperature of (-?\d+) degrees celsius"),
        ("timed", r"^a stopwatch.*The time reads (\d+) ticks"),
        ("mixed", r"^(.{1,300}) mix to produce (.{1,300})\.$"),
        ("read", r"^The (.+) reads:"),
        ("waited", r"^You decide to wait for (\d+)"),
    )
)
_ROOM = re.compile(r"^This (?:room|outside location) is called the (.+?)\.")
_CARRIED = re.compile(r"^In your inventory, you see:")
_ARTICLE = re.compile(r"^(?:an?|the|some) (?:substance called )?", re.IGNORECASE)
_MORE = re.compile(r"[,.(].*")


@dataclass(frozen=True)
class Event:
    """A parsed answer: `took thermometer`, `moved lead (to) metal pot`, `measured 83`; empty if it matches no pattern."""

    kind: str = ""
    what: str = ""
    where: str = ""


def read_event(text: str) -> Event:
    if REFUSED.match(text):
        return Event("refused")
    for kind, pattern in _EVENTS:
        match = pattern.match(text)
        if match:
            return Event(kind, *match.groups()[:2])
    return Event("room", match[1]) if (match := _ROOM.match(text)) else Event()


def read_room(text: str) -> str:
    """The described or entered room; empty for other texts."""
    event = read_event(text)
    return event.what if event.kind in ("went", "room") else ""


def read_inventory(text: str) -> tuple[str, ...] | None:
    """The plain names in an inventory; None if the text is not an inventory."""
    if not _CARRIED.match(text):
        return None
    lines = (line.strip() for line in text.split("\n")[1:] if line.startswith("\t"))
    return tuple(strip_description(line) for line in lines if strip_description(line) != "nothing")


def strip_description(line: str) -> str:
    """`a metal pot (containing nothing)` -> `metal pot`"""
    return _MORE.sub("", _ARTICLE.sub("", line.strip())).strip()


WRONG_FOCUS = "wrong_focus"
OUT_OF_STEPS = "out_of_steps"
LONGEST = 300  # further characters of an action are ignored; useful actions have at most a hundred


class ScienceWorld:
    """Plays one task variation at a time; several worlds share a simulator."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._slot = simulator.acquire()
        self._hand_back = weakref.finalize(self, simulator.release, self._slot)
        """releases the slot once: on `close`, or when the world is garbage collected"""
        self._steps = self._limit = 0
        self._score = 0.0
        self._playing = False

    def reset(self, task: Task) -> Observation:
        if not {"task", "variation"} <= set(task.data):
            raise TacitError(f"task {task.id!r} is not a ScienceWorld task: its data has no 'task' and 'variation'.")
        name, variation = str(task.data["task"]), int(task.data["variation"])
        error = self.ask("load", name, variation, "", False)
        text = self.ask("step", "look around")
        if error or text.startswith("ERROR"):
            self._playing = False
            raise TacitError(f"ScienceWorld has no variation {variation} of {name!r}: {error or text}")
        self._steps, self._limit, self._playing = 0, int(task.data.get("limit", 0)), True
        self._score = self.ask("getScore")
        return Observation(text)

    def step(self, action: str) -> Transition:
        if not self._playing:
            raise TacitError("no ScienceWorld episode is running: call reset(task) first.")
        printable = "".join(c if c.isprintable() else " " for c in action[:LONGEST])  # one line, without lone surrogates
        text = self.ask("step", " ".join(printable.encode("utf-8", "ignore").decode("utf-8").split()))
        score = self.ask("getScore")
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
            effective=not REFUSED.match(text),
            label=WRONG_FOCUS if score < 0 else OUT_OF_STEPS if late else "",
            reward=earned,
        )

    def close(self) -> None:
        self._playing = False
        self._hand_back()

    def ask(self, function: str, *arguments: Any) -> Any:
        return self._simulator.call(self._slot, function, *arguments)


SERVED = Served(start_simulator, ScienceWorld)  # the simulator of this process, shared by worlds and experts
_KEPT: dict[tuple[str, int], tuple[str, ...]] = {}  # cached gold paths: computing one takes as long as an episode


class GoldPath:
    """Plays the gold path of a task regardless of observations, then waits."""

    def __init__(self, task: Task) -> None:
        self._left = list(gold_path(str(task.data["task"]), int(task.data["variation"])))

    def act(self, observation: Observation) -> str:
        return self._left.pop(0) if self._left else "wait1"


def gold_path(task: str, variation: int) -> tuple[str, ...]:
    if (task, variation) not in _KEPT:
        with SERVED.lock:
            simulator = SERVED.start()
            slot = simulator.acquire()
            try:
                simulator.call(slot, "load", task, variation, "", True)
                path = tuple(simulator.call(slot, "getGoldActionSequence"))
            finally:
                simulator.release(slot)
        if not path or path[0].startswith("ERROR"):
            raise TacitError(f"ScienceWorld has no gold path for variation {variation} of {task!r}.")
        _KEPT[task, variation] = path
    return _KEPT[task, variation]


COMMANDS = """You are in a small world of rooms, things and instruments, with a task of simple science. These commands exist:
open THING, close THING, go to PLACE, look around, look at THING, look in THING, examine THING, read THING, inventory, task
pick up THING, put down THING, move THING to PLACE, pour THING into THING, dunk THING in THING, mix THING
activate THING, deactivate THING, use THING [on THING], connect THING to THING, disconnect THING, eat THING, flush THING
focus on THING (says that this is the one the task means: the wrong one ends the task), wait (10 steps), wait1 (1 step)
Where a command could mean several things you are asked for a number; answer with the number alone."""


class FullWording(Numbered):
    """Never lists admissible actions, since there are hundreds."""

    rules, goal_prefix, word = COMMANDS, "", "command"

    def seen(self, observation: Observation) -> str:
        """Without spaces at the ends of lines and without empty ones."""
        return "\n".join(line.rstrip() for line in observation.text.split("\n") if line.strip())

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        return super().now(number, observation, admissible=False)


class TerseWording(Brief):
    """`kitchen: stove off, sink off; bathroom?, hallway` for a room (`?` is a closed door), one line per turn."""

    ends = " >"

    def brief(self, observation: Observation) -> str:
        return brief(observation.text)

    def task(self, task: Task) -> str:
        return " ".join(task.goal.split()).removeprefix("Your task is to ")

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        return super().now(number, observation, admissible=False)


_BRIEF = tuple(
    (re.compile(pattern), short)
    for pattern, short in (
        (r"This (?:room|outside location) is called the ([\w ]{1,80})\. (?:In it|Here),? you see:? ?", r"\1: "),
        (r"; You also see:", " |"),
        (r"; (?:the agent|a substance called air)(?=;|$)", ""),
        (r"A door to the ([\w ]{1,80}) \(that is closed\)", r"\1?"),
        (r"A door to the ([\w ]{1,80}) \(that is open\)", r"\1"),
        (r"\ba substance called ", ""),
        (r", which is (?:turned )?(?:on|activated)\b", " on"),
        (r", which is (?:turned off|deactivated|off)\b", " off"),
        (r"\. The [\w ]{1,80} door is (closed|open)\.", r" \1"),
        (r"\.? (?:On|In) the [\w ]{1,80} is: nothing\.?", ""),
        (r"\.? (?:On|In) the [\w ]{1,80} is: ", ": "),
        (r" \(containing nothing\)", ""),
        (r"\(containing ", "("),
        (r"In your inventory, you see:", "have"),
        (r"the thermometer measures a temperature of (-?\d+) degrees celsius", r"\1 C"),
        (r", currently reading a temperature of (-?\d+) degrees celsius", r" \1 C"),
        (r"You decide to wait for (\d+) iterations\.", r"waited \1"),
        (r"No known action matches that input\.", "no such command"),
        (r"Ambiguous request: Please enter the number for the action you intended \(or blank to cancel\):", "which?"),
        (r"(?<=; )(?:an?|the|some) ", ""),
        (r"\s+", " "),
        (r"\.(?=;| \||$)", ""),
        (r" ?; ?", "; "),
        (r"([:|]) ?; ", r"\1 "),
    )
)


def brief(text: str) -> str:
    """An observation on one line, shortened to what an agent can act on."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if text.startswith(AMBIGUOUS):  # the numbered options may differ only in small words: keep them
        return f"which? {'; '.join(lines[1:])}"
    text = "; ".join(lines)
    for pattern, short in _BRIEF:
        text = pattern.sub(short, text)
    return text.strip(" ;")


# ScienceWorld's 30 tasks, their variations and splits: the simulator's lists `train`, `dev` and `test`; `eto_test`, up to ten
# `test` variations of each of ETO's 24 tasks (Song et al., 2024); and ETO's `eto_train` and `eto_dev`, from its repository.
#
# In `eto_train`, ETO's step limits apply to the agent, but not to gold paths, many of which are longer. 54 of the 194
# variations in `eto_dev` are also in `eto_train`. `goals.json.xz` has the goal texts of scienceworld 1.2.3.

NAME = "scienceworld"
ETO_VARIABLE = "SCIENCEWORLD_ETO"
ETO_TESTED = 10  # variations of each task in `eto_test`


class Kind(NamedTuple):
    family: str
    train: int
    dev: int
    test: int  # consecutive variations in each of the simulator's lists
    limit: int  # ETO's step limit; 0 for the six tasks that ETO omits


TABLES = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))
TASKS: Mapping[str, Kind] = {name: Kind(*row) for name, row in TABLES["tasks"].items()}
FAMILIES = tuple(dict.fromkeys(kind.family for kind in TASKS.values()))
"""the nine families of the constant-context paper (§7.1), and two for tasks that ETO omits"""
_OWN = ("train", "dev", "test")
_ETO_FILES = {"eto_train": "train_indices.json", "eto_dev": "dev_indices.json"}
SPLITS = (*_OWN, "eto_test", *_ETO_FILES)
SIZES: Mapping[str, int] = {
    **{split: sum(getattr(kind, split) for kind in TASKS.values()) for split in _OWN},
    "eto_test": sum(min(ETO_TESTED, kind.test) for kind in TASKS.values() if kind.limit),
    "eto_train": 1483,
    "eto_dev": 194,
}
_LIMITED = ("eto_test", "eto_dev")
_ETO_NAME = re.compile(r"^task-\d+a?-|[()]")  # `task-6-lifespan-(longest-lived)` -> `lifespan-longest-lived`


def tasks(split: str, count: int, seed: int, families: Sequence[str] = ()) -> list[Task]:
    """`count` tasks, ordered by seed and id. With `families`, fewer if there are not enough."""
    if split not in SPLITS:
        raise unknown(f"split of world {NAME!r}", split, SPLITS)
    if not 0 <= count <= SIZES[split]:
        raise TacitError(f"{count} tasks of {split!r} were requested; it has {SIZES[split]}.")
    listed = _read_eto_file(split) if split in _ETO_FILES else []
    for name, kind in () if split in _ETO_FILES else TASKS.items():
        start = {"train": 0, "dev": kind.train}.get(split, kind.train + kind.dev)
        size = {"train": kind.train, "dev": kind.dev}.get(split, kind.test)
        if split == "eto_test":
            size = min(ETO_TESTED, size) if kind.limit else 0
        listed += [(name, variation) for variation in range(start, start + size)]
    every = [_task(name, variation, split, seed) for name, variation in listed]
    wanted = [task for task in every if not families or task.family in families]
    return sorted(wanted, key=lambda task: shuffle_key(seed, task.id))[:count]


def _task(name: str, variation: int, split: str, seed: int) -> Task:
    kind = TASKS[name]
    limits = {"limit": kind.limit} if split in _LIMITED else {"max_steps": kind.limit} if split == "eto_train" else {}
    data = {"task": name, "variation": variation, **limits}
    return Task(NAME, f"{split}/{name}/{variation}", kind.family, split, seed, goals()[name][variation], data)


def _read_eto_file(split: str) -> list[tuple[str, int]]:
    """(task, variation) pairs of an ETO split, from its JSON file in the directory SCIENCEWORLD_ETO."""
    root, name = os.environ.get(ETO_VARIABLE, ""), _ETO_FILES[split]
    files = [Path(root).expanduser() / file for file in (name, f"eto_{name}")] if root else []
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        where = f"{root!r} does not have it" if root else "it is not set"
        raise TacitError(
            f"{split!r} needs a file of ETO: set {ETO_VARIABLE} to the directory with its {name} "
            f"(eval_agent/data/sciworld in the ETO repository); {where}. {', '.join((*_OWN, 'eto_test'))} need no file."
        )
    try:
        rows = [(_ETO_NAME.sub("", name), int(variation)) for name, variation in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise TacitError(f"{path} is not a list [[task, variation], …] of ETO: {error}") from error
    for name, variation in rows:
        if name not in TASKS or not 0 <= variation < sum(TASKS[name][1:4]):
            raise TacitError(f"{path} names variation {variation} of {name!r}, which ScienceWorld does not have.")
    return rows


@cache
def goals() -> Mapping[str, Sequence[str]]:
    """task -> the goal text of each variation"""
    with lzma.open(Path(__file__).parent / "goals.json.xz", "rt", encoding="utf-8") as file:
        return json.load(file)


PANELS = parse_panels("""
train      16:bc53b2823a6ef864 128:c359de0f118ec36f 3592:2f83162d28e8074f
dev        16:25282962056f9ebf 128:3660a40c39cf01f1 1796:65851a064e80ede2
test       16:f272c5485830859b 128:1780eb3bed9c2be3 1819:25bb3c6b79a8a072
eto_test   16:76205433ecedd688 128:980f661839126415 211:4457194f30c4574f
eto_train  16:7dad00178a84116a 128:0bd2cf39853d1c67 1483:cb9b5a573551e1dd
eto_dev    16:60ccc7cee99f29cc 128:6843846239c77239 194:0ddfaea4d73e0419
""")  # split -> number of tasks -> panel hash
