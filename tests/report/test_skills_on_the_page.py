"""Hindsight skills on the page: charts and turns of runs that have skills, nothing for runs without."""

from __future__ import annotations

import pytest
from parsed import Page
from test_step_credit import labels, write_metrics
from written import episode, write_run

from tacit.report.run_page import render_run
from tacit.report.sections import embed_skills

TOLD = {
    "skills": [{"step": "add them"}],
    "skill_shift": 0.25,
    "shift_by_token": [["op(", 0.5], ["-", -0.25], ["", 0.0]],
}


def measured(s: int) -> dict[str, float]:
    shift = {"skill_shift/magnitude": s / 10, "skill_shift/credit_magnitude": s / 1000, "episode_credit_magnitude": s / 20}
    return {**shift, "hindsight/critical_steps": 2.0 + s, "hindsight/seconds_waited": 0.0}


@pytest.mark.slow
def test_skill_shift_is_charted_next_to_episode_credit(tmp_path):
    run = write_run(tmp_path / "run")
    assert "Skills of hindsight" not in Page(render_run(run)).text
    write_metrics(run, [measured(s) for s in (1, 2, 4)])
    charts, text = labels(render_run(run)), Page(render_run(run)).text
    assert "Skill shift per token, magnitude. 0.1 at iteration 1, 0.4 at 3." in charts
    assert "λ · shift per token, magnitude. 0.001 at iteration 1, 0.004 at 3." in charts
    assert "Episode credit per token, magnitude. 0.05 at iteration 1, 0.2 at 3." in charts
    assert "Critical steps per episode. 3 at iteration 1, 6 at 3." in charts
    assert "Skills of hindsight" in text and "hindsight/seconds_waited 0" in text, "constant metrics are listed as text"


def test_without_skills_episode_credit_is_among_other_metrics(tmp_path):
    run = write_run(tmp_path / "run")
    write_metrics(run, [{"episode_credit_magnitude": s / 20} for s in (1, 2)])
    assert "Skills of hindsight" not in Page(render_run(run)).text
    assert "episode_credit_magnitude. 0.05 at iteration 1, 0.1 at 2." in labels(render_run(run))


def test_skills_of_a_turn_are_embedded_and_damaged_ones_dropped():
    texts: list[str] = []

    def kept(text: str) -> int:
        texts.append(text)
        return len(texts) - 1

    assert embed_skills(TOLD, kept) == {"skills": [["step", 0]], "shift_by_token": [[1, 0.5], [2, -0.25], [3, 0.0]]}
    assert texts == ["add them", "op(", "-", ""] and embed_skills(episode(1, True)["turns"][0], kept) == {}
    for broken in ("x", [], None, [["a", "b"]], [["a"]], [{}], [3], {"a": 1}, [["a", float("nan")]]):
        assert embed_skills({"skills": broken, "shift_by_token": broken}, kept) == {}
