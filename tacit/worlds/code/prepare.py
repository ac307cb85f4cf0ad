"""Make repair tasks (`tacit prepare code DIR`) from published packages, or from your own folder: broken and correct programs in
the layout of QuixBugs, or a repository and patches that break it.

Each package is pinned by version and sha256. Its test suite must pass three times. Mutations (tasks.py) then break one to three
functions, and a task is kept if 1 to 10 tests fail, nothing hangs, and three runs agree. A traced run shows which tests call a
function; a mutation is first tried with those.

    python_programs/NAME.py  correct_python_programs/NAME.py  python_testcases/test_NAME.py       QuixBugs

The same seed gives the same tasks, whatever the number of processes. Hangs are detected by CPU time, not by wall time.
"""

from __future__ import annotations

import ast
import difflib
import gzip
import hashlib
import itertools
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.core.progress import pluralize
from tacit.sandbox import Limits
from tacit.worlds.code.grading import Function, Runner, TestRun
from tacit.worlds.code.tasks import (
    HELD_KINDS,
    IGNORED,
    KINDS,
    PACKAGED,
    Edit,
    Mutation,
    Package,
    Record,
    check_links,
    choose_split,
    edit_files,
    find_mutations,
    open_folder,
    patch_edits,
    read_patch,
    read_source,
    tree_digest,
    write_folder,
)

MAX_FAILING = 10
RUNS = 3
PER_FUNCTION = 3  # tasks with one edit that break the same function
SEVERAL_SHARE = 5  # every fifth task of a package has two or three edits
SUITE = Limits(wall_s=900, cpu_s=300, disk_mb=256, processes=256)
MUTANT = Limits(wall_s=120, cpu_s=6, disk_mb=256, processes=256)
MAX_SOLVED = 0.8
LISTED, SHOWN_LINES = 5, 30  # maximum failing tests that an issue lists, and lines of the shown test
Say = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """A package from the package index."""

    name: str
    version: str
    sha256: str  # of the source archive; empty for OWN_SOURCES
    code: tuple[str, ...]  # files and directories that may be broken
    tests: tuple[str, ...]  # files and directories with tests
    without: tuple[str, ...] = ()  # excluded files: tests that need a network, another package or much time
    more: tuple[str, ...] = ()  # other files that the tests need

    @property
    def label(self) -> str:
        return f"{self.name}-{self.version}"


def read_sources(table: str) -> tuple[Source, ...]:
    """Parse lines `name version sha256`, each followed by lines of paths: code, ?tests, +other files, -excluded tests."""
    sources = []
    for words in (row.split() for row in re.split(r"\n(?! )", table.strip())):
        marked = {mark: tuple(word[1:] for word in words[3:] if word[0] == mark) for mark in "?+-"}
        code = tuple(word for word in words[3:] if word[0] not in "?+-")
        sources.append(Source(words[0], words[1], words[2], code, marked["?"], marked["-"], marked["+"]))
    return tuple(sources)


SOURCES = read_sources("""
anytree 2.13.0 c9d3aa6825fdd06af7ebb05b4ef291d2db63e62bb1f9b7d9b71354be9d362714
  src/anytree ?tests
  -tests/test_dotexport.py -tests/test_dotexporter.py -tests/test_mermaidexporter.py
  -tests/test_uniquedotexporter.py
boltons 26.2.0 d39cfd15c1a1c3bd4d705c82252fa9edb8e4f5e8cc039f8e39afac7b1b47e92c
  boltons ?tests
  -tests/test_socketutils.py -tests/test_gcutils.py
cachetools 8.0.0 5ed01bd676800d51f0025605e4fd8ad0891550513e7b0a4c3da478463764e5c3
  src/cachetools ?tests
funcy 2.1 8979feb3de7120afd1d00e5a8eae810c1942e4bfbc91697151e9ee1e49f79284
  funcy ?tests
  -tests/test_colls.py -tests/test_funcolls.py -tests/test_funcs.py -tests/test_seqs.py -tests/test_tree.py
inflection 0.5.1 1a29730d366e996aaacffb2f1f1cb9593dc38e2ddd30c91250c6dde09ea9b417
  inflection ?test_inflection.py
isodate 0.7.2 4cd1aa0f43ca76f4a6c6c0292a85f40b35ec2e43e315b59f06e6d32171a953e6
  src/isodate ?tests
parse 1.22.4 706d458feed5a81b02768d3156e8070baf6cee7d150a3a3c0cd43101a875c3b5
  parse ?tests
schema 0.7.8 e86cc08edd6fe6e2522648f4e47e3a31920a76e82cce8937535422e310862ab5
  schema ?test_schema.py +LICENSE-MIT
semver 3.1.1 149b26cabada6f63212f97e94505d21578cb1d280cf714827f328d5e70765fea
  src/semver ?tests +docs
  -tests/test_pysemver-cli.py
sqlparse 0.6.1 ca722573f848ff2d30e40ea30f53a104b7dea7635ea9285891263eb2c58fb6e7
  sqlparse ?tests
  -tests/test_cli.py -tests/test_dos_prevention.py
tabulate 0.10.0 e2cfde8f79420f6deeffdeda9aaec3b6bc5abce947655d17ac662b126e48a60d
  tabulate ?test
  -test/test_cli.py
toolz 1.2.0 9667a038e9d6ecba37995e26cb2f59ec6420b6ad8dd9677de59db9b956b08490
  toolz ?toolz/tests ?toolz/sandbox/tests +tlz +toolz.egg-info
  -toolz/sandbox/tests/test_parallel.py
webcolors 25.10.0 62abae86504f66d0f6364c2a8520de4a0c47b80c03fc3a5f1815fedbef7c19bf
  src/webcolors ?tests
xmltodict 1.0.4 6d94c9f834dd9e44514162799d344d815a3a4faec913717a9ecbfa5be1bb8e61
  xmltodict.py ?tests
""")
"""small pure-Python packages whose suites pass in the sandbox, without tests that need a network, a locale, another package or
seconds of time"""
OWN = ("almanac", "gridways", "spans", "tillbook", "wordsmith")  # packaged repositories, without an archive
OWN_SOURCES = tuple(Source(name, "1.0", "", (name,), ("tests",)) for name in OWN)
HELD_PACKAGES = ("almanac", "cachetools", "parse", "webcolors")  # split other_packages


@dataclass(frozen=True)
class Suite:
    """Outcome of a package's test suite before any mutation."""

    passing: frozenset[str]
    callers: Mapping[Function, frozenset[str]]  # function -> tests that call it


@dataclass(frozen=True)
class Verdict:
    """A broken tree that is accepted as a task."""

    fail_to_pass: tuple[str, ...]
    test_files: tuple[str, ...]
    messages: Mapping[str, str]


def prepare_packages(
    root: Path,
    sources: Sequence[Source],
    count: int,
    seed: int = 0,
    processes: int = 1,
    archives: Path | None = None,
    say: Say = lambda line: None,
) -> dict[str, Counter[str]]:
    """Write a task folder with up to `count` tasks for each package. Unusable packages are reported and skipped. The folder is
    written after every package, and packages that it has already are kept. Returns, for each new package, why candidates were
    rejected."""
    packages, records = read_finished(root, seed, {source.label for source in sources})
    finished, rejected = {package.label for package in packages}, {}
    for source in sources:
        if source.label in finished:
            there = pluralize(sum(record.tree == source.label for record in records), "task")
            say(f"{source.label}: kept as it is, with {there}; for another number of tasks choose a new directory")
            continue
        tree = root / "packages" / source.label
        shutil.rmtree(tree, ignore_errors=True)  # of an interrupted run
        try:
            if source.sha256:
                unpack(source, fetch(source, archives), tree)
            else:
                shutil.copytree(PACKAGED / "packages" / source.label, tree, ignore=shutil.ignore_patterns(*IGNORED))
            with Runner(SUITE, trees=[tree], cache=root / "bytecode") as runner:
                suite = check_suite(runner, tree, find_tests(tree, source.tests))
                new_records, rejected[source.label] = make_tasks(runner, tree, source, suite, count, seed, processes)
        except TacitError as error:
            shutil.rmtree(tree, ignore_errors=True)
            say(f"{source.label} is left out: {error}")
            continue
        records += new_records
        packages.append(Package(source.name, source.version, tuple(sorted(suite.passing)), tree_digest(tree), source.sha256))
        if records:
            write_folder(root, seed, packages, records)
        say(f"{source.label}: {pluralize(len(suite.passing), 'test')}, {pluralize(len(new_records), 'task')}")
    if not records:
        raise TacitError(f"no package has a usable task; nothing was written to {root / 'tasks.jsonl'}.")
    return rejected


def read_finished(root: Path, seed: int, labels: Set[str]) -> tuple[list[Package], list[Record]]:
    """Packages and tasks that the folder has already; none if it is new or its first package is not finished."""
    manifest = root / "manifest.json"
    if not manifest.is_file():
        trees = {path.name for path in (root / "packages").glob("*")}
        if not trees or not trees <= labels or {path.name for path in root.iterdir()} - {"packages", "bytecode"}:
            check_empty(root)
        return [], []
    folder = open_folder(root)
    if folder.failures:
        raise TacitError(f"{root} is damaged ({folder.failures[0]}), so nothing is added to it; choose a new directory.")
    if (other := json.loads(manifest.read_text()).get("seed")) != seed:
        raise TacitError(f"{root} has tasks of seed {other}; give --seed {other} to add packages, or choose a new directory.")
    return list(folder.packages.values()), list(folder.records)


def check_empty(root: Path) -> None:
    if root.exists() and any(root.iterdir()):
        raise TacitError(f"{root} exists and is not empty; choose a new directory, or remove it.")


def fetch(source: Source, archives: Path | None = None) -> Path:
    """The source archive, from `archives` or from pip's package index."""
    names = (f"{source.label}.tar.gz", f"{source.label.replace('-', '_', source.name.count('-'))}.tar.gz")
    folder = archives or Path(tempfile.gettempdir()) / "tacit-archives"
    folder.mkdir(parents=True, exist_ok=True)
    for again in range(2):
        for archive in (folder / name for name in names):
            if archive.is_file():
                digest = hashlib.sha256(archive.read_bytes()).hexdigest()
                if digest != source.sha256:
                    raise TacitError(f"{archive} has sha256 {digest}, not {source.sha256}; remove it to download it again.")
                return archive
        if not again:
            pinned = folder / f"{source.label}.txt"
            pinned.write_text(f"{source.name}=={source.version} --hash=sha256:{source.sha256}\n")
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            command += ["--no-binary", ":all:", "--dest", str(folder), "-r", str(pinned)]
            run = subprocess.run(command, capture_output=True, text=True)
            pinned.unlink()
    lines = (run.stderr.strip() or run.stdout.strip() or "pip downloaded no archive").splitlines()
    reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
    raise TacitError(f"cannot download it ({reason}). Check the network and pip's settings, or give --archives.")


def unpack(source: Source, archive: Path, tree: Path) -> None:
    """Extract the files that tasks need. Raises TacitError if the archive is damaged or incomplete."""
    wanted = (*source.code, *source.tests, *source.more)
    try:
        with tarfile.open(archive) as opened:
            for member in opened.getmembers():
                path = member.name.partition("/")[2]
                selected = member.isfile() and any(path == part or path.startswith(f"{part}/") for part in wanted)
                if selected and path not in source.without and not path.endswith(".pyc"):
                    member.name = path
                    opened.extract(member, tree, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise TacitError(f"its archive is damaged: {error}.") from error
    missing = [part for part in wanted if not (tree / part).exists()]
    if missing:
        raise TacitError(f"its archive has no {', '.join(missing)}.")


def find_files(tree: Path, parts: Sequence[str], *patterns: str) -> list[str]:
    """Paths of these files, and of the matching ones in these directories."""
    places = [tree / part for part in parts]
    files = {file for place in places for pattern in patterns for file in place.rglob(pattern)}
    files |= {place for place in places if place.is_file()}
    return sorted(file.relative_to(tree).as_posix() for file in files)


def find_tests(tree: Path, parts: Sequence[str]) -> list[str]:
    return find_files(tree, parts, "test*.py", "*_test.py")


def check_suite(runner: Runner, tree: Path, files: Sequence[str]) -> Suite:
    """Run the unchanged suite. Raises TacitError if a test fails, or if outcomes differ between runs."""
    with closing(runner.sandbox.copy(tree)) as workspace:
        runs = [runner.run(workspace, files, SUITE) for _ in range(RUNS)]
        traced = runner.run(workspace, files, SUITE, trace=True)
    for run in (*runs, traced):
        if run.killed or run.forged:
            raise TacitError(f"its suite does not finish: {run.killed or run.forged}.")
        if run.failed:
            names = ", ".join(sorted(run.failed)[:3])
            raise TacitError(f"{pluralize(len(run.failed), 'test')} of its suite fail before any mutation, such as {names}.")
    passing = runs[0].passed
    if not passing:
        raise TacitError(f"no test passes in {', '.join(files) or 'it'}.")
    if any(run.passed != passing for run in runs):
        raise TacitError("different tests of its suite pass in each run.")
    callers: dict[Function, set[str]] = {}
    for test, functions in traced.calls.items():
        for function in functions if test in passing else ():
            callers.setdefault(function, set()).add(test)
    for function in traced.calls.get("", ()):  # breaking these would break all imports
        callers.pop(function, None)
    return Suite(passing, {function: frozenset(tests) for function, tests in callers.items()})


def find_candidates(tree: Path, source: Source, suite: Suite, seed: int) -> list[Mutation]:
    """Mutations of functions that tests call, in a seeded order that alternates between kinds."""
    kinds: dict[str, list[Mutation]] = {kind: [] for kind in KINDS}
    for path in find_files(tree, source.code, "*.py"):
        if any(path == part or path.startswith(f"{part}/") for part in source.tests):
            continue
        try:
            mutations = find_mutations(path, read_source(tree / path))
        except (SyntaxError, ValueError):
            continue
        for each in mutations:
            if (path, each.line) in suite.callers:
                kinds[each.kind].append(each)
    for each_kind in kinds.values():
        each_kind.sort(key=lambda each: digest(seed, [each.edit]))
    turns = itertools.zip_longest(*kinds.values())
    return [each for turn in turns for each in turn if each is not None]


def digest(seed: int, edits: Sequence[Edit]) -> str:
    return hashlib.sha256(repr((seed, [(e.path, e.start, e.end, e.after) for e in edits])).encode()).hexdigest()


def make_tasks(
    runner: Runner, tree: Path, source: Source, suite: Suite, count: int, seed: int, processes: int
) -> tuple[list[Record], Counter[str]]:
    """Up to `count` tasks of a package, and why candidates were rejected."""
    rejected: Counter[str] = Counter()
    per_function: Counter[str] = Counter()

    def judge(mutations: list[Mutation]) -> Verdict | str:
        tests = frozenset().union(*(suite.callers[each.edit.path, each.line] for each in mutations))
        return verify(runner, tree, [each.edit for each in mutations], suite.passing, sorted(tests))

    def keep(candidates: Iterator[list[Mutation]], limit: int) -> Iterator[tuple[list[Mutation], Verdict]]:
        """Judge candidates in parallel and keep the first `limit` accepted ones, in order."""
        kept = 0
        with ThreadPoolExecutor(processes) as pool:
            while kept < limit and (batch := list(itertools.islice(candidates, 2 * processes))):
                for mutations, verdict in zip(batch, pool.map(judge, batch), strict=True):
                    if isinstance(verdict, str):
                        rejected[verdict] += 1
                    elif kept < limit:
                        kept += 1
                        yield mutations, verdict

    def one_by_one() -> Iterator[list[Mutation]]:
        for each in find_candidates(tree, source, suite, seed):
            if per_function[each.site] < PER_FUNCTION:
                yield [each]

    def write_record(mutations: list[Mutation], verdict: Verdict) -> Record:
        kinds = tuple(each.kind for each in mutations)
        edits = tuple(each.edit for each in sorted(mutations, key=lambda each: each.edit.start))
        split = choose_split(source.name, kinds, mutations[0].site, HELD_PACKAGES, HELD_KINDS)
        issue = write_issue(source.label.replace("-", " "), verdict, tree)
        name = f"{source.name}-{digest(0, edits)[:10]}"
        tests = verdict.fail_to_pass, verdict.test_files
        return Record(name, source.name, source.version, split, kinds, issue, edits, *tests)

    singles: list[tuple[Mutation, Record]] = []
    for [mutation], verdict in keep(one_by_one(), count - count // SEVERAL_SHARE):
        per_function[mutation.site] += 1
        singles.append((mutation, write_record([mutation], verdict)))

    def together() -> Iterator[list[Mutation]]:
        """Pairs and triples of kept mutations in different functions of one file, all of one split."""
        combined = []
        for size in (2, 3):
            for chosen in itertools.combinations(singles, size):
                mutations, records = [each for each, _ in chosen], [record for _, record in chosen]
                one_file = len({each.edit.path for each in mutations}) == 1
                failing = sum(len(record.fail_to_pass) for record in records)
                independent = len({each.site for each in mutations}) == size and len({record.split for record in records}) == 1
                if one_file and independent and failing <= MAX_FAILING:
                    combined.append(mutations)
        return iter(sorted(combined, key=lambda each: digest(seed, [m.edit for m in each])))

    several = [write_record(*kept) for kept in keep(together(), count - len(singles))]
    return [*(record for _, record in singles), *several], rejected


def verify(
    runner: Runner, tree: Path, edits: Sequence[Edit], passing: frozenset[str], first: Sequence[str], most: int = MAX_FAILING
) -> Verdict | str:
    """The verdict, or the reason for rejecting the edits. Runs the tests `first`, then their files; at most `most` may fail."""
    changed = edit_files(edits, tree)
    try:
        with warnings.catch_warnings(action="ignore"):
            for path, text in changed.items():
                compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return "does not compile"
    with closing(runner.sandbox.copy(tree)) as workspace:
        for path, text in changed.items():
            (workspace.folder / path).write_bytes(text.encode())
        run = runner.run(workspace, ["-q", "--tb=short", f"--maxfail={most + 1}", *first], MUTANT)
        reason = _reject(run, passing.intersection(first) if run.code in (0, 1) else frozenset(), len(run.failed), most)
        if reason:
            return reason
        files = sorted({test.partition("::")[0] for test in first})
        expected = frozenset(test for test in passing if test.partition("::")[0] in files)
        verified = []
        for _ in range(RUNS):
            run = runner.run(workspace, ["-q", "--tb=short", *files], MUTANT)
            failing = expected - run.passed
            reason = _reject(run, expected, len(failing), most)
            if reason:
                return reason
            verified.append(failing)
        if any(failing != verified[0] for failing in verified):
            return "different tests fail in each run"
        return Verdict(tuple(sorted(verified[0])), tuple(files), run.messages)


def _reject(run: TestRun, expected: frozenset[str], failing: int, most: int) -> str:
    if run.killed or (run.forged and run.code in (137, 152)):  # 128 + SIGKILL or SIGXCPU: the CPU time limit
        return "hangs or takes too much"
    if run.forged:
        return "ends the run"
    if not failing:
        return "no test fails"
    if failing > most:
        return "too many tests fail"
    if not expected <= run.outcomes.keys():
        return "tests cannot be collected"
    return ""


def write_issue(package: str, verdict: Verdict, tree: Path) -> str:
    """An issue as a user would write it: the failing tests, the source of the shortest, and its error, without line numbers."""
    tests = verdict.fail_to_pass
    shortest = min(tests, key=lambda test: (len(show_test(tree, test)) or 10**6, test))
    source = show_test(tree, shortest)
    message = re.sub(r"(\.py):\d+", r"\1", verdict.messages.get(shortest, "")).strip()
    message = re.sub(r"\bline \d+", "line", message)
    message = re.sub(r"0x[0-9a-f]{6,}", "0x…", message)
    listed = "\n".join(f"    {test}" for test in tests[:LISTED])
    more = f"\n    … and {len(tests) - LISTED} more" if len(tests) > LISTED else ""
    verb = "fails" if len(tests) == 1 else "fail"
    parts = [f"{pluralize(len(tests), 'test')} of {package} {verb} that should pass:\n\n{listed}{more}"]
    if source:
        parts.append(f"This one, for instance:\n\n{_indent(source)}")
    if message:
        parts.append(f"It ends with:\n\n{_indent(message)}")
    return "\n\n".join([*parts, "Find the cause in the package and mend it. The tests are right."])


def show_test(tree: Path, node: str) -> str:
    """Source of a test function, without its parameters; empty if it is not found."""
    path, *names = node.split("::")
    text = (tree / path).read_text(encoding="utf-8", errors="replace")
    try:
        body: Sequence[ast.AST] = ast.parse(text).body
    except (SyntaxError, ValueError):
        return ""
    definition: ast.AST | None = None
    for name in names:
        wanted = name.partition("[")[0]
        definition = next((each for each in body if getattr(each, "name", None) == wanted), None)
        body = getattr(definition, "body", ())
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    lines = text.splitlines()[definition.lineno - 1 : definition.end_lineno]
    margin = len(lines[0]) - len(lines[0].lstrip())
    lines = [line[margin:] for line in lines]
    return "\n".join(lines if len(lines) <= SHOWN_LINES else [*lines[:SHOWN_LINES], "    …"])


def _indent(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


def filter_folder(root: Path, source: Path, played: Sequence[Path], say: Say = lambda line: None) -> None:
    """Write a folder with the tasks of another that a policy solves in some, but less than 80%, of its tries.
    Complementary RL filters SWE-bench Verified so, with 16 tries (appendix C). `played` are files of episodes as JSON lines."""
    check_empty(root)
    tries: dict[str, list[bool]] = {}
    for file in played:
        try:
            content = file.read_bytes()
            lines = (gzip.decompress(content) if file.suffix == ".gz" else content).decode().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise TacitError(f"cannot read {file}: {error}.") from error
        for line in lines:
            try:
                episode = json.loads(line)
                tries.setdefault(episode["task"].rpartition("/")[2], []).append(bool(episode["success"]))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # the header, or a truncated line
    folder = open_folder(source)
    tried = [record for record in folder.records if record.id in tries]
    kept = [record for record in tried if 0 < sum(tries[record.id]) < MAX_SOLVED * len(tries[record.id])]
    if not kept:
        raise TacitError(f"none of the {pluralize(len(tried), 'played task')} is solved in some tries, but less than 80%.")
    labels = {record.tree for record in kept}
    for label in sorted(labels):
        shutil.copytree(source / "packages" / label, root / "packages" / label)
    seed = json.loads((source / "manifest.json").read_text())["seed"]
    write_folder(root, seed, [folder.packages[label] for label in sorted(labels)], kept)
    say(f"{len(kept)} of {pluralize(len(tried), 'played task')} are solved in some, but less than 80%, of their tries")


Candidate = tuple[str, list[Edit], tuple[str, ...]]  # name, edits that should break tests, test files
BROKEN, CORRECT, TESTS = "python_programs", "correct_python_programs", "python_testcases"


def difference_edits(path: str, before: str, after: str) -> list[Edit]:
    """Edits of whole lines that turn one text into another."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    edits = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            start, lost = sum(map(len, old[:a])), "".join(old[a:b])
            edits.append(Edit(path, start, start + len(lost), lost, "".join(new[c:d])))
    return edits


def prepare_programs(root: Path, folder: Path, say: Say = lambda line: None) -> int:
    """Write tasks from a folder in the layout of QuixBugs; returns their number."""
    missing = [name for name in (BROKEN, CORRECT, TESTS) if not (folder / name).is_dir()]
    if missing:
        raise TacitError(f"{folder} has no directory {', '.join(missing)}; it needs the layout of QuixBugs.")
    tree = copy_package(root, folder, (CORRECT, "java_programs", "java_testcases", "correct_java_programs"))
    for correct in (folder / CORRECT).glob("*.py"):
        if (tree / BROKEN / correct.name).is_file():
            shutil.copy(correct, tree / BROKEN / correct.name)
    candidates: list[Candidate] = []
    for broken in sorted((folder / BROKEN).glob("*.py")):
        path, test = f"{BROKEN}/{broken.name}", f"{TESTS}/test_{broken.name}"
        if (tree / test).is_file() and (folder / CORRECT / broken.name).is_file():
            edits = difference_edits(path, read_source(tree / path), read_source(broken))
            candidates.append((broken.stem, edits, (test,)))
    return write_tasks(root, tree, candidates, say)


def prepare_patches(root: Path, repository: Path, patches: Sequence[Path], say: Say = lambda line: None) -> int:
    """Write tasks from a repository whose suite passes, one per patch that breaks it; returns their number."""
    if not repository.is_dir():
        raise TacitError(f"there is no directory {repository}.")
    tree = copy_package(root, repository)
    tests = tuple(find_tests(tree, ["."]))
    candidates: list[Candidate] = []
    for file in patches:
        try:
            edits: list[Edit] = []
            for patch in read_patch(file.read_text()):
                if patch.new or patch.gone or patch.path in tests or not (tree / patch.path).is_file():
                    raise TacitError(f"it must change existing files that are not tests, not {patch.path}")
                edits += patch_edits(patch, read_source(tree / patch.path))
            candidates.append((file.stem, edits, tests))
        except (OSError, ValueError, TacitError) as error:
            say(f"{file.name} is left out: {error}")
    return write_tasks(root, tree, candidates, say)


def copy_package(root: Path, folder: Path, without: Sequence[str] = ()) -> Path:
    """Copy the folder into a new task folder, without some directories."""
    check_empty(root)
    name = re.sub(r"[^\w.]+", "_", folder.resolve().name) or "programs"
    tree = root / "packages" / f"{name}-0"
    shutil.copytree(folder, tree, ignore=shutil.ignore_patterns(*IGNORED, *without), symlinks=True)
    try:
        check_links(tree)
    except TacitError:
        shutil.rmtree(root)
        raise
    return tree


def write_tasks(root: Path, tree: Path, candidates: Sequence[Candidate], say: Say) -> int:
    """Write those candidates that fail tests; returns their number."""
    name, _, version = tree.name.rpartition("-")
    records: list[Record] = []
    suites: dict[tuple[str, ...], Suite] = {}
    with Runner(SUITE, trees=[tree], cache=root / "bytecode") as runner:
        for task, edits, tests in candidates:
            try:
                if tests not in suites:
                    suites[tests] = check_suite(runner, tree, tests)
                passing = suites[tests].passing
                verdict = verify(runner, tree, edits, passing, sorted(passing), most=10**6)
            except TacitError as error:
                say(f"{task} is left out: {error}")
                continue
            if isinstance(verdict, str):
                say(f"{task} is left out: {verdict}.")
                continue
            label = f"{name}-{task}-{hashlib.sha256(digest(0, edits).encode()).hexdigest()[:6]}"
            split, issue = choose_split(name, (), task, (), ()), write_issue(name, verdict, tree)
            tests_of = verdict.fail_to_pass, verdict.test_files
            records.append(Record(label, name, version, split, (), issue, tuple(edits), *tests_of))
    if not records:
        shutil.rmtree(root)
        raise TacitError(f"{name} has no usable task; nothing was written to {root}.")
    all_passing = sorted(frozenset().union(*(suite.passing for suite in suites.values())))
    write_folder(root, 0, [Package(name, version, tuple(all_passing), tree_digest(tree))], records)
    return len(records)
