"""Tasks from a folder of your own: broken programs beside correct ones (the layout of QuixBugs), or a repository and patches
that break it.

    python_programs/NAME.py  correct_python_programs/NAME.py  python_testcases/test_NAME.py       QuixBugs
"""

from __future__ import annotations

import difflib
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.worlds.code.prepare import SUITE, Say, Suite, Verdict, check_suite, digest, find_tests, verify, write_issue
from tacit.worlds.code.runner import Runner
from tacit.worlds.code.tasks import IGNORED, Edit, Package, Record, choose_split, read_source, tree_digest, write_folder

BROKEN, CORRECT, TESTS = "python_programs", "correct_python_programs", "python_testcases"
HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


@dataclass(frozen=True)
class FilePatch:
    path: str
    new: bool  # the patch makes the file
    gone: bool  # the patch removes it
    hunks: tuple[tuple[int, tuple[str, ...]], ...]  # (first line of the old file, lines with their marks)


def read_patch(text: str) -> list[FilePatch]:
    """The files of a unified diff. Raises TacitError where it is none."""
    found: list[FilePatch] = []
    lines = text.splitlines(keepends=True)
    at = 0
    while at < len(lines):
        if not (lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")):
            at += 1
            continue
        old, new = (re.sub(r"^[ab]/", "", line[4:].split("\t")[0].strip()) for line in lines[at : at + 2])
        at += 2
        hunks = []
        while at < len(lines) and (head := HUNK.match(lines[at])):
            left = int(head[2] or 1)
            begun, at = at + 1, at + 1
            while at < len(lines) and (lines[at][:1] in ("+", "\\") or (left > 0 and lines[at][:1] in (" ", "-", "\n"))):
                left -= lines[at][0] in " -\n"
                at += 1
            hunks.append((int(head[1]), tuple(lines[begun:at])))
        if not hunks:
            raise TacitError(f"the patch has no lines for {new}")
        found.append(FilePatch(old if new == "/dev/null" else new, old == "/dev/null", new == "/dev/null", tuple(hunks)))
    if not found:
        raise TacitError("it is not a unified diff")
    return found


def patch_edits(patch: FilePatch, source: str) -> list[Edit]:
    """One edit for each hunk. Raises TacitError where the text is another."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    edits = []
    for first, marked in patch.hunks:
        old, new = "", ""
        for number, line in enumerate(marked):
            if line[0] == "\\":
                continue
            body = line[1:] if line[0] != "\n" else line
            if number + 1 < len(marked) and marked[number + 1][0] == "\\":  # no line end at the end of the file
                body = body.rstrip("\n")
            old += body if line[0] in " -\n" else ""
            new += body if line[0] in " +\n" else ""
        start = starts[max(0, first - 1)] if first <= len(lines) + 1 else -1
        if not source.startswith(old, start):
            start = source.find(old)  # the lines have moved
        if start < 0 or (not old and not patch.new):
            raise TacitError(f"the patch does not fit {patch.path} near line {first}")
        edits.append(Edit(patch.path, start, start + len(old), old, new))
    return edits


def difference_edits(path: str, before: str, after: str) -> list[Edit]:
    """Edits that turn one text into another, of whole lines."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    edits = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            start, lost = sum(map(len, old[:a])), "".join(old[a:b])
            edits.append(Edit(path, start, start + len(lost), lost, "".join(new[c:d])))
    return edits


def prepare_programs(root: Path, folder: Path, say: Say = lambda line: None) -> int:
    """Tasks from a folder in the layout of QuixBugs; the number of tasks."""
    missing = [name for name in (BROKEN, CORRECT, TESTS) if not (folder / name).is_dir()]
    if missing:
        raise TacitError(f"{folder} has no directory {', '.join(missing)}; it needs the layout of QuixBugs.")

    def find(tree: Path) -> Iterator[tuple[str, list[Edit], list[str]]]:
        for broken in sorted((folder / BROKEN).glob("*.py")):
            path, test = f"{BROKEN}/{broken.name}", f"{TESTS}/test_{broken.name}"
            if (tree / test).is_file() and (folder / CORRECT / broken.name).is_file():
                yield broken.stem, difference_edits(path, read_source(tree / path), read_source(broken)), [test]

    def restore(tree: Path) -> None:
        for correct in (folder / CORRECT).glob("*.py"):
            if (tree / BROKEN / correct.name).is_file():
                shutil.copy(correct, tree / BROKEN / correct.name)

    return _prepare(root, folder, (CORRECT, "java_programs", "java_testcases", "correct_java_programs"), restore, find, say)


def prepare_patches(root: Path, repository: Path, patches: Sequence[Path], say: Say = lambda line: None) -> int:
    """Tasks from a repository whose suite passes, one for each patch that breaks it; the number of tasks."""
    if not repository.is_dir():
        raise TacitError(f"there is no directory {repository}.")

    def find(tree: Path) -> Iterator[tuple[str, list[Edit], list[str]]]:
        tests = find_tests(tree, ["."])
        for file in patches:
            try:
                edits = []
                for patch in read_patch(file.read_text()):
                    if patch.new or patch.gone or patch.path in tests or not (tree / patch.path).is_file():
                        raise TacitError(f"it must change files of the package that are there, not {patch.path}")
                    edits += patch_edits(patch, read_source(tree / patch.path))
                yield file.stem, edits, tests
            except (OSError, ValueError, TacitError) as error:
                say(f"{file.name} is left out: {error}")

    return _prepare(root, repository, (), lambda tree: None, find, say)


def _prepare(
    root: Path,
    folder: Path,
    without: Sequence[str],
    restore: Callable[[Path], None],
    find: Callable[[Path], Iterator[tuple[str, list[Edit], list[str]]]],
    say: Say,
) -> int:
    if root.exists() and any(root.iterdir()):
        raise TacitError(f"{root} exists and is not empty; give a new directory, or remove that one.")
    name, version = re.sub(r"[^\w.]+", "_", folder.resolve().name) or "programs", "0"
    tree = root / "packages" / f"{name}-{version}"
    shutil.copytree(folder, tree, ignore=shutil.ignore_patterns(*IGNORED, *without), symlinks=True)
    restore(tree)
    records: list[Record] = []
    with Runner(SUITE, trees=[tree], cache=root / "bytecode") as runner:
        suites: dict[tuple[str, ...], Suite] = {}
        for task, edits, tests in find(tree):
            key = tuple(tests)
            try:
                if key not in suites:
                    suites[key] = check_suite(runner, tree, tests)
                verdict = verify(runner, tree, edits, suites[key].passing, sorted(suites[key].passing), most=10**6)
            except TacitError as error:
                say(f"{task} is left out: {error}")
                continue
            if isinstance(verdict, str):
                say(f"{task} is left out: {verdict}.")
                continue
            records.append(_record(name, version, task, edits, verdict, tree))
    if not records:
        shutil.rmtree(root)
        raise TacitError(f"{folder} gave no task; nothing was written.")
    passing = sorted(frozenset().union(*(suite.passing for suite in suites.values())))
    write_folder(root, 0, [Package(name, version, tuple(passing), tree_digest(tree))], records)
    return len(records)


def _record(name: str, version: str, task: str, edits: Sequence[Edit], verdict: Verdict, tree: Path) -> Record:
    split = choose_split(name, (), task, (), ())
    edits = tuple(edits)
    label = f"{name}-{task}-{hashlib.sha256(digest(0, edits).encode()).hexdigest()[:6]}"
    issue = write_issue(name, verdict, tree)
    return Record(label, name, version, split, (), issue, edits, verdict.fail_to_pass, verdict.test_files)
