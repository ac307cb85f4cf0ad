"""Grading of a submitted repository, in a fresh copy of the original.

Only changes of source files are carried over. Tests, test settings and whatever Python loads by itself (conftest.py,
pytest.ini, setup.cfg, sitecustomize.py, byte code, …) stay as they were. Outcomes come from a fork of a warm pytest over a
pipe of its own (runner.py), never from what the tests print.

The code under test runs in the same process as its tests, so it could still try to make them pass. Canaries catch that: tests
that fail with the original package and must fail here too. Some fail in any case (`assert False`); the others are the
FAIL_TO_PASS tests with the right side of each `==` replaced by something that nothing equals. They catch patched assertions,
results that equal everything, and code that looks up what its caller expects. Test files have random names, so that code cannot
tell a test from its canary by name.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from tacit.core.errors import TacitError
from tacit.sandbox import Workspace
from tacit.worlds.code.runner import FAILED, PASSED, Runner, TestRun
from tacit.worlds.code.tasks import IGNORED, Record, TaskFolder, broken_files
from tacit.worlds.code.tools import LARGEST, read_beneath, write_beneath

SETTINGS = ("conftest.py", "pytest.ini", "tox.ini", "setup.cfg", "setup.py", "pyproject.toml", "noxfile.py", ".coveragerc")
LOADED = ("sitecustomize.py", "usercustomize.py", "__pycache__")
TEST_FOLDERS = ("tests", "test")
CANARY_FILE = "canary"
MOST_FILES = 200  # changed files of a submission
CANARY = """
import unittest
import pytest

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
    forged: str  # why the outcomes do not count; empty: they do
    diff: str  # from the broken repository to the submitted one
    killed: str = ""  # which limit ended the tests

    @property
    def success(self) -> bool:
        return not self.forged and self.fixed == self.wanted and self.kept == self.known

    @property
    def score(self) -> float:
        return 0.0 if self.forged else self.fixed / self.wanted

    @property
    def label(self) -> str:
        """Why it failed: `forged`, `no_change`, `time` (or another limit), `tests_fail`, `tests_broken`."""
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
    """Whether a change of this file counts. `original`: the package has such a file."""
    if path in (edit.path for edit in record.edits):
        return True
    pure = PurePosixPath(path)
    if path in record.test_files or pure.name in SETTINGS or any(part in LOADED for part in pure.parts):
        return False
    if any(part in TEST_FOLDERS or part.startswith(".") for part in pure.parts[:-1]):
        return False
    if re.fullmatch(r"test_.*\.py|.*_test\.py", pure.name) or pure.suffix in (".pyc", ".pyo", ".pth", ".so", ".egg-link"):
        return False
    # A new top-level module could take the place of one of Python or pytest.
    top = PurePosixPath(pure.parts[0]).stem
    return original or top not in (
        *sys.stdlib_module_names,
        "pytest",
        "_pytest",
        "pluggy",
        "iniconfig",
        "packaging",
        "pygments",
    )


def list_files(folder: Path) -> Iterator[str]:
    """Regular files below the folder; symbolic links are neither listed nor followed."""
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in IGNORED)
        for name in sorted(files):
            path = os.path.join(where, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                yield os.path.relpath(path, folder)


def find_changes(record: Record, tree: Path, folder: Path) -> dict[str, bytes | None]:
    """path -> content of each file that counts and differs from the original; None: it is gone."""
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
    return dict(list(changes.items())[:MOST_FILES])


def show_diff(record: Record, tree: Path, changes: dict[str, bytes | None]) -> str:
    """A unified diff from the broken repository."""
    broken = broken_files(record, tree)
    paths = sorted({*changes, *broken})
    lines: list[str] = []
    for path in paths:
        original = (tree / path).read_text(errors="replace") if (tree / path).is_file() else ""
        before = broken.get(path, original)
        content = changes.get(path, original.encode())
        after = "" if content is None else content.decode(errors="replace")
        lines += difflib.unified_diff(before.splitlines(), after.splitlines(), f"a/{path}", f"b/{path}", n=2, lineterm="")
    return "\n".join(lines)


def make_canary(record: Record, tree: Path) -> str:
    """Source of a test file in which every test must fail: fixed ones, and the failing tests with changed assertions."""
    bodies: list[str] = []
    imports: dict[str, None] = {}
    for path in dict.fromkeys(node.partition("::")[0] for node in record.fail_to_pass):
        names = {
            n.split("::")[1].partition("[")[0] for n in record.fail_to_pass if n.startswith(f"{path}::") and n.count("::") == 1
        }
        try:
            parsed = ast.parse((tree / path).read_text())
        except (OSError, SyntaxError, ValueError):
            continue
        for statement in parsed.body:
            if isinstance(statement, ast.FunctionDef) and statement.name.startswith("test"):
                if statement.name in names and _spoil(statement):
                    bodies.append(ast.unparse(statement))
            elif isinstance(statement, ast.Import | ast.ImportFrom):
                imports[ast.unparse(statement)] = None
            else:
                bodies.append(ast.unparse(statement))
    future = [line for line in imports if line.startswith("from __future__")]
    rest = [line for line in imports if line not in future]
    return "\n".join([*future, *rest, CANARY, *bodies]) + "\n"


def _spoil(function: ast.FunctionDef) -> bool:
    """Compare with something that nothing equals, in each `assert … == …`. False where there is none."""
    found = False
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.Eq):
            node.test.comparators[0] = ast.parse("object()", mode="eval").body
            found = True
    return found


@dataclass(frozen=True)
class Exam:
    """How a task is graded, found out with the original package."""

    canary: str  # source of a file of tests
    must_fail: frozenset[str]  # tests in it
    aliases: bool  # the tests pass under other file names too


class Grader:
    """Grades submissions of one process."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._exams: dict[str, Exam] = {}  # by task id

    def grade(self, folder: TaskFolder, record: Record, submitted: Workspace) -> Grade:
        tree = folder.tree(record)
        changes = find_changes(record, tree, submitted.folder)
        exam = self._exam(folder, record)
        run = self._run(record, tree, changes, exam)
        forged = run.forged
        if not forged and not run.killed and any(run.outcomes.get(name) != FAILED for name in exam.must_fail):
            forged = "tests pass that must fail"
        known = folder.pass_to_pass(record)
        return Grade(
            fixed=sum(run.outcomes.get(node) == PASSED for node in record.fail_to_pass),
            wanted=len(record.fail_to_pass),
            kept=sum(run.outcomes.get(node) == PASSED for node in known),
            known=len(known),
            forged=forged,
            diff=show_diff(record, tree, changes),
            killed=run.killed,
        )

    def _exam(self, folder: TaskFolder, record: Record) -> Exam:
        """One or two runs of the original package, the first time a task is graded."""
        if record.id not in self._exams:
            tree = folder.tree(record)
            for exam in (Exam(make_canary(record, tree), frozenset(), True), Exam(CANARY, frozenset(), False)):
                run = self._run(record, tree, {}, exam)
                failed = frozenset(node for node in run.failed if node.startswith(f"{CANARY_FILE}::"))
                if failed and not run.forged and all(run.outcomes.get(node) == PASSED for node in record.fail_to_pass):
                    break
            else:
                reason = run.forged or run.killed or run.output[-300:]
                raise TacitError(
                    f"task {record.id!r} cannot be graded: its tests fail with the original package too ({reason})."
                )
            if len(self._exams) > 4096:
                self._exams.clear()
            self._exams[record.id] = replace(exam, must_fail=failed)
        return self._exams[record.id]

    def _run(self, record: Record, tree: Path, changes: dict[str, bytes | None], exam: Exam) -> TestRun:
        """Run the task's tests and the canary. Files have random names, so that code cannot know which tests must pass;
        outcomes have the usual ones."""
        workspace = self._runner.sandbox.copy(tree)
        names = {CANARY_FILE: alias(record.test_files[0])}
        names |= {path: alias(path) if exam.aliases else path for path in record.test_files}
        try:
            for path, content in changes.items():
                if content is not None:
                    write_beneath(workspace.folder, path, content)
                elif (workspace.folder / path).exists():
                    (workspace.folder / path).unlink()
            for path in record.test_files:
                (workspace.folder / path).rename(workspace.folder / names[path])
            write_beneath(workspace.folder, names[CANARY_FILE], exam.canary.encode())
            run = self._runner.run(workspace, [*sorted(names.values()), "-q", "--tb=no"])
        finally:
            workspace.close()
        usual = {name: path for path, name in names.items()}
        outcomes = {}
        for node, outcome in run.outcomes.items():
            file, colons, test = node.partition("::")
            outcomes[f"{usual.get(file, file)}{colons}{test}"] = outcome
        return replace(run, outcomes=outcomes)


def alias(path: str) -> str:
    """A random name for a test file in the same directory."""
    return str(PurePosixPath(path).with_name(f"test_{secrets.token_hex(4)}.py"))
