"""Progress output of `tacit eval`, and endpoints that give unusable answers."""

from __future__ import annotations

import io
import json
import re
import time
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from chat_server import says, serving
from scripted import make_group

from tacit.cli.eval import EvalProgress
from tacit.cli.main import main
from tacit.cli.terminal import make_console
from tacit.core.types import Completion
from tacit.evaluation.panels import Panel
from tacit.modules.agent import open_agent
from tacit.worlds import get_environment
from tacit.worlds.countdown.world import solve

PANEL = Panel.of(get_environment("countdown"), "test", 4)


def solving(body: dict) -> tuple[int, dict]:
    """The expert's first action, at every turn."""
    prompt = body["messages"][0]["content"]
    task = next(t for t in PANEL.tasks if str(t.data["target"]) in prompt)
    return 200, says(f"<think>so</think><action>{solve(tuple(task.data['numbers']), task.data['target'])[0]}</action>")


def without_thought(body: dict) -> tuple[int, dict]:
    status, answer = solving(body)
    return status, json.loads(json.dumps(answer).replace("<think>so</think>", ""))


def evaluate(server, out, *more: str) -> int:
    words = ["eval", "--endpoint", server.url, "--model", "m", "--world", "countdown", "--tasks", "4", "--max-steps", "3"]
    return main([*words, "--out", str(out), "--json", *more])


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("tacit.engines.endpoint.PAUSE_S", 0.01)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((200, b"<html>welcome</html>"), "none of the 12 answers of m at .* could be used; .*not JSON: b'<html>welcome"),
        ((500, {"error": {"message": "out of memory"}}), "has never answered: 500 out of memory"),
    ],
)
def test_endpoint_without_usable_answers_fails_and_can_be_evaluated_later(capsys, tmp_path, reply, message):
    with serving(lambda body: reply) as server:
        assert evaluate(server, tmp_path) == 2
        assert re.search(message, capsys.readouterr().err)
        server.reply = solving
        assert evaluate(server, tmp_path) == 0
    out = capsys.readouterr().out
    assert "already played" not in out and json.loads(out.splitlines()[-1])["unusable"] == 0
    assert json.loads(out.splitlines()[-1])["invalid"] == 0.0


def test_unusable_answers_are_counted_and_their_episodes_replayed(capsys, tmp_path):
    number = count()
    with serving(lambda body: (200, b"oops") if next(number) == 1 else solving(body)) as server:
        assert evaluate(server, tmp_path, "--concurrency", "1") == 0
        out = capsys.readouterr().out
        assert json.loads(out.splitlines()[-1])["unusable"] == 1
        assert "1 answer, each a turn that does not parse. The first: the answer is not JSON" in out
        assert "not saved, because they broke off: 1 episode;" in out
        assert evaluate(server, tmp_path, "--concurrency", "1") == 0
    out = capsys.readouterr().out
    assert json.loads(out.splitlines()[-1])["unusable"] == 0 and "already played: 3 episodes" in out


def test_actions_without_thought_are_not_reported_as_unparsed(capsys, tmp_path):
    with serving(without_thought) as server:
        assert evaluate(server, tmp_path) == 0
    out = capsys.readouterr().out
    (actions,) = [line for line in out.splitlines() if line.startswith("  actions ")]
    assert re.search(r"100\.0% not in the full format \([1-9][0-9.]*% still ran\)", actions)
    assert "parse" not in actions and "no completion has the full format; this is one" in out


def test_one_unparsed_completion_is_shown(capsys, tmp_path):
    with serving(lambda body: (200, says("I would add them up."))) as server:
        assert evaluate(server, tmp_path) == 0
    assert "no completion parses; this is one, of 3 tokens: 'I would add them up.'" in capsys.readouterr().out


def test_slow_model_load_prints_progress(capsys, monkeypatch):
    lines = []

    def slowly(*words, **named):
        patience = time.monotonic() + 30
        while not lines and time.monotonic() < patience:
            time.sleep(0.02)
            lines.extend(capsys.readouterr().out.splitlines())
        return open_agent(*words, **named)

    monkeypatch.setattr("tacit.cli.eval.open_agent", slowly)
    monkeypatch.setattr("tacit.core.progress.EVERY_S", 0.02)
    assert main(["eval", "expert", "--world", "countdown", "--tasks", "2"]) == 0
    assert re.fullmatch(r"eval: loading expert, [\d.]+ s", lines[0])


def test_progress_shows_turns_speed_and_time_left():
    """Before the first episode ends, the time left is an upper bound. After that it is estimated from finished episodes."""
    now = [0.0]
    policy = SimpleNamespace(written_tokens=7, trouble="")
    progress = EvalProgress(make_console(io.StringIO()), 4, 10, policy, clock=lambda: now[0], every_s=3600)
    progress.resume(1)
    now[0], policy.written_tokens = 4.0, 207
    assert progress.status() == ["1 of 4 episodes", "0 turns", "50 tok/s", "waiting for the first answer, 4.0 s"]
    for _ in range(6):
        progress.on_turn(Completion(np.zeros(5), np.zeros(5), "hm", "stop"), False)
    now[0] = 12.0
    assert progress.status()[1:] == ["6 turns", "16.7 tok/s", "at most 48 s left"], "2 s a turn, of 3 × 10 turns"
    progress.on_episode_end(0, make_group([[1, 1, 1, 1]]).trajectories[0])
    assert progress.status()[0] == "2 of 4 episodes" and progress.status()[-1] == "about 24 s left", "2 × 6 turns"
    for _ in range(12):
        progress.on_turn(Completion(np.zeros(5), np.zeros(5), "hm", "stop"), False)
    now[0] = 36.0
    assert progress.status()[-1] == "about 12 s left", "two at 7 turns of at most 10: that one was short says little"
    progress.close()


def test_progress_without_terminal_prints_lines_periodically():
    console = make_console(io.StringIO())
    policy = SimpleNamespace(written_tokens=0, trouble="500 out of memory; asked again after 0.5 s, 1 of 3 times")
    progress = EvalProgress(console, 8, 10, policy, every_s=0.02)
    progress.on_turn(Completion(np.zeros(3), np.zeros(3), "I think I", "length"), False)
    time.sleep(0.2)
    progress.close()
    first, *rest = console.file.getvalue().splitlines()
    assert first == "first completion, of 3 tokens, not in the full format, cut off by --max-tokens: 'I think I'"
    assert len(rest) > 1 and rest[0].startswith("eval: 0 of 8 episodes, 1 turn, ")
    assert all(line.endswith("left; 500 out of memory; asked again after 0.5 s, 1 of 3 times") for line in rest)
    quick = make_console(io.StringIO())
    EvalProgress(quick, 8).close()
    assert quick.file.getvalue() == "", "nothing for what is over at once"
