"""Extra splits (`evaluation.also`) are evaluated after each stage and reported separately."""

from __future__ import annotations

import io

import pytest
from scripted import ScriptedPolicy, solve_countdown

from tacit.core.errors import TacitError
from tacit.core.method import Schedule
from tacit.methods import get_method
from tacit.runs.directory import Run
from tacit.training.reporting import PlainReporter
from tacit.training.settings import EvaluationSettings, TrainSettings
from tacit.training.setup import TaskSets, WorldSetup
from tacit.training.train import Trainer
from tacit.worlds import get_environment

WORLD = get_environment("countdown")


def train(path, also: str) -> dict:
    schedule = Schedule(groups=2, group_size=2, iterations=2)
    method = (
        get_method("grpo")(kl=0.0, schedule=schedule)
        .with_prompt(wording="terse", style="bare", admissible=False, history=0)
        .build(WORLD)
    )
    evaluation = EvaluationSettings(split="test", tasks=3, also=also, every=1)
    run = Run.create(path, {"method": {}})
    try:
        policy = ScriptedPolicy(lambda prompt, seed: solve_countdown(prompt))
        settings = TrainSettings(tasks=4, max_steps=4, evaluation=evaluation)
        return Trainer(run, policy, [WorldSetup.of(WORLD, method, settings)], settings, PlainReporter(io.StringIO())).train()
    finally:
        run.close()


def test_extra_splits_are_evaluated_after_each_stage(tmp_path):
    summary = train(tmp_path / "run", "hard, train:2")
    assert [(e["stage"], e["step"], e["panel"]) for e in summary["further"]] == [
        ("untrained", 0, "countdown/hard/3"),
        ("untrained", 0, "countdown/train/2"),
        ("rl", 2, "countdown/hard/3"),
        ("rl", 2, "countdown/train/2"),
    ]
    assert {e["panel"] for e in summary["evaluations"]} == {"countdown/test/3"}, "`evaluations` has the main panel only"
    assert [e["step"] for e in summary["evaluations"]] == [0, 1, 2]
    kept = {file.name.partition(".")[0] for file in (tmp_path / "run" / "trajectories").glob("eval-hard-*")}
    assert kept == {"eval-hard-untrained-000000", "eval-hard-rl-000002"}


def test_no_extra_splits_by_default(tmp_path):
    assert train(tmp_path / "run", "")["further"] == []


@pytest.mark.parametrize("also", ["hard:many", "hard:0", "hard:-3"])
def test_invalid_task_count_is_refused(also):
    with pytest.raises(TacitError, match=r"evaluation\.also = .* must be SPLIT, SPLIT\? or SPLIT:TASKS"):
        _ = EvaluationSettings(also=also).further_panels


def test_optional_split_without_data_is_skipped_with_a_note(monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    house = get_environment("alfworld")

    def task_sets(also: str) -> TaskSets:
        return TaskSets.of(house, TrainSettings(tasks=2, evaluation=EvaluationSettings(split="unseen", tasks=3, also=also)))

    found = task_sets("valid_seen?, seen:2?, valid_unseen:9?")
    assert [panel.name for panel in found.further] == ["alfworld/seen/2"]
    assert [note.partition(": ")[0] for note in found.notes] == ["not measured on valid_seen", "not measured on valid_unseen"]
    assert "set ALFWORLD_DATA" in found.notes[0]
    with pytest.raises(TacitError, match="set ALFWORLD_DATA"):
        task_sets("valid_seen")
