"""The draft sandbox, layer by layer: the source check, the namespace, the audit hook and the kernel limits."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from drafts import GOOD

from tacit.core.errors import TacitError
from tacit.modules.drafting import sandbox_process
from tacit.modules.drafting.sandbox import DraftError, DraftTimeout, Limits, Sandbox, check_source

FIRST = {"goal": "put a mug in shelf.", "saw": "You are in a room."}


def started(line: str) -> str:
    """A draft that runs this line in `start`."""
    return GOOD.replace("def start(goal, observation):", f"def start(goal, observation):\n    {line}")


def test_valid_draft_runs() -> None:
    with Sandbox(GOOD) as sandbox:
        state, block, done = sandbox.call("start", **FIRST)
        assert state["target"] == "mug" and block.startswith("target_object: mug\ndestination: shelf") and done is False
        state, _, done, events = sandbox.call(
            "update", state=state, action="take mug 1 from bed 1", saw="You pick up the mug 1."
        )
        assert (state["holding"], done, events) == ("mug", False, ["subgoal"])
        assert sandbox.constants["BOUND"] == 400


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import os", "imports os"),
        ("import os.path", "imports os.path"),
        ("from re import template", "imports re.template"),
        ("from . import x", "imports None.x"),
        ("from operator import attrgetter", "imports operator.attrgetter"),
        ("open('/etc/passwd')", "uses open"),
        ("__import__('os')", "uses __import__"),
        ("().__class__", "reaches for .__class__"),
        ("(x for x in ()).gi_frame", "reaches for .gi_frame"),
        ("async def f(): pass\nf().cr_code", "reaches for .cr_code"),
        ("match 'x':\n    case object(__class__=found): pass", "reaches for .__class__"),
        ("match (x for x in ()):\n    case object(gi_frame=found): pass", "reaches for .gi_frame"),
        ("__match_args__ = ('__traceback__',)", "uses __match_args__"),
        ("match ('__globals__',):\n    case __match_args__: pass", "uses __match_args__"),
        ("match ['__globals__']:\n    case [*__match_args__]: pass", "uses __match_args__"),
        ("from math import pi as __match_args__", "uses __match_args__"),
        ("class X:\n    def __subclasshook__(self, other): return True", "uses __subclasshook__"),
        ("class X:\n    def __reduce_ex__(self, protocol): return list, ()", "uses __reduce_ex__"),
        ("getattr(goal, 'upper')", "uses getattr"),
        ("eval('1')", "uses eval"),
        ("def", "cannot be read"),
        ("x = " + "(" * 500 + ")" * 500, "cannot be read"),
        ("'" + "x" * 70_000 + "'", "more than 60000"),
    ],
)
def test_forbidden_code_is_named_with_its_line_and_not_run(line: str, reason: str) -> None:
    found = check_source(f"MARK = 1\n{line}\n")
    assert found and reason in found[0]
    assert found[0].startswith(("line 2", "line 3")) or "characters" in found[0]
    with Sandbox(f"{started('pass')}\n{line}") as sandbox:
        assert sandbox.findings and not sandbox.constants


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("open('x')", NameError),
        ("eval('1')", NameError),
        ("getattr('', 'upper')", NameError),
        ("type('')", NameError),
        ("import os", ImportError),
        ("import dataclasses; dataclasses.sys", AttributeError),
        ("import typing; typing.get_type_hints", AttributeError),
        ("import re; re.enum", AttributeError),
        ("raise SystemExit", NameError),
    ],
)
def test_forbidden_names_are_missing_in_the_draft_namespace(line: str, error: type[Exception]) -> None:
    """Code that was not checked still has no access to these names."""
    with pytest.raises(error):
        exec(compile(line, "<draft>", "exec"), sandbox_process.make_namespace())


RENAMED = """
from dataclasses import dataclass, field
f = field(default=0)
@dataclass
class A:
    x: int = f
f.name = {name!r}
@dataclass
class B(A):
    pass
"""


@pytest.mark.parametrize("name", ["__globals__", "x=open('/etc/hostname'), y"])
def test_dataclass_fields_cannot_be_renamed(name: str) -> None:
    """A match pattern could read attributes of that name, and `__init__` would execute the name as code."""
    with pytest.raises(DraftError, match="PermissionError: a draft may not name a field"):
        Sandbox(RENAMED.format(name=name) + GOOD)


def test_draft_may_define_and_copy_classes() -> None:
    with Sandbox(
        """
import copy
from collections import Counter, defaultdict, deque
from dataclasses import asdict, dataclass, field, replace
from enum import Enum

class Place(Enum):
    BED = "bed"

@dataclass(slots=True)
class Seen:
    name: str = ""
    at: list = field(default_factory=list)
    def __len__(self):
        return len(self.at)

class Plain:
    def __init__(self):
        self.x = [1]

seen = replace(Seen("mug", [1]), name="cup")
same = copy.deepcopy([seen, Plain(), Place.BED, Counter("aab"), defaultdict(list, a=[1]), deque([1]), {(1, 2)}])
assert same[0] == seen and asdict(seen)["name"] == "cup" and same[1].x == [1] and same[2] is Place.BED
assert same[3:] == [Counter("aab"), {"a": [1]}, deque([1]), {(1, 2)}]
"""
        + GOOD
    ) as sandbox:
        assert not sandbox.findings and sandbox.call("start", **FIRST)[0]["target"] == "mug"


BELOW = """
import json, sys
sys.path.insert(0, {place!r})
import sandbox_process
import socket, os, subprocess
enforced = sandbox_process.apply_limits({{"memory": 512 << 20, "cpu_s": 5}})
tried = {{}}
for name, act in {{
    "read": lambda: open("/etc/hostname"),
    "low": lambda: os.open("/etc/hostname", os.O_RDONLY),
    "write": lambda: open("x", "w"),
    "connect": lambda: socket.create_connection(("127.0.0.1", 9)),
    "start": lambda: subprocess.run(["true"]),
    "shell": lambda: os.system("true"),
    "import": lambda: __import__("sqlite3"),
    "raise the limit": lambda: __import__("resource").setrlimit(7, (99, 99)),
}}.items():
    try:
        act()
        tried[name] = "done"
    except BaseException as error:
        tried[name] = type(error).__name__
print(json.dumps([enforced, tried]))
"""


def test_audit_hook_refuses_files_sockets_and_processes() -> None:
    """Code in the sandbox process with all names available."""
    code = BELOW.format(place=str(Path(sandbox_process.__file__).parent))
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    _, tried = json.loads(done.stdout)
    assert set(tried.values()) == {"PermissionError"}, tried


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's limits are Linux's")
def test_kernel_limits_refuse_files_and_sockets() -> None:
    """The same without the audit hook: files and sockets fail, because no more descriptors are available."""
    code = BELOW.format(place=str(Path(sandbox_process.__file__).parent)).replace(
        "import sandbox_process", "import sandbox_process\nsys.addaudithook = lambda hook: 0"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    enforced, tried = json.loads(done.stdout)
    assert all(enforced[name] for name in ("AS", "CPU", "FSIZE", "NOFILE"))
    assert {tried[name] for name in ("read", "low", "write", "connect", "start")} == {"OSError"}, tried


def test_endless_draft_times_out() -> None:
    began = time.monotonic()
    sandbox = Sandbox(started("while True: pass"), Limits(call_s=0.3))
    with pytest.raises(DraftTimeout, match=r"no answer within 0.3 s"):
        sandbox.call("start", **FIRST)
    assert time.monotonic() - began < 10 and not sandbox.alive
    with pytest.raises(DraftTimeout):
        sandbox.call("start", **FIRST)


def test_draft_that_exhausts_memory_gets_an_error() -> None:
    with Sandbox(started("x = 'x' * (1 << 33)")) as sandbox, pytest.raises(DraftError, match="MemoryError"):
        sandbox.call("start", **FIRST)


def test_too_long_answer_ends_the_sandbox() -> None:
    long = GOOD.replace('return "\\n".join', 'return "x" * 5_000_000 + "\\n".join')
    with Sandbox(long) as sandbox, pytest.raises(DraftTimeout, match="more than 1000000 bytes"):
        sandbox.call("start", **FIRST)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("return 3", "the state must be a dict, and is int"),
        ("return {1: 2}", "plain JSON"),
        ("return {'a': (1, 2)}", "plain JSON"),
        ("return {'a': {1, 2}}", "not JSON serializable"),
        ("return {'a': float('nan')}", "Out of range"),
        ("return observation['no']", r"TypeError: .* \(line \d+ of the draft\)"),
    ],
)
def test_invalid_state_is_explained(line: str, message: str) -> None:
    with Sandbox(started(line)) as sandbox:
        with pytest.raises(DraftError, match=message):
            sandbox.call("start", **FIRST)
        assert sandbox.alive, "an error is an answer"


def test_missing_parts_of_a_draft_are_named() -> None:
    with pytest.raises(DraftError, match="it has no done, CLAIMS"):
        Sandbox(GOOD.replace("def done(", "def finished(").replace("CLAIMS =", "CLAIM ="))
    with pytest.raises(TacitError, match="ZeroDivisionError"):
        Sandbox(GOOD + "\n1 / 0\n")


def test_only_the_first_findings_are_listed() -> None:
    found = check_source("\n".join(["import os"] * 1000))
    assert found[0] == "line 1: imports os" and len(found) == 21 and found[-1] == "and 980 more of such"
