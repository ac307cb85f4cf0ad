"""Grading of a submitted repository, in a fresh copy of the original.

Only changes of source files are copied. Tests, test settings and files that Python loads by itself (conftest.py, pytest.ini,
setup.cfg, sitecustomize.py, byte code, …) stay as in the original. Outcomes come from a fork of a warm pytest over a separate
pipe, never from the tests' output.

The code under test runs in the same process as its tests, so it could still manipulate them. Canaries detect that: tests that
fail with the original package and must fail here too. Some always fail (`assert False`). The others are FAIL_TO_PASS tests in
which one random assertion expects another value, or the opposite. If a test and its canary both pass, an assertion was patched,
a result equals everything, or code read the expected value from its caller. Test files have random names, so that code cannot
tell a test from its canary. If a limit ends the tests, none counts, because files with random names run in a random order.

`Runner` runs a package's tests in a fork of a warm pytest process, isolated by the sandbox. The fork imports the package from
its workspace, and ignores settings files of the tree (pytest.ini, tox.ini, …) and .pyc files. The same sandbox runs shell
commands, where `pytest` is the usual command.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.metadata
import inspect
import json
import os
import re
import secrets
import site
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Self

from tacit.core.errors import TacitError, install_command
from tacit.sandbox import Limits, Result, Sandbox, Workspace
from tacit.sandbox.client import AT, AUTO, PYTHON
from tacit.sandbox.server import LONGEST_PATH
from tacit.worlds.code.tasks import IGNORED, Record, TaskFolder, broken_files
from tacit.worlds.code.tools import LARGEST, read_beneath, remove_beneath, write_beneath

TOOLS = "/opt/tools"  # path of pytest inside the sandbox
SYSTEM_LIBRARIES = ("/usr/lib", "/usr/local/lib")
NEEDED = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")  # packages visible to commands
PASSED, FAILED = "passed", "failed"
PYTEST_SCRIPT = f"#!{PYTHON}/bin/python3\nimport sys, pytest\nsys.exit(pytest.main())\n"
SECONDS = re.compile(r"(?<= in )\d+\.\d+s( \(\d+:\d+:\d+\))?")
ENVIRONMENT = {
    "PATH": f"{TOOLS}/bin:{PYTHON}/bin:/usr/local/bin:/usr/bin:/bin",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_ADDOPTS": "",
    "TZ": "UTC",
    "COLUMNS": "100",
}  # of tests and shell commands
Function = tuple[str, int]  # file and first line


@dataclass(frozen=True)
class TestRun:
    __test__ = False

    outcomes: Mapping[str, str]
    """node id -> passed, failed, skipped, xfailed or xpassed; a file that cannot be imported counts as one failed test"""
    messages: Mapping[str, str]  # node id -> why it failed, shortened
    output: str  # what pytest printed, with durations replaced
    code: int  # pytest's exit status: 0 all passed, 1 some failed, 2 interrupted, 4 usage, 5 no tests
    killed: str  # the limit that ended the run; empty if none did
    forged: str  # why the outcomes cannot be trusted; empty if they can. A forged run has no outcomes.
    calls: Mapping[str, frozenset[Function]] = field(default_factory=dict)
    """only of a traced run: node id -> functions it calls; `` -> functions called by imports"""

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
    trees: Sequence[Path] = ()  # original packages whose byte code is preloaded; tests of others run slower
    cache: Path | None = None  # directory of byte code, shared by later servers
    mode: str = AUTO  # mode of the sandbox

    def __post_init__(self) -> None:
        if self.cache is not None:
            self.cache.mkdir(parents=True, exist_ok=True)
        settings = {"trees": [str(tree) for tree in self.trees], "cache": self.cache and str(self.cache)}
        self._function = f"{Path(__file__).with_name('pytest_fork.py')}:make_runner={json.dumps(settings)}"
        python_path = (f"{AT}/src", AT, TOOLS)
        with ExitStack() as stack:  # clean up if a server cannot start
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tacit-tools-")))
            folder.chmod(0o755)
            (folder / "empty").mkdir()
            (folder / "pytest").write_text(PYTEST_SCRIPT)
            (folder / "pytest").chmod(0o755)
            binds = {f"{TOOLS}/bin/pytest": folder / "pytest", **find_tools()}
            binds |= dict.fromkeys(find_installed_packages(), folder / "empty")
            # Two servers: one without pytest forks shell commands in half the time.
            self.sandbox = stack.enter_context(Sandbox(self.limits, binds=binds, python_path=python_path, mode=self.mode))
            warm = Sandbox(self.limits, binds=binds, preload=(self._function,), python_path=python_path, mode=self.sandbox.mode)
            self.warm_sandbox = stack.enter_context(warm)
            self.close = stack.pop_all().close

    def run(self, workspace: Workspace, arguments: Sequence[str], limits: Limits | None = None, trace: bool = False) -> TestRun:
        """Run pytest with these arguments (files, node ids, options). `trace` records `TestRun.calls`."""
        key = secrets.token_hex(16)
        words = [json.dumps({"key": key, "trace": trace}), *arguments]
        future = self.warm_sandbox.start(workspace, words, function=self._function, environment=ENVIRONMENT, limits=limits)
        return read_run(future.result(), key.encode())

    @property
    def alive(self) -> bool:
        """False once a server has exited"""
        return self.sandbox.alive and self.warm_sandbox.alive

    @property
    def pids(self) -> tuple[int, ...]:
        """process ids of the servers"""
        return self.sandbox.process.pid, self.warm_sandbox.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def find_tools() -> dict[str, Path]:
    """path inside -> path outside, of pytest and its dependencies; other installed packages are not visible"""
    tools: dict[str, Path] = {}
    for name in NEEDED:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            raise TacitError(f"the code world needs {name} to run tests: {install_command('code')}.") from None
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            tools[f"{TOOLS}/{top}"] = Path(str(distribution.locate_file(top)))
    return tools


def find_installed_packages() -> list[str]:
    """Paths inside the sandbox of the folders of installed packages, which are hidden: those of its Python, and Debian's
    `dist-packages`, which its Python may have too."""
    pairs = zip(site.getsitepackages([PYTHON]), site.getsitepackages([sys.base_prefix]), strict=True)
    system = (folder for place in SYSTEM_LIBRARIES for folder in Path(place).glob("python3*/dist-packages"))
    return [*(inside for inside, outside in pairs if Path(outside).is_dir()), *map(str, system)]


def read_run(result: Result, key: bytes) -> TestRun:
    """Check the fork's messages and merge the phases of each test. A test that failed in any phase has failed."""
    outcomes: dict[str, str] = {}
    messages: dict[str, str] = {}
    calls: dict[str, list[int]] = {}
    functions: list[Function] = []
    forged, ended = "", False
    lines = result.report.split("\n")[:-1]  # a killed run may end within a line
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
        calls={test: frozenset(functions[number] for number in numbers) for test, numbers in calls.items() if functions},
    )


def hide_paths(text: str) -> str:
    """Replace real paths of pytest and Python in tracebacks by those inside the sandbox."""
    return text.replace(sysconfig.get_path("purelib"), TOOLS).replace(sys.base_prefix, PYTHON)


SETTINGS = ("conftest.py", "pytest.ini", "tox.ini", "setup.cfg", "setup.py", "pyproject.toml", "noxfile.py", ".coveragerc")
LOADED = ("sitecustomize.py", "usercustomize.py", "__pycache__")
TEST_FOLDERS = ("tests", "test")
CANARY_FILE = "canary"
MAX_FILES = 200  # maximum changed files of a submission


def other(value: Any) -> Any:
    """Another value, of the same type if possible."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    more: dict[type, Any] = {str: "x", bytes: b"x", list: [None], tuple: (None,)}
    return value + more[type(value)] if type(value) in more else object()


CANARY = f"""
import unittest
import pytest
from typing import Any

{inspect.getsource(other)}

def test_false(): assert False
def test_equal(): assert 1 == 2
def test_error(): raise RuntimeError("canary")
def test_raises():
    with pytest.raises(ValueError): pass
class TestCase(unittest.TestCase):
    def test_case(self): self.assertEqual(1, 2)
"""


@dataclass(frozen=True)
class Grade:
    fixed: int  # FAIL_TO_PASS tests that pass
    wanted: int
    kept: int  # PASS_TO_PASS tests that pass
    known: int
    diff: str  # from the broken repository to the submitted one
    killed: str = ""  # the limit that ended the tests; empty if none did
    forged: str = ""  # why the outcomes do not count; empty if they do

    @classmethod
    def count(cls, passed: Collection[str], fail_to_pass: Sequence[str], pass_to_pass: Sequence[str], **more: str) -> Grade:
        """The grade of a run in which these tests passed."""
        fixed, kept = (sum(test in passed for test in tests) for tests in (fail_to_pass, pass_to_pass))
        return cls(fixed, len(fail_to_pass), kept, len(pass_to_pass), **more)

    @property
    def success(self) -> bool:
        return not self.forged and not self.killed and self.fixed == self.wanted and self.kept == self.known

    @property
    def score(self) -> float:
        return 0.0 if self.forged else self.fixed / self.wanted

    @property
    def label(self) -> str:
        """Why it failed: `forged`, `no_change`, `time` (or another limit), `tests_fail` or `tests_broken`; else empty."""
        if self.success:
            return ""
        if self.forged:
            return "forged"
        if not self.diff:
            return "no_change"
        if self.killed:
            return self.killed.partition(" ")[0]
        return "tests_fail" if self.fixed < self.wanted else "tests_broken"


def is_carried(path: str, record: Record, original: bool) -> bool:
    """Whether a change of this file counts. `original`: whether the package has the file."""
    if path in (edit.path for edit in record.edits):
        return True
    pure = PurePosixPath(path)
    if path in record.test_files or pure.name in SETTINGS or any(part in LOADED for part in pure.parts):
        return False
    if any(part in TEST_FOLDERS or part.startswith(".") for part in pure.parts[:-1]):
        return False
    if re.fullmatch(r"test_.*\.py|.*_test\.py", pure.name) or pure.suffix in (".pyc", ".pyo", ".pth", ".so", ".egg-link"):
        return False
    # A new top-level module could shadow one of Python or pytest.
    return original or PurePosixPath(pure.parts[0]).stem not in (*sys.stdlib_module_names, "_pytest", *NEEDED)


def list_files(folder: Path) -> Iterator[str]:
    """Regular files below the folder; symbolic links are neither listed nor followed."""
    for where, folders, files in os.walk(folder):
        deep = len(where) > LONGEST_PATH  # deeply nested directories made by a command
        folders[:] = sorted(name for name in folders if name not in IGNORED and not deep)
        for name in sorted(files):
            path = os.path.join(where, name)
            if not deep and stat.S_ISREG(os.lstat(path).st_mode):
                yield os.path.relpath(path, folder)


def find_changes(record: Record, tree: Path, folder: Path) -> dict[str, bytes | None]:
    """path -> content of each changed file that counts; None for a deleted file. At most MAX_FILES."""
    there, mine = set(list_files(tree)), set(list_files(folder))
    changes: dict[str, bytes | None] = {path: None for path in there - mine if is_carried(path, record, True)}
    for path in sorted(mine):
        if not is_carried(path, record, path in there):
            continue
        try:
            content = read_beneath(folder, path, LARGEST)
        except OSError:
            continue
        if path not in there or content != (tree / path).read_bytes():
            changes[path] = content
    return dict(list(changes.items())[:MAX_FILES])


def apply_changes(folder: Path, changes: Mapping[str, bytes | None]) -> None:
    """Write a submission's files to a fresh tree. A file in the place of a directory or symbolic link does not count."""
    for path, content in changes.items():
        with suppress(OSError):
            if content is None:
                remove_beneath(folder, path)
            else:
                write_beneath(folder, path, content)


def show_diff(record: Record, tree: Path, changes: dict[str, bytes | None]) -> str:
    """A unified diff from the broken to the submitted repository."""
    broken = broken_files(record, tree)
    paths = sorted({*changes, *broken})
    lines: list[str] = []
    for path in paths:
        original = ""
        with suppress(OSError):  # a new file, or a symbolic link in the tree of an image
            original = read_beneath(tree, path, sys.maxsize).decode(errors="replace")
        before = broken.get(path, original)
        content = changes.get(path, original.encode())
        after = "" if content is None else content.decode(errors="replace")
        lines += difflib.unified_diff(before.splitlines(), after.splitlines(), f"a/{path}", f"b/{path}", n=2, lineterm="")
    return "\n".join(lines)


def make_canary(record: Record, tree: Path) -> str:
    """Source of a test file in which every test must fail: fixed tests, and FAIL_TO_PASS ones with a contradicted assertion."""
    bodies: list[str] = []
    imports: dict[str, None] = {}
    for path in dict.fromkeys(node.partition("::")[0] for node in record.fail_to_pass):
        nodes = [n.split("::") for n in record.fail_to_pass]
        names = {n[-1].partition("[")[0] for n in nodes if n[0] == path}
        try:
            parsed = ast.parse((tree / path).read_text())
        except (OSError, SyntaxError, ValueError):
            continue
        for statement in parsed.body:
            if isinstance(statement, ast.FunctionDef) and statement.name.startswith("test"):
                if statement.name in names and contradict(statement):
                    bodies.append(ast.unparse(statement))
            elif isinstance(statement, ast.ClassDef):
                statement.body = [
                    inner
                    for inner in statement.body
                    if not (isinstance(inner, ast.FunctionDef) and inner.name.startswith("test"))
                    or (inner.name in names and contradict(inner))
                ] or [ast.Pass()]
                bodies.append(ast.unparse(statement))
            elif isinstance(statement, ast.Import | ast.ImportFrom):
                imports[ast.unparse(statement)] = None
            else:
                bodies.append(ast.unparse(statement))
    future = [line for line in imports if line.startswith("from __future__")]
    rest = [line for line in imports if line not in future]
    return "\n".join([*future, *rest, CANARY, *bodies]) + "\n"


def contradict(test: ast.FunctionDef) -> bool:
    """Change one random assertion, so that the test and the original cannot both pass. False if it has no assertion."""
    asserts = [node for node in ast.walk(test) if isinstance(node, ast.Assert) or _is_assert_equal(node)]
    if not asserts:
        return False
    match secrets.choice(asserts):
        case ast.Assert(test=ast.Compare(ops=[ast.Eq()], comparators=[expected]) as compared):
            constants = [
                node for node in ast.walk(expected) if isinstance(node, ast.Constant) and type(node.value) in (int, str)
            ]
            if isinstance(expected, ast.Name):  # change the variable before the call, which may look it up in the caller
                changed = ast.NamedExpr(ast.Name(expected.id), _call_other(expected))
                compared.left, compared.comparators = changed, [compared.left]
            elif constants:
                constants[0].value = other(constants[0].value)
            else:
                compared.comparators = [_call_other(expected)]
        case ast.Assert(test=condition) as asserted:
            asserted.test = ast.UnaryOp(ast.Not(), condition)
        case ast.Call(args=[actual, expected, *rest]) as called:
            called.args = [actual, _call_other(expected), *rest]
    return True


def _is_assert_equal(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "assertEqual" and len(node.args) > 1


def _call_other(expected: ast.expr) -> ast.Call:
    return ast.Call(ast.Name("other"), [expected], [])


@dataclass(frozen=True)
class Exam:
    """How to grade a task; determined with the original package."""

    canary: str  # source of the canary file
    must_fail: frozenset[str]  # node ids of its tests
    aliases: bool  # whether the tests also pass under random file names


class Grader:
    """Grades submissions. Caches each task's exam. Thread-safe."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._exam = lru_cache(maxsize=4096)(self._make_exam)

    def grade(self, folder: TaskFolder, record: Record, submitted: Workspace) -> Grade:
        tree = folder.tree(record)
        changes = find_changes(record, tree, submitted.folder)
        exam = self._exam(folder, record)
        run = self._run(record, tree, changes, exam)
        forged = run.forged
        passed = {node.partition("::")[2] for node in record.fail_to_pass if run.outcomes.get(node) == PASSED}
        twins = {node.partition("::")[2] for node in record.fail_to_pass} - passed  # these fail, so their canaries may pass
        must_fail = [name for name in exam.must_fail if name.partition("::")[2] not in twins]
        if not (forged or run.killed) and any(run.outcomes.get(name) != FAILED for name in must_fail):
            forged = "tests pass that must fail"
        believed = frozenset() if forged or run.killed else run.passed
        diff = show_diff(record, tree, changes)
        pass_to_pass = folder.pass_to_pass(record)
        return Grade.count(believed, record.fail_to_pass, pass_to_pass, diff=diff, killed=run.killed, forged=forged)

    def _make_exam(self, folder: TaskFolder, record: Record) -> Exam:
        """The task's exam, from one or two runs of the original package. Raises TacitError if its tests fail."""
        tree = folder.tree(record)
        for exam in (Exam(make_canary(record, tree), frozenset(), True), Exam(CANARY, frozenset(), False)):
            run = self._run(record, tree, {}, exam)
            failed = frozenset(node for node in run.failed if node.startswith(f"{CANARY_FILE}::"))
            if failed and not run.forged and all(run.outcomes.get(node) == PASSED for node in record.fail_to_pass):
                return replace(exam, must_fail=failed)
        reason = run.forged or run.killed or run.output[-300:]
        problem = f"its tests fail with the original package too ({reason})"
        raise TacitError(f"task {record.id!r} cannot be graded: {problem}.")

    def _run(self, record: Record, tree: Path, changes: dict[str, bytes | None], exam: Exam) -> TestRun:
        """Run the task's tests and the canary in a copy of the tree with these changes. Files get random names; outcomes have
        the real names."""
        names = {CANARY_FILE: alias(record.test_files[0])}
        names |= {path: alias(path) if exam.aliases else path for path in record.test_files}
        with closing(self._runner.sandbox.copy(tree)) as workspace:
            apply_changes(workspace.folder, changes)
            for path in record.test_files:
                (workspace.folder / path).rename(workspace.folder / names[path])
            write_beneath(workspace.folder, names[CANARY_FILE], exam.canary.encode())
            run = self._runner.run(workspace, [*sorted(names.values()), "-q", "--tb=no"])
        real_names = {name: path for path, name in names.items()}
        outcomes = {}
        for node, outcome in run.outcomes.items():
            file, colons, test = node.partition("::")
            outcomes[f"{real_names.get(file, file)}{colons}{test}"] = outcome
        return replace(run, outcomes=outcomes)


def alias(path: str) -> str:
    """A random name for a test file in the same directory."""
    return str(PurePosixPath(path).with_name(f"test_{secrets.token_hex(4)}.py"))
