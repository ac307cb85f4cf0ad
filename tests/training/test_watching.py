"""A run says that it is collapsing, once, and goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from scripted import ScriptedPolicy, make_group, solve_countdown

from tacit.core.method import Schedule
from tacit.environments import get_environment
from tacit.methods.grpo import GRPO
from tacit.runs.directory import Run, code_version
from tacit.runs.metrics import read_metrics
from tacit.runs.watching import ALARMS, Watcher, read_alarms
from tacit.training.practice import Practice
from tacit.training.reporting import Played
from tacit.training.settings import EvaluationSettings, TrainSettings
from tacit.training.train import Trainer

WORLD = get_environment("countdown")
HEALTHY = {"entropy": 1.0, "valid": 1.0}
COLLAPSED = {"entropy": 0.01, "valid": 1.0}


class Listener:
    def __init__(self) -> None:
        self.said: list[str] = []

    def stage(self, name, total, done) -> None: ...
    def step(self, step, metrics) -> None: ...
    def close(self) -> None: ...
    def say(self, text) -> None:
        self.said.append(text)


def test_a_watcher_says_it_once_and_keeps_it(tmp_path):
    watcher = Watcher(tmp_path)
    rung = [watcher.see(step, COLLAPSED if step > 5 else HEALTHY) for step in range(1, 12)]
    (alarm,) = [alarm for alarms in rung for alarm in alarms]
    assert alarm.name == "entropy_low" and alarm.step == 8 and read_alarms(tmp_path) == [alarm]
    assert read_alarms(tmp_path / "elsewhere") == []


def test_a_healthy_run_has_no_file(tmp_path):
    watcher = Watcher(tmp_path)
    watcher.restore([])
    assert not any(watcher.see(step, HEALTHY) for step in range(1, 12)) and not (tmp_path / ALARMS).exists()


def test_a_watcher_resumed_anywhere_ends_with_the_same_file(tmp_path):
    metrics = [HEALTHY] * 5 + [COLLAPSED] * 4 + [{**COLLAPSED, "valid": 0.1}] * 6
    whole = Watcher(tmp_path / "whole")
    (tmp_path / "whole").mkdir()
    for step, record in enumerate(metrics, 1):
        whole.see(step, record)
    expected = (tmp_path / "whole" / ALARMS).read_text()
    assert len(expected.splitlines()) == 2
    for cut in range(len(metrics)):
        place = tmp_path / str(cut)
        place.mkdir()
        first = Watcher(place)
        for step, record in enumerate(metrics[: min(len(metrics), cut + 2)], 1):  # two iterations beyond the checkpoint
            first.see(step, record)
        resumed = Watcher(place)
        resumed.restore([{"step": step, **record} for step, record in enumerate(metrics[:cut], 1)])
        for step, record in enumerate(metrics[cut:], cut + 1):
            resumed.see(step, record)
        assert (place / ALARMS).read_text() == expected


class Fading(ScriptedPolicy):
    """Writes an action at first, then only mumbles; its entropy fades too."""

    def __init__(self) -> None:
        super().__init__(lambda prompt, seed: "mumble" if len(self.updates) >= 6 else solve_countdown(prompt))

    def freeze_reference(self) -> None: ...

    def update(self, batch, losses, lr):
        return {**super().update(batch, losses, lr), "entropy": 0.001 if len(self.updates) > 5 else 1.0}


def test_a_run_that_collapses_says_so_and_ends_as_planned(tmp_path: Path):
    schedule = Schedule(groups=2, group_size=2, iterations=10)
    method = GRPO(wording="terse", style="bare", history=0, admissible=False, schedule=schedule).build(WORLD)
    settings = TrainSettings(
        tasks=8, max_steps=6, evaluation=EvaluationSettings(tasks=3, every=0, untrained=False, max_steps=4)
    )
    listener, run = Listener(), Run.create(tmp_path / "run", {"world": "countdown"})
    summary = Trainer(run, Fading(), [Practice.of(WORLD, method, settings)], settings, listener).train()
    run.close()
    warnings = [text for text in listener.said if text.startswith("warning at rl")]
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


def test_where_nothing_parses_one_completion_is_shown_and_kept_also_when_the_run_is_resumed(tmp_path: Path):
    schedule = Schedule(groups=2, group_size=2, iterations=2)
    method = GRPO(wording="full", style="tags", invalid_penalty=0.0, schedule=schedule).build(WORLD)
    evaluation = EvaluationSettings(split="test", tasks=2, every=1, untrained=False, max_steps=2)
    settings = TrainSettings(tasks=8, max_steps=2, evaluation=evaluation)

    def train(iterations: int) -> Listener:
        listener, run = Listener(), Run(tmp_path / "run")
        policy = Mumbling(lambda prompt, seed: "I would rather\nnot.")
        shorter = replace(method, schedule=replace(schedule, iterations=iterations))
        Trainer(run, policy, [Practice.of(WORLD, shorter, settings)], settings, listener).train()
        run.close()
        return listener

    Run.create(tmp_path / "run", {"world": "countdown"}).close()
    said = [text for text in train(1).said if text.startswith("warning")]
    assert len(said) == 2 and said[0].endswith(r"This is one: 'I would rather\nnot.'") and "no group" in said[1]
    kept = read_alarms(tmp_path / "run")
    assert [alarm.name for alarm in kept] == ["unparsed", "uncredited"] and kept[0].example == r"'I would rather\nnot.'"
    assert not [text for text in train(2).said if text.startswith("warning")], "each is said once"
    assert read_alarms(tmp_path / "run") == kept


def test_episodes_that_take_long_are_told_of_now_and_then():
    now, listener = [0.0], Listener()
    played = Played(listener, "rl 1", 4, clock=lambda: now[0])
    group = make_group([[2, 2], [2, 2]])
    for second in range(25):
        now[0] = float(second)
        played.turn(group.trajectories[0].steps[0].completion, True)
        if second == 12:
            played.over(0, group.trajectories[0])
    assert listener.said == [
        "rl 1: 0 of 4 episodes are over, 11 turns, 2.2 tok/s",
        "rl 1: 1 of 4 episodes are over, 21 turns, 2.1 tok/s",
    ]
