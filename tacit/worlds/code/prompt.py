"""Wordings: `full` for language models, `terse` for models of about a million parameters.

Styles: `tags` is a thought and one `<function=…>` call, as R2E-Gym and Complementary RL have it; `tools` a call in the model's
own template; `bare` one line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tacit.core.actions import ActionFormat
from tacit.core.types import ActionStyle, Observation, Task
from tacit.core.world import Brief, Wording
from tacit.sandbox.client import AT
from tacit.worlds.code.tools import NO_CALL, CallError, FunctionTags, Lines, ToolCalls, read_line, shown_lines
from tacit.worlds.code.world import HIDDEN, MAX_STEPS

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
insert PATH LINE TEXT
create PATH TEXT
undo_edit PATH
submit
In texts, \\n is a line end and \\\\ a backslash."""
FORMATS: Mapping[ActionStyle, ActionFormat] = {"tags": FunctionTags(), "tools": ToolCalls(), "bare": Lines()}
TERSE_ISSUE, TERSE_SEEN, TERSE_OUTPUT = 300, 900, 240
"""characters shown to a tiny policy: of the issue, of a file, of a command's output"""


class FullWording(Wording):
    version = "1"
    separator = "\n\n"
    formats = FORMATS
    tool_request = "Call one tool."

    def task(self, task: Task) -> str:
        tests = HIDDEN_TESTS if task.data.get("tests") == HIDDEN else SHOWN_TESTS
        return f"{INTRODUCTION} {tests}\n\n<issue>\n{task.goal.strip()}\n</issue>"

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{observation.text}\n\n{write_past(action)}"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        left = MAX_STEPS - number + 1
        warning = f"\n[{left} steps left]" if left <= 5 else ""
        return f"{observation.text}{warning}"

    def request(self, style: ActionStyle) -> str:
        return LINE_REQUEST if style == "bare" else TAG_REQUEST


def write_past(action: str) -> str:
    """A past action as the agent wrote it."""
    try:
        read_line(action)
    except CallError:
        return action.removeprefix(NO_CALL)
    return FunctionTags().write(action)


class TerseWording(Brief):
    """The issue, cut; then what is seen, cut: `spans/core.py` and its lines for a view, the end of an output otherwise."""

    version = "1"
    formats = FORMATS
    ends = "\n>"
    then = "\n> "

    def task(self, task: Task) -> str:
        return re.sub(r"\s+", " ", task.goal).strip()[:TERSE_ISSUE]

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"> {action[:TERSE_OUTPUT]}"

    def brief(self, observation: Observation) -> str:
        path, lines = shown_lines(observation.text)
        if path:
            shown = "\n".join(f"{number} {line}" for number, line in lines.items())
            done = "edited " if observation.text.startswith("Edited") else ""
            return f"{done}{path}\n{shown}"[:TERSE_SEEN]
        return re.sub(r"[=_.-]{4,}", "", observation.text)[-TERSE_OUTPUT:]
