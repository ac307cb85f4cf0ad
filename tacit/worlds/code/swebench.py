"""SWE-bench, SWE-bench Verified, SWE-smith and SWE-Gym: instances from JSON lines, run in containers with the same tools.

Each instance has an image with the repository at /testbed, which is copied to the host once. An episode works on its own copy;
each command sees it at /testbed in a new container without network. So the editor needs no container, and no process outlives
its step. The .git directory is removed, since it contains the fix.

| field | SWE-bench, Verified, SWE-Gym | SWE-smith |
|---|---|---|
| `patch` | fixes the repository | breaks it |
| `test_patch` | changes the tests before grading | absent |
| image | `image_name`, or the published name | `image_name` |

Tests run with pytest, or with the test runners of Django and SymPy. As in the published harness, outcomes are parsed from the
tests' output.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError, check_split_and_count, unknown
from tacit.core.simulator import Served
from tacit.core.tasks import describe_failures, shuffle_key
from tacit.core.types import Observation, Task
from tacit.core.world import Environment
from tacit.sandbox import Limits, Result
from tacit.sandbox.client import AT
from tacit.worlds.code.grading import Grade, find_changes, show_diff
from tacit.worlds.code.tasks import NAME, PATCH, SPLITS, Record, apply_edits, choose_split, patch_edits, read_patch, read_source
from tacit.worlds.code.tools import Editor, read_line, write_beneath
from tacit.worlds.code.world import CodeWorld

RUNTIMES = ("docker", "podman", "apptainer")
STEP = Limits(wall_s=180, memory_mb=8192, processes=512)
GRADING = Limits(wall_s=1800, memory_mb=8192, processes=512, output_kb=8192)
ACTIVATE = "if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate testbed; fi; "
"""activates the conda environment of the published images"""
OK = ("PASSED", "XFAIL", "ok")


@dataclass(frozen=True)
class Instance:
    id: str
    repo: str
    image: str
    issue: str
    patch: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    breaks: bool  # whether `patch` breaks the repository (SWE-smith) instead of fixing it

    @property
    def test_files(self) -> tuple[str, ...]:
        changed = [patch.path for patch in read_patch(self.test_patch) if not patch.gone] if self.test_patch else []
        named = [test.partition("::")[0] for test in (*self.fail_to_pass, *self.pass_to_pass) if "::" in test]
        return tuple(dict.fromkeys(changed or named))


def read_instance(row: Mapping[str, Any]) -> Instance:
    """Parse one line. Raises TacitError naming a missing or invalid field."""
    missing = [name for name in ("instance_id", "repo", "problem_statement", "patch", "FAIL_TO_PASS") if name not in row]
    if missing:
        raise TacitError(f"the line has no {', '.join(missing)}")
    name = str(row["instance_id"])
    lists = []
    for key in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        value = row.get(key) or []
        with contextlib.suppress(ValueError):
            value = json.loads(value) if isinstance(value, str) else value
        if not isinstance(value, list):
            raise TacitError(f"{key} of {name!r} is not a list")
        lists.append(tuple(map(str, value)))
    if not lists[0]:
        raise TacitError(f"{name!r} has no failing tests")
    gym = "xingyaoww/sweb.eval.x86_64." + name.replace("__", "_s_").lower()
    bench = "swebench/sweb.eval.x86_64." + name.replace("__", "_1776_").lower() + ":latest"
    image = str(row.get("image_name") or row.get("image") or (gym if "SWE-Gym" in str(row.get("dataset", "")) else bench))
    if image.startswith("-"):  # the container runtime would read it as an option
        raise TacitError(f"{name!r} has an invalid image name {image!r}")
    issue, patch, test_patch = str(row["problem_statement"]), str(row["patch"]), str(row.get("test_patch") or "")
    for text in filter(None, (patch, test_patch)):
        read_patch(text)
    failing, passing = lists
    return Instance(name, str(row["repo"]), image, issue, patch, test_patch, failing, passing, "test_patch" not in row)


@lru_cache(maxsize=8)
def read_instances(path: Path) -> tuple[tuple[Instance, ...], tuple[str, ...]]:
    """(instances, errors of skipped lines)"""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TacitError(f"cannot read {path}: {error}.") from error
    found: dict[str, Instance] = {}
    failures = []
    for number, line in enumerate(lines, 1):
        try:
            instance = read_instance(json.loads(line))
            if instance.id in found:
                raise TacitError(f"{instance.id!r} occurs twice")
            found[instance.id] = instance
        except (ValueError, TypeError, AttributeError, TacitError) as error:
            failures.append(f"line {number}: {error}")
    if not found:
        raise TacitError(f"{path} has no usable instances{describe_failures(failures)}")
    return tuple(found.values()), tuple(failures)


def find_runtime(name: str = "") -> str:
    """The named container runtime, or the first installed one."""
    if name and name not in RUNTIMES:
        raise unknown("container runtime", name, RUNTIMES)
    for runtime in (name,) if name else RUNTIMES:
        if shutil.which(runtime):
            return runtime
    wanted = name or "docker, podman or apptainer"
    raise TacitError(f"SWE-bench instances run in containers, and {wanted} is not installed.")


@dataclass(frozen=True, eq=False)
class ContainerWorkspace:
    """The repository of one episode, with the interface of a sandbox workspace."""

    runtime: str
    image: str
    folder: Path

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, limits: Limits | None = None
    ) -> Result:
        """Run a command in a new container."""
        script = ACTIVATE + shlex.join(arguments)
        return run_container(self.runtime, self.image, {AT: self.folder}, script, limits or STEP)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def run_container(runtime: str, image: str, binds: Mapping[str, Path], script: str, limits: Limits) -> Result:
    name = f"tacit-{uuid.uuid4().hex[:16]}"
    if runtime == "apptainer":
        words = ["exec", "--containall", "--no-home", "--cleanenv", "--net", "--network", "none", "--writable-tmpfs"]
        for inside, outside in binds.items():
            words += ["--bind", f"{outside}:{inside}"]
        words += ["--pwd", AT, image if image.endswith(".sif") else f"docker://{image}"]
    else:
        words = ["run", "--rm", "--name", name, "--network", "none", "--cap-drop", "ALL", "--workdir", AT]
        words += ["--security-opt", "no-new-privileges", "--pids-limit", str(limits.processes)]
        words += ["--memory", f"{limits.memory_mb}m"]
        if runtime == "docker" and os.geteuid():
            words += ["--user", f"{os.geteuid()}:{os.getegid()}"]
        for inside, outside in binds.items():
            words += ["--volume", f"{outside}:{inside}"]
        words.append(image)
    began = time.monotonic()
    process = subprocess.Popen(
        [runtime, *words, "bash", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    kept, dropped, killed, most = bytearray(), 0, "", limits.output_kb * 1024
    while True:
        left = limits.wall_s - (time.monotonic() - began)
        if left <= 0 or dropped > 64 * most:
            killed = "time limit" if left <= 0 else "output limit"
            if runtime != "apptainer":
                subprocess.run([runtime, "kill", name], capture_output=True)
            os.killpg(process.pid, signal.SIGKILL)
            break
        if select.select([process.stdout], [], [], min(left, 1.0))[0]:
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                break
            room = max(0, most - len(kept))
            kept += chunk[:room]
            dropped += max(0, len(chunk) - room)
    process.stdout.close()
    code = process.wait()
    output = kept.decode("utf-8", errors="replace")
    seconds = time.monotonic() - began
    return Result(code if code >= 0 else 128 - code, output, killed, "", dropped, seconds)


@dataclass
class ContainerBench:
    """Shared by the episodes of one process: the repositories of all used images. Has the interfaces of `Bench`, `Runner` and
    `Grader`."""

    runtime: str = ""
    _trees: dict[str, Path] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.runtime = find_runtime(self.runtime)
        self._folder = Path(tempfile.mkdtemp(prefix="tacit-swebench-"))
        self.runner = self.grader = self
        self.alive = True

    def tree(self, image: str) -> Path:
        with self._lock:
            if image not in self._trees:
                place = self._folder / f"image-{len(self._trees)}"
                place.mkdir()
                script = f"cp -r --preserve=mode,timestamps,links {AT}/. /tacit-out"
                result = run_container(self.runtime, image, {"/tacit-out": place}, script, GRADING)
                if result.code or result.killed:
                    shutil.rmtree(place)
                    reason = result.killed or result.output[-300:].strip()
                    raise TacitError(f"{self.runtime} cannot open image {image}: {reason}")
                shutil.rmtree(place / ".git", ignore_errors=True)
                self._trees[image] = place
            return self._trees[image]

    def open(self, instance: Instance) -> ContainerWorkspace:
        """A workspace with the broken repository."""
        folder = self._folder / f"work-{uuid.uuid4().hex[:12]}"
        shutil.copytree(self.tree(instance.image), folder, symlinks=True)
        if instance.breaks:
            apply_patch(folder, instance.patch)
        return ContainerWorkspace(self.runtime, instance.image, folder)

    def run(self, workspace: ContainerWorkspace, arguments: Sequence[str]) -> Result:
        return workspace.run(["python", "-m", "pytest", *arguments])

    def grade(self, instance: Instance, record: Record, submitted: ContainerWorkspace) -> Grade:
        """Copy the changed source files to a fresh repository, apply the instance's `test_patch`, and run the tests there."""
        fresh = self.open(instance)
        try:
            changes = find_changes(record, fresh.folder, submitted.folder)
            diff = show_diff(record, fresh.folder, changes)
            for path, content in changes.items():
                if content is None:
                    (fresh.folder / path).unlink()
                else:
                    write_beneath(fresh.folder, path, content)
            if instance.test_patch:
                apply_patch(fresh.folder, instance.test_patch)
            result = fresh.run(["bash", "-c", grading_command(instance)], limits=GRADING)
        finally:
            fresh.close()
        passed = {test for test, outcome in read_outcomes(result.output).items() if outcome in OK}
        return Grade(
            fixed=sum(test in passed for test in instance.fail_to_pass),
            wanted=len(instance.fail_to_pass),
            kept=sum(test in passed for test in instance.pass_to_pass),
            known=len(instance.pass_to_pass),
            forged="",
            diff=diff,
            killed=result.killed,
        )

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def apply_patch(folder: Path, text: str) -> None:
    for patch in read_patch(text):
        place = folder / patch.path
        if patch.gone:
            place.unlink(missing_ok=True)
            continue
        source = "" if patch.new or not place.is_file() else read_source(place)
        write_beneath(folder, patch.path, apply_edits(source, patch_edits(patch, source)).encode())


def grading_command(instance: Instance) -> str:
    files = instance.test_files
    if instance.repo == "django/django":
        labels = [file.removeprefix("tests/").removesuffix(".py").replace("/", ".") for file in files if file.endswith(".py")]
        return shlex.join(["./tests/runtests.py", "--verbosity", "2", "--settings=test_sqlite", "--parallel", "1", *labels])
    if instance.repo == "sympy/sympy":
        return shlex.join(["bin/test", "-C", "--verbose", *files])
    return shlex.join(["python", "-m", "pytest", "-rA", "--tb=no", "-p", "no:cacheprovider", *files])


def read_outcomes(log: str) -> dict[str, str]:
    """test -> outcome. With pytest, only the summary after the last test counts."""
    head = list(re.finditer(r"^=+ short test summary info =+$", log, re.MULTILINE))
    found: dict[str, str] = {}
    for line in log[head[-1].end() :].splitlines() if head else ():
        if match := re.match(r"(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (.+?)(?: - .*)?$", line):
            found[match[2]] = match[1]
    if not head:
        for line in log.splitlines():
            django = re.match(r"(\w+ \([\w.]+\)).* \.\.\. (ok|FAIL|ERROR|skipped|expected failure)", line)
            match = django or re.match(r"(test_\w+) (ok|F|E|f|s|w)\b", line)
            if match:
                found[match[1]] = match[2]
    return found


class ContainerWorld(CodeWorld):
    """The code world with instances in containers."""

    def reset(self, task: Task) -> Observation:
        self.close()
        if "instance" not in task.data:
            raise TacitError(f"task {task.id!r} is not a SWE-bench instance: its data has no 'instance'.")
        fields = {**task.data["instance"]}
        instance = Instance(**{**fields, **{name: tuple(fields[name]) for name in ("fail_to_pass", "pass_to_pass")}})
        bench: Any = self._bench
        self._folder: Any = instance
        self._record = Record(instance.id, instance.repo, "", task.split, (), instance.issue, (), (), instance.test_files)
        self._workspace = workspace = bench.open(instance)
        self._editor = Editor(workspace.folder)
        return Observation(self._editor.run(read_line("view .")))


def make_world(bench: ContainerBench) -> ContainerWorld:
    return ContainerWorld(bench)  # type: ignore[arg-type]


def instance_environment(base: Environment, path: Path, runtime: str = "") -> Environment:
    """The code world with the instances of a file."""
    instances, failures = read_instances(path)

    def tasks(split: str, count: int, seed: int, families: Sequence[str] = (PATCH,)) -> Sequence[Task]:
        check_split_and_count(NAME, SPLITS, split, count)
        found = [each for each in instances if choose_split(each.repo, (), each.id, (), ()) == split and PATCH in families]
        found.sort(key=lambda each: shuffle_key(seed, each.id))
        return [
            Task(NAME, f"{NAME}/{split}/{each.id}", PATCH, split, seed, each.issue, {"instance": asdict(each)})
            for each in found[:count]
        ]

    return replace(
        base,
        summary=f"{base.summary}; {len(instances)} instances of {path}" + describe_failures(failures),
        make=Served(partial(ContainerBench, runtime), make_world),
        tasks=tasks,
        family_tasks=tasks,
        experts={name: base.experts[name] for name in ("random", "none") if name in base.experts},
        published={split: sum(choose_split(each.repo, (), each.id, (), ()) == split for each in instances) for split in SPLITS},
        panels={},
    )
