"""Run the cells of a plan: each a `tacit train` in its own process, several at a time.

Finished runs are skipped, stopped ones resume, failed ones are recorded while the others continue.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from tacit.comparison.plan import Plan, PlannedRun
from tacit.config.checks import fixed_differences
from tacit.config.recipe import Recipe
from tacit.core.errors import TacitError
from tacit.core.platform import usable_cpus
from tacit.runs.directory import SETTINGS, find_summary, read_settings
from tacit.runs.files import explain_disk_errors, write_json, write_text

# Processes are forked from a server that has imported everything (see warm.py). A small run would otherwise spend more time
# importing torch than training, and all runs use the same version of the code.


class Processes:
    """Starts commands, at most `max_running` at a time. Create it before heavy imports, since it sets environment variables."""

    def __init__(self, main: Callable[[list[str]], int], max_running: int) -> None:
        """`main` runs a command's words; the new process imports it by name."""
        self._main, self.max_running = main, max_running
        # Tokenizer threads: each run's share of the cores.
        threads = max(1, usable_cpus() // max_running)
        self._share = {"TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false", "RAYON_NUM_THREADS": str(threads)}
        # Do not initialize CUDA in the server: an initialized driver does not survive a fork.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        if max_running > 1:
            # Each run gets its share of the cores.
            os.environ["OMP_NUM_THREADS"] = "1"
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tacit.comparison.warm"])

    def start(self, words: Sequence[str], log: Path) -> Command:
        # Pass the environment along: the server was started with an older one.
        args = (self._main, list(words), str(log), {**self._share, **os.environ})
        process = self._context.Process(target=_run, args=args, name=" ".join(words))
        with _hide_main_module():
            process.start()
        return Command(process)


class Command:
    def __init__(self, process: Any) -> None:
        self._process = process

    @property
    def code(self) -> int | None:
        """None while running; −n after signal n."""
        return self._process.exitcode

    def stop(self) -> None:
        if self.code is None:
            os.kill(self._process.pid, signal.SIGINT)

    def wait(self, seconds: float) -> None:
        """Wait for the end; kill after the timeout."""
        self._process.join(seconds)
        if self.code is None:
            self._process.kill()
            self._process.join()


@contextmanager
def _hide_main_module() -> Iterator[None]:
    """Keep multiprocessing from importing our main module in the child; Python would also warn about `python -m
    tacit.cli.main`."""
    main_module = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main_module


def _run(main: Callable[[list[str]], int], words: list[str], log: str, environment: dict[str, str]) -> None:
    """In the child: run one command, with its output in the log."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    for stream in (1, 2):
        os.dup2(file, stream)
    os.write(file, f"$ tacit {' '.join(words)}\n".encode())
    code = main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)


RECIPE, LOG, FAILURE = "recipe.json", "console.log", "failure.txt"
POLL_S = 0.1
STOP_TIMEOUT_S = 20.0  # seconds a stopped run may take to end

Status = Literal["finished", "failed", "unfinished", "missing"]


@dataclass(frozen=True)
class RunEvent:
    kind: Literal["begins", "resumes", "finished", "failed"]
    run: PlannedRun
    seconds: float = 0.0
    reason: str = ""  # why it failed
    running: int = 0
    left: int = 0
    success: float | None = None  # of its last evaluation, if it finished


@dataclass
class _ActiveRun:
    run: PlannedRun
    command: Command
    started_at: float = field(default_factory=time.monotonic)


def status_of(path: Path, iterations: int) -> Status:
    if (summary := find_summary(path)) is not None and summary.get("iterations") == iterations:
        return "finished"
    if (path / FAILURE).exists():
        return "failed"
    return "unfinished" if (path / SETTINGS).exists() else "missing"


def failure_of(path: Path) -> str | None:
    file = path / FAILURE
    return file.read_text(encoding="utf-8").strip() if file.exists() else None


def check_stored(plan: Plan, directory: Path) -> None:
    """Existing runs must match the file, except for settings that may change on resuming."""
    for run in (*plan.starts, *plan.cells):
        path = directory / run.subdirectory
        if not (path / SETTINGS).exists():
            continue
        # Compare as recipes: settings that were added later have their defaults.
        before = {key: value for key, value in Recipe.from_json(read_settings(path)).to_json().items() if key != "out"}
        after = run.with_start(directory)
        if run.starts_from and before["model"].endswith(f"/{run.start_checkpoint.as_posix()}"):
            before["model"] = after["model"]  # the comparison may have been moved since
        if changed := fixed_differences(before, after):
            raise TacitError(
                f"{path} was made with other settings than the file now has ({', '.join(changed)}). Undo the change, delete "
                "that run to repeat it, or use another --out."
            )


def run_command(run: PlannedRun, directory: Path) -> list[str]:
    """The command that starts or resumes a run."""
    path = directory / run.subdirectory
    if not (path / SETTINGS).exists():
        return ["train", "--config", str(path / RECIPE), "--out", str(path)]
    extended = read_settings(path)["schedule"]["iterations"] != run.iterations
    return ["train", "--resume", str(path), *(["--iterations", str(run.iterations)] if extended else [])]


def run_cells(
    plan: Plan, wanted: Sequence[PlannedRun], directory: Path, processes: Processes, on_event: Callable[[RunEvent], None]
) -> list[PlannedRun]:
    """Run the wanted cells and their starts; returns those that failed."""
    # Two commands in one directory would resume each other's running runs.
    with explain_disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / ".lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise TacitError(f"another `tacit compare` is running in {directory}; wait for it, or name another --out.") from error
    pending = _unfinished(wanted, directory)
    pending = [*_unfinished([s for s in plan.starts if any(plan.start_of(run) is s for run in pending)], directory), *pending]
    _check_starts(plan, pending, directory)
    active: list[_ActiveRun] = []
    failed: list[PlannedRun] = []
    try:
        while pending or active:
            for run in [r for r in pending if plan.start_of(r) in failed]:
                pending.remove(run)
                failed.append(run)
                _note_failure(directory / run.subdirectory, "the run it starts from failed")
                on_event(RunEvent("failed", run, 0.0, "the run it starts from failed", len(active), len(pending)))
            unfinished = [*pending, *(active_run.run for active_run in active)]
            ready = [run for run in pending if plan.start_of(run) not in unfinished]
            for run in ready[: max(0, processes.max_running - len(active))]:
                pending.remove(run)
                resumed = (directory / run.subdirectory / SETTINGS).exists()
                active.append(_start_run(run, directory, processes))
                on_event(RunEvent("resumes" if resumed else "begins", run, running=len(active), left=len(pending)))
            done = [one for one in active if one.command.code is not None]
            for ended in done:
                active.remove(ended)
                event = _end_event(ended, directory / ended.run.subdirectory)
                if event.kind == "failed":
                    failed.append(ended.run)
                    _note_failure(directory / ended.run.subdirectory, event.reason)
                on_event(replace(event, running=len(active), left=len(pending)))
            if not done:
                time.sleep(POLL_S)
    finally:  # interrupt the running processes; their last checkpoints are kept
        for active_run in active:
            active_run.command.stop()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for active_run in active:
            active_run.command.wait(max(0.1, deadline - time.monotonic()))
        lock.close()
    return failed


def _check_starts(plan: Plan, pending: Sequence[PlannedRun], directory: Path) -> None:
    """Raise if a finished start has lost its weights. It is not repeated silently, because other runs started from it."""
    for run in pending:
        start = plan.start_of(run)
        if start is not None and start not in pending and not (directory / run.start_checkpoint).is_dir():
            path = directory / start.subdirectory
            raise TacitError(
                f"{run.label} starts from {directory / run.start_checkpoint}, which is missing, though {path} is finished. "
                f"Restore it, or delete {path} to repeat it: the runs of {run.world} stay comparable if its digest is the same."
            )


def _unfinished(runs: Sequence[PlannedRun], directory: Path) -> list[PlannedRun]:
    return [run for run in runs if status_of(directory / run.subdirectory, run.iterations) != "finished"]


def _start_run(run: PlannedRun, directory: Path, processes: Processes) -> _ActiveRun:
    path = directory / run.subdirectory
    with explain_disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    (path / FAILURE).unlink(missing_ok=True)
    document = run.with_start(directory)
    if not (path / SETTINGS).exists():
        write_json(path / RECIPE, document)
    else:
        # Use the settings that may change, and the checkpoint's present path. The command sets the number of iterations.
        stored = read_settings(path)
        write_json(path / SETTINGS, document | {key: stored[key] for key in ("out", "schedule") if key in stored})
    return _ActiveRun(run, processes.start(run_command(run, directory), path / LOG))


def _end_event(active_run: _ActiveRun, path: Path) -> RunEvent:
    code, seconds = active_run.command.code or 0, time.monotonic() - active_run.started_at
    if code == 0 and status_of(path, active_run.run.iterations) == "finished":
        final = (find_summary(path) or {}).get("final") or {}
        return RunEvent("finished", active_run.run, seconds, success=final.get("success"))
    lines = [line.strip() for line in (path / LOG).read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    message = next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), "")
    reason = message or f"exit status {code}: {lines[-1] if lines else 'no output'}"
    return RunEvent("failed", active_run.run, seconds, reason if code >= 0 else f"killed by {signal.Signals(-code).name}")


def _note_failure(path: Path, reason: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    write_text(path / FAILURE, reason + "\n")
