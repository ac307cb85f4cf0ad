"""`tacit prepare code`: tasks from packages, programs and patches, and rejection of bad input."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.evaluation.panels import Panel
from tacit.sandbox import Sandbox
from tacit.worlds import get_environment
from tacit.worlds.code import prepare
from tacit.worlds.code.prepare import (
    SOURCES,
    Source,
    difference_edits,
    filter_folder,
    prepare_packages,
    prepare_patches,
    prepare_programs,
)
from tacit.worlds.code.tasks import KINDS, apply_edits, open_folder, patch_edits, read_patch, record_of

CODE = """
def clamp(value, low, high):
    if value < low:
        return low
    if value > high:
        return high
    return value


def mean(values):
    total = 0
    count = 0
    for value in values:
        total += value
        count += 1
    return total / count if count and total else 0


def unused(a, b):
    return a - b
"""
TESTS = """
import pytest
from mini import clamp, mean

@pytest.mark.parametrize(("value", "expected"), [(-1, 0), (5, 5), (11, 10), (0, 0), (10, 10)])
def test_clamp(value, expected):
    assert clamp(value, 0, 10) == expected

def test_mean():
    assert mean([1, 2, 3]) == 2
    assert mean([]) == 0
"""
FILES = {"mini/__init__.py": CODE, "tests/test_mini.py": TESTS, "docs/long.txt": "text"}


def pack(folder: Path, name: str, files: dict[str, str]) -> Source:
    archive = folder / f"{name}-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as opened:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{name}-1.0/{path}")
            member.size = len(text.encode())
            opened.addfile(member, io.BytesIO(text.encode()))
    return Source(name, "1.0", hashlib.sha256(archive.read_bytes()).hexdigest(), ("mini",), ("tests",))


@pytest.fixture(scope="module", autouse=True)
def isolation():
    try:
        Sandbox().close()
    except TacitError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("prepared")
    prepare_packages(place / "tasks", [pack(place, "mini", FILES)], 8, processes=2, archives=place)
    return place / "tasks"


@pytest.mark.slow
def test_prepare_packages_writes_valid_tasks(folder):
    found = open_folder(folder)
    tree = folder / "packages" / "mini-1.0"
    assert not found.failures and 6 <= len(found.records) <= 8
    assert not (tree / "docs").exists(), "only what the tasks need is unpacked"
    [package] = found.packages.values()
    assert len(package.passing) == 6
    for record in found.records:
        assert 1 <= len(record.fail_to_pass) <= 10 and set(record.fail_to_pass) <= set(package.passing)
        assert all("unused" not in edit.before and edit.path == "mini/__init__.py" for edit in record.edits)
        apply_edits(CODE, record.edits)
    assert any(len(record.edits) > 1 for record in found.records)
    assert {kind for record in found.records for kind in record.kinds} <= set(KINDS)


@pytest.mark.slow
def test_issue_shows_failing_test_but_not_the_location(folder):
    for record in open_folder(folder).records:
        assert record.fail_to_pass[0] in record.issue and "def test_" in record.issue
        assert "mini/__init__" not in record.issue and not re.search(r"\.py:\d|line \d", record.issue)


@pytest.mark.slow
def test_moved_folder_has_the_same_panels(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "moved")
    panels = [Panel.of(get_environment(f"code+folder={place}"), "train", 4) for place in (folder, tmp_path / "moved")]
    assert panels[0].hash == panels[1].hash and str(tmp_path) not in json.dumps(panels[1].to_json())
    assert record_of(panels[0].tasks[0])[0].package == "mini"
    lost = replace(panels[0].tasks[0], data={**panels[0].tasks[0].data, "folder": "0" * 16})
    with pytest.raises(TacitError, match="is not open; give its directory with --folder"):
        record_of(lost)


@pytest.mark.slow
def test_same_seed_gives_the_same_tasks(folder, tmp_path):
    for seed, same in ((0, True), (1, False)):
        prepare_packages(tmp_path / str(seed), [pack(tmp_path, "mini", FILES)], 8, seed, archives=tmp_path)
        lines = [json.loads(line)["id"] for line in (tmp_path / str(seed) / "tasks.jsonl").read_text().splitlines()]
        assert (lines == [record.id for record in open_folder(folder).records]) == same
    assert (tmp_path / "0" / "tasks.jsonl").read_text() == (folder / "tasks.jsonl").read_text()


@pytest.mark.slow
def test_interrupted_preparation_goes_on_after_the_last_finished_package(folder, tmp_path, monkeypatch):
    sources = [pack(tmp_path, name, FILES) for name in ("mini", "second")]
    make_tasks, root, lines = prepare.make_tasks, tmp_path / "out", []

    def interrupted(runner, tree, source, *rest):
        if source.name == "second":
            raise KeyboardInterrupt
        return make_tasks(runner, tree, source, *rest)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(prepare, "make_tasks", interrupted)
        prepare_packages(root, sources, 8, archives=tmp_path)
    assert (root / "tasks.jsonl").read_text() == (folder / "tasks.jsonl").read_text(), "the finished package can be used"
    with pytest.raises(TacitError, match="has tasks of seed 0; give --seed 0"):
        prepare_packages(root, sources, 8, seed=1, archives=tmp_path)
    prepare_packages(root, sources, 8, archives=tmp_path, say=lines.append)
    assert lines[0].startswith("mini-1.0: kept as it is, with ") and lines[1].startswith("second-1.0: ")
    prepare_packages(tmp_path / "whole", sources, 8, archives=tmp_path)
    for name in ("tasks.jsonl", "manifest.json"):
        assert (root / name).read_text() == (tmp_path / "whole" / name).read_text()
    (root / "packages" / "mini-1.0" / "mini" / "__init__.py").write_text("changed = True\n")
    open_folder.cache_clear()
    with pytest.raises(TacitError, match=r"is damaged .*mini-1.0: its files have changed"):
        prepare_packages(root, [pack(tmp_path, "third", FILES)], 8, archives=tmp_path)
    assert (root / "tasks.jsonl").read_text() == (tmp_path / "whole" / "tasks.jsonl").read_text(), "nothing is lost"


@pytest.mark.slow
def test_unusable_packages_are_reported_and_skipped(tmp_path, monkeypatch):
    good = pack(tmp_path, "mini", FILES)
    failing = pack(tmp_path, "failing", {**FILES, "tests/test_bad.py": "def test_bad(): assert 0\n"})
    changed = Source("mini", "1.0", "0" * 64, ("mini",), ("tests",))
    lacking = Source("lacking", "1.0", pack(tmp_path, "lacking", FILES).sha256, ("mini", "other"), ("tests",))
    empty = pack(tmp_path, "empty", {"mini/__init__.py": CODE, "tests/test_none.py": ""})
    (tmp_path / "cut-1.0.tar.gz").write_bytes((tmp_path / "mini-1.0.tar.gz").read_bytes()[:200])
    cut = Source("cut", "1.0", hashlib.sha256((tmp_path / "cut-1.0.tar.gz").read_bytes()).hexdigest(), ("mini",), ("tests",))
    lines: list[str] = []
    prepare_packages(tmp_path / "out", [failing, changed, lacking, empty, cut, good], 2, archives=tmp_path, say=lines.append)
    text = "\n".join(lines)
    assert "failing-1.0 is left out: 1 test of its suite fail before any mutation, such as tests/test_bad.py::test_bad" in text
    assert "mini-1.0 is left out" in text and "has sha256" in text
    assert "lacking-1.0 is left out: its archive has no other." in text
    assert "empty-1.0 is left out: no test passes" in text
    assert "cut-1.0 is left out: its archive is damaged" in text
    assert [package.name for package in open_folder(tmp_path / "out").packages.values()] == ["mini"]
    with pytest.raises(TacitError, match="exists and is not empty"):
        prepare_packages(tmp_path, [good], 2, archives=tmp_path)
    with pytest.raises(TacitError, match="no package has a usable task"):
        prepare_packages(tmp_path / "none", [failing], 2, archives=tmp_path)
    monkeypatch.setenv("PIP_INDEX_URL", "file:///nowhere")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(TacitError, match="cannot download it"):
        prepare.fetch(Source("no-such-thing", "1.0", "0" * 64, (), ()), tmp_path / "archives")


@pytest.mark.slow
def test_mutation_that_hangs_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "MUTANT", prepare.Limits(wall_s=20, cpu_s=1))
    code = "def count(n):\n    while n > 0:\n        n = n - 1\n    return n\n"
    tests = "from mini import count\ndef test_count(): assert count(3) == 0\n"
    source = pack(tmp_path, "mini", {"mini/__init__.py": code, "tests/test_mini.py": tests})
    rejected = prepare_packages(tmp_path / "out", [source], 50, processes=2, archives=tmp_path)
    assert rejected["mini-1.0"]["hangs or takes too much"] >= 1


def test_pinned_packages_have_unique_names_and_hashes():
    assert len(SOURCES) >= 12 and len({source.name for source in SOURCES}) == len(SOURCES)
    assert all(re.fullmatch("[0-9a-f]{64}", source.sha256) and source.code and source.tests for source in SOURCES)
    assert set(prepare.HELD_PACKAGES) < {source.name for source in (*SOURCES, *prepare.OWN_SOURCES)} and set(
        prepare.HELD_KINDS
    ) < set(KINDS)


@pytest.mark.slow
def test_filter_keeps_tasks_the_policy_solves_sometimes(folder, tmp_path):
    records = open_folder(folder).records
    never, sometimes, mostly = (f"code/{record.split}/{record.id}" for record in records[:3])
    rates = {never: 0, sometimes: 12, mostly: 13}
    lines = [{"panel": "x"}, *({"task": task, "success": n < rate} for task, rate in rates.items() for n in range(16))]
    (tmp_path / "played.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + '\n{"task": "co')
    filter_folder(tmp_path / "out", folder, [tmp_path / "played.jsonl"])
    kept = open_folder(tmp_path / "out").records
    assert [record.id for record in kept] == [records[1].id], "12 of 16 are below 80%, 13 are not"
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(TacitError, match="none of the 0 played tasks"):
        filter_folder(tmp_path / "second", folder, [tmp_path / "empty.jsonl"])


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


CONFTEST = """
import pytest
def pytest_addoption(parser): parser.addoption("--correct", action="store_true")
def pytest_configure(config): pytest.use_correct = config.getoption("--correct")
"""
PROGRAM_TEST = """
import pytest
if pytest.use_correct:
    from correct_python_programs.{0} import {0}
else:
    from python_programs.{0} import {0}
def test_one(): assert {0}(2) == 4
def test_two(): assert {0}(0) == 0
"""


@pytest.mark.slow
def test_prepare_programs_reads_quixbugs_layout(tmp_path):
    programs = {
        "double": ("def double(x):\n    return x * 2\n", "def double(x):\n    return x * 3\n"),
        "square": ("def square(x):\n    return x * x\n", "def square(x):\n    return x * x\n"),
        "halve": ("def halve(x):\n    return x\n", "def halve(x):\n    return x // 2\n"),
    }
    files = {"conftest.py": CONFTEST}
    for name, (correct, broken) in programs.items():
        files |= {f"correct_python_programs/{name}.py": correct, f"python_programs/{name}.py": broken}
        files |= {f"python_testcases/test_{name}.py": PROGRAM_TEST.format(name)}
    lines: list[str] = []
    assert prepare_programs(tmp_path / "out", write(tmp_path / "quix", files), lines.append) == 1
    assert "square is left out: no test fails." in lines and any(line.startswith("halve is left out: 1 test") for line in lines)
    [record] = open_folder(tmp_path / "out").records
    assert record.family == "patch" and record.fail_to_pass == ("python_testcases/test_double.py::test_one",)
    tree = tmp_path / "out" / "packages" / "quix-0"
    assert not (tree / "correct_python_programs").exists(), "the solution is not in the repository"
    assert (tree / "python_programs/double.py").read_text() == programs["double"][0]
    with pytest.raises(TacitError, match="layout of QuixBugs"):
        prepare_programs(tmp_path / "other", tmp_path / "quix" / "python_programs")


def test_prepare_does_not_write_through_links(tmp_path):
    (tmp_path / "profile").write_text("mine")
    quix = write(tmp_path / "quix", {"correct_python_programs/a.py": "x = 1\n", "python_testcases/test_a.py": ""})
    (quix / "python_programs").mkdir()
    (quix / "python_programs" / "a.py").symlink_to(tmp_path / "profile")
    with pytest.raises(TacitError, match="is a symbolic link"):
        prepare_programs(tmp_path / "out", quix)
    with pytest.raises(TacitError, match="is a symbolic link"):
        prepare_patches(tmp_path / "out", quix, [])
    assert (tmp_path / "profile").read_text() == "mine" and not (tmp_path / "out").exists()


PATCH = """diff --git a/mini/__init__.py b/mini/__init__.py
--- a/mini/__init__.py
+++ b/mini/__init__.py
@@ -1,5 +1,5 @@
 
 def clamp(value, low, high):
-    if value < low:
+    if value > low:
         return low
     if value > high:
@@ -12,3 +12,4 @@ def mean(values):
     for value in values:
-        total += value
+        # all values
+        total -= value
         count += 1
"""


@pytest.mark.slow
def test_prepare_patches_makes_tasks_from_breaking_patches(tmp_path):
    repository = write(tmp_path / "mini", FILES)
    patches = write(
        tmp_path / "patches",
        {
            "both.diff": PATCH,
            "other.diff": PATCH.replace("value < low", "value <= low"),
            "test.diff": PATCH.replace("mini/__init__.py", "tests/test_mini.py"),
            "none.diff": "hello",
        },
    )
    lines: list[str] = []
    assert prepare_patches(tmp_path / "out", repository, sorted(patches.iterdir()), lines.append) == 1
    text = "\n".join(lines)
    assert "other.diff is left out: the patch does not apply to mini/__init__.py near line 1" in text
    assert "test.diff is left out: it must change existing files" in text and "none.diff is left out: it is not" in text
    [record] = open_folder(tmp_path / "out").records
    assert len(record.edits) == 2 and "tests/test_mini.py::test_mean" in record.fail_to_pass
    assert "-= value" in apply_edits(CODE, record.edits)


@pytest.mark.parametrize(
    ("before", "after"),
    [("a\nb\nc\n", "a\nx\nc\n"), ("a\n", "a"), ("", "new\n"), ("a\nb\n", ""), ("ä\r\nb\r\n", "ä\r\nc\r\n")],
)
def test_difference_edits_reproduce_the_new_text(before, after):
    assert apply_edits(before, difference_edits("x", before, after)) == after


def test_read_patch_handles_new_files_and_missing_final_newline():
    text = "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1,2 @@\n+a\n+b\n\\ No newline at end of file\n"
    [patch] = read_patch(text)
    assert patch.new and apply_edits("", patch_edits(patch, "")) == "a\nb"


@pytest.mark.slow
def test_prepare_command_writes_tasks_and_rejects_bad_arguments(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(prepare, "SOURCES", (pack(tmp_path, "mini", FILES),))
    out = str(tmp_path / "out")
    assert main(["prepare", "code", out, "--tasks", "3", "--processes", "2", "--archives", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "tasks: 3 (" in printed and f"ready: tacit train --world code+folder={out}" in printed
    for words, reason in (
        (["--packages", "nope"], "nope"),
        (["--tasks", "0"], "--tasks"),
        (["--repository", out], "--repository and --patch belong together"),
        (["--played", out], "--from and --played belong together"),
    ):
        assert main(["prepare", "code", str(tmp_path / "new"), *words]) != 0
        assert reason in capsys.readouterr().err


def test_prepare_command_without_training_tasks_does_not_suggest_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(prepare, "SOURCES", (pack(tmp_path, "mini", FILES),))
    monkeypatch.setattr(prepare, "HELD_PACKAGES", ("mini",))
    out = str(tmp_path / "out")
    assert main(["prepare", "code", out, "--tasks", "2", "--processes", "2", "--archives", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "tasks: 2 (other_packages 2)" in printed and "no task is in split train" in printed
    assert "tacit train" not in printed
