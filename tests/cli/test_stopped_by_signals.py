"""A command that a batch system stops, or whose terminal is closed, ends as with ^C: in words that say how to go on."""

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
    """Whoever runs the tests may have these signals ignored, or have them run in the background, where ^C is."""
    usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def stopped_by(number):
    """In the place of anything that takes its time."""

    def work(*_, **__):
        os.kill(os.getpid(), number)
        time.sleep(60)

    return work


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_stopped_while_it_starts_leaves_nothing_and_says_so(tmp_path, capsys, monkeypatch, number):
    monkeypatch.setattr(running.Prepared, "setups", stopped_by(number))
    assert main([*TRAIN.split(), "--out", str(tmp_path / "run")]) == 128 + number
    assert "stopped. Nothing was written." in capsys.readouterr().err and not (tmp_path / "run").exists()
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_one_that_is_stopped_before_its_first_iteration_says_how_to_go_on_and_does(tmp_path, capsys, monkeypatch, number):
    run = str(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", stopped_by(number))
        assert main([*TRAIN.split(), "--out", run]) == 128 + number
    assert f"stopped. Continue with `tacit train --resume {run}`." in capsys.readouterr().err
    if number == signal.SIGTERM:  # once is enough
        assert main(["train", "--resume", run]) == 0


def test_one_that_is_killed_before_it_has_settings_is_to_be_begun_again(tmp_path, capsys, monkeypatch):
    """Between its first file and its settings there is a moment; then there is nothing to resume, and nothing in the way."""
    run = str(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr("tacit.runs.directory.versions", stopped_by(signal.SIGTERM))
        assert main([*TRAIN.split(), "--out", run]) == 143
    assert "Nothing was written" in capsys.readouterr().err
    assert main(["train", "--resume", run]) == 2
    assert "stopped here before it had begun: give the command that began it again." in capsys.readouterr().err
    assert main([*TRAIN.split(), "--out", run]) == 0


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_comparison_that_is_stopped_says_which_signal_it_was(tmp_path, capsys, monkeypatch, number):
    monkeypatch.setattr("tacit.comparison.results.run_cells", stopped_by(number))
    assert main(["compare", "step-credit", "--out", str(tmp_path)]) == 128 + number
    assert "stopped. The same command resumes it" in capsys.readouterr().err and (tmp_path / "comparison.json").is_file()


def test_a_signal_that_is_ignored_stays_ignored(monkeypatch):
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
