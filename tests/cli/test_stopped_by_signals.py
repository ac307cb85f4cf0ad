"""A command stopped by SIGTERM or SIGHUP ends as with Ctrl-C and says how to resume."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tacit.cli import listing
from tacit.cli.main import main
from tacit.config import running
from tacit.training.train import Trainer

TRAIN = (
    "train --world countdown --model tiny-base --iterations 1 --groups 1 --group-size 2 --max-steps 2 --tasks 4 "
    "--evaluation.tasks 2 --evaluation.max-steps 2 --no-evaluation.untrained --lr 1e-4 --engine.device cpu --engine.threads 1"
)


@pytest.fixture(autouse=True)
def not_under_nohup() -> Iterator[None]:
    """The tests may run under nohup or in the background, where these signals are ignored. Restore the default handlers."""
    usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def stopped_by(number):
    """A replacement for a slow function: it sends the signal and sleeps."""

    def work(*_, **__):
        os.kill(os.getpid(), number)
        time.sleep(60)

    return work


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_run_stopped_at_startup_writes_nothing(tmp_path, capsys, monkeypatch, number):
    monkeypatch.setattr(running.Prepared, "setups", stopped_by(number))
    assert main([*TRAIN.split(), "--out", str(tmp_path / "run")]) == 128 + number
    assert "stopped. Nothing was written." in capsys.readouterr().err and not (tmp_path / "run").exists()
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_run_stopped_before_first_iteration_can_be_resumed(tmp_path, capsys, monkeypatch, number):
    run = str(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", stopped_by(number))
        assert main([*TRAIN.split(), "--out", run]) == 128 + number
    assert f"stopped. Continue with `tacit train --resume {run}`." in capsys.readouterr().err
    if number == signal.SIGTERM:  # one signal is enough
        assert main(["train", "--resume", run]) == 0


def test_run_killed_before_writing_settings_must_be_started_again(tmp_path, capsys, monkeypatch):
    """Between the first file and the settings there is nothing to resume, and a new run may use the directory."""
    run = str(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr("tacit.runs.directory.versions", stopped_by(signal.SIGTERM))
        assert main([*TRAIN.split(), "--out", run]) == 143
    assert "Nothing was written" in capsys.readouterr().err
    assert main(["train", "--resume", run]) == 2
    assert "stopped here before it started: repeat the command that started it." in capsys.readouterr().err
    assert main([*TRAIN.split(), "--out", run]) == 0


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_stopped_comparison_exits_with_signal_code_and_can_be_resumed(tmp_path, capsys, monkeypatch, number):
    monkeypatch.setattr("tacit.comparison.results.run_cells", stopped_by(number))
    assert main(["compare", "step-credit", "--out", str(tmp_path)]) == 128 + number
    assert "stopped. The same command resumes it" in capsys.readouterr().err and (tmp_path / "comparison.json").is_file()


def test_ignored_signal_stays_ignored(monkeypatch):
    """As under nohup."""
    seen = []

    def hung_up(argv):
        os.kill(os.getpid(), signal.SIGHUP)
        seen.append(True)
        return 0

    monkeypatch.setattr(listing, "run", hung_up)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(["list"]) == 0 and seen
    finally:
        signal.signal(signal.SIGHUP, before)
