"""SWE-bench instances in containers of podman and docker, where they run, and damaged instance lines."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.rollout.worlds import InProcessPool
from tacit.sandbox import Limits
from tacit.sandbox.server import remove_tree
from tacit.training.settings import TrainSettings
from tacit.training.setup import make_worlds
from tacit.worlds import get_environment
from tacit.worlds.code.grading import apply_changes, find_changes, find_tools, show_diff
from tacit.worlds.code.swebench import (
    RUNTIMES,
    ContainerBench,
    Instance,
    Runtime,
    apply_patch,
    find_runtime,
    grading_command,
    instance_of,
    mending_actions,
    read_instance,
    read_instances,
    read_outcomes,
)
from tacit.worlds.code.tasks import Record
from tacit.worlds.code.world import CodeWorld

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
SQUARE = "def square(x):\n    return x * x\n"
SMITH = {
    "instance_id": "acme__calc.1",
    "repo": "acme/calc",
    "problem_statement": "square(3) is 6",
    "patch": "--- a/area.py\n+++ b/area.py\n@@ -1,2 +1,2 @@\n def square(x):\n-    return x * x\n+    return x + x\n",
    "FAIL_TO_PASS": ["tests/test_area.py::test_three", "tests/test_area.py::test_four"],
    "PASS_TO_PASS": ["tests/test_area.py::test_two"],
}
AREA = "from area import square\n" + "".join(
    f"\ndef test_{name}():\n    assert square({n}) == {n * n}\n" for n, name in ((2, "two"), (3, "three"), (4, "four"))
)
REPOSITORY = {"calc.py": BROKEN, "area.py": SQUARE, "conftest.py": "", "tests/test_calc.py": TESTS, "tests/test_area.py": AREA}
PROGRAMS = ("bash", "cat", "cp", "grep", "id", "ls", "mkdir", "rm", "sleep", "timeout", "touch", "yes")
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3"}


def write_image(path: Path) -> None:
    """A root file system from this machine: the Python that runs the tests, pytest, a shell, and the repository."""
    library = Path(sysconfig.get_path("stdlib"))
    python = Path(sys.executable).resolve()
    sources = {str(library / name): Path(library / name) for name in os.listdir(library) if name not in LEFT_OUT}
    sources |= {f"{library}/site-packages/{Path(inside).name}": outside for inside, outside in find_tools().items()}
    sources |= {f"/bin/{name}": Path(found) for name in PROGRAMS if (found := shutil.which(name))}
    sources[str(python)] = python
    binaries = [str(python), *(str(outside) for inside, outside in sources.items() if inside.startswith("/bin/"))]
    libraries = subprocess.run(["ldd", *binaries, *map(str, library.glob("lib-dynload/*.so"))], capture_output=True, text=True)
    sources |= {found: Path(found) for found in re.findall(r"(/\S+\.so\S*) \(", libraries.stdout)}
    with tarfile.open(path, "w") as tar:
        for inside, outside in sources.items():
            if outside.is_dir():
                tar.add(outside, inside, filter=lambda info: None if LEFT_OUT & {*Path(info.name).parts[-1:]} else info)
            else:
                tar.add(outside.resolve(), inside)
        for name, target in (("bin/python", str(python)), ("testbed/link", "/testbed/calc.py")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        texts = {f"testbed/{name}": text for name, text in REPOSITORY.items()}
        for name, text in {
            **texts,
            "testbed/.git/HEAD": "",
            "tmp/.keep": "",
            "etc/passwd": "root:x:0:0::/:/bin/bash\n",
        }.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))


def make_images(program: str, folder: Path) -> str:
    """Import the image and an empty one, named after this process. What went wrong, or empty."""
    (folder / "tree/testbed").mkdir(parents=True)
    with tarfile.open(folder / "empty.tar", "w") as tar:
        tar.add(folder / "tree", ".")
    write_image(folder / "image.tar")
    for name in ("image", "empty"):
        words = [program, "import", "--change", "ENV PATH=/bin", str(folder / f"{name}.tar"), f"{IMAGE}:{name}"]
        build = subprocess.run(words, capture_output=True, text=True)
        if build.returncode:
            return build.stderr[-200:]
    return ""


def try_container(program: str) -> str:
    words = [program, "run", "--rm", "--network", "none", "--memory", "512m", "--pids-limit", "64", f"{IMAGE}:image"]
    tried = subprocess.run([*words, "python", "-V"], capture_output=True, text=True)
    return tried.stderr[-200:] if tried.returncode else ""


IMAGE = f"localhost/tacit-test-{os.getpid()}"
RUNC = '[containers]\ndefault_ulimits=["nofile=1000:1000","nproc=1000:1000"]\n[engine]\nruntime="runc"\n'


@pytest.fixture(scope="module", params=["podman", "docker"])
def program(request, tmp_path_factory):
    """A container runtime that works here, with the images."""
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    if not shutil.which(name) or subprocess.run([name, "version"], capture_output=True).returncode:
        pytest.skip(f"{name} is not installed or does not run")
    with pytest.MonkeyPatch.context() as patch:
        problem = make_images(name, folder) or try_container(name)
        if problem and name == "podman":  # crun refuses hybrid control groups
            (folder / "containers.conf").write_text(RUNC)
            patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
            problem = try_container(name)
        if not problem:
            yield name
        subprocess.run([name, "rmi", "-f", f"{IMAGE}:image", f"{IMAGE}:empty"], capture_output=True)
    if problem:
        pytest.skip(f"{name} cannot run a container: {problem}")


@pytest.fixture(scope="module")
def bench(program):
    bench = ContainerBench(program)
    yield bench
    bench.close()
    assert not bench.folder.exists()
    assert not containers(bench)


@pytest.fixture
def workspace(bench):
    workspace = bench.open_instance(read_instance(with_image(ROW)))
    yield workspace
    workspace.close()


def containers(bench: ContainerBench) -> str:
    words = [bench.runtime.program, "ps", "-aq", "--filter", f"label=tacit={bench.runtime.owner}"]
    return subprocess.run(words, capture_output=True, text=True).stdout


def with_image(row: Mapping[str, object], name: str = "image") -> dict[str, object]:
    return {**row, "image_name": f"{IMAGE}:{name}"}


def write_rows(folder: Path, *rows: object) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "instances.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def only_task(path: Path, runtime: str = "") -> Task:
    world = get_environment(f"code+folder={path}" + (f"+runtime={runtime}" if runtime else ""))
    [task] = [task for split in ("train", "test") for task in world.tasks(split, 5, 0)]
    return task


FIXES = {
    "none": ([], 0.0),
    "half": (["str_replace area.py return x + x ==> return 9"], 0.5),
    "all": (["str_replace area.py x + x ==> x * x"], 1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("fix", FIXES)
def test_smith_instance_scores_the_share_of_its_tests(bench, tmp_path, fix):
    actions, score = FIXES[fix]
    world = CodeWorld(bench)
    first = world.reset(only_task(write_rows(tmp_path, with_image(SMITH))))
    assert "area.py" in first.text and ".git" not in first.text
    for action in actions:
        assert world.step(action).effective
    ended = world.step("submit")
    assert ended.done and ended.score == score and ended.success is (score == 1)
    assert f"PASS_TO_PASS: {0 if fix == 'half' else 1} of 1 pass." in ended.observation.text
    world.close()


@pytest.mark.slow
def test_bench_instance_is_graded_with_its_own_tests(bench, tmp_path):
    world = CodeWorld(bench)
    world.reset(only_task(write_rows(tmp_path, with_image(ROW))))
    assert "x * 3" in world.step("bash cat calc.py link").observation.text
    assert "[exit status 1]" in world.step("bash false").observation.text
    assert world.step("view link").observation.text.endswith("it is a symbolic link.")
    world.step("str_replace calc.py x * 3 ==> x * 2")
    assert "x * 2" in world.step("bash grep return calc.py").observation.text, "editor and shell see the same files"
    world.step("bash echo 'def test_two(): pass' > tests/test_calc.py; mkdir locked; touch locked/a; chmod 500 locked")
    assert "1 passed" in world.step("bash pytest tests/test_calc.py").observation.text
    ended = world.step("submit")
    assert ended.success and "PASS_TO_PASS: 1 of 1 pass." in ended.observation.text, "tests are restored"
    world.close()


@pytest.mark.slow
@pytest.mark.parametrize("row", [ROW, SMITH], ids=["bench", "smith"])
def test_oracle_solves_an_instance_and_no_edit_does_not(program, tmp_path, row):
    world = get_environment(f"code+folder={write_rows(tmp_path, with_image(row))}+runtime={program}")
    task = only_task(tmp_path / "instances.jsonl", program)
    for name, success in (("none", False), ("oracle", True)):
        expert, playing = world.experts[name](task), world.make()
        seen = playing.reset(task)
        for _ in range(3):
            step = playing.step(expert.act(seen))
            seen = step.observation
            if step.done:
                break
        assert step.success is success
    world.make.close()


@pytest.mark.slow
def test_exit_status_of_a_command_is_its_own(workspace):
    for code in (0, 1, 124, 125, 126, 127, 137):
        assert workspace.run(["bash", "-c", f"exit {code}"]).code == code
    result = workspace.run(["bash", "-c", "echo a; echo b >&2; echo c; nosuch"])
    assert result.code == 127 and result.output.startswith("a\nb\nc\n")


@pytest.mark.slow
def test_runtime_failure_is_an_error_and_no_failed_test(bench):
    missing = read_instance({**ROW, "image_name": "localhost:1/nobody/nothing"})
    began = time.monotonic()
    with pytest.raises(TacitError, match=r"cannot pull localhost:1/nobody/nothing: .*refused") as found:
        bench.open_instance(missing)
    assert "\n" not in str(found.value) and time.monotonic() - began < 30
    with pytest.raises(TacitError, match=r"cannot run localhost/\S+:empty: .*timeout") as found:
        bench.open_instance(read_instance(with_image(ROW, "empty")))
    assert "\n" not in str(found.value)
    place = bench.open_instance(read_instance(with_image(ROW)))
    removed_image = replace(place, image=f"{IMAGE}:gone")
    with pytest.raises(TacitError, match="gone"):
        removed_image.run(["true"])
    place.close()


@pytest.mark.slow
def test_container_has_limits(workspace):
    def run(script: str, **limits: int):
        return workspace.run(["bash", "-c", script], limits=Limits(**{"wall_s": 30, "processes": 64, **limits}))

    slow = run("trap '' TERM INT; echo begun; sleep 60 & sleep 60", wall_s=2)
    assert slow.killed == "time limit" and slow.output == "begun\n" and slow.seconds < 20
    flood = run("yes", output_kb=4)
    assert flood.killed == "output limit" and len(flood.output) <= 4096
    assert run("python -c 'x = bytearray(1 << 30)'", memory_mb=128).code == 137
    assert not Path("oom").exists(), "podman's own file is in the folder of the bench"
    bomb = run(":(){ :|:& };: ; sleep 1; echo after", wall_s=20)
    assert bomb.killed or "Resource temporarily unavailable" in bomb.output
    assert not run("sleep 100 & disown; exec >&- 2>&-").killed


@pytest.mark.slow
def test_container_has_no_network_and_keeps_only_the_repository(workspace):
    def run(script: str):
        return workspace.run(["bash", "-c", script]).output

    assert "unreachable" in run("python -c 'import socket; socket.create_connection((\"1.1.1.1\", 80), 5)'")
    run("echo a > /tmp/a; echo a > /a; echo a > a; (sleep 1; touch late) & disown; kill -9 1")
    assert run("ls /tmp/a /a a late 2>/dev/null") == "a\n"


@pytest.mark.slow
def test_interrupted_step_leaves_no_container(bench, program, tmp_path):
    world = get_environment(f"code+folder={write_rows(tmp_path, with_image(ROW))}+runtime={program}")
    pool = InProcessPool(world.make, 5.0)
    pool.reset([only_task(tmp_path / "instances.jsonl", program)])
    [failure] = pool.step([(0, "bash sleep 100")])
    own = world.make.simulator
    assert "no answer within 5 s" in failure.detail and not containers(own or bench)
    pool.close()


@pytest.mark.slow
def test_killed_trainer_leaves_nothing(program, tmp_path):
    script = (
        "import sys\nfrom tacit.worlds.code.swebench import ContainerBench, read_instance\nimport json\n"
        "bench = ContainerBench(sys.argv[1])\nplace = bench.open_instance(read_instance(json.loads(sys.argv[2])))\n"
        "print(bench.folder, flush=True)\nplace.run(['bash', '-c', 'touch begun; sleep 100'])\n"
    )
    words = [sys.executable, "-c", script, program, json.dumps(with_image(ROW))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as trainer:
        folder = Path(trainer.stdout.readline().strip())
        wait_until(lambda: list(folder.glob("work-*/begun")))
        trainer.kill()
    wait_until(lambda: not folder.exists())
    found = subprocess.run([program, "ps", "-aq", "--filter", f"label=tacit={folder.name}"], capture_output=True, text=True)
    assert found.stdout == ""


def wait_until(happened) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_eight_episodes_at_a_time(bench, tmp_path):
    task = only_task(write_rows(tmp_path, with_image(SMITH)))

    def play(number: int) -> float:
        world = CodeWorld(bench)
        world.reset(task)
        assert world.step(f"bash echo {number} > mine; cat mine").observation.text == f"{number}\n[exit status 0]"
        if number % 2:
            world.step("str_replace area.py x + x ==> x * x")
        score = world.step("submit").score
        world.close()
        return score

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(play, range(8))) == [0, 1] * 4


def test_damaged_instance_lines_are_reported_and_skipped(tmp_path):
    twice = {**ROW, "problem_statement": "again"}
    bad = {**ROW, "instance_id": "x", "FAIL_TO_PASS": "not json"}
    option = {**ROW, "instance_id": "z", "image_name": "--volume=/:/host"}
    others = {**ROW, "instance_id": "y", "patch": "none"}, [1], option
    path = write_rows(tmp_path, ROW, "{half", {"repo": "a"}, twice, bad, *others)
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
        read_instances(write_rows(tmp_path / "x", "{}"))
    with pytest.raises(TacitError, match="cannot read"):
        read_instances(tmp_path / "nothing.jsonl")


REMOVAL = "--- {}\n+++ /dev/null\n@@ -1 +0,0 @@\n-secret\n"


@pytest.mark.parametrize("path", ["/etc/passwd", "a//etc/passwd", "../../secret", "a/../b"])
def test_patch_cannot_leave_the_repository(tmp_path, path):
    with pytest.raises(TacitError, match="outside of the repository"):
        read_instance({**ROW, "patch": REMOVAL.format(path)})
    with pytest.raises(TacitError, match="outside of the repository"):
        read_instance({**ROW, "test_patch": FIX.replace("b/calc.py", path)})


@pytest.mark.parametrize("image", ["--volume=/:/host", "dir:/etc", "docker-archive:/home/x.tar", "a b", "", "a\n"])
def test_instance_of_a_task_is_checked_too(image):
    with pytest.raises(TacitError, match="invalid image name"):
        instance_of(Task("code", "x", "patch", "test", 0, "", {"instance": {**vars(read_instance(ROW)), "image": image}}))
    for name in ("a/b", "localhost:5000/a/b:v1", f"ghcr.io/a_b/c.d@sha256:{'0' * 64}", "/images/a.sif"):
        assert read_instance({**ROW, "image_name": name}).image == name


@pytest.fixture
def linked(tmp_path) -> Path:
    """A repository, as an image may have it, with links to a file and a directory outside."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.py").write_text("secret\n")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "folder").symlink_to(tmp_path / "outside")
    (tmp_path / "tree" / "file.py").symlink_to(tmp_path / "outside" / "secret.py")
    return tmp_path


def test_patch_follows_no_links_of_an_image(linked):
    change = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-secret\n+changed\n"
    for text in (REMOVAL.format("folder/secret.py"), change.format("folder/secret.py"), change.format("file.py")):
        with pytest.raises(TacitError, match="does not apply"):
            apply_patch(linked / "tree", text)
    apply_patch(linked / "tree", REMOVAL.format("file.py"))
    assert not (linked / "tree" / "file.py").is_symlink()
    assert (linked / "outside" / "secret.py").read_text() == "secret\n"


def test_diff_and_grading_follow_no_links_of_an_image(linked):
    submitted = linked / "submitted"
    (submitted / "folder").mkdir(parents=True)
    (submitted / "folder" / "secret.py").write_text("mine\n")
    (submitted / "file.py").write_text("mine\n")
    (linked / "tree" / "package").mkdir()
    for place in (linked / "tree", submitted):
        (place / "real.py").write_text(f"{place.name}\n")
    (submitted / "package").write_text("a file in the place of a directory\n")
    record = Record("x", "x", "", "test", (), "", (), (), ())
    changes = find_changes(record, linked / "tree", submitted)
    assert set(changes) == {"folder/secret.py", "file.py", "package", "real.py"}
    diff = show_diff(record, linked / "tree", changes)
    assert "-secret" not in diff and "-tree\n+submitted" in diff
    apply_changes(linked / "tree", changes)
    assert (linked / "outside" / "secret.py").read_text() == "secret\n"


def test_removing_a_link_leaves_its_target(linked):
    (linked / "outside" / "secret.py").chmod(0o400)
    (linked / "outside").chmod(0o500)
    remove_tree(linked / "tree" / "folder")
    assert not (linked / "tree" / "folder").is_symlink()
    assert [(linked / "outside" / name).stat().st_mode & 0o777 for name in ("", "secret.py")] == [0o500, 0o400]


def test_missing_runtime_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "docker").write_text("#!/bin/sh\nexit 1\n")  # a client without its daemon
    (tmp_path / "podman").write_text("#!/bin/sh\n")
    for name in ("docker", "podman"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert find_runtime() == "podman" and find_runtime("docker") == "docker"
    with pytest.raises(TacitError, match="container runtime"):
        find_runtime("lxc")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TacitError, match="docker, podman or apptainer is not installed"):
        find_runtime()
    with pytest.raises(TacitError, match="podman is not installed"):
        find_runtime("podman")


def test_command_line_of_each_runtime(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = {}
    for program in RUNTIMES:
        words = Runtime(program, Path("/tmp/owner")).words(
            "name", "a/b", {"/testbed": Path("/tree")}, "ls", Limits(wall_s=5), False
        )
        found[program] = " ".join(words)
        assert "--network none" in found[program] and "/tree:/testbed" in found[program]
        assert "timeout" in words and "-s KILL 15 bash -c" in found[program]
    assert "--user 1000:" in found["docker"] and "--user 0:0" in found["podman"]
    assert "docker://a/b timeout -s" in found["apptainer"] and "--containall" in found["apptainer"]


def test_pool_waits_for_the_limits_of_containers(tmp_path):
    world = replace(get_environment(f"code+folder={write_rows(tmp_path, ROW)}"), slow=False)
    pool = make_worlds(world, TrainSettings(world_timeout_s=1))
    assert isinstance(pool, InProcessPool) and pool.limit_s == world.longest_s > 1800


def test_instance_image_and_grading_command():
    assert read_instance(ROW).image == "swebench/sweb.eval.x86_64.acme_1776_calc-1:latest"
    assert read_instance({**ROW, "dataset": "SWE-Gym/SWE-Gym"}).image == "xingyaoww/sweb.eval.x86_64.acme_s_calc-1"
    assert read_instance(with_image(SMITH)).image == f"{IMAGE}:image" and read_instance(SMITH).breaks
    assert grading_command(read_instance(ROW)).endswith("-p no:cacheprovider tests/test_calc.py")
    django = read_instance({**ROW, "repo": "django/django", "test_patch": TEST_PATCH.replace("test_calc", "forms/test_a")})
    assert grading_command(django).endswith("--parallel 1 forms.test_a")
    assert isinstance(django, Instance) and grading_command(read_instance({**ROW, "repo": "sympy/sympy"})).startswith(
        "bin/test"
    )


def test_mending_actions_create_edit_and_remove():
    patch = (
        "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1,2 @@\n+a = 1\n+b = 2\n"
        "--- a/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-c = 3\n"
        "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,3 @@\n a\n+b\n c\n@@ -9 +10 @@\n-d\n\\ No newline at end of file\n+e\n"
    )
    assert list(mending_actions(read_instance({**ROW, "patch": patch}))) == [
        "create new.py a = 1\\nb = 2\\n",
        "bash rm old.py",
        "str_replace x.py:1 a\\nc\\n ==> a\\nb\\nc\\n",
        "str_replace x.py:10 d ==> e\\n",
    ]
    assert list(mending_actions(read_instance({**SMITH, "patch": patch}))) == [
        "bash rm new.py",
        "create old.py c = 3\\n",
        "str_replace x.py:1 a\\nb\\nc\\n ==> a\\nc\\n",
        "str_replace x.py:9 e\\n ==> d",
    ]


def test_read_outcomes_parses_test_logs():
    head = "PASSED tests/a.py::fake\n== short test summary info ==\n"
    pytest_log = f"{head}PASSED tests/a.py::t[x - y]\nPASSED tests/a.py::v\nFAILED tests/a.py::u - assert 0\n"
    passed = dict.fromkeys(("tests/a.py::t[x - y]", "tests/a.py::t[x", "tests/a.py::v"), "PASSED")
    assert read_outcomes(pytest_log) == {**passed, "tests/a.py::u": "FAILED"}
    django_log = "test_a (forms.Test) ... ok\ntest_b (forms.Test)\nSays what. ... ok\ntest_c (forms.Test) ... FAIL\n"
    found = {"test_a (forms.Test)": "ok", "Says what.": "ok", "test_c (forms.Test)": "FAIL"}
    assert read_outcomes(django_log) == found
    assert read_outcomes("test_add ok\ntest_mul F\n") == {"test_add": "ok", "test_mul": "F"}
