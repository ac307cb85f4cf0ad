"""Do the runs of a plan that are not done: each an ordinary `tacit train` in a process of its own, several at a time.

What is finished is left alone, what was stopped goes on exactly where it stopped, what fails is noted and the others go on.
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
from typing import IO, Any, Literal

from tacit.comparison.plan import Plan, Planned
from tacit.config.checks import fixed_differences
from tacit.config.recipe import Recipe
from tacit.core.errors import TacitError
from tacit.core.platform import usable_cpus
from tacit.runs.directory import SETTINGS, find_summary, read_settings
from tacit.runs.files import explain_disk_errors, write_json, write_text

# `tacit` commands in fresh processes, forked from a server that has imported everything once (see `warm`): a small run would
# else take longer to import torch than to train, and an edit of the code would divide a comparison into before and after.


class Processes:
    """Starts commands, `most` of them at a time. Made before anything heavy is imported, so that the environment it sets is the
    one they see."""

    def __init__(self, main: Callable[[list[str]], int], most: int) -> None:
        """`main` does a command, given its words; each new process finds it by its name."""
        self._main, self.most = main, most
        # A run's texts are encoded together, on as many cores as are its share.
        each = max(1, usable_cpus() // most)
        self._share = {"TOKENIZERS_PARALLELISM": "true" if each > 1 else "false", "RAYON_NUM_THREADS": str(each)}
        # A library that only asks whether there is a GPU must not begin to use it: a driver in use does not survive a fork.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        if most > 1:
            # Several runs on the same cores: threads of one would only wait for those of another.
            os.environ["OMP_NUM_THREADS"] = "1"
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tacit.comparison.warm"])

    def start(self, words: Sequence[str], log: Path) -> Command:
        # The server may be older than this environment: it serves all that a process and its parents ever start.
        told = (self._main, list(words), str(log), {**self._share, **os.environ})
        process = self._context.Process(target=_run, args=told, name=" ".join(words))
        with _without_our_main():
            process.start()
        return Command(process)


class Command:
    def __init__(self, process: Any) -> None:
        self._process = process

    @property
    def code(self) -> int | None:
        """None while it runs; −n where signal n ended it."""
        return self._process.exitcode

    def stop(self) -> None:
        """As Ctrl-C would."""
        if self.code is None:
            os.kill(self._process.pid, signal.SIGINT)

    def wait(self, seconds: float) -> None:
        """Until it has ended; after so long it is killed."""
        self._process.join(seconds)
        if self.code is None:
            self._process.kill()
            self._process.join()


@contextmanager
def _without_our_main() -> Iterator[None]:
    """A new process would first run the main module of whoever starts it, in case its work is defined there. Ours is defined
    here; and where we were started as `python -m tacit.cli.main`, Python warns that the server has imported that already."""
    ours = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = ours


def _run(main: Callable[[list[str]], int], words: list[str], log: str, environment: dict[str, str]) -> None:
    """In the new process: one command, whatever it prints going to the log."""
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
PATIENCE_S = 20.0
"""how long a run that is told to stop may take to do so"""

Status = Literal["finished", "failed", "unfinished", "missing"]


@dataclass(frozen=True)
class Happening:
    """Something to tell whoever waits."""

    kind: Literal["begins", "resumes", "finished", "failed"]
    run: Planned
    seconds: float = 0.0
    reason: str = ""
    """why it failed"""
    running: int = 0
    left: int = 0
    success: float | None = None
    """of its last evaluation, where it finished"""


@dataclass
class _Working:
    run: Planned
    command: Command
    began: float = field(default_factory=time.monotonic)


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
    """Runs that are already there must be the ones the file asks for; only what may change on resuming may have."""
    for planned in (*plan.starts, *plan.cells):
        path = directory / planned.place
        if not (path / SETTINGS).exists():
            continue
        # Read as a recipe: a setting that came into being since is then at its default.
        before = {key: value for key, value in Recipe.from_json(read_settings(path)).to_json().items() if key != "out"}
        after = planned.with_start(directory)
        if planned.starts_from and before["model"].endswith(f"/{planned.start_place.as_posix()}"):
            before["model"] = after["model"]  # the comparison may have been moved since
        if changed := fixed_differences(before, after):
            raise TacitError(
                f"{path} was made with other settings than the file now asks for ({', '.join(changed)}). Take the change back, "
                "delete that run to do it again, or name another --out."
            )


def words_for(run: Planned, directory: Path) -> list[str]:
    """The command that does a run, or goes on with it."""
    path = directory / run.place
    if not (path / SETTINGS).exists():
        return ["train", "--config", str(path / RECIPE), "--out", str(path)]
    more = read_settings(path)["schedule"]["iterations"] != run.iterations
    return ["train", "--resume", str(path), *(["--iterations", str(run.iterations)] if more else [])]


def carry_out(
    plan: Plan, wanted: Sequence[Planned], directory: Path, processes: Processes, tell: Callable[[Happening], None]
) -> list[Planned]:
    """Do the wanted runs, and the starts they need, as many at a time as there may be processes; returns those that failed."""
    lock = _lock(directory)
    waiting = _undone(wanted, directory)
    waiting = [*_undone([s for s in plan.starts if any(plan.start_of(run) is s for run in waiting)], directory), *waiting]
    _check_starts(plan, waiting, directory)
    working: list[_Working] = []
    failed: list[Planned] = []
    try:
        while waiting or working:
            for run in [r for r in waiting if plan.start_of(r) in failed]:
                waiting.remove(run)
                failed.append(run)
                _note_failure(directory / run.place, "the run it starts from failed")
                tell(Happening("failed", run, 0.0, "the run it starts from failed", len(working), len(waiting)))
            undone = [*waiting, *(work.run for work in working)]
            ready = [run for run in waiting if plan.start_of(run) not in undone]
            for run in ready[: max(0, processes.most - len(working))]:
                waiting.remove(run)
                resumed = (directory / run.place / SETTINGS).exists()
                working.append(_begin(run, directory, processes))
                tell(Happening("resumes" if resumed else "begins", run, running=len(working), left=len(waiting)))
            ended = [w for w in working if w.command.code is not None]
            for work in ended:
                working.remove(work)
                event = _ended(work, directory / work.run.place)
                if event.kind == "failed":
                    failed.append(work.run)
                    _note_failure(directory / work.run.place, event.reason)
                tell(replace(event, running=len(working), left=len(waiting)))
            if not ended:
                time.sleep(POLL_S)
    finally:
        _stop(working)
        lock.close()
    return failed


def _lock(directory: Path) -> IO[str]:
    """Two commands in one directory would each take the other's runs for abandoned ones."""
    with explain_disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise TacitError(
            f"another `tacit compare` is at work in {directory}; wait for it. --jobs does several runs."
        ) from error
    return file


def _check_starts(plan: Plan, waiting: Sequence[Planned], directory: Path) -> None:
    """A start that was made once and whose weights are gone is not made anew unasked: others have begun from it."""
    for run in waiting:
        start = plan.start_of(run)
        if start is not None and start not in waiting and not (directory / run.start_place).is_dir():
            place = directory / start.place
            raise TacitError(
                f"{run.label} starts from {directory / run.start_place}, which is gone, though {place} says that it was made. "
                f"Put it back, or delete {place} to make it anew: the runs of {run.world} are comparable if its digest is the "
                "same."
            )


def _undone(runs: Sequence[Planned], directory: Path) -> list[Planned]:
    return [run for run in runs if status_of(directory / run.place, run.iterations) != "finished"]


def _begin(run: Planned, directory: Path, processes: Processes) -> _Working:
    path = directory / run.place
    with explain_disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    (path / FAILURE).unlink(missing_ok=True)
    document = run.with_start(directory)
    if not (path / SETTINGS).exists():
        write_json(path / RECIPE, document)
    else:
        # What may change has perhaps changed in the file, and the checkpoint it starts from lies where the comparison lies now.
        # How many iterations it goes on for is said by the command, which knows how many are done.
        stored = read_settings(path)
        write_json(path / SETTINGS, document | {key: stored[key] for key in ("out", "schedule") if key in stored})
    return _Working(run, processes.start(words_for(run, directory), path / LOG))


def _ended(work: _Working, path: Path) -> Happening:
    code, seconds = work.command.code or 0, time.monotonic() - work.began
    if code == 0 and status_of(path, work.run.iterations) == "finished":
        final = (find_summary(path) or {}).get("final") or {}
        return Happening("finished", work.run, seconds, success=final.get("success"))
    return Happening("failed", work.run, seconds, _reason(code, path))


def _reason(code: int, path: Path) -> str:
    """Why a run that ended is not finished."""
    lines = [line.strip() for line in (path / LOG).read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    said = next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), "")
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return said or f"exit status {code}: {lines[-1] if lines else 'nothing was said'}"


def _note_failure(path: Path, reason: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    write_text(path / FAILURE, reason + "\n")


def _stop(working: Sequence[_Working]) -> None:
    """Tell what still runs to stop, as Ctrl-C would; what was done up to its last checkpoint is kept."""
    for work in working:
        work.command.stop()
    deadline = time.monotonic() + PATIENCE_S
    for work in working:
        work.command.wait(max(0.1, deadline - time.monotonic()))
