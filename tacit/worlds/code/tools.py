"""The agent's three tools, and the formats of calls.

    execute_bash         command
    str_replace_editor   command (view, create, str_replace, insert, undo_edit), path, file_text, old_str, new_str, insert_line,
                         view_range
    submit

A call has three forms. An action is always a line; `FunctionTags` and `ToolCalls` translate the others.

    line    view spans/core.py 10 40                     one line; `\\n` is a line end, `\\\\` a backslash. `str_replace
                                                         spans/core.py:12 < ==> <=` edits line 12, as SWE-agent's `edit` does
    tags    <function=str_replace_editor>                as in R2E-Gym and Complementary RL
            <parameter=command>view</parameter> …
            </function>
    JSON    {"name": …, "arguments": {…}}                in the model's chat template

Tools and their limits (first and last 40 lines of a command's output, 10,000 characters from the editor) follow R2E-Gym
(github.com/R2E-Gym/R2E-Gym), which Complementary RL trains with. The messages are ours.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from tacit.core.actions import ActionFormat, Bare, Calls, Parsed, find_json_calls
from tacit.core.chat import Call, Message, Tool, split_thought
from tacit.sandbox.client import AT

BASH, EDITOR, SUBMIT = TOOLS = ("execute_bash", "str_replace_editor", "submit")
COMMANDS = ("view", "create", "str_replace", "insert", "undo_edit")
BASH_LINES, EDITOR_CHARACTERS = 40, 10_000
ARROW = " ==> "  # between old and new text of a `str_replace` line
NO_CALL = "no tool call: "  # prefix of the action for a completion without a readable call
FORMS = " As lines: bash COMMAND, view PATH, str_replace PATH OLD ==> NEW, submit."
SNIPPET = 4  # lines shown around an edit


class CallError(Exception):
    """An unreadable call, or one that the editor refuses. The agent sees the message."""


def write_line(call: Call) -> str:
    """The call as one line.

    >>> write_line(Call("str_replace_editor", {"command": "view", "path": "/testbed/a b.py", "view_range": "[1, 9]"}))
    'view a\\\\sb.py 1 9'
    """
    fields = call.arguments
    if call.name == SUBMIT:
        return "submit"
    if call.name == BASH:
        return f"bash {_escape(fields.get('command', ''))}"
    command, path = fields.get("command", ""), _escape(_relative(fields.get("path", ""))).replace(" ", "\\s") or "."
    if command == "view":
        return " ".join(["view", path, *re.findall(r"-?\d+", str(fields.get("view_range", "")))])
    if command == "create":
        return f"create {path} {_escape(fields.get('file_text', ''))}"
    if command == "str_replace":
        path += f":{fields['line']}" if "line" in fields else ""
        return f"str_replace {path} {_escape(fields.get('old_str', ''))}{ARROW}{_escape(fields.get('new_str', ''))}"
    if command == "insert":
        return f"insert {path} {fields.get('insert_line', '')} {_escape(fields.get('new_str', ''))}"
    return f"{command} {path}"


def read_line(line: str) -> Call:
    """Parse a line as a call. Raises CallError.

    >>> read_line("str_replace a.py x < y ==> x <= y").arguments["new_str"]
    'x <= y'
    """
    word, _, rest = line.strip("\n").partition(" ")
    if word == "submit":
        return Call(SUBMIT, {})
    if word == "bash":
        if not rest.strip():
            raise CallError("execute_bash needs a command.")
        return Call(BASH, {"command": _unescape(rest)})
    if word not in COMMANDS:
        raise CallError(f"{line.removeprefix(NO_CALL)[:60]!r} is no call of a tool. Tools: {', '.join(TOOLS)}.{FORMS}")
    path, _, tail = rest.partition(" ")
    if not path:
        raise CallError(f"{word} needs a path.")
    path = _unescape(path)
    at_line = re.fullmatch(r"(.+):(\d+)", path) if word == "str_replace" else None
    path = at_line[1] if at_line else path
    fields = {"command": word, "path": path if path.startswith("/") else AT if path == "." else f"{AT}/{path}"}
    if word == "view" and tail.strip():
        fields["view_range"] = f"[{', '.join(tail.split())}]"
    if word == "create":
        fields["file_text"] = _unescape(tail)
    if word == "str_replace":
        old, arrow, new = tail.partition(ARROW) if ARROW in tail else tail.partition(ARROW.rstrip())
        if not arrow:
            raise CallError(f"str_replace needs the old text, {ARROW.strip()!r} and the new text.")
        fields |= {"old_str": _unescape(old), "new_str": _unescape(new)} | ({"line": at_line[2]} if at_line else {})
    if word == "insert":
        number, _, text = tail.partition(" ")
        fields |= {"insert_line": number, "new_str": _unescape(text)}
    return Call(EDITOR, fields)


def _escape(text: str) -> str:
    for plain, written in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"), ("==>", "==\\>")):
        text = text.replace(plain, written)
    return text


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "r": "\r", "t": "\t", "s": " "}.get(match[1], match[1]), text)


def _relative(path: str) -> str:
    return path.removeprefix(AT).lstrip("/") if path == AT or path.startswith(f"{AT}/") else path


def _checked_line(name: str, arguments: Mapping[str, Any]) -> str:
    """A validated call as a line. Raises CallError."""
    if name not in TOOLS:
        raise CallError(f"there is no tool {name!r}.")
    fields = {key: value for key, value in arguments.items() if value is not None}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in fields.items()}
    if name == EDITOR and texts.get("command") not in COMMANDS:
        raise CallError(f"str_replace_editor has no command {texts.get('command')!r}; it has {', '.join(COMMANDS)}.")
    line = write_line(Call(name, texts))
    read_line(line)
    return line


@dataclass(frozen=True)
class FunctionTags(ActionFormat):
    """A thought, then exactly one `<function=…>` call."""

    stop: tuple[str, ...] = ("</function>",)
    thinks: bool = True

    def parse(self, text: str) -> Parsed:
        """
        >>> FunctionTags().parse("Done.\\n<function=submit>\\n</function>")
        Parsed(action='submit', valid=True)
        """
        calls = list(re.finditer(r"<function=([\w-]+)>(.*?)</function>", text, re.DOTALL))
        thought = text[: calls[0].start()].strip() if calls else ""
        try:
            if not calls:
                raise CallError("no call")
            pairs = re.findall(r"<parameter=(\w+)>(.*?)</parameter>", calls[0][2], re.DOTALL)
            # Multi-line values are surrounded by line ends.
            inside = {name: value[1:-1] if re.fullmatch(r"\n.*\n", value, re.DOTALL) else value for name, value in pairs}
            line = _checked_line(calls[0][1], inside)
        except CallError:
            return Parsed(NO_CALL + text.strip()[-60:], False, thought)
        return Parsed(line, len(calls) == 1, thought)

    def write(self, action: str, thought: str = "") -> str:
        call = read_line(action)
        inside = ""
        for name, value in call.arguments.items():
            newline = "\n" * ("\n" in value or value != value.strip())
            inside += f"\n<parameter={name}>{newline}{value}{newline}</parameter>"
        return f"{thought}\n\n" * bool(thought) + f"<function={call.name}>{inside}\n</function>"

    def message(self, action: str, past: bool = False) -> Message:
        """A past action as an assistant message."""
        with contextlib.suppress(CallError):
            return Message("assistant", self.write(action))
        return Message("assistant", action.removeprefix(NO_CALL))


_TEXT = {"type": "string"}
_EDITOR_PARAMETERS = {
    "command": {**_TEXT, "enum": list(COMMANDS), "description": "what to do"},
    "path": {**_TEXT, "description": f"absolute path of a file or directory, such as {AT}/module.py"},
    "file_text": {**_TEXT, "description": "for create: the content of the new file"},
    "old_str": {**_TEXT, "description": "for str_replace: text that occurs exactly once in the file"},
    "new_str": {**_TEXT, "description": "for str_replace: the text in its place; for insert: the text to insert"},
    "insert_line": {"type": "integer", "description": "for insert: the line after which the text is inserted"},
    "view_range": {"type": "array", "items": {"type": "integer"}, "description": "for view: [first, last] line; -1 is the end"},
}  # fmt: skip

_NUMBERS = ("insert_line", "view_range", "line")  # parameters that are JSON numbers, or lists of them
_NUMBER = re.compile(r"N|\[(N(, N)*)?\]".replace("N", r"-?(0|[1-9]\d{0,8})"))


def _schema(parameters: Mapping[str, Any], required: Sequence[str]) -> str:
    return json.dumps({"type": "object", "properties": dict(parameters), "required": list(required)})


@dataclass(frozen=True)
class ToolCalls(Calls):
    """Tool calls in the model's chat template."""

    tools: tuple[Tool, ...] = (
        Tool(BASH, "command", "Run a shell command in the repository.", "the command"),
        Tool(EDITOR, "command", "View, create and edit files.", parameters=_schema(_EDITOR_PARAMETERS, ("command", "path"))),
        Tool(SUBMIT, "", "Hand in the repository as it is. This ends the episode.", parameters=_schema({}, ())),
    )  # fmt: skip

    def parse(self, text: str) -> Parsed:
        thought, rest = split_thought(text)
        for name, arguments in find_json_calls(rest):
            with contextlib.suppress(CallError):
                return Parsed(_checked_line(name, arguments), True, thought)
        if "<function=" in rest:  # some templates write calls as tags
            tagged = FunctionTags().parse(rest)
            return Parsed(tagged.action, tagged.valid, thought)
        return Parsed(NO_CALL + rest.strip()[-60:], False, thought)

    def message(self, action: str, past: bool = False) -> Message:
        with contextlib.suppress(CallError):
            call = read_line(action)
            numbers = {
                key: json.loads(value) for key, value in call.arguments.items() if key in _NUMBERS and _NUMBER.fullmatch(value)
            }
            return Message("assistant", "", replace(call, arguments={**call.arguments, **numbers}))
        name, _, rest = action.partition(" ")
        return Message("assistant", "", Call(BASH, {"command": rest})) if name in TOOLS else Message("assistant", action)


class Lines(Bare):
    """Actions as lines, without conversion."""

    def parse(self, text: str) -> Parsed:
        line = next((line.rstrip() for line in text.splitlines() if line.strip()), "").lstrip()
        return Parsed(line, True) if check_action(line) else Parsed(NO_CALL + line[-60:], False)


def shorten_lines(text: str) -> str:
    """The first and last 40 lines, cut to EDITOR_CHARACTERS."""
    lines = text.split("\n")
    if len(lines) > 2 * BASH_LINES:
        left_out = len(lines) - 2 * BASH_LINES
        lines = [*lines[:BASH_LINES], f"<{left_out} lines left out>", *lines[-BASH_LINES:]]
    output = "\n".join(lines)
    half = EDITOR_CHARACTERS // 2
    if len(output) > EDITOR_CHARACTERS:
        output = f"{output[:half]}\n<{len(output) - 2 * half} characters left out>\n{output[-half:]}"
    return output


_CHANGING = (
    (re.compile(r"0x[0-9a-f]{6,16}\b"), "0x0"),
    (re.compile(r"\b\d+\.\d+ ?(s|ms|sec|seconds)\b"), r"0.00\1"),
    (re.compile(r"\b20\d\d-[01]\d-[0-3]\d[T ][0-2]\d:[0-5]\d(:[0-5]\d(\.\d+)?)?"), "2000-01-01 00:00:00"),
    (re.compile(r"/tmp/(pytest-of-\w+/pytest-\d+|tmp[\w]{6,10})"), "/tmp/tmp0"),
    (re.compile(r"\bpid[ =:]*\d+", re.IGNORECASE), "pid 0"),
)


def normalize(text: str, folder: Path) -> str:
    """Replace text that differs between runs: addresses, durations, clock times, temporary names, the workspace's real path."""
    text = text.replace(str(folder), AT)
    for pattern, by in _CHANGING:
        text = pattern.sub(by, text)
    return text


def clip(text: str) -> str:
    text = text.encode("utf-8", errors="replace").decode()  # file names may be invalid Unicode
    if len(text) <= EDITOR_CHARACTERS:
        return text
    return f"{text[:EDITOR_CHARACTERS]}\n<{len(text) - EDITOR_CHARACTERS} characters left out; view a range of lines>"


# File access in a workspace. Symbolic links are not followed, since shell commands may create links to the outside.

LARGEST = 1 << 20
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


@contextlib.contextmanager
def enter_beneath(folder: Path, parts: Sequence[str], make: bool = False) -> Iterator[int]:
    """Descriptor of a directory below the folder; `make` creates missing ones. Raises OSError."""
    if ".." in parts or "/" in parts:
        raise OSError(f"{'/'.join(parts)!r} is outside of the repository")
    at = os.open(folder, os.O_DIRECTORY | os.O_CLOEXEC)
    owner = os.fstat(at)
    try:
        for part in parts:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=at)
                    os.chown(part, owner.st_uid, owner.st_gid, dir_fd=at, follow_symlinks=False)
            outer, at = at, os.open(part, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(outer)
        yield at
    finally:
        os.close(at)


def open_beneath(folder: Path, path: str, flags: int) -> int:
    """Open a regular file below the folder. Returns its descriptor; raises OSError."""
    *parents, name = PurePosixPath(path).parts or ("/",)
    with enter_beneath(folder, parents, bool(flags & os.O_CREAT)) as at:
        descriptor = os.open(name, flags | _FILE, 0o644, dir_fd=at)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path!r} is no regular file")
    return descriptor


def read_beneath(folder: Path, path: str, most: int = LARGEST) -> bytes:
    with os.fdopen(open_beneath(folder, path, os.O_RDONLY), "rb") as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise OSError(f"{path!r} is larger than {most} bytes")
        return file.read(size)


def remove_beneath(folder: Path, path: str) -> None:
    """Remove a file or symbolic link below the folder, if it is there. Raises OSError."""
    *parents, name = PurePosixPath(path).parts
    with contextlib.suppress(FileNotFoundError), enter_beneath(folder, parents) as at:
        os.unlink(name, dir_fd=at)


def write_beneath(folder: Path, path: str, text: bytes) -> None:
    """Create or overwrite a file below the folder. It gets the folder's owner."""
    owner = os.stat(folder)
    with os.fdopen(open_beneath(folder, path, os.O_WRONLY | os.O_CREAT), "wb") as file:
        os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        file.truncate(0)
        file.write(text)


@dataclass
class Editor:
    """The tool `str_replace_editor` for one workspace. Runs in this process."""

    folder: Path
    past: dict[str, list[bytes | None]] = field(default_factory=dict)  # path -> earlier contents; None: the file did not exist

    def run(self, call: Call) -> str:
        """Execute a call and return its output. Raises CallError."""
        fields = call.arguments
        path = _relative(fields.get("path", ""))
        if path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise CallError(f"{path} is outside of {AT}.")
        try:
            return getattr(self, f"_{fields['command']}")(path.strip("/"), fields)
        except OSError as error:
            reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or str(error)
            raise CallError(f"{AT}/{path}: {reason}.") from error
        except ValueError as error:  # a null byte in a path, a number of thousands of digits
            raise CallError(f"{fields['command']} cannot read its parameters: {error}.") from error

    def _text(self, path: str) -> tuple[bytes, str]:
        before = read_beneath(self.folder, path)
        return before, before.decode("utf-8", errors="replace")

    def _save(self, path: str, text: str, before: bytes | None) -> None:
        data = text.encode("utf-8", errors="replace")
        if len(data) > LARGEST:
            raise CallError(f"a file may have {LARGEST} bytes at most.")
        write_beneath(self.folder, path, data)
        self.past.setdefault(path, []).append(before)

    def _view(self, path: str, fields: Mapping[str, str]) -> str:
        with contextlib.suppress(NotADirectoryError):
            return self._list(path)
        lines = self._text(path)[1].split("\n")
        if lines[-1] == "":
            lines.pop()
        first, last = 1, len(lines)
        if fields.get("view_range"):
            numbers = [int(word) for word in re.findall(r"-?\d+", fields["view_range"])]
            if len(numbers) != 2:
                raise CallError(f"view_range {fields['view_range']} must be two line numbers.")
            first, last = numbers[0], len(lines) if numbers[1] == -1 else min(numbers[1], len(lines))
            if not 1 <= first <= last:
                raise CallError(f"view_range {fields['view_range']}: {AT}/{path} has lines 1 to {len(lines)}.")
        return clip(f"{AT}/{path}, lines {first} to {last} of {len(lines)}:\n" + number_lines(lines[first - 1 : last], first))

    def _list(self, path: str) -> str:
        """List a directory two levels deep, without hidden files."""
        paths: list[str] = []
        queue = [PurePosixPath(path).parts]
        for parts in queue:
            with enter_beneath(self.folder, parts) as at, os.scandir(at) as entries:
                inside = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
            for name, folder in inside:
                if not name.startswith(".") and name != "__pycache__":
                    paths.append("/".join((*parts, name)) + "/" * folder)
                    if folder and parts == queue[0]:
                        queue.append((*parts, name))
        return clip(f"{AT}/{path}".rstrip("/") + ", two levels:\n" + "\n".join(sorted(paths)))

    def _create(self, path: str, fields: Mapping[str, str]) -> str:
        if "file_text" not in fields or not path:
            raise CallError("create needs the path of a file." if "file_text" in fields else "create needs file_text.")
        with contextlib.suppress(FileNotFoundError):
            os.close(open_beneath(self.folder, path, os.O_RDONLY))
            raise CallError(f"{AT}/{path} exists already; edit it with str_replace.")
        self._save(path, fields["file_text"], None)
        return f"Created {AT}/{path}."

    def _str_replace(self, path: str, fields: Mapping[str, str]) -> str:
        old, new = fields.get("old_str", ""), fields.get("new_str", "")
        if not old:
            raise CallError("str_replace needs old_str.")
        before, text = self._text(path)
        places = [(match.start(), text[: match.start()].count("\n") + 1) for match in re.finditer(re.escape(old), text)]
        place, line = f"{AT}/{path}", fields.get("line", "")
        if line:
            places, place = [each for each in places if str(each[1]) == line], f"line {line} of {place}"
        if len(places) != 1:
            lines = ", ".join(str(number) for _, number in places[:8])
            problem = f"occurs {len(places)} times, in lines {lines}," if places else "does not occur"
            raise CallError(f"old_str {problem} in {place}; it must occur exactly once. Nothing was changed.")
        [(start, number)] = places
        return self._edit(path, text[:start] + new + text[start + len(old) :], before, number, new)

    def _insert(self, path: str, fields: Mapping[str, str]) -> str:
        number = str(fields.get("insert_line", "")).strip()
        if not number.isdigit() or "new_str" not in fields:
            raise CallError("insert needs insert_line, a number, and new_str.")
        before, text = self._text(path)
        lines = text.split("\n")
        if int(number) > len(lines):
            raise CallError(f"insert_line {number}: {AT}/{path} has {len(lines)} lines.")
        lines[int(number) : int(number)] = fields["new_str"].split("\n")
        return self._edit(path, "\n".join(lines), before, int(number) + 1, fields["new_str"])

    def _undo_edit(self, path: str, fields: Mapping[str, str]) -> str:
        if not self.past.get(path):
            raise CallError(f"there is no edit of {AT}/{path} to undo.")
        before = self.past[path].pop()
        if before is None:
            os.close(open_beneath(self.folder, path, os.O_RDONLY))
            os.unlink(self.folder / path)
            return f"Removed {AT}/{path}."
        edited, text = self._text(path)[1], before.decode("utf-8", errors="replace")
        write_beneath(self.folder, path, before)
        lines = itertools.zip_longest(edited.split("\n"), text.split("\n"))
        line = next((number for number, (one, other) in enumerate(lines, 1) if one != other), 1)
        return show_edit("Undid the last edit of", path, text, line, line)

    def _edit(self, path: str, text: str, before: bytes, line: int, new: str) -> str:
        self._save(path, text, before)
        return show_edit("Edited", path, text, line, line + new.count("\n"))


def show_edit(done: str, path: str, text: str, first: int, last: int) -> str:
    """The editor's output after a change of these lines."""
    lines = text.removesuffix("\n").split("\n")
    first, last = max(1, first - SNIPPET), min(len(lines), last + SNIPPET)
    snippet = number_lines(lines[first - 1 : last], first)
    return clip(f"{done} {AT}/{path}, lines {first} to {last} of {len(lines)} now:\n{snippet}")


def number_lines(lines: Sequence[str], first: int) -> str:
    return "\n".join(f"{number:6d}\t{line}" for number, line in enumerate(lines, first))


_SHOWN = re.compile(rf"^(?:Edited |Undid the last edit of )?{AT}/(\S+), lines (\d+) to (\d+) of \d+(?: now)?:\n", re.MULTILINE)


def shown_lines(observation: str) -> tuple[str, dict[int, str]]:
    """(path, line number -> text) of the file in an editor observation; ("", {}) if it shows none."""
    match = _SHOWN.search(observation)
    if not match:
        return "", {}
    rows = (line.partition("\t") for line in observation[match.end() :].split("\n"))
    return match[1], {int(number): text for number, tab, text in rows if tab and number.strip().isdigit()}


def check_action(action: str) -> Call | None:
    """The call of an action; None if it is not readable."""
    try:
        return read_line(action)
    except CallError:
        return None
