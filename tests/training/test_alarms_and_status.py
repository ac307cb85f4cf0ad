"""Alarms and status messages of a run. A collapsing run warns once and continues."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from scripted import ScriptedPolicy, make_group, solve_countdown

from tacit.core.method import Schedule
from tacit.core.progress import report_elapsed
from tacit.evaluation.statistics import wilson
from tacit.methods.grpo import GRPO
from tacit.runs.alarms import ALARMS, AlarmMonitor, read_alarms
from tacit.runs.directory import Run, code_version, read_metrics
from tacit.training.reporting import HeartbeatReporter, RolloutStatus
from tacit.training.settings import EvaluationSettings, TrainSettings
from tacit.training.setup import WorldSetup
from tacit.training.train import Trainer
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
HEALTHY = {"entropy": 1.0, "valid": 1.0}
COLLAPSED = {"entropy": 0.01, "valid": 1.0}


class Listener:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, name, total, done) -> None: ...
    def step(self, step, metrics) -> None: ...
    def close(self) -> None: ...
    def say(self, text) -> None:
        self.lines.append(text)

    def now(self, text) -> None:
        self.lines.append(f"now {text}")


def test_alarm_is_raised_once_and_saved(tmp_path):
    watcher = AlarmMonitor(tmp_path)
    rung = [watcher.see(step, COLLAPSED if step > 5 else HEALTHY) for step in range(1, 12)]
    (alarm,) = [alarm for alarms in rung for alarm in alarms]
    assert alarm.name == "entropy_low" and alarm.step == 8 and read_alarms(tmp_path) == [alarm]
    assert read_alarms(tmp_path / "elsewhere") == []


def test_healthy_run_writes_no_alarm_file(tmp_path):
    watcher = AlarmMonitor(tmp_path)
    watcher.restore([])
    assert not any(watcher.see(step, HEALTHY) for step in range(1, 12)) and not (tmp_path / ALARMS).exists()


def test_resumed_monitor_writes_the_same_alarm_file(tmp_path):
    metrics = [HEALTHY] * 5 + [COLLAPSED] * 4 + [{**COLLAPSED, "valid": 0.1}] * 6
    whole = AlarmMonitor(tmp_path / "whole")
    (tmp_path / "whole").mkdir()
    for step, record in enumerate(metrics, 1):
        whole.see(step, record)
    expected = (tmp_path / "whole" / ALARMS).read_text()
    assert len(expected.splitlines()) == 2
    for cut in range(len(metrics)):
        place = tmp_path / str(cut)
        place.mkdir()
        first = AlarmMonitor(place)
        for step, record in enumerate(metrics[: min(len(metrics), cut + 2)], 1):  # two iterations beyond the checkpoint
            first.see(step, record)
        resumed = AlarmMonitor(place)
        resumed.restore([{"step": step, **record} for step, record in enumerate(metrics[:cut], 1)])
        for step, record in enumerate(metrics[cut:], cut + 1):
            resumed.see(step, record)
        assert (place / ALARMS).read_text() == expected


def measured(stage: str, step: int, won: int) -> dict:
    return {"stage": stage, "step": step, "success": won / 128, "interval": list(wilson(won, 128))}


def test_evaluation_drop_raises_one_alarm_also_after_resume(tmp_path):
    start, fallen = [measured("untrained", 0, 0), measured("sft", 200, 128)], measured("rl", 10, 107)
    watcher = AlarmMonitor(tmp_path)
    assert not watcher.see_measured([*start, measured("rl", 5, 118)]), "within ten points"
    (alarm,) = watcher.see_measured([*start, measured("rl", 5, 118), fallen])
    assert alarm.step == 10 and alarm.message.startswith("success on the panel fell from 100.0% before RL to 83.6%: ")
    assert not watcher.see_measured([*start, fallen, measured("rl", 15, 0)]), "one alarm"
    resumed = AlarmMonitor(tmp_path)
    resumed.see(1, {**HEALTHY, "crashed": 1, "episodes": 4})
    resumed.restore([{"step": 1, **HEALTHY, "crashed": 1, "episodes": 4}], [*start, fallen])
    assert [found.name for found in read_alarms(tmp_path)] == ["crashed", "measured_fall"]
    few = {"stage": "rl", "step": 5, "success": 0.8, "interval": [0.3, 0.99]}
    assert not AlarmMonitor(tmp_path).see_measured([*start, few]), "a drop within the interval raises no alarm"
    assert not AlarmMonitor(tmp_path).see_measured([fallen]), "no evaluation before RL to compare with"


class Fading(ScriptedPolicy):
    """Writes valid actions at first, then only invalid text, with low entropy."""

    def __init__(self) -> None:
        super().__init__(lambda prompt, seed: "mumble" if len(self.updates) >= 6 else solve_countdown(prompt))

    def freeze_reference(self) -> None: ...

    def update(self, batch, losses, lr):
        return {**super().update(batch, losses, lr), "entropy": 0.001 if len(self.updates) > 5 else 1.0}


def test_collapsing_run_warns_and_finishes(tmp_path: Path):
    schedule = Schedule(groups=2, group_size=2, iterations=10)
    method = GRPO(schedule=schedule).with_prompt(wording="terse", style="bare", history=0, admissible=False).build(WORLD)
    settings = TrainSettings(
        tasks=8, max_steps=6, evaluation=EvaluationSettings(tasks=3, every=0, untrained=False, max_steps=4)
    )
    listener, run = Listener(), Run.create(tmp_path / "run", {"world": "countdown", "method": {}})
    summary = Trainer(run, Fading(), [WorldSetup.of(WORLD, method, settings)], settings, listener).train()
    run.close()
    warnings = [text for text in listener.lines if text.startswith("warning at rl")]
    assert {alarm.name for alarm in read_alarms(tmp_path / "run")} == {
        *("entropy_low", "repetition", "fall", "uncredited"),
    }
    assert len(warnings) == 4
    assert summary["iterations"] == 10 and summary["final"]["code"] == code_version()
    assert summary["final"]["fingerprint"] == summary["digest"] and summary["panel_version"] == "1"
    repeated = [record["repeated"] for record in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert repeated[0] == 0.0 and repeated[-1] > 0.7


class Mumbling(ScriptedPolicy):
    def freeze_reference(self) -> None: ...


def test_unparsed_completion_alarm_shows_an_example_once(tmp_path: Path):
    schedule = Schedule(groups=2, group_size=2, iterations=2)
    method = GRPO(invalid_penalty=0.0, schedule=schedule).with_prompt(wording="full", style="tags").build(WORLD)
    evaluation = EvaluationSettings(split="test", tasks=2, every=1, untrained=False, max_steps=2)
    settings = TrainSettings(tasks=8, max_steps=2, evaluation=evaluation)

    def train(iterations: int) -> Listener:
        listener, run = Listener(), Run(tmp_path / "run")
        policy = Mumbling(lambda prompt, seed: "I would rather\nnot.")
        shorter = replace(method, schedule=replace(schedule, iterations=iterations))
        Trainer(run, policy, [WorldSetup.of(WORLD, shorter, settings)], settings, listener).train()
        run.close()
        return listener

    Run.create(tmp_path / "run", {"world": "countdown", "method": {}}).close()
    warnings = [text for text in train(1).lines if text.startswith("warning")]
    assert len(warnings) == 2 and warnings[0].endswith(r"Example: 'I would rather\nnot.'") and "no group" in warnings[1]
    kept = read_alarms(tmp_path / "run")
    assert [alarm.name for alarm in kept] == ["unparsed", "uncredited"] and kept[0].example == r"'I would rather\nnot.'"
    assert not [text for text in train(2).lines if text.startswith("warning")], "one warning each"
    assert read_alarms(tmp_path / "run") == kept


def test_rollout_status_shows_turns_speed_and_time_left():
    now = [0.0]
    played = RolloutStatus("rl 1", 4, 10, clock=lambda: now[0])
    group = make_group([[2, 2], [2, 2]])
    now[0] = 3.0
    assert played.line(3.0) == "rl 1: 0 of 4 episodes, 0 turns, waiting for the first answer, 3.0 s"
    played.on_turn(group.trajectories[0].steps[0].completion, True)
    assert played.line(0.0) == "rl 1: 0 of 4 episodes, 1 turn, 0.667 tok/s, at most 1 min 57 s left"
    played.on_turn(group.trajectories[0].steps[1].completion, True)
    now[0] = 12.0
    played.on_episode_end(0, group.trajectories[0])
    assert played.line(0.0) == "rl 1: 1 of 4 episodes, 2 turns, 0.333 tok/s, about 36 s left"
    for place in range(1, 5):  # dynamic sampling plays more episodes than planned
        played.on_episode_end(place, group.trajectories[1])
    assert played.line(0.0) == "rl 1: 5 episodes, 2 turns, 0.333 tok/s"
    played.on_end()
    now[0] = 20.0
    assert played.line(0.0) == "rl 1: learning from 2 turns for 8.0 s"


def test_heartbeat_reports_status_during_silence():
    listener = Listener()
    with HeartbeatReporter(listener, every_s=0.05) as attended:
        time.sleep(0.2)
        assert listener.lines == [], "no status, no lines"
        attended.set_status(lambda silence: f"{silence:09.4f} s")
        patience = time.monotonic() + 30
        while len(listener.lines) < 2 and time.monotonic() < patience:
            time.sleep(0.01)
    lines = list(listener.lines)
    assert len(lines) >= 2 and lines[0].startswith("now ") and lines[-1] > lines[0], "the elapsed time grows"
    time.sleep(0.12)
    assert listener.lines == lines, "no lines after the end"


def test_status_threads_stop_silently_on_a_broken_pipe(monkeypatch):
    """`tacit train | head` must end without a traceback from a thread."""
    broken, tries = [], []

    class Gone(Listener):
        def now(self, text) -> None:
            tries.append(text)
            raise BrokenPipeError

    monkeypatch.setattr("threading.excepthook", broken.append)
    monkeypatch.setattr("tacit.core.progress.EVERY_S", 0.02)
    with HeartbeatReporter(Gone(), every_s=0.02) as attended, report_elapsed(Gone().now, str):
        attended.set_status(str)
        time.sleep(0.3)
    assert len(tries) == 2 and not broken, "each thread stops after one failed print"


class Slow(ScriptedPolicy):
    """Samples and updates only after the reporter has announced the wait."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(lambda prompt, seed: "<action>reset</action>")
        self._listener = listener

    def sample(self, *arguments, **named):
        self._wait_for("waiting for the first answer")
        return super().sample(*arguments, **named)

    def update(self, *arguments, **named):
        self._wait_for("learning from")
        return super().update(*arguments, **named)

    def _wait_for(self, words: str) -> None:
        patience = time.monotonic() + 30
        while not any(words in text for text in self._listener.lines) and time.monotonic() < patience:
            time.sleep(0.01)


def test_slow_iteration_reports_progress(tmp_path, monkeypatch):
    monkeypatch.setattr("tacit.training.train.HeartbeatReporter", partial(HeartbeatReporter, every_s=0.05))
    method = (
        GRPO(schedule=Schedule(groups=2, group_size=2, iterations=1)).with_prompt(wording="full", style="tags").build(WORLD)
    )
    settings = TrainSettings(tasks=8, max_steps=2, evaluation=EvaluationSettings(split="test", tasks=2, untrained=False))
    listener, run = Listener(), Run.create(tmp_path / "run", {"world": "countdown", "method": {}})
    Trainer(run, Slow(listener), [WorldSetup.of(WORLD, method, settings)], settings, listener).train()
    run.close()
    lines = [text for text in listener.lines if text.startswith("now rl 1: ")]
    assert lines[0].startswith("now rl 1: 0 of 4 episodes, 0 turns, waiting for the first answer, ")
    completions = [text for text in listener.lines if text.startswith("now first completion")]
    assert completions == ["now first completion, of 2 tokens, not in the full format: '<action>reset</action>'"], "once"
    assert lines[-1].startswith("now rl 1: learning from 8 turns for ")
