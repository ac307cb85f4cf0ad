"""SWE-bench instances in containers, with fake container runtimes, and rejection of damaged instance lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.sandbox import Limits
from tacit.worlds import get_environment
from tacit.worlds.code.swebench import (
    ContainerBench,
    ContainerWorld,
    Instance,
    find_runtime,
    grading_command,
    read_instance,
    read_instances,
    read_outcomes,
    run_container,
)

RUNTIME = """#!{python}
import os, subprocess, sys
words, binds = sys.argv[1:], {{}}
log = open({log!r}, "a")
print(sys.argv[0].rpartition("/")[2], *words, file=log, flush=True)
if words[0] == "kill":
    sys.exit(0)
assert words[words.index("--network") + 1] == "none"
for flag in ("--volume", "--bind"):
    for at, word in enumerate(words):
        if word == flag:
            outside, inside = words[at + 1].split(":")
            binds[inside] = outside
image = words[words.index("bash") - 1].removeprefix("docker://")
if not os.path.isdir({images!r} + "/" + image):
    print("no such image")
    sys.exit(125)
binds.setdefault("/testbed", {images!r} + "/" + image)
script = words[-1]
for inside, outside in binds.items():
    script = script.replace(inside, outside)
sys.exit(subprocess.run(["bash", "-c", script], cwd=binds["/testbed"]).returncode)
"""
BROKEN, RIGHT = "def double(x):\n    return x * 3\n", "def double(x):\n    return x * 2\n"
TESTS = "from calc import double\n\ndef test_zero():\n    assert double(0) == 0\n"
FIX = "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def double(x):\n-    return x * 3\n+    return x * 2\n"
TEST_PATCH = (
    "--- a/tests/test_calc.py\n+++ b/tests/test_calc.py\n@@ -3,2 +3,5 @@\n def test_zero():\n     assert double(0) == 0\n"
    "+\n+def test_two():\n+    assert double(2) == 4\n"
)
ROW = {
    "instance_id": "acme__calc-1",
    "repo": "acme/calc",
    "problem_statement": "double(2) is 6",
    "patch": FIX,
    "test_patch": TEST_PATCH,
    "FAIL_TO_PASS": json.dumps(["tests/test_calc.py::test_two"]),
    "PASS_TO_PASS": json.dumps(["tests/test_calc.py::test_zero"]),
}
SMITH = {
    **{name: ROW[name] for name in ("instance_id", "repo", "problem_statement", "PASS_TO_PASS")},
    "patch": FIX.replace("-    return x * 3\n+    return x * 2", "-    return x * 2\n+    return x * 3"),
    "FAIL_TO_PASS": ["tests/test_calc.py::test_two"],
    "image_name": "smith/calc",
}


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """Fake container runtimes that run commands in a directory."""
    for image, code, tests in (
        ("swebench/sweb.eval.x86_64.acme_1776_calc-1:latest", BROKEN, TESTS),
        ("smith/calc", RIGHT, TESTS + "\ndef test_two():\n    assert double(2) == 4\n"),
    ):
        folder = tmp_path / "images" / image
        (folder / "tests").mkdir(parents=True)
        (folder / ".git").mkdir()
        (folder / "calc.py").write_text(code)
        (folder / "conftest.py").write_text("")
        (folder / "tests/test_calc.py").write_text(tests)
    bin = tmp_path / "bin"
    bin.mkdir()
    text = RUNTIME.format(python=sys.executable, log=str(tmp_path / "log"), images=str(tmp_path / "images"))
    for name in ("docker", "podman", "apptainer"):
        (bin / name).write_text(text)
        (bin / name).chmod(0o755)
    (bin / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{bin}:{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return tmp_path


def write_rows(folder: Path, *rows: object) -> Path:
    path = folder / "instances.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def only_task(path: Path, runtime: str = "") -> Task:
    world = get_environment(f"code+folder={path}" + (f"+runtime={runtime}" if runtime else ""))
    [task] = [task for split in ("train", "test") for task in world.tasks(split, 5, 0)]
    return task


@pytest.mark.slow
@pytest.mark.parametrize(("name", "row"), [("docker", ROW), ("podman", ROW), ("apptainer", ROW), ("docker", SMITH)])
def test_container_episode_succeeds_only_with_the_fix(runtime, name, row):
    bench = ContainerBench(name)
    world = ContainerWorld(bench)  # type: ignore[arg-type]
    try:
        for fix, success in ((False, False), (True, True)):
            first = world.reset(only_task(write_rows(runtime, row), name))
            assert "calc.py" in first.text and ".git" not in first.text
            assert "x * 3" in world.step("view calc.py").observation.text
            assert "x * 3" in world.step("bash cat calc.py").observation.text
            assert "[exit status 1]" in world.step("bash false").observation.text
            if fix:
                world.step("str_replace calc.py x * 3 ==> x * 2")
                assert "x * 2" in world.step("bash grep return calc.py").observation.text, "editor and shell see the same files"
            world.step("create tests/test_calc.py def test_two(): pass")
            ended = world.step("submit")
            assert ended.done and ended.success is success and ended.score == float(success)
            assert "PASS_TO_PASS: 1 of 1 pass." in ended.observation.text, "tests are restored"
    finally:
        bench.close()
    log = (runtime / "log").read_text()
    assert name in log and log.count("/tacit-out") == 2, "an image is copied out once"


@pytest.mark.slow
def test_container_is_killed_at_time_and_output_limits(runtime):
    binds = {"/testbed": runtime}
    image = "smith/calc"
    slow = run_container("docker", image, binds, "sleep 60", Limits(wall_s=1))
    assert slow.killed == "time limit" and slow.seconds < 20 and "docker kill tacit-" in (runtime / "log").read_text()
    flood = run_container("docker", image, binds, "yes", Limits(wall_s=20, output_kb=4))
    assert flood.killed and len(flood.output) == 4096


def test_damaged_instance_lines_are_reported_and_skipped(runtime):
    twice = {**ROW, "problem_statement": "again"}
    bad = {**ROW, "instance_id": "x", "FAIL_TO_PASS": "not json"}
    option = {**ROW, "instance_id": "z", "image_name": "--volume=/:/host"}
    others = {**ROW, "instance_id": "y", "patch": "none"}, [1], option
    path = write_rows(runtime, ROW, "{half", {"repo": "a"}, twice, bad, *others)
    instances, failures = read_instances(path)
    assert [each.id for each in instances] == ["acme__calc-1"] and len(failures) == 7
    text = "\n".join(failures)
    for reason in (
        "line 2:",
        "has no instance_id",
        "occurs twice",
        "FAIL_TO_PASS of 'x' is not a list",
        "not a unified diff",
        "invalid image name '--v",
    ):
        assert reason in text
    with pytest.raises(TacitError, match="no usable instances"):
        read_instances(write_rows(runtime / "bin", "{}"))
    with pytest.raises(TacitError, match="cannot read"):
        read_instances(runtime / "nothing.jsonl")


def test_missing_runtime_or_image_is_an_error(runtime, monkeypatch):
    bench = ContainerBench("podman")
    with pytest.raises(TacitError, match=r"podman cannot open image nobody/nothing: no such image"):
        bench.tree("nobody/nothing")
    bench.close()
    with pytest.raises(TacitError, match="container runtime"):
        find_runtime("lxc")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TacitError, match="docker, podman or apptainer is not installed"):
        find_runtime()
    with pytest.raises(TacitError, match="podman is not installed"):
        find_runtime("podman")


def test_instance_image_and_grading_command():
    assert read_instance(ROW).image == "swebench/sweb.eval.x86_64.acme_1776_calc-1:latest"
    assert read_instance({**ROW, "dataset": "SWE-Gym/SWE-Gym"}).image == "xingyaoww/sweb.eval.x86_64.acme_s_calc-1"
    assert read_instance(SMITH).image == "smith/calc" and read_instance(SMITH).breaks
    assert grading_command(read_instance(ROW)).endswith("-p no:cacheprovider tests/test_calc.py")
    django = read_instance({**ROW, "repo": "django/django", "test_patch": TEST_PATCH.replace("test_calc", "forms/test_a")})
    assert grading_command(django).endswith("--parallel 1 forms.test_a")
    assert isinstance(django, Instance) and grading_command(read_instance({**ROW, "repo": "sympy/sympy"})).startswith(
        "bin/test"
    )


def test_read_outcomes_parses_test_logs():
    head = "PASSED tests/a.py::fake\n== short test summary info ==\n"
    pytest_log = f"{head}PASSED tests/a.py::t[x y]\nFAILED tests/a.py::u - assert 0\n"
    assert read_outcomes(pytest_log) == {"tests/a.py::t[x y]": "PASSED", "tests/a.py::u": "FAILED"}
    django_log = "test_a (forms.Test) ... ok\ntest_b (forms.Test)\nDoc. ... ok\ntest_c (forms.Test) ... FAIL\n"
    assert read_outcomes(django_log) == {"test_a (forms.Test)": "ok", "test_c (forms.Test)": "FAIL"}
    assert read_outcomes("test_add ok\ntest_mul F\n") == {"test_add": "ok", "test_mul": "F"}
