"""Repair tasks: a package with a few edits that break it, and the tests that then fail.

A task folder, packaged or made by `tacit prepare code`:

    manifest.json                  format, seed, and for each package name, version, sha256, digest, passing
    packages/NAME-VERSION/…        the original tree with its tests
    tasks.jsonl                    one record a line

The broken tree is the original with `edits` applied. FAIL_TO_PASS is `fail_to_pass`; PASS_TO_PASS is what the package's suite
passes in `test_files`, without FAIL_TO_PASS. Node ids and paths are relative to the package's tree.

    train            eight tenths of the functions of most packages
    test             the other functions, of the same packages and kinds
    other_packages   packages that no other split has
    other_kinds      kinds of mutation that no other split has
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
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
"""of seeded mutations"""
SEVERAL, PATCH = "several", "patch"
"""families of tasks with more than one edit, and of tasks made from a patch or a program that was broken already"""
FAMILIES = (*KINDS, SEVERAL, PATCH)
PACKAGED = Path(__file__).with_name("packaged")
IGNORED = ("__pycache__", ".pytest_cache", ".git", ".hg", ".tox", ".mypy_cache", ".ruff_cache")
"""directories that are no part of a package"""

_log = logging.getLogger(__name__)


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
    kinds: tuple[str, ...]  # of the mutations, as in KINDS; empty for a patch
    issue: str
    edits: tuple[Edit, ...]
    fail_to_pass: tuple[str, ...]
    test_files: tuple[str, ...]

    @property
    def family(self) -> str:
        return PATCH if not self.kinds else self.kinds[0] if len(self.kinds) == 1 else SEVERAL

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Record:
        """Raises TacitError with the field that is missing or wrong."""
        missing = [name for name in cls.__dataclass_fields__ if name not in said]
        if missing:
            raise TacitError(f"the record has no {', '.join(missing)}")
        try:
            edits = tuple(Edit(**edit) for edit in said["edits"])
            fields: dict[str, Any] = {name: str(said[name]) for name in ("id", "package", "version", "split", "issue")}
            fields |= {name: tuple(map(str, said[name])) for name in ("kinds", "fail_to_pass", "test_files")}
        except TypeError as error:
            raise TacitError(f"the record has a field of the wrong type: {error}") from error
        record = cls(edits=edits, **fields)
        if not record.fail_to_pass or not record.edits:
            raise TacitError(f"task {record.id!r} has no {'edits' if record.fail_to_pass else 'failing tests'}")
        for kind in record.kinds:
            if kind not in KINDS:
                raise TacitError(f"task {record.id!r} has kind {kind!r}; known: {', '.join(KINDS)}")
        for path in (*(edit.path for edit in edits), *record.test_files):
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                raise TacitError(f"task {record.id!r} names {path!r}, which is outside of its package")
        return record


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    passing: tuple[str, ...]  # node ids of the suite that pass as shipped
    digest: str = ""  # `tree_digest` of the tree
    sha256: str = ""  # of the archive it came in, where there was one


@dataclass(frozen=True, eq=False)
class TaskFolder:
    root: Path
    packages: Mapping[str, Package] = field(repr=False)  # `NAME-VERSION` -> package
    records: tuple[Record, ...] = field(repr=False)
    failures: tuple[str, ...] = ()  # lines and packages that were skipped, and why
    name: str = ""  # hash of its content: the same on every machine; empty for the packaged tasks

    def tree(self, record: Record) -> Path:
        return self.root / "packages" / f"{record.package}-{record.version}"

    def pass_to_pass(self, record: Record) -> tuple[str, ...]:
        passing = self.packages[f"{record.package}-{record.version}"].passing
        return tuple(n for n in passing if n.partition("::")[0] in record.test_files and n not in record.fail_to_pass)


def read_source(path: Path) -> str:
    """The text that edits count in: line ends are kept."""
    return path.read_bytes().decode("utf-8")


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """The broken text of one file. Raises TacitError where the original is another."""
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        if text[edit.start : edit.end] != edit.before:
            raise TacitError(
                f"{edit.path}: characters {edit.start} to {edit.end} are not {edit.before!r}; the file has changed."
            )
        text = text[: edit.start] + edit.after + text[edit.end :]
    return text


def broken_files(record: Record, tree: Path) -> dict[str, str]:
    """path -> text of each file that the task's edits change, given the original tree."""
    paths = dict.fromkeys(edit.path for edit in record.edits)
    return {path: apply_edits(read_source(tree / path), [e for e in record.edits if e.path == path]) for path in paths}


def tree_digest(tree: Path) -> str:
    """sha256 over paths and contents, in order; caches and version-control directories are left out."""
    digest = hashlib.sha256()
    for path in sorted(tree.rglob("*")):
        relative = path.relative_to(tree)
        if path.is_file() and not path.is_symlink() and not any(part in IGNORED for part in relative.parts):
            digest.update(f"{relative.as_posix()}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def choose_split(package: str, kinds: Sequence[str], site: str, packages: Sequence[str], held_kinds: Sequence[str]) -> str:
    """The split of a mutation task. `packages` and `held_kinds` are kept out of training; `site` names what is edited, such as
    `toolz/itertoolz.py:get`, and lies in `train` or `test`, whatever is done there."""
    if package in packages:
        return "other_packages"
    if any(kind in held_kinds for kind in kinds):
        return "other_kinds"
    return "train" if split_by_digest(f"{package}/{site}") == "train" else "test"


def write_folder(root: Path, seed: int, packages: Sequence[Package], records: Sequence[Record]) -> None:
    """manifest.json and tasks.jsonl; the trees are there already."""
    manifest = {"format": FORMAT, "seed": seed, "packages": [asdict(package) for package in packages]}
    (root / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    (root / "tasks.jsonl").write_text("".join(json.dumps(record.to_dict()) + "\n" for record in records))


_opened: dict[str, Path] = {}  # name of a folder -> where it is


@lru_cache(maxsize=8)
def open_folder(root: Path) -> TaskFolder:
    """A task folder. Records and packages that cannot be used are named and skipped."""
    try:
        texts = [(root / name).read_text() for name in ("manifest.json", "tasks.jsonl")]
        manifest, lines = json.loads(texts[0]), texts[1].splitlines()
    except OSError as error:
        raise TacitError(f"{root} is no task folder ({error}); make one with `tacit prepare code {root}`.") from error
    except ValueError as error:
        raise TacitError(f"{root / 'manifest.json'} is damaged ({error}); make it anew with `tacit prepare code`.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else manifest
        raise TacitError(f"{root / 'manifest.json'} has format {found!r}; this version reads {FORMAT}. Make it anew.")
    packages, failures = {}, []
    for said in manifest["packages"]:
        package = Package(**{**said, "passing": tuple(said["passing"])})
        label = f"{package.name}-{package.version}"
        tree = root / "packages" / label
        if not tree.is_dir():
            failures.append(f"package {label}: there is no {tree}")
        elif package.digest and tree_digest(tree) != package.digest:
            failures.append(f"package {label}: its files are not those its tasks were made with")
        else:
            packages[label] = package
    records: dict[str, Record] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = Record.from_dict(json.loads(line))
            if f"{record.package}-{record.version}" not in packages:
                raise TacitError(f"task {record.id!r} is of package {record.package}-{record.version}, which is not usable")
            if record.id in records:
                raise TacitError(f"task {record.id!r} is there twice")
            records[record.id] = record
        except (ValueError, TypeError, TacitError) as error:
            failures.append(f"tasks.jsonl, line {number}: {error}")
    if not records:
        raise TacitError(f"{root} has no usable tasks{describe_failures(failures)}")
    if failures:
        _log.warning("%s: %d tasks%s", root, len(records), describe_failures(failures))
    name = "" if root == PACKAGED else hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    _opened[name] = root
    return TaskFolder(root, packages, tuple(records.values()), tuple(failures), name)


def tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES, root: Path = PACKAGED) -> list[Task]:
    """Up to `count` tasks of the split in a seeded order; a larger count begins with the same ones."""
    check_split_and_count(NAME, SPLITS, split, count)
    found = [record for record in open_folder(root).records if record.split == split and record.family in families]
    found.sort(key=lambda record: shuffle_key(seed, record.id))
    return [make_task(record, root, seed) for record in found[:count]]


def split_sizes(root: Path = PACKAGED) -> dict[str, int]:
    """split -> number of its tasks"""
    splits = [record.split for record in open_folder(root).records]
    return {split: splits.count(split) for split in SPLITS}


def make_task(record: Record, root: Path = PACKAGED, seed: int = 0) -> Task:
    data = {"folder": open_folder(root).name, "record": record.to_dict()}
    return Task(NAME, f"{NAME}/{record.split}/{record.id}", record.family, record.split, seed, record.issue, data)


def record_of(task: Task) -> tuple[Record, TaskFolder]:
    """The record of a task and the folder it is from."""
    if "record" not in task.data:
        raise TacitError(f"task {task.id!r} is not a repair task: its data has no 'record'.")
    name = str(task.data.get("folder", ""))
    root = _opened.get(name) if name else PACKAGED
    if root is None:
        raise TacitError(f"task {task.id!r} is of task folder {name}, which is not open; name its directory with --folder.")
    return Record.from_dict(task.data["record"]), open_folder(root)


PANELS = parse_panels("""
train          16:d25ce6b06b671838 154:868941081274bfda
test           16:6144478c80f0978e 21:d4b682177d228438
other_packages 16:e907236054dd8375 60:32266fed8a2e34c2
other_kinds    16:a7aa6aca6aa835ac 60:03160106651d0e09
""")  # split -> number of tasks -> panel hash, of the packaged tasks
