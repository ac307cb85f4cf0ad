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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from tacit.core.chat import Call
from tacit.core.errors import TacitError, check_split_and_count, unknown
from tacit.core.simulator import Served
from tacit.core.tasks import describe_failures, shuffle_key
from tacit.core.types import Observation, Task
from tacit.core.world import Environment
from tacit.sandbox import Limits, Result
from tacit.sandbox.client import AT
from tacit.sandbox.server import remove_tree
from tacit.worlds.code.grading import Grade, apply_changes, find_changes, show_diff
from tacit.worlds.code.tasks import (
    NAME,
    PATCH,
    SPLITS,
    Record,
    apply_edits,
    choose_split,
    hunk_side,
    parse_lines,
    patch_edits,
    read_patch,
)
from tacit.worlds.code.tools import BASH, EDITOR, read_beneath, remove_beneath, write_beneath, write_line
from tacit.worlds.code.world import CodeWorld

RUNTIMES = ("docker", "podman", "apptainer")
STEP = Limits(wall_s=180, memory_mb=8192, processes=512)
GRADING = Limits(wall_s=1800, memory_mb=8192, processes=512, output_kb=65536)
ACTIVATE = "if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate testbed; fi; "
"""the published images keep each repository's Python in a conda environment"""
PULL_S = 1800
MOST_PATCHED = 1 << 26  # bytes of a file that a patch changes
OWN_RUNNERS = ("django/django", "sympy/sympy")  # repositories whose tests pytest does not run
IMAGE = re.compile(r"(?!-)([\w.-]+(:\d+)?/)?[\w./-]+(:[\w.-]+)?(@sha256:[0-9a-f]{64})?", re.ASCII)
"""[host[:port]/]name[:tag][@digest] or a .sif file; no option, and no local folder as `dir:/…` of podman"""
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

    def __post_init__(self) -> None:
        if not IMAGE.fullmatch(self.image):
            raise TacitError(f"{self.id!r} has an invalid image name {self.image!r}")

    @property
    def test_files(self) -> tuple[str, ...]:
        changed = [patch.path for patch in read_patch(self.test_patch) if not patch.gone] if self.test_patch else []
        named = [test.partition("::")[0] for test in (*self.fail_to_pass, *self.pass_to_pass) if "::" in test]
        return tuple(dict.fromkeys(changed or named))

    @property
    def record(self) -> Record:
        """For grading. It has no edits: the tree that changes are compared with is the broken one."""
        return Record(self.id, self.repo, "", "", (), self.issue, (), self.fail_to_pass, self.test_files)


def instance_of(task: Task) -> Instance:
    """The instance of a task, in whose data tuples may have become lists."""
    if "instance" not in task.data:
        raise TacitError(f"task {task.id!r} is no instance of SWE-bench: its data has no 'instance'.")
    data = task.data["instance"]
    return Instance(**{**data, **{name: tuple(data[name]) for name in ("fail_to_pass", "pass_to_pass")}})


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
    instances, failures = parse_lines(lines, read_instance)
    if not instances:
        raise TacitError(f"{path} has no usable instances{describe_failures(failures)}")
    return instances, failures


def find_runtime(name: str = "") -> str:
    """The container runtime to use: the one named, or the first that is installed and answers (a docker client may have no
    daemon)."""
    if name and name not in RUNTIMES:
        raise unknown("container runtime", name, RUNTIMES)
    for runtime in (name,) if name else RUNTIMES:
        if shutil.which(runtime) and (name or subprocess.run([runtime, "version"], capture_output=True).returncode == 0):
            return runtime
    wanted = f"{name} is not installed" if name else "docker, podman or apptainer is not installed or does not run"
    raise TacitError(f"SWE-bench instances are played in containers, and {wanted} here.")


@dataclass(frozen=True)
class Runtime:
    """Starts containers. All of them have the label `owner`, by which they are found after a crash."""

    program: str  # one of RUNTIMES
    folder: Path  # its working directory: podman leaves a file `oom` there if a container runs out of memory

    @property
    def owner(self) -> str:
        return self.folder.name

    def words(self, name: str, image: str, binds: Mapping[str, Path], script: str, limits: Limits, trusted: bool) -> list[str]:
        """The command line. `timeout` is the container's first process: nothing inside can kill it, and it outlives us."""
        script = f"exec 2>&1; echo {name}; {ACTIVATE}{script}"
        entry = ["-s", "KILL", str(int(limits.wall_s) + 10), "bash", "-c", script]
        volumes = [f"{outside}:{inside}" for inside, outside in binds.items()]
        if self.program == "apptainer":
            words = ["apptainer", "exec", "--containall", "--no-home", "--cleanenv", "--writable-tmpfs", "--pwd", "/"]
            words += ["--net", "--network", "none", *(word for volume in volumes for word in ("--bind", volume))]
            return [*words, image if image.endswith(".sif") else f"docker://{image}", "timeout", *entry]
        words = [self.program, "run", "--rm", "--pull", "never", "--name", name, "--label", f"tacit={self.owner}"]
        words += ["--network", "none", "--cap-drop", "ALL", *(["--cap-add", "DAC_READ_SEARCH"] if trusted else [])]
        words += ["--security-opt", "no-new-privileges", "--security-opt", "label=disable"]
        memory = f"{limits.memory_mb}m"
        words += ["--pids-limit", str(limits.processes), "--memory", memory, "--memory-swap", memory, "--stop-timeout", "0"]
        words += ["--hostname", "testbed", "--workdir", "/", "--entrypoint", "timeout"]
        words += ["--env", "TIME_STYLE=+-", "--env", "LANG=C.UTF-8"]
        if self.program == "podman" or not os.geteuid():
            words += ["--user", "0:0"]  # without root, podman's root is this user
        else:
            words += ["--user", f"{os.geteuid()}:{os.getegid()}", "--env", "HOME=/tmp"]
        return [*words, *(word for volume in volumes for word in ("--volume", volume)), image, *entry]

    def run(self, image: str, binds: Mapping[str, Path], script: str, limits: Limits, trusted: bool = False) -> Result:
        """A command in a new container. Raises TacitError if the container did not start: its exit status would be the
        runtime's. So the script begins by printing the container's name. `trusted`: it may read all files of the image."""
        name = f"tacit-{uuid.uuid4().hex[:16]}"
        words = self.words(name, image, binds, script, limits, trusted)
        began = time.monotonic()
        process = subprocess.Popen(
            words,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        kept, dropped, killed, ended, most = bytearray(), 0, "", False, limits.output_kb * 1024
        try:
            while not (killed or ended):
                left = limits.wall_s - (time.monotonic() - began)
                if left <= 0 or dropped > 64 * most:
                    killed = "time limit" if left <= 0 else "output limit"
                elif select.select([process.stdout], [], [], left)[0]:
                    chunk = os.read(process.stdout.fileno(), 1 << 16)
                    room = max(0, most - len(kept))
                    kept += chunk[:room]
                    dropped += max(0, len(chunk) - room)
                    ended = not chunk
        finally:  # also where a timeout of the trainer interrupts this
            process.stdout.close()
            if not ended:
                self._kill(name, process)
        code = process.wait()
        noise, started, output = kept.decode("utf-8", errors="replace").partition(f"{name}\n")
        if not started:
            reason = f"it did not start within {limits.wall_s:g} s" if killed else last_line(noise) or f"exit status {code}"
            raise TacitError(f"{self.program} cannot run {image}: {reason}")
        return Result(code if code >= 0 else 128 - code, output, killed, "", dropped, time.monotonic() - began)

    def _kill(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """The container, the program, and a container that it may have started meanwhile."""
        remove = ["true"] if self.program == "apptainer" else [self.program, "rm", "-f", name]
        subprocess.run(remove, capture_output=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        subprocess.run(remove, capture_output=True)

    def find_image(self, image: str) -> str:
        """Its name on this machine; pulled if it is not there."""
        if self.program == "apptainer":
            return image
        if subprocess.run([self.program, "image", "inspect", image], capture_output=True).returncode == 0:
            return image
        host = image.partition("/")[0]
        full = image if "." in host or ":" in host or host == "localhost" else f"docker.io/{image}"
        try:
            pull = subprocess.run([self.program, "pull", "-q", full], capture_output=True, text=True, timeout=PULL_S)
        except subprocess.TimeoutExpired:
            raise TacitError(f"{self.program} cannot pull {full}: no answer within {PULL_S} s") from None
        if pull.returncode:
            raise TacitError(f"{self.program} cannot pull {full}: {last_line(pull.stderr)}")
        return full


def last_line(text: str) -> str:
    """The last line that is about an error, if there is one: docker adds advice."""
    lines = text.strip().splitlines()
    return next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "")[-300:]


@dataclass(frozen=True, eq=False)
class ContainerWorkspace:
    """The repository of one episode, with the interface of a sandbox workspace."""

    runtime: Runtime
    image: str
    folder: Path

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, limits: Limits | None = None
    ) -> Result:
        """One command in a new container."""
        return self.runtime.run(self.image, {AT: self.folder}, f"cd {AT} && exec {shlex.join(arguments)}", limits or STEP)

    def close(self) -> None:
        remove_tree(self.folder)


# Waits until the trainer closes its input or dies, then removes containers and folder.
REAPER = """cat
[ "$1" = apptainer ] || { found=$("$1" ps -aq --filter "label=tacit=$2"); [ -z "$found" ] || "$1" rm -f $found; }
rm -rf "$3" || { chmod -R u+rwx "$3"; rm -rf "$3"; }
"""


@dataclass
class ContainerBench:
    """Shared by the episodes of one process: the repositories of all used images. Has the interface of `Bench`."""

    program: str = ""  # container runtime; empty: the first that is installed
    _trees: dict[str, tuple[str, Path]] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        program = find_runtime(self.program)
        self.folder = Path(tempfile.mkdtemp(prefix="tacit-swebench-"))
        self.runtime = Runtime(program, self.folder)
        self._reaper = subprocess.Popen(
            ["sh", "-c", REAPER, "sh", self.runtime.program, self.runtime.owner, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.alive = True

    def tree(self, instance: Instance) -> tuple[str, Path]:
        """(the image's name on this machine, its repository)"""
        with self._lock:
            if instance.image not in self._trees:
                image = self.runtime.find_image(instance.image)
                place = self.folder / f"image-{uuid.uuid4().hex[:12]}"
                place.mkdir()
                pytest = "" if instance.repo in OWN_RUNNERS else "-m pytest "
                script = f"python {pytest}--version && cp -r --preserve=mode,timestamps,links {AT}/. /tacit-out"
                result = self.runtime.run(image, {"/tacit-out": place}, script, GRADING, trusted=True)
                if result.code or result.killed:
                    remove_tree(place)
                    raise TacitError(f"image {image} cannot be used: {result.killed or last_line(result.output)}")
                remove_tree(place / ".git")
                self._trees[instance.image] = image, place
            return self._trees[instance.image]

    def open(self, task: Task) -> ContainerWorkspace:
        return self.open_instance(instance_of(task))

    def open_instance(self, instance: Instance) -> ContainerWorkspace:
        """The repository as the agent finds it."""
        image, tree = self.tree(instance)
        folder = self.folder / f"work-{uuid.uuid4().hex[:12]}"
        shutil.copytree(tree, folder, symlinks=True)
        if instance.breaks:
            apply_patch(folder, instance.patch)
        return ContainerWorkspace(self.runtime, image, folder)

    def run_tests(self, workspace: ContainerWorkspace, arguments: Sequence[str]) -> Result:
        return workspace.run(["python", "-m", "pytest", *arguments])

    def grade(self, task: Task, submitted: ContainerWorkspace) -> Grade:
        """Copy the changed source files to a fresh repository, apply the instance's `test_patch`, and run the tests there."""
        instance = instance_of(task)
        fresh, record = self.open_instance(instance), instance.record
        try:
            changes = find_changes(record, fresh.folder, submitted.folder)
            diff = show_diff(record, fresh.folder, changes)
            apply_changes(fresh.folder, changes)
            if instance.test_patch:
                apply_patch(fresh.folder, instance.test_patch)
            result = fresh.run(["bash", "-c", grading_command(instance)], limits=GRADING)
        finally:
            fresh.close()
        passed = {test for test, outcome in read_outcomes(result.output).items() if outcome in OK}
        return Grade.count(passed, instance.fail_to_pass, instance.pass_to_pass, diff=diff, killed=result.killed)

    def close(self) -> None:
        assert self._reaper.stdin is not None
        self._reaper.stdin.close()
        self._reaper.wait()


def apply_patch(folder: Path, text: str) -> None:
    """Raises TacitError if it does not apply. Symbolic links are not followed: those of an image may point anywhere."""
    for patch in read_patch(text):
        try:
            if patch.gone:
                remove_beneath(folder, patch.path)
                continue
            source = ""
            if not patch.new:
                with contextlib.suppress(FileNotFoundError):
                    source = read_beneath(folder, patch.path, MOST_PATCHED).decode()
            write_beneath(folder, patch.path, apply_edits(source, patch_edits(patch, source)).encode())
        except (OSError, ValueError) as error:
            raise TacitError(f"the patch does not apply to {patch.path}: {error}") from error


class TruePatch:
    """Makes the repository right with the editor and submits: the oracle of instances."""

    def __init__(self, task: Task) -> None:
        self._plan = [*mending_actions(instance_of(task)), "submit"]

    def act(self, observation: Observation) -> str:
        return self._plan.pop(0)


def mending_actions(instance: Instance) -> Iterator[str]:
    """The edits of `patch`, undone if it breaks the repository."""
    old_mark, new_mark = "+-" if instance.breaks else "-+"
    for patch in read_patch(instance.patch):
        moved = 0  # lines, by earlier edits of this file
        for first, lines in patch.hunks:
            old, new = (hunk_side(lines, mark) for mark in (old_mark, new_mark))
            if patch.new or patch.gone:
                arguments = {"command": "create", "path": patch.path, "file_text": new}
                yield write_line(Call(EDITOR, arguments) if new else Call(BASH, {"command": shlex.join(["rm", patch.path])}))
                continue
            arguments = {
                "command": "str_replace",
                "path": patch.path,
                "line": str(first + moved),
                "old_str": old,
                "new_str": new,
            }
            yield write_line(Call(EDITOR, arguments))
            moved += 0 if instance.breaks else new.count("\n") - old.count("\n")


def grading_command(instance: Instance) -> str:
    files = instance.test_files
    if instance.repo == "django/django":
        labels = [file.removeprefix("tests/").removesuffix(".py").replace("/", ".") for file in files if file.endswith(".py")]
        return shlex.join(["./tests/runtests.py", "--verbosity", "2", "--settings=test_sqlite", "--parallel", "1", *labels])
    if instance.repo == "sympy/sympy":
        return shlex.join(["bin/test", "-C", "--verbose", *files])
    return shlex.join(["python", "-m", "pytest", "-rA", "--tb=no", "-p", "no:cacheprovider", *files])


def read_outcomes(log: str) -> dict[str, str]:
    """test -> outcome. Of pytest only the summary counts, which it prints after the tests; published lists have its names up to
    the first blank. Of Django's tests with a description they have the description."""
    head = list(re.finditer(r"^=+ short test summary info =+$", log, re.MULTILINE))
    outcomes: dict[str, str] = {}
    for line in log[head[-1].end() :].splitlines() if head else ():
        if match := re.match(r"(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (.+)", line):
            name = match[2] if match[1] == "PASSED" else match[2].partition(" - ")[0]
            outcomes[name] = outcomes[name.partition(" ")[0]] = match[1]
    if not head:
        for line in log.splitlines():
            django = re.match(r"(.+?) \.\.\. +(ok|OK|FAIL|ERROR|skipped|expected failure)", line)
            match = django or re.match(r"(test_\w+) (ok|F|E|f|s|w)\b", line)
            if match:
                outcomes[match[1]] = match[2].replace("OK", "ok")
    return outcomes


def instance_environment(base: Environment, path: Path, runtime: str = "") -> Environment:
    """The code world with the instances of a file."""
    instances, failures = read_instances(path)

    def tasks(split: str, count: int, seed: int, families: Sequence[str] = (PATCH,)) -> Sequence[Task]:
        check_split_and_count(NAME, SPLITS, split, count)
        selected = [each for each in instances if choose_split(each.repo, (), each.id, (), ()) == split and PATCH in families]
        selected.sort(key=lambda each: shuffle_key(seed, each.id))
        return [
            Task(NAME, f"{NAME}/{split}/{each.id}", PATCH, split, seed, each.issue, {"instance": asdict(each)})
            for each in selected[:count]
        ]

    return replace(
        base,
        summary=f"{base.summary}; {len(instances)} instances of {path}" + describe_failures(failures),
        make=Served(partial(ContainerBench, runtime), CodeWorld),
        tasks=tasks,
        family_tasks=tasks,
        experts={"oracle": TruePatch, "none": base.experts["none"]},
        hindsight=None,
        longest_s=PULL_S + GRADING.wall_s + 60,
        published={split: sum(choose_split(each.repo, (), each.id, (), ()) == split for each in instances) for split in SPLITS},
        panels={},
    )
