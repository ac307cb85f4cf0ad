"""Agents without a model.

oracle   knows the original source: views each defect, mends it, runs the tests, submits
rule     tries the inverse of single mutations where the traceback leads, until the shown tests pass
random   one random mutation of a file the failing tests use
none     submits the repository as it is
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from tacit.core.chat import Call
from tacit.core.types import Observation, Task
from tacit.core.world import ByReading
from tacit.worlds.code.mutate import Mutation, find_mutations
from tacit.worlds.code.tasks import Record, TaskFolder, broken_files, read_source, record_of
from tacit.worlds.code.tools import EDITOR, shown_lines, write_line

AROUND = 6  # lines viewed around a defect
TRIES = 15  # candidates of the rule: three steps each


@dataclass(frozen=True)
class Hunk:
    """One defect: lines of the broken file, and what stands there in the original."""

    path: str
    first: int
    last: int  # lines of the broken file, from 1
    broken: tuple[str, ...]
    original: tuple[str, ...]  # both with a line before and after
    edit: str  # the action that mends it

    @property
    def view(self) -> str:
        return f"view {self.path} {max(1, self.first - AROUND)} {self.last + AROUND}"


def replace_lines(path: str, text: str, first: int, last: int, new: list[str]) -> str:
    """A `str_replace` of lines [first, last) (from 0), with as many lines above as make the old text unique."""
    lines, top = text.split("\n"), first
    if first == last:  # an insertion: take a neighbor along
        last = min(len(lines), last + 1)
        new = [*new, *lines[first:last]]
    while True:
        old = "\n".join(lines[top:last])
        made = "\n".join([*lines[top:first], *new])
        bare = old.lstrip(" ")
        if text.count(bare) == 1 and made.startswith(old[: len(old) - len(bare)]):
            old, made = bare, made[len(old) - len(bare) :]
        if text.count(old) == 1 or top == 0:
            return write_line(Call(EDITOR, {"command": "str_replace", "path": path, "old_str": old, "new_str": made}))
        top -= 1


@lru_cache(maxsize=512)
def find_hunks(record: Record, folder: TaskFolder) -> tuple[Hunk, ...]:
    found = []
    for path, text in broken_files(record, folder.tree(record)).items():
        whole = read_source(folder.tree(record) / path)
        broken, original = text.removesuffix("\n").split("\n"), whole.removesuffix("\n").split("\n")
        for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(None, broken, original, autojunk=False).get_opcodes():
            if kind != "equal":
                edit = replace_lines(path, text, i1, i2, original[j1:j2])
                region = tuple(broken[max(0, i1 - 1) : i2 + 1]), tuple(original[max(0, j1 - 1) : j2 + 1])
                found.append(Hunk(path, i1 + 1, i2, *region, edit))
    return tuple(found)


class Oracle(ByReading):
    """Acts on what is shown, so it can advise in any episode."""

    def __init__(self, task: Task) -> None:
        record, folder = record_of(task)
        self._hunks = find_hunks(record, folder)
        self._tests = "" if task.data.get("tests") == "hidden" else " ".join(record.test_files)

    def act(self, observation: Observation) -> str:
        if re.search(r"\d passed", observation.text) and "[exit status 0]" in observation.text:
            return "submit"
        path, shown = shown_lines(observation.text)
        lines = list(shown.values())
        here = [hunk for hunk in self._hunks if hunk.path == path]
        for hunk in here:
            if _contains(lines, hunk.broken):
                return hunk.edit
        mended = [number for number, hunk in enumerate(self._hunks) if hunk in here and _contains(lines, hunk.original)]
        if not mended:
            lost = any(self._hunks[0].view == f"view {path} {min(shown)} {max(shown)}" for _ in here[:1]) if shown else False
            return f"view {self._hunks[0].path}" if lost else self._hunks[0].view
        following = max(mended) + 1
        if following < len(self._hunks):
            return self._hunks[following].view
        return f"bash pytest -q {self._tests}" if self._tests else "submit"


def _contains(lines: list[str], region: tuple[str, ...]) -> bool:
    """Whether the region stands in the lines; the view may end within it, but not before its core."""
    size = len(region)
    return any(tuple(lines[start : start + size]) == region for start in range(len(lines) - size + 1))


def mutation_action(text: str, mutation: Mutation) -> str:
    edit = mutation.edit
    first, last = text[: edit.start].count("\n"), text[: edit.end].count("\n") + 1
    changed = (text[: edit.start] + edit.after + text[edit.end :]).split("\n")
    size = last - first + edit.after.count("\n") - edit.before.count("\n")
    return replace_lines(edit.path, text, first, last, changed[first : first + size])


class Rule:
    """Uses only what the agent can see: the broken sources and what the shown tests print."""

    def __init__(self, task: Task) -> None:
        self._record, folder = record_of(task)
        self._sources = open_sources(self._record, folder)
        self._tests = f"bash pytest -q --tb=short {' '.join(self._record.test_files)}"
        self._hidden = task.data.get("tests") == "hidden"
        self._queue: list[tuple[str, str]] | None = None  # (path, action) of candidates
        self._tried = ""  # path of the candidate in place
        self._last = ""

    def act(self, observation: Observation) -> str:
        self._last = self._next(observation.text)
        return self._last

    def _next(self, text: str) -> str:
        if self._hidden:
            return "submit"
        if not self._last:
            return self._tests
        if self._last == self._tests:
            if "[exit status 0]" in text:
                return "submit"
            if self._queue is None:
                self._queue = self._rank(text)
            if self._tried:
                path, self._tried = self._tried, ""
                return f"undo_edit {path}"
        elif self._tried:
            if not text.startswith("ERROR"):
                return self._tests
            self._tried = ""
        if not self._queue:
            return "submit"
        self._tried, action = self._queue.pop(0)
        return action

    def _rank(self, output: str) -> list[tuple[str, str]]:
        """Mutations by how near they are to the traceback: lines it names, then functions it names, then the rest."""
        named = {(path, int(line)) for path, line in re.findall(r"^(\S+\.py):(\d+): ", output, re.MULTILINE)}
        words = set(re.findall(r"\w+", output))
        ranked = []
        for path, text in self._sources.items():
            for mutation in find_mutations(path, text):
                line = text[: mutation.edit.start].count("\n") + 1
                near = min((abs(line - at) for where, at in named if where == path), default=1000)
                known = mutation.function.rpartition(".")[2] in words
                ranked.append((near > 0, not known, near, path, mutation.edit.start, mutation))
        ranked.sort(key=lambda row: row[:5])
        return [(path, mutation_action(self._sources[path], mutation)) for *_, path, _, mutation in ranked[:TRIES]]


class RandomEdit:
    def __init__(self, task: Task) -> None:
        record, folder = record_of(task)
        rng = Random(task.id)
        sources = open_sources(record, folder)
        choices = [(path, mutation) for path, text in sources.items() for mutation in find_mutations(path, text)]
        path, mutation = rng.choice(choices)
        self._plan = [mutation_action(sources[path], mutation), "submit"]

    def act(self, observation: Observation) -> str:
        return self._plan.pop(0) if self._plan else "submit"


class NoEdit(ByReading):
    def __init__(self, task: Task) -> None:
        pass

    def act(self, observation: Observation) -> str:
        return "submit"


def open_sources(record: Record, folder: TaskFolder) -> dict[str, str]:
    """The broken repository's own Python files, without tests."""
    tree, broken = folder.tree(record), broken_files(record, folder.tree(record))
    paths = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*.py"))
    own = [path for path in paths if not re.search(r"(^|/)(tests?/|test_|conftest|setup\.py|docs?/|benchmarks?/)", path)]
    return {path: broken.get(path) or read_source(tree / path) for path in own}
