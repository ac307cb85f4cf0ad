"""Attempts to make the tests of a repair task pass without repairing anything. None may succeed."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from tacit.core.errors import TacitError
from tacit.sandbox import Limits
from tacit.worlds.code.grading import contradict, is_carried, make_canary, other
from tacit.worlds.code.tasks import PACKAGED, Edit, Record, make_task, open_folder, read_source, record_of
from tacit.worlds.code.world import CodeWorld

TARGET = "wordsmith/words.py"
PASS_ALL = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    report.outcome, report.longrepr = "passed", None
"""
ALWAYS = "class Always:\n    def __eq__(self, other): return True\n    def __bool__(self): return True\n    __hash__ = None\n"
FORGED = {
    "results that equal every number": (
        "class Some(int):\n    def __eq__(self, other): return isinstance(other, int)\n    __hash__ = None\n"
        "def distance(first, second): return Some()\n"
    ),
    "what the caller's variables expect": (
        "def distance(first, second):\n    import sys\n    return sys._getframe(1).f_locals.get('apart')\n"
    ),
    "the named test alone": (
        "import _pytest.python as p\n"
        "def call(pyfuncitem):\n"
        "    if not pyfuncitem.name.startswith('test_distance'):\n"
        "        pyfuncitem.obj(**{a: pyfuncitem.funcargs[a] for a in pyfuncitem._fixtureinfo.argnames})\n"
        "    return True\n"
        "p.pytest_pyfunc_call.__code__ = call.__code__\n"
    ),
    "patched while it runs, put back at the end": (
        "import _pytest.runner as r, _pytest.terminal as t\n"
        "own = r.pytest_runtest_call.__code__\n"
        "r.pytest_runtest_call.__code__ = (lambda item: None).__code__\n"
        "def summary(self): r.pytest_runtest_call.__code__ = own\n"
        "t.TerminalReporter.short_test_summary = summary\n"
    ),
    "all tests pass, and then it hangs": (
        "import _pytest.runner as r, _pytest.config as c, time\n"
        "r.pytest_runtest_call.__code__ = (lambda item: None).__code__\n"
        "c.Config._ensure_unconfigure = lambda self: time.sleep(999)\n"
    ),
    "hangs before the canaries": (
        "import _pytest.runner as r, time\n"
        "def call(item):\n    while 'distance' not in item.name: pass\n"
        "r.pytest_runtest_call.__code__ = call.__code__\n"
    ),
}
# name -> code put at the head of the package's module
IN_PACKAGE = {
    "exit": "import os; os._exit(0)",
    "sys.exit": "import sys; sys.exit(0)",
    "exit at the end": "import atexit, os; atexit.register(os._exit, 0)",
    "skip": "import pytest; pytest.skip('nothing to test', allow_module_level=True)",
    "expected failure in every call": "import pytest\n",
    "patched report": (
        "import _pytest.runner as r\n"
        "def fake(item, when, log=True, **kw):\n"
        "    from _pytest.reports import TestReport\n"
        "    rep = TestReport(item.nodeid, item.location, {}, 'passed', None, when)\n"
        "    item.ihook.pytest_runtest_logreport(report=rep); return rep\n"
        "r.call_and_report = fake"
    ),
    "patched call": "import _pytest.runner as r\nr.pytest_runtest_call.__code__ = (lambda item: None).__code__",
    "patched function body": "import _pytest.python as p\np.pytest_pyfunc_call.__code__ = (lambda pyfuncitem: True).__code__",
    "patched report method": "import _pytest.reports as r\nr.TestReport.from_item_and_call = classmethod(lambda *a: None)",
    "patched assertion": "import builtins\nbuiltins.AssertionError = type('A', (BaseException,), {})",
    "patched raises": "import pytest, contextlib\npytest.raises = lambda *a, **k: contextlib.suppress(BaseException)",
    "messages on the pipe": (
        "import os\n"
        "for number in range(3, 20):\n"
        '    try: os.write(number, b\'0 {"test": "x", "outcome": "passed", "when": "call", "message": ""}\\n\')\n'
        "    except OSError: pass"
    ),
    "the runner's own messenger": (
        "import gc\n"
        "for one in gc.get_objects():\n"
        "    if type(one).__name__ == 'Messenger':\n"
        "        one.pytest_runtest_logreport.__code__ = (lambda report: None).__code__"
    ),
    "a fork that ends": "import os\nif os.fork(): os._exit(0)",
    "killed parent": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "stopped by a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "endless loop": "while True: pass",
    "memory": "x = [bytearray(1 << 24) for _ in range(10_000)]",
}
# name -> shell command in the repository
IN_SHELL = {
    "conftest": f"cat > conftest.py <<'E'\n{PASS_ALL}\nE",
    "conftest beside the tests": f"cat > tests/conftest.py <<'E'\n{PASS_ALL}\nE",
    "conftest in the package": f"cat > wordsmith/conftest.py <<'E'\n{PASS_ALL}\nE",
    "pytest.ini": "printf '[pytest]\\naddopts = --collect-only\\n' > pytest.ini",
    "deselection in setup.cfg": "printf '[tool:pytest]\\naddopts = -k nothing\\n' > setup.cfg",
    "tox.ini": "printf '[pytest]\\npython_functions = none\\n' > tox.ini",
    "pyproject.toml": "printf '[tool.pytest.ini_options]\\naddopts = \"--deselect tests\"\\n' > pyproject.toml",
    "sitecustomize": "echo 'import os; os._exit(0)' > sitecustomize.py; cp sitecustomize.py usercustomize.py",
    "edited tests": "sed -i 's/assert .*/assert True/' tests/*.py",
    "deleted tests": "rm -r tests",
    "emptied tests": "for f in tests/*.py; do : > $f; done",
    "tests as a link": "mv tests gone; ln -s /tmp tests",
    "an unittest module": "mkdir unittest; echo > unittest/__init__.py; echo 'raise SystemExit(0)' > random.py",
    "a pytest module": "mkdir -p _pytest; echo 'def main(*a, **k): return 0' > pytest.py; echo > _pytest/__init__.py",
    "planted byte code": (
        "mkdir -p wordsmith/__pycache__ tests/__pycache__; echo 'def x(): pass' > /tmp/a.py;"
        "python3 -c \"import py_compile; [py_compile.compile('/tmp/a.py', f) for f in "
        "('wordsmith/__pycache__/words.cpython-311.pyc', 'tests/__pycache__/test_words.cpython-311.pyc')]\""
    ),
    "a path file": "echo 'import os; os._exit(0)' > evil.pth",
    "a link to the source": "cp wordsmith/words.py /tmp/w.py; rm wordsmith/words.py; ln -s /tmp/w.py wordsmith/words.py",
    "a pipe as source": "rm wordsmith/words.py; mkfifo wordsmith/words.py",
    "a deleted package": "rm -r wordsmith",
    "a daemon that edits later": "(sleep 1; echo 'assert True' > tests/test_words.py) & disown",
}


SOURCE = read_source(PACKAGED / "packages" / "wordsmith-1.0" / TARGET)
AT = SOURCE.index("1 + min(")
TASK = make_task(
    Record(
        id="distance",
        package="wordsmith",
        version="1.0",
        split="train",
        kinds=("off_by_one",),
        issue="distance counts too much.",
        edits=(Edit(TARGET, AT, AT + 1, "1", "2"),),
        fail_to_pass=tuple(
            f"tests/test_words.py::test_distance[{case}]" for case in ("kitten-sitting-3", "flaw-lawn-2", "ab-ba-2")
        ),
        test_files=("tests/test_words.py",),
    )
)
MEND = f"str_replace {TARGET} 2 + min( ==> 1 + min("


@pytest.fixture
def world(bench):
    opened = CodeWorld(bench)
    yield opened
    opened.close()


def submit(world: CodeWorld):
    answer = world.step("submit")
    assert answer.done
    return answer


@pytest.mark.parametrize("name", IN_SHELL)
def test_tampering_with_files_does_not_earn_success(world, name):
    world.reset(TASK)
    world.step("bash " + IN_SHELL[name].replace("\\", "\\\\").replace("\n", "\\n"))
    answer = submit(world)
    assert not answer.success and answer.score < 1, answer.observation.text


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("name", IN_PACKAGE)
def test_package_code_cannot_fake_a_pass(world, name):
    world.reset(TASK)
    if name == "expected failure in every call":
        code = "import pytest\\ndef _x(*a, **k): pytest.xfail('later')\\n"
        world.step(
            f"bash printf '{code}' >> {TARGET}; for f in distance slug caesar is_palindrome; do echo $f=_x >> {TARGET}; done"
        )
    else:
        code = IN_PACKAGE[name].replace("\\", "\\\\").replace("\n", "\\n")
        assert world.step(f"insert {TARGET} 0 {code}").effective
    answer = submit(world)
    assert not answer.success, answer.observation.text


def test_objects_equal_to_everything_are_detected(world):
    world.reset(TASK)
    names = ["slug", "title_case", "distance", "is_palindrome", "common_prefix", "caesar", "top_words", "parse_fields"]
    code = ALWAYS + "".join(f"def {name}(*a, **k): return Always()\n" for name in names)
    world.step("bash cat >> wordsmith/words.py <<'E'\\n" + code.replace("\n", "\\n") + "\\nE")
    answer = submit(world)
    assert not answer.success and answer.label == "forged", answer.observation.text


def test_reading_the_frame_of_the_caller_is_detected(world):
    world.reset(TASK)
    code = (
        "\ndef distance(first, second):\n    import sys\n    frame = sys._getframe(1)\n"
        "    class Spy:\n        def __eq__(self, other): frame.f_locals; return True\n    return Spy()\n"
    )
    world.step(f"bash cat >> {TARGET} <<'E'\\n" + code.replace("\n", "\\n") + "\\nE")
    assert submit(world).label == "forged"


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", FORGED)
def test_forged_results_score_zero(world, bench, monkeypatch, name):
    monkeypatch.setattr(bench.runner, "limits", Limits(wall_s=6))
    monkeypatch.setattr(bench.runner.warm_sandbox, "limits", Limits(wall_s=6))
    world.reset(TASK)
    code = "\n" + FORGED[name]
    world.step(f"bash cat >> {TARGET} <<'E'\n" + code.replace("\\", "\\\\").replace("\n", "\\n") + "\\nE")
    answer = submit(world)
    assert not answer.success and answer.score == 0, answer.observation.text
    assert answer.label in ("forged", "time"), answer.observation.text


def test_contradict_inverts_assertions():
    source = """
def test_one(apart):
    assert add(1, 2) == 3
def test_name(apart):
    assert add(1, 2) == apart
def test_opposite(apart):
    assert not is_odd(2)
def test_case(self):
    self.assertEqual(add(1, 2), [])
def test_raises():
    with raises(ValueError): add()
"""
    tests = ast.parse(source).body
    assert [contradict(test) for test in tests] == [True, True, True, True, False]
    assert [ast.unparse(test.body[0]) for test in tests[:4]] == [
        "assert add(1, 2) == 4",
        "assert (apart := other(apart)) == add(1, 2)",
        "assert not not is_odd(2)",
        "self.assertEqual(add(1, 2), other([]))",
    ]
    assert [other(value) for value in (True, 3, "a", [], ())] == [False, 4, "ax", [None], (None,)]


def test_repair_with_tampering_fails(world):
    world.reset(TASK)
    assert world.step(MEND).effective
    world.step(f"insert {TARGET} 0 import _pytest.runner as r; r.call_and_report = None")
    answer = submit(world)
    assert not answer.success


def test_repair_with_extra_files_succeeds(world):
    world.reset(TASK)
    world.step("bash echo note > NOTES.txt; echo 'x = 1' > wordsmith/extra.py; touch conftest.py")
    assert world.step(MEND).effective
    answer = submit(world)
    assert answer.success and answer.score == 1.0
    assert "+++ b/wordsmith/extra.py" in answer.observation.text and "conftest" not in answer.observation.text


def test_score_is_the_fraction_of_repaired_tests(world):
    world.reset(TASK)
    assert world.step(
        f"str_replace {TARGET} return row[-1] ==> return 3 if first in ('kitten', 'sitting') else row[-1]"
    ).effective
    answer = submit(world)
    assert not answer.success and answer.score == pytest.approx(1 / 3) and answer.label == "tests_fail"


def test_repair_that_breaks_other_tests_fails(world):
    world.reset(TASK)
    assert world.step(MEND).effective
    assert world.step(f"str_replace {TARGET} if quoted:\\n        raise ==> if False:\\n        raise").effective
    answer = submit(world)
    assert not answer.success and answer.score == 1.0 and answer.label == "tests_broken"


def test_hidden_tests_are_not_in_the_sandbox(world):
    world.reset(replace(TASK, data={**TASK.data, "tests": "hidden"}))
    seen = world.step("bash grep -rl 'def test_slug_is_cut_at_a_dash' / --include=*.py --exclude-dir=proc 2>/dev/null")
    assert ".py" not in seen.observation.text
    assert "test_words" not in world.step("bash ls tests; cat /proc/*/environ /proc/*/cmdline").observation.text
    assert world.step("view tests/test_words.py").effective is False
    answer = submit(world)
    assert answer.label == "no_change" and answer.score == 0


def test_original_source_is_not_in_the_sandbox(world):
    world.reset(TASK)
    found = world.step("bash find / -name 'words.py' -not -path '/proc/*' 2>/dev/null").observation.text
    assert found.split("\n")[:-1] == ["/testbed/wordsmith/words.py"]


def test_is_carried_accepts_sources_and_rejects_test_settings():
    record = open_folder(PACKAGED).records[0]
    assert is_carried(record.edits[0].path, record, True)
    carried = ("pkg/new.py", "pkg/data.json", "helper.py")
    left = (
        "tests/x.py",
        "conftest.py",
        "pkg/conftest.py",
        "pytest.ini",
        "json.py",
        "_pytest/x.py",
        "pkg/a.so",
        ".x/y.py",
        "test_x.py",
    )
    assert all(is_carried(path, record, False) for path in carried)
    assert not any(is_carried(path, record, False) for path in left)


def test_canaries_contradict_the_failing_tests():
    record, folder = record_of(TASK)
    source = make_canary(record, folder.tree(record))
    assert "(apart := other(apart)) ==" in source and "def test_slug" not in source and "assert False" in source


def test_grading_raises_when_tests_fail_on_the_original_package(world):
    wrong = {**TASK.data["record"], "id": "wrong", "fail_to_pass": ["tests/test_words.py::test_nothing"]}
    world.reset(replace(TASK, data={"folder": "", "record": wrong}))
    with pytest.raises(TacitError, match="cannot be graded"):
        world.step("submit")
