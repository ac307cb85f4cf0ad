"""Scores by hand: repeats, families, tokens."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from scripted import make_group

from tacit.core.errors import TacitError
from tacit.core.protocols import Sampling
from tacit.core.types import Task, Trajectory
from tacit.evaluation.panels import Panel, Rules
from tacit.evaluation.scores import final_and_peak, score_panel
from tacit.evaluation.statistics import mean_interval, wilson

TASKS = tuple(Task("toy", f"toy/{i}", family, "test", 0, "do it") for i, family in enumerate(("a", "a", "b")))
PANEL = Panel("toy", TASKS, "3")
RULES = Rules(Sampling(), 4, seed=6)
WON = ((True, False, True), (True, True, False), (True, False, False))
"""one row per repeat, one column per task"""


def played(won=WON) -> list[Trajectory]:
    episodes = []
    for repeat in won:
        for task, success in zip(TASKS, repeat, strict=True):
            (trajectory,) = make_group([[2, 3]] if success else [[4]], success=[success], task=task).trajectories
            episodes.append(trajectory)
    return episodes


def test_repeats_families_and_tokens():
    score = score_panel(PANEL, played(), RULES, ks=(1, 2, 3))
    assert (score.episodes, score.successes, score.repeats, score.panel_version) == (9, 5, 3, "3")
    assert score.outcomes == ("101", "110", "100")
    assert score.pass_at == pytest.approx({1: 5 / 9, 2: (1 + 2 / 3 + 2 / 3) / 3, 3: 1.0})
    assert score.majority_at == pytest.approx({1: 5 / 9, 2: (1 + 0 + 0) / 3, 3: 1 / 3})
    assert score.pass_interval[1] == score.interval and score.pass_interval[3] == wilson(3, 3)
    assert score.majority_interval[3] == pytest.approx(wilson(1, 3))
    a, b = score.families["a"], score.families["b"]
    assert (a.episodes, a.successes, b.episodes, b.successes) == (6, 4, 3, 1) and list(score.families) == ["a", "b"]
    assert a.success == pytest.approx(4 / 6) and b.steps == pytest.approx((2 + 1 + 1) / 3)
    assert score.macro == pytest.approx((4 / 6 + 1 / 3) / 2) != score.success
    assert score.macro_interval == mean_interval([a.success, b.success], [a.interval, b.interval])
    read, written = 5 * 2 + 4 * 1, 5 * 5 + 4 * 4
    assert score.episode_prompt_tokens == pytest.approx(read / 9) and score.prompt_tokens == 1.0
    assert score.episode_completion_tokens == pytest.approx(written / 9)
    assert score.completion_tokens == pytest.approx(written / read)


def test_unrequested_metrics_are_empty():
    once = score_panel(PANEL, played(WON[:1]), RULES)
    assert once.pass_at == {} == once.majority_at and once.outcomes == ("101",)
    assert list(score_panel(PANEL, played(), RULES).majority_at) == [3], "the repeats there are"
    with pytest.raises(TacitError, match="add --repeats 5"):
        score_panel(PANEL, played(), RULES, ks=(5,))


def test_score_to_json_holds_all_metrics():
    record = json.loads(json.dumps(score_panel(PANEL, played(), RULES).to_json()))
    assert record["families"]["a"]["successes"] == 4 and record["majority_at"] == {"3": pytest.approx(1 / 3)}
    assert record["outcomes"] == ["101", "110", "100"] and record["panel_hash"] == PANEL.hash and record["macro"] == 0.5
    low, high = record["majority_interval"]["3"]
    assert low < 1 / 3 < high and list(record["pass_interval"]) == ["3"] and record["seed"] == 6
    assert record["success"] == pytest.approx(5 / 9) and record["interval"][0] < 5 / 9 < record["interval"][1]


def test_final_and_peak_evaluation():
    def at(stage: str, step: int, success: float) -> dict:
        return {"stage": stage, "step": step, "success": success}

    evaluations = [at("sft", 9, 0.9), at("rl", 5, 0.7), at("rl", 10, 0.4)]
    final, peak = final_and_peak(evaluations)
    assert (final["step"], peak["step"]) == (10, 9), "imitation counts, as for --checkpoint best"
    assert final_and_peak([at("untrained", 0, 0.9), *evaluations[1:]])[1]["step"] == 5
    assert final_and_peak(evaluations[:1]) == (evaluations[0], evaluations[0])


def test_partial_score_is_not_success():
    half = [replace(t, score=0.5) for t in played(((False, False, False),))]
    score = score_panel(PANEL, half, RULES)
    assert score.score == 0.5 and score.success == 0.0 and score.families["a"].score == 0.5
