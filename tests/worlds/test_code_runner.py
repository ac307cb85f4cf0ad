"""The warm test runner: outcomes, edited sources, limits, and attempts to fake a pass."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tacit
from tacit.core.errors import TacitError
from tacit.sandbox import Limits
from tacit.worlds.code.grading import ENVIRONMENT, Runner
from tacit.worlds.code.pytest_fork import move

SOURCE = "def double(x):\n    return 2 * x\n"
TESTS = """
import pytest
from calc import double

def test_two():
    assert double(2) == 4

@pytest.mark.parametrize("value", [0, 3])
def test_many(value):
    assert double(value) == value + value

@pytest.mark.skip
def test_later(): pass

@pytest.fixture
def broken():
    yield
    raise OSError("teardown")

def test_teardown(broken): pass
"""
TEST_FILE = "tests/test_calc.py"
PASSING = {f"{TEST_FILE}::{name}" for name in ("test_two", "test_many[0]", "test_many[3]")}


def write(tree: Path, **files: str) -> Path:
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tree


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return write(tmp_path_factory.mktemp("original"), **{"calc/__init__.py": SOURCE, TEST_FILE: TESTS})


@pytest.fixture(scope="module")
def runner(original, tmp_path_factory):
    try:
        opened = Runner(Limits(wall_s=10), trees=[original], cache=tmp_path_factory.mktemp("cache"))
    except TacitError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@pytest.fixture
def workspace(runner, original):
    copy = runner.sandbox.copy(original)
    yield copy
    copy.close()


def test_run_reports_outcomes_deterministically(runner, workspace):
    run = runner.run(workspace, [TEST_FILE])
    assert run.passed == PASSING and not run.forged and not run.killed and run.code == 1
    assert run.outcomes[f"{TEST_FILE}::test_later"] == "skipped"
    assert run.failed == {f"{TEST_FILE}::test_teardown"}, "a test that passes and fails in its teardown has failed"
    assert "OSError: teardown" in run.messages[f"{TEST_FILE}::test_teardown"]
    assert "4 passed, 1 skipped, 1 error in 0.00s" in run.output, "durations are replaced"
    again = runner.run(workspace, [TEST_FILE])
    assert (again.outcomes, again.messages, again.output) == (run.outcomes, run.messages, run.output)


def test_run_accepts_node_ids_and_options(runner, workspace):
    run = runner.run(workspace, ["-q", f"{TEST_FILE}::test_many[3]"])
    assert run.outcomes == {f"{TEST_FILE}::test_many[3]": "passed"} and run.code == 0
    assert runner.run(workspace, ["tests/nothing.py"]).code == 4


def test_run_uses_edited_sources_and_tests(runner, workspace):
    write(workspace.folder, **{"calc/__init__.py": "def double(x):\n    return 3 * x\n"})
    run = runner.run(workspace, [TEST_FILE])
    assert run.passed == {f"{TEST_FILE}::test_many[0]"}
    assert "assert 6 == 4" in run.messages[f"{TEST_FILE}::test_two"]
    write(workspace.folder, **{TEST_FILE: "def test_new(): assert 1\n"})
    assert runner.run(workspace, [TEST_FILE]).passed == {f"{TEST_FILE}::test_new"}


def test_run_finds_source_in_src_directory(runner, tmp_path):
    workspace = runner.sandbox.copy(write(tmp_path, **{"src/calc.py": SOURCE, TEST_FILE: TESTS}))
    assert runner.run(workspace, [TEST_FILE]).passed == PASSING


@pytest.mark.slow
def test_bytecode_cache_is_reused_by_the_next_runner(runner, original):
    kept = {path.name: path.stat().st_mtime_ns for path in runner.cache.iterdir()}
    assert len(kept) == 3, "the module, and the test file plain and rewritten"
    with Runner(trees=[original], cache=runner.cache) as second:
        assert second.run(second.sandbox.copy(original), [TEST_FILE]).passed == PASSING
    assert {path.name: path.stat().st_mtime_ns for path in runner.cache.iterdir()} == kept


def test_import_error_counts_as_failed_test(runner, workspace):
    write(workspace.folder, **{"calc/__init__.py": "def double(x:\n"})
    run = runner.run(workspace, [TEST_FILE])
    assert run.failed == {TEST_FILE} and "SyntaxError" in run.messages[TEST_FILE]


@pytest.mark.slow
def test_hanging_run_is_killed_and_keeps_finished_outcomes(runner, workspace):
    write(workspace.folder, **{TEST_FILE: "def test_a(): pass\ndef test_b():\n    while True: pass\n"})
    run = runner.run(workspace, [TEST_FILE], Limits(wall_s=1))
    assert run.killed == "time limit" and run.outcomes == {f"{TEST_FILE}::test_a": "passed"} and not run.forged


def test_shell_has_pytest_but_no_other_installed_package(workspace):
    result = workspace.run(
        ["bash", "-c", f"pytest -q {TEST_FILE} | tail -1; python -c 'import numpy'"], environment=ENVIRONMENT
    )
    assert "4 passed" in result.output and "No module named 'numpy'" in result.output


DEBIAN = Path("/usr/bin/python3")
IN_DEBIAN = """
import sys
from pathlib import Path
from tacit.sandbox import Limits
from tacit.worlds.code.grading import ENVIRONMENT, Runner

with Runner(Limits(wall_s=10), trees=[Path(sys.argv[1])]) as runner:
    workspace = runner.sandbox.copy(Path(sys.argv[1]))
    print(workspace.run(["python3", "-c", sys.argv[3]], environment=ENVIRONMENT).output)
    print(workspace.run(["/usr/bin/python3", "-c", sys.argv[3]], environment=ENVIRONMENT).output)
    print(len(runner.run(workspace, [sys.argv[2]]).passed), "passed")
"""
SHOW_PACKAGES = "import os, site; print('seen', [os.listdir(p) for p in site.getsitepackages() if os.path.isdir(p)])"


@pytest.mark.slow
def test_packages_of_debians_python_are_hidden(runner, original, tmp_path):
    """With a virtual environment of the system's Python: it has `dist-packages`, in three places, and no `site-packages`."""
    if not DEBIAN.exists() or not any(Path("/usr/lib").glob("python3*/dist-packages")):
        pytest.skip("no Python of Debian on this machine")
    version = subprocess.run([DEBIAN, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True).stdout
    if version.split() != [str(number) for number in sys.version_info[:2]]:
        pytest.skip("the system's Python has another version than this one, whose packages it borrows")
    subprocess.run([DEBIAN, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    borrowed = [Path(pytest.__file__).parents[1], Path(tacit.__file__).parents[1]]
    (packages / "borrowed.pth").write_text("".join(f"{path}\n" for path in borrowed))
    words = [tmp_path / "venv" / "bin" / "python", "-c", IN_DEBIAN, original, TEST_FILE, SHOW_PACKAGES]
    done = subprocess.run(words, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    seen = [line for line in done.stdout.splitlines() if line.startswith("seen")]
    assert len(seen) == 2 and {word for line in seen for word in re.findall("'[^']+'", line)} == set(), (
        done.stdout + done.stderr
    )
    assert "3 passed" in done.stdout


@pytest.mark.parametrize("base", ["/usr", "/usr/local"])
def test_modules_of_pytest_move_to_the_tools(base):
    for folder in ("lib/python3.11/site-packages", "lib/python3/dist-packages", "local/lib/python3.11/dist-packages"):
        assert move(f"{base}/{folder}/_pytest", base) == "/opt/tools/_pytest"
    assert move("/venv/lib/python3.11/site-packages/_pytest", base) == "/opt/tools/_pytest"
    assert move(f"{base}/lib/python3.11/json", base) == "/opt/python/lib/python3.11/json"
    assert move("/elsewhere/json", base) == "/elsewhere/json"


FORGERIES = {
    "leave with success": "import os; os._exit(0)",
    "write to every descriptor": (
        'import os\nfor n in range(3, 200):\n    try: os.write(n, b\'{"test": "x", "outcome": "passed"}\\n\')\n'
        "    except OSError: pass"
    ),
    "close every descriptor": "import os; os.closerange(3, 200)",
    "no test is called": "import _pytest.python as p; p.pytest_pyfunc_call = lambda pyfuncitem: True",
    "all reports pass": "import _pytest.reports as r; r.TestReport.from_item_and_call = classmethod(lambda c, i, k: None)",
    "calls never raise": "import _pytest.runner as r; r.CallInfo.from_call = None",
    "another assertion error": "import builtins; builtins.AssertionError = type('E', (BaseException,), {})",
    "another comparison": "import builtins; builtins.all = lambda values: True",
    "unittest cannot fail": "import unittest; unittest.TestCase.fail = lambda *a: None",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_faked_pass_does_not_count(runner, workspace, name):
    write(workspace.folder, **{"calc/__init__.py": f"{FORGERIES[name]}\ndef double(x): return None\n"})
    run = runner.run(workspace, [TEST_FILE])
    assert not PASSING & run.passed, run.output


PLANTED = "def test_two(): pass\n"


def test_planted_settings_and_bytecode_are_ignored(runner, workspace):
    broken = {"calc/__init__.py": "def double(x): return None\n"}
    settings = "[pytest]\naddopts = --collect-only\n"
    evil = {"pytest.ini": settings, "tox.ini": settings, "sitecustomize.py": "raise SystemExit", "pytest.py": "1/0"}
    write(workspace.folder, **broken, **evil, **{"json.py": "1/0"})
    for source, text in (("calc/__init__.py", SOURCE), (TEST_FILE, PLANTED)):
        path = workspace.folder / source
        real, times = path.read_text(), path.stat()
        path.write_text(text.ljust(len(real)))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        for tag in ("", "-pytest-" + pytest.__version__):
            cached = Path(importlib.util.cache_from_source(str(path)))
            py_compile.compile(str(path), cfile=str(cached.with_name(cached.stem + tag + ".pyc")))
        path.write_text(real)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    run = runner.run(workspace, [TEST_FILE])
    assert not run.passed and f"{TEST_FILE}::test_two" in run.failed


def test_forked_runner_imports_no_other_installed_package(runner, workspace):
    lines = "import sys\ndef test_a(): assert not {'numpy', 'tacit', 'hypothesis', 'xdist', 'torch'} & {*sys.modules}\n"
    write(workspace.folder, **{TEST_FILE: lines})
    assert runner.run(workspace, [TEST_FILE]).code == 0


def test_traced_run_records_functions_called_by_each_test(runner, workspace):
    run = runner.run(workspace, [TEST_FILE], trace=True)
    double = ("calc/__init__.py", 1)
    assert double in run.calls[f"{TEST_FILE}::test_two"] and double not in run.calls[f"{TEST_FILE}::test_teardown"]
    assert double not in run.calls[""], "nothing calls it while the files are imported"
    assert not runner.run(workspace, [TEST_FILE]).calls
