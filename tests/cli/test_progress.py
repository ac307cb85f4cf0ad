"""Live progress and final output."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from tacit.cli.main import main
from tacit.cli.terminal import make_console, say, say_pairs, score_rows, table
from tacit.cli.train import LiveReporter, format_metrics, make_reporter, pack_lines
from tacit.core.errors import TacitError
from tacit.core.progress import format_duration
from tacit.training.reporting import PlainReporter

METRICS = {"success": 0.4375, "reward": 4.31, "loss": -0.0123, "tokens_per_s": 12345.0, "unwatched": 1.0}


def terminal(width: int = 80) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False, color_system=None)


def drawn(reporter: LiveReporter, console: Console) -> list[str]:
    """The current terminal content, without cursor control codes."""
    paper = terminal(console.width)
    paper.print(reporter.render())
    return [line.rstrip() for line in paper.file.getvalue().splitlines()]


def make_live(width: int, times: list[float]) -> tuple[LiveReporter, Console]:
    console = terminal(width)
    reporter = LiveReporter(console, clock=lambda: times.pop(0) if len(times) > 1 else times[0])
    return reporter, console


def test_stage_shows_bar_metrics_speed_and_time_left():
    reporter, console = make_live(100, [0.0, 10.0, 10.0])
    reporter.stage("rl", 40, 0)
    reporter.step(1, METRICS)
    lines = drawn(reporter, console)
    reporter.close()
    assert lines[0].startswith("rl") and lines[0].endswith("1/40  6 min 30 s left") and "━" in lines[0]
    assert lines[1] == "success 43.8%  reward 4.31  loss -0.0123  tok/s 12345"


@pytest.mark.parametrize("width", [16, 24, 40, 60])
def test_narrow_terminal_breaks_lines_between_metrics(width):
    reporter, console = make_live(width, [0.0, 10.0, 10.0])
    reporter.stage("rl", 40, 0)
    reporter.step(1, METRICS)
    text = "\n".join(drawn(reporter, console))
    reporter.close()
    for chunk in format_metrics(METRICS):
        assert chunk in text
    assert "…" not in text


def test_speed_of_a_resumed_stage_counts_only_new_steps():
    reporter, _ = make_live(80, [100.0, 104.0, 104.0])
    reporter.stage("rl", 30, 20)
    reporter.step(22, {})
    assert reporter.seconds_left() == pytest.approx(16.0)
    reporter.close()


def test_status_line_disappears_at_the_next_step_or_message():
    reporter, console = make_live(40, [0.0, 10.0, 10.0])
    reporter.now("rl 1: 0 of 64 episodes, 12 turns, 210 tok/s, at most 3 min 20 s left")
    assert drawn(reporter, console) == ["rl 1: 0 of 64 episodes  12 turns", "210 tok/s  at most 3 min 20 s left"]
    reporter.stage("rl", 40, 0)
    reporter.now("rl 1: 1 of 64 episodes")
    assert drawn(reporter, console)[-1] == "rl 1: 1 of 64 episodes"
    reporter.say("rl 0: success 1.6%")
    assert "episodes" not in "\n".join(drawn(reporter, console)), "what is over does not go on"
    reporter.now("rl 1: 2 of 64 episodes")
    reporter.step(1, METRICS)
    assert "episodes" not in "\n".join(drawn(reporter, console))
    reporter.close()
    assert "of 64 episodes" not in console.file.getvalue().splitlines()[-1], "no line of its own is left behind"


def test_time_left_is_unknown_before_the_first_step():
    reporter, console = make_live(80, [0.0])
    assert drawn(reporter, console) == []
    reporter.stage("sft", 10, 0)
    assert reporter.seconds_left() is None
    assert drawn(reporter, console)[0].endswith("0/10")
    reporter.close()


def test_supervised_stage_computes_speed_from_tokens():
    reporter, console = make_live(80, [0.0, 2.0, 2.0])
    reporter.stage("sft", 10, 0)
    reporter.step(1, {"loss": 1.0, "tokens": 500.0})
    assert "tok/s 250" in drawn(reporter, console)[1]
    reporter.close()


def test_messages_are_printed_above_the_bar():
    console = terminal(30)
    reporter = LiveReporter(console)
    reporter.stage("rl", 10, 0)
    long = "rl 5: success 43.8% [35.5, 52.4] of 128 episodes on countdown/test/128 [not markup]"
    reporter.say(long)
    reporter.close()
    assert long in console.file.getvalue()


def test_plain_reporter_is_used_without_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_reporter(Console(file=io.StringIO())), PlainReporter)
    live = make_reporter(terminal())
    live.close()
    assert isinstance(live, LiveReporter)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_reporter(terminal()), PlainReporter)


def test_plain_reporter_writes_to_the_console():
    console = make_console(io.StringIO())
    reporter = make_reporter(console)
    reporter.stage("rl", 1, 0)
    reporter.step(1, METRICS)
    assert "rl 1/1  success 43.8%  reward 4.31" in console.file.getvalue()


def test_slow_model_load_prints_progress(capsys, monkeypatch, tmp_path):
    lines = []

    def slowly(self):
        patience = time.monotonic() + 30
        while not any(line.startswith("loading") for line in lines) and time.monotonic() < patience:
            time.sleep(0.02)
            lines.extend(capsys.readouterr().out.splitlines())
        raise TacitError("it broke")

    monkeypatch.setattr("tacit.config.resources.RunResources.open", slowly)
    monkeypatch.setattr("tacit.core.progress.EVERY_S", 0.02)
    assert main(["train", "--world", "countdown", "--model", "tiny-0.5m", "--out", str(tmp_path / "run")]) == 2
    assert re.fullmatch(r"loading tiny-0.5m, [\d.]+ s", lines[-1]) and not (tmp_path / "run").exists()


def test_pack_lines_fills_the_width():
    assert pack_lines(["aa", "bb", "cc"], 6) == ["aa  bb", "cc"]
    assert pack_lines(["longer than the line"], 5) == ["longer than the line"]
    assert pack_lines([], 5) == []


def test_format_duration():
    assert [format_duration(s) for s in (0.04, 9.96, 59, 75, 3600, 7500)] == [
        "0.0 s", "10.0 s", "59 s", "1 min 15 s", "1 h 00 min", "2 h 05 min",
    ]  # fmt: skip


def test_lines_are_not_wrapped_and_markup_is_not_parsed():
    console = terminal(20)
    say(console, "a [bold]very[/bold] long line about a run directory")
    say_pairs(console, [("panel", "countdown/test/128 (hash 92e139b7fff24cbc)"), ("x", "1")])
    out = console.file.getvalue()
    assert "a [bold]very[/bold] long line about a run directory\n" in out
    assert "  panel  countdown/test/128 (hash 92e139b7fff24cbc)\n  x      1\n" in out


def test_only_the_label_is_dim():
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system="standard")
    say_pairs(console, [("seed", "0")])
    assert console.file.getvalue() == "\x1b[2m  seed  \x1b[0m0\n"


def test_numbers_in_tables_are_not_wrapped():
    console = terminal(48)
    rows = [("after rl 40", "43.8%", "[35.5, 52.4]", "words that may well be broken")]
    console.print(table("", ("stage", "success", "interval", "note"), rows, numbers=("success", "interval")))
    assert "after rl 40" in console.file.getvalue() and "43.8%  [35.5, 52.4]" in console.file.getvalue()


def test_score_rows_show_last_of_each_stage_and_the_peak():
    def score(stage: str, step: int, success: float) -> dict:
        return {"stage": stage, "step": step, "success": success, "interval": [0.0, 1.0], "episodes": 8}

    rows = score_rows([score("untrained", 0, 0.0), score("sft", 9, 0.25), score("rl", 5, 0.75), score("rl", 10, 0.5)])
    assert [row[:2] for row in rows] == [
        ("untrained", "0.0%"),
        ("after sft 9", "25.0%"),
        ("after rl 10", "50.0%"),
        ("peak, after rl 5", "75.0%"),
    ]
    assert len(score_rows([score("untrained", 0, 0.0), score("rl", 10, 0.5)])) == 2
