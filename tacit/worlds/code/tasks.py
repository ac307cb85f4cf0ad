"""Repair tasks: a package, one or more edits that break it, and the tests that fail then.

A task folder, packaged or made by `tacit prepare code`:

    manifest.json                  format, seed, and for each package name, version, sha256, digest, passing
    packages/NAME-VERSION/…        the original tree with its tests
    tasks.jsonl                    one record per line

The broken tree is the original with `edits` applied. FAIL_TO_PASS is `fail_to_pass`; PASS_TO_PASS are the other tests of
`test_files` that pass in the original. Node ids and paths are relative to the package's tree.

    train            80% of the functions of most packages
    test             the other functions of the same packages, with the same kinds of mutation
    other_packages   packages that are in no other split
    other_kinds      kinds of mutation that are in no other split
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import logging
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from tacit.core.errors import TacitError, check_split_and_count
from tacit.core.tasks import describe_failures, parse_panels, shuffle_key, split_by_digest
from tacit.core.types import Task

NAME = "code"
FORMAT = 1
SPLITS = ("train", "test", "other_packages", "other_kinds")
KINDS = (
    "comparison", "operator", "boolean", "negation", "off_by_one", "lost_return", "wrong_variable", "swapped_arguments"
)  # fmt: skip
"""kinds of mutation"""
HELD_KINDS = ("boolean", "lost_return")  # split other_kinds
SEVERAL, PATCH = "several", "patch"
"""families of tasks with more than one edit, and of tasks made from a patch or a broken program"""
FAMILIES = (*KINDS, SEVERAL, PATCH)
PACKAGED = Path(__file__).with_name("packaged")
IGNORED = ("__pycache__", ".pytest_cache", ".git", ".hg", ".tox", ".mypy_cache", ".ruff_cache")
"""directories that do not belong to a package"""

_log = logging.getLogger(__name__)


def is_outside(path: str) -> bool:
    """Whether a path of a record or a patch leaves its repository."""
    return PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts


def check_links(tree: Path) -> None:
    """Raises TacitError if a symbolic link leaves the tree: we write, rename and remove files in copies of it. Also for a named
    pipe, which would block its reader."""
    real = os.path.realpath(tree)
    for path in tree.rglob("*"):
        if path.is_symlink():
            if os.path.isabs(os.readlink(path)) or not Path(os.path.realpath(path)).is_relative_to(real):
                raise TacitError(f"{path} is a symbolic link to {os.readlink(path)!r}, which is outside of the package")
        elif not path.is_file() and not path.is_dir():
            raise TacitError(f"{path} is no regular file")


@dataclass(frozen=True)
class Edit:
    """Replace `before` at [start, end) of the original text by `after`. Offsets count characters; line ends are kept."""

    path: str
    start: int
    end: int
    before: str
    after: str


@dataclass(frozen=True)
class Record:
    """One line of tasks.jsonl."""

    id: str
    package: str
    version: str
    split: str
    kinds: tuple[str, ...]  # kinds of its mutations; empty for a patch
    issue: str
    edits: tuple[Edit, ...]
    fail_to_pass: tuple[str, ...]
    test_files: tuple[str, ...]

    @property
    def tree(self) -> str:
        """`Package.label` of its package"""
        return f"{self.package}-{self.version}"

    @property
    def family(self) -> str:
        return PATCH if not self.kinds else self.kinds[0] if len(self.kinds) == 1 else SEVERAL

    @property
    def repairs(self) -> tuple[Edit, ...]:
        """For each edit, the one that undoes it in the broken file."""
        undone = []
        for edit in self.edits:
            earlier = [each for each in self.edits if each.path == edit.path and each.start < edit.start]
            start = edit.start + sum(len(each.after) - len(each.before) for each in earlier)
            undone.append(Edit(edit.path, start, start + len(edit.after), edit.after, edit.before))
        return tuple(undone)

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Record:
        """The record of a parsed line. Raises TacitError naming a missing or invalid field."""
        if not isinstance(row, Mapping):
            raise TacitError(f"the line is {row!r:.40}, not a JSON object")
        missing = [name for name in cls.__dataclass_fields__ if name not in row]
        if missing:
            raise TacitError(f"the record has no {', '.join(missing)}")
        try:
            edits = tuple(Edit(**edit) for edit in row["edits"])
            fields: dict[str, Any] = {name: str(row[name]) for name in ("id", "package", "version", "split", "issue")}
            fields |= {name: tuple(map(str, row[name])) for name in ("kinds", "fail_to_pass", "test_files")}
        except TypeError as error:
            raise TacitError(f"the record has a field of the wrong type: {error}") from error
        record = cls(edits=edits, **fields)
        if not record.fail_to_pass or not record.edits:
            raise TacitError(f"task {record.id!r} has no {'edits' if record.fail_to_pass else 'failing tests'}")
        for kind in record.kinds:
            if kind not in KINDS:
                raise TacitError(f"task {record.id!r} has kind {kind!r}; known: {', '.join(KINDS)}")
        for path in (*(edit.path for edit in edits), *record.test_files):
            if is_outside(path):
                raise TacitError(f"task {record.id!r} has path {path!r}, which is outside of its package")
        if "/" in f"{record.package}{record.version}":
            raise TacitError(f"task {record.id!r} has package {record.package!r} {record.version!r}; a name has no slash")
        return record


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    passing: tuple[str, ...]  # node ids of the suite that pass as shipped
    digest: str = ""  # `tree_digest` of the tree
    sha256: str = ""  # of its source archive; empty without one

    @property
    def label(self) -> str:
        return f"{self.name}-{self.version}"


@dataclass(frozen=True, eq=False)
class TaskFolder:
    root: Path
    packages: Mapping[str, Package] = field(repr=False)  # `NAME-VERSION` -> package
    records: tuple[Record, ...] = field(repr=False)
    failures: tuple[str, ...] = ()  # skipped lines and packages, with reasons
    name: str = ""  # hash of its content; empty for the packaged tasks

    def tree(self, record: Record) -> Path:
        return self.root / "packages" / record.tree

    def pass_to_pass(self, record: Record) -> tuple[str, ...]:
        passing = self.packages[record.tree].passing
        return tuple(n for n in passing if n.partition("::")[0] in record.test_files and n not in record.fail_to_pass)


def read_source(path: Path) -> str:
    """The text that edit offsets refer to, with its line ends."""
    return path.read_bytes().decode("utf-8")


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """The text with all edits applied. Raises TacitError if it does not match an edit's `before`."""
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        if text[edit.start : edit.end] != edit.before:
            raise TacitError(
                f"{edit.path}: characters {edit.start} to {edit.end} are not {edit.before!r}; the file has changed."
            )
        text = text[: edit.start] + edit.after + text[edit.end :]
    return text


def edit_files(edits: Sequence[Edit], tree: Path) -> dict[str, str]:
    """path -> new text of each edited file"""
    paths = dict.fromkeys(edit.path for edit in edits)
    return {path: apply_edits(read_source(tree / path), [edit for edit in edits if edit.path == path]) for path in paths}


def broken_files(record: Record, tree: Path) -> dict[str, str]:
    return edit_files(record.edits, tree)


def tree_digest(tree: Path) -> str:
    """sha256 of all paths and contents in order, without IGNORED directories."""
    digest = hashlib.sha256()
    for path in sorted(tree.rglob("*")):
        relative = path.relative_to(tree)
        if path.is_file() and not path.is_symlink() and not any(part in IGNORED for part in relative.parts):
            digest.update(f"{relative.as_posix()}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def choose_split(package: str, kinds: Sequence[str], site: str, packages: Sequence[str], held_kinds: Sequence[str]) -> str:
    """The split of a mutation task. `packages` and `held_kinds` are held out. Otherwise a digest of `site`, the edited
    function such as `toolz/itertoolz.py:get`, chooses `train` or `test`, so all mutations of a function are in one split."""
    if package in packages:
        return "other_packages"
    if any(kind in held_kinds for kind in kinds):
        return "other_kinds"
    return "train" if split_by_digest(f"{package}/{site}") == "train" else "test"


def write_folder(root: Path, seed: int, packages: Sequence[Package], records: Sequence[Record]) -> None:
    """Write manifest.json and tasks.jsonl. The package trees must exist."""
    manifest = {"format": FORMAT, "seed": seed, "packages": [asdict(package) for package in packages]}
    lines = "".join(json.dumps(asdict(record)) + "\n" for record in records)
    for name, text in (("tasks.jsonl", lines), ("manifest.json", json.dumps(manifest, indent=1) + "\n")):
        (root / f".{name}.tmp").write_text(text)
        os.replace(root / f".{name}.tmp", root / name)
    open_folder.cache_clear()


_opened: dict[str, Path] = {}  # `TaskFolder.name` -> its path


@lru_cache(maxsize=8)
def open_folder(root: Path) -> TaskFolder:
    """Read a task folder. Unusable records and packages are reported and skipped."""
    try:
        texts = [(root / name).read_text() for name in ("manifest.json", "tasks.jsonl")]
        manifest, lines = json.loads(texts[0]), texts[1].splitlines()
    except OSError as error:
        raise TacitError(f"{root} is not a task folder ({error}); make one with `tacit prepare code {root}`.") from error
    except ValueError as error:
        raise TacitError(f"{root / 'manifest.json'} is damaged ({error}); remake it with `tacit prepare code`.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        version = manifest.get("format") if isinstance(manifest, dict) else manifest
        raise TacitError(f"{root / 'manifest.json'} has format {version!r}; this version reads {FORMAT}. Remake the folder.")
    packages, failures = {}, []
    for row in manifest["packages"]:
        package = Package(**{**row, "passing": tuple(row["passing"])})
        label = package.label
        tree = root / "packages" / label
        try:
            if "/" in label:
                raise TacitError("a name has no slash")
            if not tree.is_dir():
                raise TacitError(f"there is no {tree}")
            check_links(tree)
            if package.digest and tree_digest(tree) != package.digest:
                raise TacitError("its files have changed since its tasks were made")
            packages[label] = package
        except TacitError as error:
            failures.append(f"package {label}: {error}")

    def read_record(row: Any) -> Record:
        record = Record.from_dict(row)
        if record.tree not in packages:
            raise TacitError(f"task {record.id!r} uses package {record.tree}, which was skipped")
        broken_files(record, root / "packages" / record.tree)
        return record

    records, skipped = parse_lines(lines, read_record)
    failures += [f"tasks.jsonl, {failure}" for failure in skipped]
    if not records:
        raise TacitError(f"{root} has no usable tasks{describe_failures(failures)}")
    if failures:
        _log.warning("%s: %d tasks%s", root, len(records), describe_failures(failures))
    name = "" if root == PACKAGED else hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    _opened[name] = root
    return TaskFolder(root, packages, records, tuple(failures), name)


def parse_lines(lines: Sequence[str], parse: Callable[[Any], Any]) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """What `parse` makes of each line of JSON, which has an `id`, and the errors of skipped lines."""
    parsed: dict[str, Any] = {}
    failures = []
    for number, line in enumerate(lines, 1):
        try:
            item = parse(json.loads(line))
            if item.id in parsed:
                raise TacitError(f"{item.id!r} occurs twice")
            parsed[item.id] = item
        except (ValueError, TypeError, AttributeError, OSError, RecursionError, TacitError) as error:
            failures.append(f"line {number}: {error}")
    return tuple(parsed.values()), tuple(failures)


def tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES, root: Path = PACKAGED) -> list[Task]:
    """Up to `count` tasks of the split in a seeded order; a larger count begins with the same tasks."""
    check_split_and_count(NAME, SPLITS, split, count)
    selected = [record for record in open_folder(root).records if record.split == split and record.family in families]
    selected.sort(key=lambda record: shuffle_key(seed, record.id))
    return [make_task(record, root, seed) for record in selected[:count]]


def split_sizes(root: Path = PACKAGED) -> dict[str, int]:
    """split -> number of tasks"""
    splits = [record.split for record in open_folder(root).records]
    return {split: splits.count(split) for split in SPLITS}


def make_task(record: Record, root: Path = PACKAGED, seed: int = 0) -> Task:
    data = {"folder": open_folder(root).name, "record": asdict(record)}
    return Task(NAME, f"{NAME}/{record.split}/{record.id}", record.family, record.split, seed, record.issue, data)


def record_of(task: Task) -> tuple[Record, TaskFolder]:
    """The record and the folder of a task. Raises TacitError if the folder was not opened in this process."""
    if "record" not in task.data:
        raise TacitError(f"task {task.id!r} is not a repair task: its data has no 'record'.")
    name = str(task.data.get("folder", ""))
    root = _opened.get(name) if name else PACKAGED
    if root is None:
        raise TacitError(f"task {task.id!r} needs task folder {name}, which is not open; give its directory with --folder.")
    return Record.from_dict(task.data["record"]), open_folder(root)


PANELS = parse_panels("""
train          16:d25ce6b06b671838 154:868941081274bfda
test           16:6144478c80f0978e 21:d4b682177d228438
other_packages 16:e907236054dd8375 60:32266fed8a2e34c2
other_kinds    16:a7aa6aca6aa835ac 60:03160106651d0e09
""")  # split -> number of tasks -> panel hash, of the packaged tasks


# Single-site mutations of Python source, as edits of the text: formatting and comments stay as they are.
#
#     comparison         < to <= or >, == to !=, is to is not, in to not in, and back
#     operator           + to -, * to +, // to /, …, also in augmented assignments
#     boolean            and to or, or to and
#     negation           if c to if not c, not c to c
#     off_by_one         an integer plus or minus one
#     lost_return        return value to value
#     wrong_variable     another parameter or local variable of the function
#     swapped_arguments  f(a, b) to f(b, a)
#
# Only code inside functions is changed: annotations, decorators, docstrings and f-strings are left alone.

COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">")), ast.LtE: ("<=", ("<", ">=")), ast.Gt: (">", (">=", "<")), ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)), ast.NotEq: ("!=", ("==",)), ast.Is: ("is", ("is not",)), ast.IsNot: (r"is\s+not", ("is",)),
    ast.In: ("in", ("not in",)), ast.NotIn: (r"not\s+in", ("in",)),
}  # fmt: skip
OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "//"), ast.Pow: ("**", "*"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"), ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"), ast.BitXor: ("^", "&"),
}  # fmt: skip
LOOSE = (ast.BoolOp, ast.IfExp, ast.Lambda, ast.NamedExpr)  # expressions that need parentheses after `not`
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutation:
    kind: str
    edit: Edit
    function: str  # qualified name of the function it is in
    line: int  # first line of that function, decorators included, as in `co_firstlineno`

    @property
    def site(self) -> str:
        return f"{self.edit.path}:{self.function}"


class _Text:
    """Source text; converts positions of the syntax tree to character offsets."""

    def __init__(self, path: str, source: str) -> None:
        self.path, self.source = path, source
        self.lines = source.encode().splitlines(keepends=True)
        self.starts = list(itertools.accumulate((len(line.decode()) for line in self.lines), initial=0))

    def offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1][:column].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno or 0, node.end_col_offset or 0)

    def of(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.source[start:end]

    def edit(self, start: int, end: int, after: str) -> Edit:
        return Edit(self.path, start, end, self.source[start:end], after)

    def between(self, left: ast.expr, right: ast.expr, pattern: str) -> tuple[int, int] | None:
        """The span of the operator between two expressions. Comments are skipped."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = re.sub(r"#[^\n]*", lambda match: " " * len(match[0]), self.source[start:end])
        match = re.search(pattern, gap)
        return (start + match.start(), start + match.end()) if match else None


def find_mutations(path: str, source: str) -> list[Mutation]:
    """All mutations of a file, in text order. A few may not compile. Raises SyntaxError if the source is invalid."""
    with warnings.catch_warnings(action="ignore"):
        tree = ast.parse(source)
        text = _Text(path, source)
        mutations = []
        for function, name in _functions(tree):
            line = min([function.lineno, *(node.lineno for node in function.decorator_list)])
            nodes = list(_walk(function))
            parameters = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
            stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
            names = sorted({*(each.arg for each in parameters), *stored} - {"self", "cls", "_"})
            for node in nodes:
                mutations += [Mutation(kind, edit, name, line) for kind, edit in _mutate(text, node, names)]
    return sorted(set(mutations), key=lambda each: (each.edit.start, each.kind, each.edit.after))


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[Function, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            name = f"{prefix}{child.name}"
            if isinstance(child, Function):
                yield child, name
            yield from _functions(child, f"{name}.")
        else:
            yield from _functions(child, prefix)


def _walk(function: Function) -> Iterator[ast.AST]:
    """Nodes of the function's body, without inner functions and classes, asserts, imports, annotations and f-strings."""
    queue: list[ast.AST] = list(function.body)
    while queue:
        node = queue.pop()
        if isinstance(node, Function | ast.ClassDef | ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom):
            continue
        yield node
        if isinstance(node, ast.AnnAssign):
            queue += [part for part in (node.target, node.value) if part is not None]
        else:
            queue += ast.iter_child_nodes(node)


def _mutate(text: _Text, node: ast.AST, names: Sequence[str]) -> Iterator[tuple[str, Edit]]:
    match node:
        case ast.Compare():
            for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                pattern, others = COMPARISONS[type(operator)]
                place = text.between(left, right, pattern)
                for other in others:
                    if place:
                        yield "comparison", text.edit(*place, other)
        case ast.BinOp(left=left, op=op, right=right) | ast.AugAssign(target=left, op=op, value=right) if type(op) in OPERATORS:
            before, after = OPERATORS[type(op)]
            augmented = "=" * isinstance(node, ast.AugAssign)
            place = text.between(left, right, re.escape(before) + augmented)
            operand = right if augmented else left  # do not mutate string concatenation
            literal = isinstance(operand, ast.Constant) and isinstance(operand.value, str | bytes)
            if place and not literal and not isinstance(operand, ast.JoinedStr):
                yield "operator", text.edit(*place, after + augmented)
        case ast.BoolOp():
            before, after = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in itertools.pairwise(node.values):
                place = text.between(left, right, rf"\b{before}\b")
                if place:
                    yield "boolean", text.edit(*place, after)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Constant):
            yield "negation", _negate(text, test)
        case ast.comprehension(ifs=tests):
            for test in tests:
                yield "negation", _negate(text, test)
        case ast.Constant(value=int() as value) if not isinstance(value, bool) and text.of(node).isdigit():
            for number in (value + 1, value - 1) if value else (1,):
                yield "off_by_one", text.edit(*text.span(node), str(number))
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            start = text.span(node)[0]
            yield "lost_return", text.edit(start, start + len("return") + (text.source[start + len("return")] == " "), "")
        case ast.Name(ctx=ast.Load()) if node.id in names and len(names) > 1:
            different = [name for name in names if name != node.id]
            choice = zlib.crc32(f"{text.path}:{node.lineno}:{node.col_offset}".encode()) % len(different)
            yield "wrong_variable", text.edit(*text.span(node), different[choice])
        case ast.Call(args=arguments) if len(arguments) > 1:
            for left, right in itertools.pairwise(arguments):
                (start, gap), (gap_end, end) = text.span(left), text.span(right)
                if not isinstance(left, ast.Starred) and not isinstance(right, ast.Starred) and text.of(left) != text.of(right):
                    swapped = text.of(right) + text.source[gap:gap_end] + text.of(left)
                    yield "swapped_arguments", text.edit(start, end, swapped)


def _negate(text: _Text, test: ast.expr) -> Edit:
    start, end = text.span(test)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        operand = text.of(test.operand)
        return text.edit(start, end, f"({operand})" if isinstance(test.operand, LOOSE) else operand)
    return text.edit(start, end, f"not ({text.of(test)})" if isinstance(test, LOOSE) else f"not {text.of(test)}")


HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


@dataclass(frozen=True)
class FilePatch:
    path: str
    new: bool  # whether the patch creates the file
    gone: bool  # whether the patch deletes the file
    hunks: tuple[tuple[int, tuple[str, ...]], ...]  # (first line of the old file, lines with their marks)


def read_patch(text: str) -> list[FilePatch]:
    """The files of a unified diff. Raises TacitError if the text is not one."""
    patches: list[FilePatch] = []
    lines = text.splitlines(keepends=True)
    at = 0
    while at < len(lines):
        if not (lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")):
            at += 1
            continue
        old, new = (re.sub(r"^[ab]/", "", line[4:].split("\t")[0].strip()) for line in lines[at : at + 2])
        at += 2
        if is_outside(path := old if new == "/dev/null" else new):
            raise TacitError(f"the patch changes {path}, which is outside of the repository")
        hunks = []
        while at < len(lines) and (head := HUNK.match(lines[at])):
            left = int(head[2] or 1)
            start, at = at + 1, at + 1
            while at < len(lines) and (lines[at][:1] in ("+", "\\") or (left > 0 and lines[at][:1] in (" ", "-", "\n"))):
                left -= lines[at][0] in " -\n"
                at += 1
            hunks.append((int(head[1]), tuple(lines[start:at])))
        if not hunks:
            raise TacitError(f"the patch has no hunks for {new}")
        patches.append(FilePatch(path, old == "/dev/null", new == "/dev/null", tuple(hunks)))
    if not patches:
        raise TacitError("it is not a unified diff")
    return patches


def hunk_side(lines: Sequence[str], mark: str) -> str:
    """The text before (`-`) or after (`+`) a hunk."""
    text = ""
    for line, following in itertools.zip_longest(lines, lines[1:], fillvalue=""):
        if line[0] in (" ", mark, "\n"):
            body = line if line[0] == "\n" else line[1:]
            text += body.rstrip("\n") if following.startswith("\\") else body  # `\ No newline at end of file`
    return text


def patch_edits(patch: FilePatch, source: str) -> list[Edit]:
    """One edit per hunk. Raises TacitError if a hunk does not match the source."""
    lines = source.splitlines(keepends=True)
    starts = list(itertools.accumulate(map(len, lines), initial=0))
    edits = []
    for first, marked in patch.hunks:
        old, new = hunk_side(marked, "-"), hunk_side(marked, "+")
        start = starts[max(0, first - 1)] if first <= len(lines) + 1 else -1
        if not source.startswith(old, start):
            start = source.find(old)  # the lines have moved
        if start < 0 or (not old and not patch.new):
            raise TacitError(f"the patch does not apply to {patch.path} near line {first}")
        edits.append(Edit(patch.path, start, start + len(old), old, new))
    return edits
