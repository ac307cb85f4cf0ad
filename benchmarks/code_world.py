"""Speed of the code world: reset, editor, shell, a test file, grading and concurrent episodes; and resource leaks.

    python benchmarks/code_world.py [--folder DIR] [--repeats 30] [--concurrent 64] [--episodes 0] [--image IMAGE] [--json]

`wall` is by the clock, `cpu` the processor time of the trainer, the sandbox server and all commands together, which a busy
machine changes less. `--episodes 10000` plays that many random episodes and shows what has grown: memory, descriptors,
processes, mounts, workspaces. `--image` names an image with bash, coreutils, Python and pytest: the same task is then also
played as a SWE-bench instance, with a container for each command.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import os
import random
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from tacit.core.types import Task
from tacit.worlds.code.swebench import ContainerBench, Instance
from tacit.worlds.code.tasks import PACKAGED, broken_files, read_source, record_of, tasks
from tacit.worlds.code.world import Bench, CodeWorld

TICK = os.sysconf("SC_CLK_TCK")
GOALS = {"reset": 30.0, "test file": 150.0, "editor step": 0.5, "shell step": 1000 / 60}
"""milliseconds"""


def cpu_seconds(bench: Bench | ContainerBench) -> float:
    """Of this process, the servers and everything that has run under them."""
    spent = time.process_time()
    for pid in bench.runner.pids if isinstance(bench, Bench) else ():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        spent += sum(int(fields[number]) for number in (11, 12, 13, 14)) / TICK
    return spent


def measure(bench: Bench | ContainerBench, do: Callable[[], object], repeats: int) -> dict[str, float]:
    do()
    walls, began = [], cpu_seconds(bench)
    for _ in range(repeats):
        start = time.perf_counter()
        do()
        walls.append(time.perf_counter() - start)
    spent = cpu_seconds(bench) - began
    return {"wall_ms": 1000 * statistics.median(walls), "best_ms": 1000 * min(walls), "cpu_ms": 1000 * spent / repeats}


def container_rows(image: str, task: Task, path: str, test: str, repeats: int) -> dict[str, dict[str, float]]:
    """The same task with a container for each command, whose CPU time is not known."""
    record, folder = record_of(task)
    tree = folder.tree(record)
    bench = ContainerBench()
    with tempfile.TemporaryDirectory() as build:
        shutil.copytree(tree, Path(build) / "testbed")
        (Path(build) / "Containerfile").write_text(f"FROM {image}\nCOPY testbed /testbed\n")
        name = "localhost/tacit-benchmark"
        words = [bench.runtime.program, "build", "-q", "-t", name, "-f", f"{build}/Containerfile", build]
        subprocess.run(words, check=True, capture_output=True)
    patch = "".join(
        line
        for broken, text in broken_files(record, tree).items()
        for line in difflib.unified_diff(
            read_source(tree / broken).splitlines(True), text.splitlines(True), f"a/{broken}", f"b/{broken}"
        )
    )
    instance = Instance(record.id, "", name, "", patch, "", record.fail_to_pass, folder.pass_to_pass(record), breaks=True)
    world = CodeWorld(bench)
    played = replace(task, data={"instance": asdict(instance)})
    rows = {"reset": measure(bench, lambda: world.reset(played), repeats)}
    for label, action in (("editor step", f"view {path}"), ("shell step", "bash ls"), ("test file", f"bash pytest -q {test}")):
        rows[label] = measure(bench, lambda action=action: world.step(action), repeats)  # type: ignore[misc]

    def submit() -> None:
        world.reset(played)
        world.step("submit")

    rows["reset and grading"] = measure(bench, submit, repeats)
    bench.close()
    return {f"{bench.runtime.program}: {label}": {**row, "cpu_ms": math.nan} for label, row in rows.items()}


def random_action(rng: random.Random, task: Task) -> str:
    edit = rng.choice(task.data["record"]["edits"])
    name = f"note{rng.randrange(4)}.txt"
    return rng.choice(
        [
            f"view {edit['path']}",
            "view .",
            f"create {name} some text",
            f"undo_edit {name}",
            "bash ls",
            "bash (sleep 30 &) ; echo started",
            "bash head -c 100000 /dev/zero | tr '\\\\0' x",
            "nonsense",
            "submit",
        ]
    )


def play(world: CodeWorld, task: Task, rng: random.Random, steps: int) -> int:
    world.reset(task)
    played = 0
    while played < steps:
        played += 1
        if world.step(random_action(rng, task)).done:
            break
    world.close()
    return played


def children(pid: int) -> set[int]:
    """Process ids of the direct children of all its threads."""
    return {
        int(child)
        for thread in os.listdir(f"/proc/{pid}/task")
        for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
    }


def left_over(bench: Bench, others: Collection[int] = ()) -> dict[str, int]:
    """Resources that a leak would increase. `others`: child processes that do not belong to the bench."""
    found = dict.fromkeys(("memory_mb", "descriptors", "processes", "mounts"), 0)
    for pid in (os.getpid(), *bench.runner.pids):
        found["descriptors"] += len(os.listdir(f"/proc/{pid}/fd"))
        found["memory_mb"] += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() >> 20
        found["processes"] += len(children(pid).difference(others))
        found["mounts"] += len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
    found["workspaces"] = len(list(bench.runner.sandbox.folder.glob("work-*")))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=PACKAGED, help="a task folder (default: the packaged one)")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--concurrent", type=int, default=64)
    parser.add_argument("--episodes", type=int, default=0, help="random episodes to look for leaks with")
    parser.add_argument("--steps", type=int, default=4, help="of a random episode")
    parser.add_argument("--image", default="", help="also play the task in containers of an image")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    bench = Bench(arguments.folder)
    found = tasks("train", 200, 0, root=arguments.folder)
    world, task = CodeWorld(bench), found[0]
    record = task.data["record"]
    path, test = record["edits"][0]["path"], record["test_files"][0]
    rows = {"reset": measure(bench, lambda: world.reset(task), arguments.repeats)}
    for name, action, times in (
        ("editor step", f"view {path}", 40 * arguments.repeats),
        ("shell step", "bash ls", arguments.repeats),
        ("test file", f"bash pytest -q {test}", arguments.repeats),
        ("test file, new process", f"bash pytest -q {test} | tail -3", max(3, arguments.repeats // 10)),
    ):
        rows[name] = measure(bench, lambda action=action: world.step(action), times)  # type: ignore[misc]

    def submit() -> None:
        world.reset(task)
        world.step("submit")

    rows["reset and grading"] = measure(bench, submit, max(3, arguments.repeats // 3))
    if arguments.image:
        rows |= container_rows(arguments.image, task, path, test, max(3, arguments.repeats // 5))
    worlds = [CodeWorld(bench) for _ in range(arguments.concurrent)]
    began, spent = time.perf_counter(), cpu_seconds(bench)
    with ThreadPoolExecutor(len(worlds)) as pool:
        jobs = [pool.submit(play, each, found[n % len(found)], random.Random(n), 8) for n, each in enumerate(worlds)]
        steps = sum(job.result() for job in jobs)
    seconds, spent = time.perf_counter() - began, cpu_seconds(bench) - spent
    together = {"episodes": len(worlds), "steps": steps, "seconds": seconds, "cpu_s": spent, "steps_per_cpu_s": steps / spent}
    growth = {}
    if arguments.episodes:
        before: dict[str, int] = {}
        for number in range(arguments.episodes):
            if number == min(200, arguments.episodes // 10):
                before = left_over(bench)
            play(world, found[number % len(found)], random.Random(number), arguments.steps)
        growth = {name: [before[name], value] for name, value in left_over(bench).items()}
    folder = bench.runner.sandbox.folder
    bench.close()
    result = {"rows": rows, "concurrent": together, "left": growth, "folder_gone": not folder.exists()}
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{'':28} {'wall ms':>9} {'best ms':>9} {'cpu ms':>9} {'goal ms':>9}")
    for name, row in rows.items():
        goal = f"{GOALS[name]:9.1f}" if name in GOALS else " " * 9
        print(f"{name:28} {row['wall_ms']:9.2f} {row['best_ms']:9.2f} {row['cpu_ms']:9.2f} {goal}")
    rate = together["steps_per_cpu_s"]
    print(f"{len(worlds)} concurrent episodes: {steps} steps in {seconds:.1f} s, {rate:.0f} per second of CPU time")
    for name, (start, end) in growth.items():
        print(f"after {arguments.episodes} episodes: {name} {start} -> {end}")


if __name__ == "__main__":
    main()
