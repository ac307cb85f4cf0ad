"""Run a package's tests in a fork of a warm pytest process, isolated by the sandbox.

    with Runner(trees=[original]) as runner:
        workspace = runner.sandbox.copy(tree)
        run = runner.run(workspace, ["tests/test_text.py"])
        run.passed, run.failed, run.output

A fork imports the package from its workspace, so edited sources count. Settings files of the tree (pytest.ini, tox.ini, …) are
ignored, planted .pyc files too. The same sandbox runs shell commands; there `pytest` is the usual command.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import secrets
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from tacit.core.errors import TacitError
from tacit.sandbox import Limits, Result, Sandbox, Workspace
from tacit.sandbox.client import AT, AUTO, PYTHON

TOOLS = "/opt/tools"  # where commands find pytest
PASSED, FAILED, FORGED = "passed", "failed", "forged"
PYTEST_SCRIPT = f"#!{PYTHON}/bin/python3\nimport sys, pytest\nsys.exit(pytest.main())\n"
SECONDS = re.compile(r"(?<= in )\d+\.\d+s( \(\d+:\d+:\d+\))?")


Function = tuple[str, int]  # file and first line


@dataclass(frozen=True)
class TestRun:
    """What a run of pytest found."""

    __test__ = False

    outcomes: Mapping[str, str]
    """node id -> passed, failed, skipped, xfailed or xpassed; a file that cannot be imported counts as one failed test"""
    messages: Mapping[str, str]  # node id -> why it failed, shortened
    output: str  # what pytest printed, with durations replaced
    code: int  # pytest's exit status: 0 all passed, 1 some failed, 2 interrupted, 4 usage, 5 no tests
    killed: str  # which limit ended the run; empty: none
    forged: str  # why the outcomes cannot be trusted; empty: they can. A forged run has no outcomes.
    seconds: float
    calls: Mapping[str, frozenset[Function]] = field(default_factory=dict)
    """of a traced run: node id -> functions it calls; `` -> those called by imports"""

    @cached_property
    def passed(self) -> frozenset[str]:
        return frozenset(test for test, outcome in self.outcomes.items() if outcome == PASSED)

    @cached_property
    def failed(self) -> frozenset[str]:
        return frozenset(test for test, outcome in self.outcomes.items() if outcome == FAILED)


@dataclass
class Runner:
    """Sandbox servers for any number of packages and workspaces. Thread-safe."""

    limits: Limits = field(default_factory=Limits)
    trees: Sequence[Path] = ()  # original packages, whose byte code the server holds; tests of others run too, somewhat slower
    cache: Path | None = None  # directory that keeps byte code between servers
    mode: str = AUTO  # of the sandbox

    def __post_init__(self) -> None:
        self._made = tempfile.TemporaryDirectory(prefix="tacit-tools-")
        own = Path(self._made.name)
        own.chmod(0o755)
        (own / "empty").mkdir()
        (own / "pytest").write_text(PYTEST_SCRIPT)
        (own / "pytest").chmod(0o755)
        if self.cache is not None:
            self.cache.mkdir(parents=True, exist_ok=True)
        settings = {"trees": [str(tree) for tree in self.trees], "cache": self.cache and str(self.cache)}
        self._function = f"{Path(__file__).with_name('pytest_fork.py')}:make_runner={json.dumps(settings)}"
        hidden = Path(sysconfig.get_path("purelib", vars={"base": PYTHON}))
        binds = {f"{TOOLS}/bin/pytest": own / "pytest", str(hidden): own / "empty", **find_tools()}
        python_path = (f"{AT}/src", AT, TOOLS)
        try:  # two servers: one without pytest in it forks shell commands in half the time
            self.sandbox = Sandbox(self.limits, binds=binds, python_path=python_path, mode=self.mode)
            try:
                self._warm = Sandbox(
                    self.limits, binds=binds, preload=(self._function,), python_path=python_path, mode=self.sandbox.mode
                )
            except TacitError:
                self.sandbox.close()
                raise
        except TacitError:
            self._made.cleanup()
            raise

    def start(
        self, workspace: Workspace, arguments: Sequence[str], limits: Limits | None = None, trace: bool = False
    ) -> Future[TestRun]:
        """Begin a run: `arguments` are files, node ids and options, as on pytest's command line. `trace` notes the calls."""
        key = secrets.token_hex(16)
        words = [json.dumps({"key": key, "trace": trace}), *arguments]
        begun = self._warm.start(workspace, words, function=self._function, environment=ENVIRONMENT, limits=limits)
        future: Future[TestRun] = Future()

        def finish(done: Future[Result]) -> None:
            error = done.exception()
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(read_run(done.result(), key.encode()))

        begun.add_done_callback(finish)
        return future

    def run(self, workspace: Workspace, arguments: Sequence[str], limits: Limits | None = None, trace: bool = False) -> TestRun:
        return self.start(workspace, arguments, limits, trace).result()

    @property
    def alive(self) -> bool:
        """False once a server has ended"""
        return self.sandbox.alive and self._warm.alive

    @property
    def pids(self) -> tuple[int, ...]:
        """of the servers"""
        return self.sandbox.pid, self._warm.pid

    def close(self) -> None:
        self.sandbox.close()
        self._warm.close()
        self._made.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


ENVIRONMENT = {
    "PATH": f"{TOOLS}/bin:{PYTHON}/bin:/usr/local/bin:/usr/bin:/bin",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_ADDOPTS": "",
    "TZ": "UTC",
    "COLUMNS": "100",
}  # for tests, and for shell commands beside them


def find_tools() -> dict[str, Path]:
    """Path inside -> path outside, of pytest and what it needs. Other installed packages stay out of sight."""
    found: dict[str, Path] = {}
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            raise TacitError(f"the code world needs the package {name}; install it with: pip install pytest.") from None
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            found[f"{TOOLS}/{top}"] = Path(str(distribution.locate_file(top)))
    return found


def read_run(result: Result, key: bytes) -> TestRun:
    """Check the fork's messages and join the phases of each test: one that failed in any phase has failed."""
    outcomes: dict[str, str] = {}
    messages: dict[str, str] = {}
    calls: dict[str, list[int]] = {}
    functions: list[Function] = []
    forged, ended = "", False
    lines = result.report.split("\n")[:-1]  # a run that was killed may leave half a line
    for number, line in enumerate(lines):
        proof, _, body = line.partition(" ")
        wanted = hashlib.blake2b(f"{number}\0{body}".encode(), key=key, digest_size=16).hexdigest()
        if not secrets.compare_digest(proof.encode(), wanted.encode()) or ended:
            forged = "a message that is not the runner's"
            break
        message = json.loads(body)
        if "end" in message:
            ended = True
            if not message["intact"]:
                forged = "pytest was changed while it ran"
        elif "caller" in message:
            calls[message["caller"]] = message["calls"]
        elif "functions" in message:
            functions = [(path, line) for path, line in message["functions"]]
        else:
            test, outcome = message["test"], message["outcome"]
            if outcomes.get(test) != FAILED:
                outcomes[test] = outcome
            if message["message"]:
                messages[test] = hide_paths(message["message"])
    if not ended and not result.killed and not forged:
        forged = "the tests ended the run"
    return TestRun(
        outcomes={} if forged else outcomes,
        messages={} if forged else messages,
        output=SECONDS.sub("0.00s", hide_paths(result.output)),
        code=result.code,
        killed=result.killed,
        forged=forged,
        seconds=result.seconds,
        calls={test: frozenset(functions[number] for number in numbers) for test, numbers in calls.items() if functions},
    )


def hide_paths(text: str) -> str:
    """Tracebacks name files of pytest and Python by their paths outside; name those inside."""
    return text.replace(sysconfig.get_path("purelib"), TOOLS).replace(sys.base_prefix, PYTHON)
