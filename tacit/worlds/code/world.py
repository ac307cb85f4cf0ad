"""Code repair: fix a package until its tests pass.

    actions   bash COMMAND, view, create, str_replace, insert, undo_edit, submit     (tools.py)
    success   after submit, all FAIL_TO_PASS and PASS_TO_PASS tests pass in a fresh copy (grading.py)
    score     share of the FAIL_TO_PASS tests that pass
    timeout   50 steps (counted by the rollout); without submit, the episode fails

An episode has a copy of the repository in memory. Shell commands run in the sandbox (tacit/sandbox), each in a new shell in
/testbed; the editor changes the copy directly. A plain `pytest` command runs in a fork of a warm process. The repository
includes the tests (`shown`) or not (`hidden`); grading always uses the original ones.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.core.actions import ActionFormat
from tacit.core.errors import TacitError
from tacit.core.types import ActionStyle, Observation, Task, Transition
from tacit.core.world import Brief, Wording
from tacit.sandbox import Limits, Workspace
from tacit.sandbox.client import AT, CPU_LIMIT
from tacit.worlds.code import tools
from tacit.worlds.code.grading import ENVIRONMENT, Grade, Grader, Runner
from tacit.worlds.code.tasks import PACKAGED, broken_files, open_folder, record_of
from tacit.worlds.code.tools import BASH, EDITOR, CallError, Editor, read_line, shown_lines, write_beneath

MAX_STEPS = 50
CPU_S = 10
"""CPU time that a process of a command or test run may use; tasks are made so that their tests take 6 s at most (prepare.py)"""
STOPPED = f"Stopped: used more than {CPU_S} s of CPU time"
SHOWN, HIDDEN = TESTS = ("shown", "hidden")
ISOLATED, NONE = MODES = ("isolated", "none")
ERROR = "ERROR: "
_PYTEST = re.compile(r"\s*(?:cd /testbed\s*&&\s*)?(?:python3? -m )?pytest((?:\s+[\w./:=,\[\]'\" -]+)?)\s*(?:2>&1)?\s*")


class Bench:
    """Shared by the episodes of one process: sandbox servers with a warm pytest, and the grader."""

    def __init__(self, root: Path = PACKAGED, sandbox: str = ISOLATED) -> None:
        folder = open_folder(root)
        trees = [root / "packages" / label for label in folder.packages]
        mode = "none" if sandbox == NONE else "auto"
        self.runner = Runner(Limits(cpu_s=CPU_S), trees, cache=None if root == PACKAGED else root / "bytecode", mode=mode)
        self.grader = Grader(self.runner)
        self.run_tests = self.runner.run
        self.close = self.runner.close

    @property
    def alive(self) -> bool:
        return self.runner.alive

    def open(self, task: Task) -> Workspace:
        """The repository as the agent finds it."""
        record, folder = record_of(task)
        tests = task.data.get("tests", SHOWN)
        if tests not in TESTS:
            raise TacitError(f"task {task.id!r} has tests = {tests!r}; it must be {' or '.join(TESTS)}.")
        tree = folder.tree(record)
        workspace = self.runner.sandbox.copy(tree)
        for path, text in broken_files(record, tree).items():
            write_beneath(workspace.folder, path, text.encode())
        if tests == HIDDEN:
            for path in record.test_files:
                (workspace.folder / path).unlink()
        return workspace

    def grade(self, task: Task, submitted: Workspace) -> Grade:
        record, folder = record_of(task)
        return self.grader.grade(folder, record, submitted)


class CodeWorld:
    """`bench` is a `Bench`, or a `ContainerBench` (swebench.py)."""

    def __init__(self, bench: Any) -> None:
        self._bench = bench
        self._workspace: Any = None
        self._task: Task
        self._editor: Editor

    def reset(self, task: Task) -> Observation:
        self.close()
        self._task, self._workspace = task, self._bench.open(task)
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
        grade = self._bench.grade(self._task, self._workspace)
        return Transition(Observation(show_grade(grade)), True, grade.success, grade.score, label=grade.label)

    def close(self) -> None:
        if self._workspace is not None:
            self._workspace.close()
            self._workspace = None

    def _bash(self, command: str) -> str:
        arguments = read_pytest(command)
        if arguments is not None:
            run = self._bench.run_tests(self._workspace, arguments)
        else:
            run = self._workspace.run(["bash", "-c", command], environment={**ENVIRONMENT, "TIME_STYLE": "+-"})
        text = tools.shorten_lines(tools.normalize(run.output, self._workspace.folder).rstrip("\n"))
        killed = f"[{STOPPED}]" if run.killed == CPU_LIMIT else f"[killed: {run.killed}]"
        ending = killed if run.killed else f"[exit status {run.code}]"
        return f"{text}\n{ending}" if text else ending


def read_pytest(command: str) -> list[str] | None:
    """The arguments if the command is a single plain pytest call; else None."""
    match = _PYTEST.fullmatch(command)
    try:
        return shlex.split(match[1]) if match else None
    except ValueError:
        return None


def show_grade(grade: Grade) -> str:
    """The observation after submit, also used in reports."""
    verdict = "solved" if grade.success else f"not solved ({grade.label})"
    lines = [f"Submitted: {verdict}.", f"FAIL_TO_PASS: {grade.fixed} of {grade.wanted} pass."]
    lines.append(f"PASS_TO_PASS: {grade.kept} of {grade.known} pass.")
    if grade.killed == CPU_LIMIT:
        lines.append(f"{STOPPED}.")
    if grade.forged:
        lines.append(f"The outcomes do not count: {grade.forged}.")
    return tools.clip("\n".join([*lines, grade.diff or "No file was changed."]))


INTRODUCTION = (
    f"You repair a Python repository in {AT}. Somebody has reported the issue below. Find its cause in the source, change as "
    "little as needed, and submit. The issue counts as solved if the tests that fail now pass and no other test breaks. "
    "Changes of tests and test settings do not count."
)
SHOWN_TESTS = "The tests are in the repository; `pytest` runs them."
HIDDEN_TESTS = "The tests that decide are not in the repository."
TOOL_TEXT = f"""You have three tools.

execute_bash: run a shell command in {AT}. Each command has a shell of its own; there is no network.
  command (required)
str_replace_editor: view and edit files.
  command (required): view, create, str_replace, insert or undo_edit
  path (required): absolute path, such as {AT}/module.py
  view_range: for view of a file, [first line, last line]
  file_text: for create, the content of the new file
  old_str, new_str: for str_replace; old_str must occur exactly once in the file, with its blanks and line ends
  insert_line, new_str: for insert, the line after which new_str is put
submit: hand in the repository as it is. This ends the episode."""
TAG_REQUEST = f"""{TOOL_TEXT}

Think first, then call exactly one tool, like this:
<function=str_replace_editor>
<parameter=command>view</parameter>
<parameter=path>{AT}/module.py</parameter>
<parameter=view_range>[1, 40]</parameter>
</function>"""
LINE_REQUEST = """Answer with one line, one of
bash COMMAND
view PATH
view PATH FIRST LAST
str_replace PATH OLD ==> NEW
str_replace PATH:LINE OLD ==> NEW
insert PATH LINE TEXT
create PATH TEXT
undo_edit PATH
submit
In texts, \\n is a line end and \\\\ a backslash."""
# Styles: `tags` is a thought and one `<function=…>` call, as in R2E-Gym and Complementary RL; `tools` a call in the model's
# chat template; `bare` one line.
FORMATS: Mapping[ActionStyle, ActionFormat] = {
    "tags": tools.FunctionTags(), "tools": tools.ToolCalls(), "bare": tools.Lines()
}  # fmt: skip
TERSE_ISSUE, TERSE_SEEN, TERSE_OUTPUT = 240, 700, 120
"""maximum characters in the terse wording: of the issue, of a file, of a command's output"""


class FullWording(Wording):
    formats = FORMATS
    tool_request = "Call one tool."

    def task(self, task: Task) -> str:
        tests = HIDDEN_TESTS if task.data.get("tests") == HIDDEN else SHOWN_TESTS
        return f"{INTRODUCTION} {tests}\n\n<issue>\n{task.goal.strip()}\n</issue>"

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{observation.text}\n\n{tools.FunctionTags().message(action).content}"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        left = MAX_STEPS - number + 1
        warning = f"\n[{left} steps left]" if left <= 5 else ""
        return f"{observation.text}{warning}"

    def request(self, style: ActionStyle) -> str:
        return LINE_REQUEST if style == "bare" else TAG_REQUEST


_ISSUE = re.compile(
    r"for instance:\n(.*)It ends with:\n(.*?)Find the cause[^\n]*(.*)", re.DOTALL
)  # the test, its error, a hint


class TerseWording(Brief):
    """The truncated issue and observation: path and lines of a viewed file, else the end of the output."""

    formats = FORMATS
    ends = "\n>"
    then = "\n> "

    def task(self, task: Task) -> str:
        match = _ISSUE.search(task.goal)
        text = " ".join(match.group(3, 1, 2)) if match else task.goal
        return re.sub(r"\s+", " ", text).strip()[:TERSE_ISSUE]

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"> {action[:TERSE_OUTPUT]}"

    def brief(self, observation: Observation) -> str:
        path, lines = shown_lines(observation.text)
        if path:
            source = "\n".join(f"{number} {line}" for number, line in lines.items())
            if observation.text.startswith("Edited"):
                return f"edited {path}"
            done = "undid " if observation.text.startswith("Undid") else ""
            return f"{done}{path}\n{source}"[:TERSE_SEEN]
        return re.sub(r"[=_.-]{4,}", "", observation.text)[-TERSE_OUTPUT:]
