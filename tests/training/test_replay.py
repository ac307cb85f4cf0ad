"""Recorded episodes are read back as trajectories, with everything recorded and the same skills."""

from __future__ import annotations

import gzip

import pytest
from scripted import ScriptedPolicy, solve_countdown

from tacit.core.errors import TacitError
from tacit.core.protocols import Sampling
from tacit.prompts.history import History
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.worlds import InProcessPool
from tacit.runs.trajectories import list_recordings, read_trajectories, trajectory_record, write_records
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
TASKS = WORLD.tasks("train", 6, 0)


def falter(prompt: str, seed: int) -> str:
    """Solves, but with some empty answers and some nonsense."""
    return ("", "op(*, 0, 0)", *[solve_countdown(prompt)] * 4)[seed % 6]


@pytest.fixture
def played():
    plans = [EpisodePlan(task, seed) for seed, task in enumerate(TASKS)]
    context = History(WORLD.wording("terse"), 0, False, "bare")
    return rollout(plans, context, InProcessPool(WORLD.make), ScriptedPolicy(falter), Sampling(), 6)


def test_trajectories_round_trip(played, tmp_path):
    file = tmp_path / "trajectories" / "rl-000007.jsonl.gz"
    write_records(file, map(trajectory_record, played))
    assert list_recordings(tmp_path) == {7: file} and list_recordings(tmp_path, "eval-rl") == {}
    again = read_trajectories(file, TASKS)
    steps = [s for t in played for s in t.steps]
    assert any(t.success for t in played) and not all(s.valid for s in steps) and not all(s.effective for s in steps)
    for old, new in zip(played, again, strict=True):
        assert new.task == old.task and (new.success, new.score, new.stop) == (old.success, old.score, old.stop)
        assert [(s.action, s.valid, s.effective, s.label) for s in new.steps] == [
            (s.action, s.valid, s.effective, s.label) for s in old.steps
        ]
        assert WORLD.alphabet(new) == WORLD.alphabet(old)
        kept = ("task", "family", "goal", "success", "score", "stop", "detail", "condition", "seed", "saw")
        after, before = trajectory_record(new), trajectory_record(old)
        assert {k: after[k] for k in kept} == {k: before[k] for k in kept}


def test_recordings_are_listed_by_step_and_stage(tmp_path):
    for name in ("rl-000010", "rl-000002", "eval-rl-000002", "eval-sft-000300"):
        write_records(tmp_path / "trajectories" / f"{name}.jsonl.gz", [])
    assert list(list_recordings(tmp_path)) == [2, 10]
    assert list(list_recordings(tmp_path, "eval-rl")) == [2] and list(list_recordings(tmp_path, "eval-sft")) == [300]


def test_episode_of_an_unknown_task_is_refused(played, tmp_path):
    write_records(tmp_path / "x.jsonl.gz", map(trajectory_record, played))
    with pytest.raises(TacitError, match="is not among the run's tasks"):
        read_trajectories(tmp_path / "x.jsonl.gz", TASKS[1:])


def test_damaged_recording_is_refused(tmp_path):
    file = tmp_path / "x.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"task": "countdown"')[:-9])
    with pytest.raises(TacitError, match="cannot read the recorded episodes"):
        read_trajectories(file, TASKS)
