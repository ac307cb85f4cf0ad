"""The order of runs and the reports of failures, with fake processes."""

from __future__ import annotations

import fcntl
import json
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from small_comparison import SMALL, write

from tacit.cli.main import main
from tacit.comparison import run as module
from tacit.comparison.plan import Plan, make_plan
from tacit.comparison.results import Results
from tacit.comparison.run import FAILURE, RunEvent, check_stored, failure_of, run_cells, run_command, status_of
from tacit.core.errors import TacitError
from tacit.runs.files import write_json


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(tomllib.loads(SMALL.replace("[0, 1, 2]", "[0]")))


class Pretended:
    """A process that ends when polled for the second time."""

    def __init__(self, end: Callable[[], int]) -> None:
        self._end, self._looks = end, 0
        self.stopped = False

    @property
    def code(self) -> int | None:
        self._looks += 1
        return self._end() if self._looks > 1 else None

    def stop(self) -> None:
        self.stopped = True

    def wait(self, seconds: float) -> None:
        pass


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Records starts. `ends` gives a run's exit code and log: 0 for success, an error code, or a negative signal number."""

    class World:
        def __init__(self) -> None:
            self.started: list[str] = []
            self.ends: dict[str, tuple[int, str]] = {}
            self.directory = tmp_path
            self.commands: list[Pretended] = []

        def at_most(self, max_running: int) -> World:
            self.max_running = max_running
            return self

        def start(self, words: list[str], log: Path) -> Pretended:
            label = log.parent.relative_to(tmp_path / "runs").as_posix()
            self.started.append(label)

            def end() -> int:
                code, output = self.ends.get(label, (0, ""))
                log.write_text(output)
                if code == 0:
                    iterations = json.loads((log.parent / "recipe.json").read_text())["schedule"]["iterations"]
                    write_json(log.parent / "summary.json", {"iterations": iterations, "final": {"success": 0.25}})
                return code

            self.commands.append(Pretended(end))
            return self.commands[-1]

    fake = World()
    monkeypatch.setattr(module, "POLL_S", 0.0)
    return fake


def test_start_precedes_its_runs_and_parallelism_is_limited(plan, world):
    events = []
    failed = run_cells(plan, plan.cells, world.directory, world.at_most(2), events.append)
    assert failed == [] and max(event.running for event in events) == 2 and len(world.started) == 7
    assert [event.success for event in events if event.kind == "finished"] == [0.25] * 7
    assert world.started[0] == "same/start"
    assert world.started[1].startswith("next/")  # independent of the start
    assert {status_of(world.directory / run.subdirectory, run.iterations) for run in (*plan.starts, *plan.cells)} == {
        "finished"
    }
    assert run_cells(plan, plan.cells, world.directory, world.at_most(2), events.append) == [] and len(world.started) == 7


def test_missing_start_checkpoint_is_not_retrained_silently(plan, world):
    (start,) = plan.starts
    path = world.directory / start.subdirectory
    path.mkdir(parents=True)
    write_json(path / "summary.json", {"iterations": start.iterations})
    with pytest.raises(TacitError, match=r"which is missing, though .*same/start is finished\. Restore it, or delete"):
        run_cells(plan, plan.cells, world.directory, world.at_most(1), lambda event: None)
    assert not world.started
    (world.directory / plan.cells[0].start_checkpoint).mkdir(parents=True)
    own = [cell for cell in plan.cells if plan.start_of(cell) is start]
    assert run_cells(plan, own, world.directory, world.at_most(1), lambda event: None) == [] and len(world.started) == len(own)


def test_runs_of_a_failed_start_are_not_started(plan, world):
    world.ends["same/start"] = (2, "much\nerror: no expert came.\nmore\n")
    events = []
    failed = run_cells(plan, plan.cells, world.directory, world.at_most(1), events.append)
    assert [run.label for run in failed] == ["same/start", "same/grpo/0", "same/plain/0", "same/ppo/0"]
    assert not any(label.startswith("same/") for label in world.started[1:]) and len(world.started) == 4
    assert failure_of(world.directory / "runs/same/start") == "no expert came."
    assert failure_of(world.directory / "runs/same/ppo/0") == "the run it starts from failed"
    world.ends.clear()
    assert run_cells(plan, plan.cells, world.directory, world.at_most(1), events.append) == []
    assert not list(world.directory.glob(f"runs/**/{FAILURE}"))


@pytest.mark.parametrize(
    ("code", "output", "reason"),
    [
        (-9, "rl 3/40\n", "killed by SIGKILL"),
        (1, "Traceback\n  File\nValueError: odd\n", "exit status 1: ValueError: odd"),
        (3, "", "exit status 3: no output"),
    ],
)
def test_reason_of_a_failed_run_is_reported(plan, world, code, output, reason):
    world.ends["next/grpo/0"] = (code, output)
    events = []
    (failed,) = run_cells(plan, [c for c in plan.cells if c.world == "next"], world.directory, world.at_most(3), events.append)
    assert failed.label == "next/grpo/0" and failure_of(world.directory / failed.subdirectory) == reason
    assert [event.reason for event in events if event.kind == "failed"] == [reason]
    assert status_of(world.directory / failed.subdirectory, failed.iterations) == "failed"


def test_interrupt_stops_running_processes(plan, world):
    def interrupt(event) -> None:
        if event.running == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cells(plan, plan.cells, world.directory, world.at_most(2), interrupt)
    assert [command.stopped for command in world.commands] == [True, True]


def test_two_commands_cannot_share_a_directory(plan, world):
    with (world.directory / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(TacitError, match="another `tacit compare` is running"):
            run_cells(plan, plan.cells, world.directory, world.at_most(1), lambda event: None)


def test_run_resumes_when_more_iterations_are_planned(plan, tmp_path):
    run = plan.cells[0]
    path = tmp_path / run.subdirectory
    assert run_command(run, tmp_path)[:2] == ["train", "--config"]
    path.mkdir(parents=True)
    write_json(path / "settings.json", run.document)
    assert run_command(run, tmp_path) == ["train", "--resume", str(path)]
    write_json(path / "settings.json", run.document | {"schedule": {"iterations": 1}})
    assert run_command(run, tmp_path) == ["train", "--resume", str(path), "--iterations", "2"]
    write_json(path / "summary.json", {"iterations": 1})
    assert status_of(path, run.iterations) == "unfinished"


def test_resumed_run_takes_changeable_settings_from_the_file(plan, world):
    """A changed `keep` must reach the settings of the stored run."""
    run = next(cell for cell in plan.cells if cell.world == "next")
    path = world.directory / run.subdirectory
    path.mkdir(parents=True)
    before = {**run.document, "out": "here", "keep": 9, "schedule": {**run.document["schedule"], "iterations": 1}}
    write_json(path / "recipe.json", run.document)
    write_json(path / "settings.json", before)
    check_stored(plan, world.directory)
    run_cells(plan, [run], world.directory, world.at_most(1), lambda event: None)
    after = json.loads((path / "settings.json").read_text())
    assert after["keep"] == run.document["keep"] != 9 and after["out"] == "here"
    assert after["schedule"]["iterations"] == 1, "the command says how many there are to be"


@pytest.mark.parametrize("summary", ['{"iterations": ', "[]", ""])
def test_run_with_damaged_summary_is_resumed(plan, tmp_path, summary):
    run = plan.cells[0]
    path = tmp_path / run.subdirectory
    path.mkdir(parents=True)
    write_json(path / "settings.json", run.document)
    (path / "summary.json").write_text(summary)
    assert status_of(path, run.iterations) == "unfinished" and run_command(run, tmp_path) == ["train", "--resume", str(path)]


def test_shared_start_is_not_counted_as_a_run(tmp_path, monkeypatch, capsys):
    def run_cells(self, wanted, processes, on_event):
        on_event(RunEvent("finished", self.plan.start_of(wanted[0]), seconds=1.0))
        time.sleep(0.2)
        raise KeyboardInterrupt

    monkeypatch.setattr(Results, "run_cells", run_cells)
    monkeypatch.setattr("tacit.cli.compare.PROGRESS_EVERY_S", 0.05)
    file = write(tmp_path / "small.toml")
    main(["compare", str(file), "--only", "same/grpo/0", "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert "0 of 1 run done" in printed and "1 of 1" not in printed
