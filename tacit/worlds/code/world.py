"""Code repair: mend a package until its tests pass.

    actions   bash COMMAND, view, create, str_replace, insert, undo_edit, submit     (tools.py)
    success   after submit, all FAIL_TO_PASS and PASS_TO_PASS tests pass in a fresh copy (grading.py)
    score     share of the FAIL_TO_PASS tests that pass
    timeout   50 steps (counted by the rollout); what is not submitted does not count

An episode has a copy of the repository in memory. Shell commands run in the sandbox (tacit/sandbox), each in a shell of its own
in /testbed; the editor works on the copy directly. `pytest` by itself runs in a fork of a warm process. Tests are part of the
repository (`shown`) or taken out of it (`hidden`); those that grade are always the original ones.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition
from tacit.sandbox import Workspace
from tacit.worlds.code.grading import Grade, Grader
from tacit.worlds.code.runner import ENVIRONMENT, Runner
from tacit.worlds.code.tasks import PACKAGED, Record, TaskFolder, broken_files, open_folder, record_of
from tacit.worlds.code.tools import (
    BASH,
    EDITOR,
    CallError,
    Editor,
    clip,
    normalize,
    read_line,
    shorten_lines,
    write_beneath,
)

MAX_STEPS = 50
SHOWN, HIDDEN = TESTS = ("shown", "hidden")
ISOLATED, NONE = MODES = ("isolated", "none")
ERROR = "ERROR: "
_PYTEST = re.compile(r"\s*(?:cd /testbed\s*&&\s*)?(?:python3? -m )?pytest((?:\s+[\w./:=,\[\]'\" -]+)?)\s*(?:2>&1)?\s*")


class Bench:
    """What the episodes of one process share: the sandbox server with a warm pytest."""

    def __init__(self, root: Path = PACKAGED, sandbox: str = ISOLATED) -> None:
        folder = open_folder(root)
        trees = [root / "packages" / label for label in folder.packages]
        mode = "none" if sandbox == NONE else "auto"
        self.runner = Runner(trees=trees, cache=None if root == PACKAGED else root / "bytecode", mode=mode)
        self.grader = Grader(self.runner)

    @property
    def alive(self) -> bool:
        return self.runner.alive

    def close(self) -> None:
        self.runner.close()


class CodeWorld:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._workspace: Workspace | None = None
        self._record: Record
        self._folder: TaskFolder
        self._editor: Editor

    def reset(self, task: Task) -> Observation:
        self.close()
        self._record, self._folder = record_of(task)
        tree = self._folder.tree(self._record)
        tests = task.data.get("tests", SHOWN)
        if tests not in TESTS:
            raise TacitError(f"task {task.id!r} has tests = {tests!r}; it must be {' or '.join(TESTS)}.")
        self._workspace = self._bench.runner.sandbox.copy(tree)
        for path, text in broken_files(self._record, tree).items():
            write_beneath(self._workspace.folder, path, text.encode())
        if tests == HIDDEN:
            for path in self._record.test_files:
                (self._workspace.folder / path).unlink()
        self._editor = Editor(self._workspace.folder)
        return Observation(self._editor.run(read_line("view .")))

    def step(self, action: str) -> Transition:
        if self._workspace is None:
            raise TacitError("no episode has been started: call reset(task) first.")
        try:
            call = read_line(action)
            if call.name == EDITOR:
                return Transition(Observation(self._editor.run(call)))
            if call.name == BASH:
                return Transition(Observation(self._bash(call.arguments["command"])))
        except CallError as error:
            return Transition(Observation(f"{ERROR}{error}"), effective=False)
        grade = self._bench.grader.grade(self._folder, self._record, self._workspace)
        return Transition(Observation(show_grade(grade)), True, grade.success, grade.score, label=grade.label)

    def close(self) -> None:
        if self._workspace is not None:
            self._workspace.close()
            self._workspace = None

    def _bash(self, command: str) -> str:
        assert self._workspace is not None
        arguments = read_pytest(command)
        if arguments is not None:
            run = self._bench.runner.run(self._workspace, arguments)
            output, code, killed = run.output, run.code, run.killed
        else:
            environment = {**ENVIRONMENT, "TIME_STYLE": "+-"}
            result = self._workspace.run(["bash", "-c", command], environment=environment)
            output, code, killed = result.output, result.code, result.killed
        text = shorten_lines(normalize(output, self._workspace.folder).rstrip("\n"))
        ending = f"[killed: {killed}]" if killed else f"[exit status {code}]"
        return f"{text}\n{ending}" if text else ending


def read_pytest(command: str) -> list[str] | None:
    """The arguments of a command that is one plain call of pytest; None for any other."""
    found = _PYTEST.fullmatch(command)
    try:
        return shlex.split(found[1]) if found else None
    except ValueError:
        return None


def show_grade(grade: Grade) -> str:
    """What is seen after submit, and in reports."""
    verdict = "solved" if grade.success else f"not solved ({grade.label})"
    lines = [f"Submitted: {verdict}.", f"FAIL_TO_PASS: {grade.fixed} of {grade.wanted} pass."]
    lines.append(f"PASS_TO_PASS: {grade.kept} of {grade.known} pass.")
    if grade.forged:
        lines.append(f"The outcomes do not count: {grade.forged}.")
    return clip("\n".join([*lines, grade.diff or "No file was changed."]))
