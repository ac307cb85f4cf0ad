"""Step-credit section: cluster diagnostics of runs and comparisons, absent for methods without clusters."""

from __future__ import annotations

import json

import pytest
from parsed import Page
from written import write_comparison, write_run

from tacit.credit.step_relative import pace_metrics, partition_metrics
from tacit.report.comparison_page import render_comparison
from tacit.report.run_page import render_run
from tacit.report.sections import DIAGNOSTICS, MAX_POINTS


def clusters(step: int, alone: float, prefix: str = "") -> dict[str, float]:
    found = {
        "parts_singleton": alone,
        "parts_singleton_steps": alone / 4,
        "parts_mean_size": 2.0 + step,
        "parts_pairs": 10 * step,
    }
    return {f"{prefix}{name}": value for name, value in {**found, "parts_largest": 0.5}.items()}


def branches(step: int) -> dict[str, float]:
    shares = {"pace_used": 0.5 + step / 100, "pace_leave_one_out": 0.5 - step / 100, "pace_zero": 0.0}
    return {**shares, "pace_keys_per_part": 1.0 + step, "pace_parts_contrasted": step / 10, "pace_parsed": 1.0}


def write_metrics(run, lines):
    run.mkdir(parents=True, exist_ok=True)
    rows = [{"stage": "rl", "step": s, "success": s / 20, **line} for s, line in enumerate(lines, start=1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rows))


def labels(html: str) -> list[str]:
    return [str(svg["aria-label"]).removesuffix(" Arrow keys read the values.") for svg in Page(html).all("svg")]


def test_charted_diagnostics_equal_the_recorded_metrics():
    import numpy as np

    part, key, branch, parsed = np.array([0, 0, 1]), np.array([0, 1, 0]), np.array([2, 2, 0]), np.array([True] * 3)
    counted = partition_metrics([part]) | pace_metrics([part], [key], [branch], [parsed])
    drawn = {metric for diagnostic in DIAGNOSTICS for metric in diagnostic.metrics.values()}
    assert drawn == set(counted) - {"parts"}, "the number of clusters stands among the further numbers"


@pytest.mark.slow
def test_run_with_step_credit_charts_its_clusters(tmp_path):
    run = write_run(tmp_path / "run")
    assert "Step credit" not in Page(render_run(run)).text
    write_metrics(run, [{**clusters(s, s / 10), **branches(s)} for s in range(1, 5)])
    charts = labels(render_run(run))
    assert "Singletons. of clusters: 10.0% at iteration 1, 40.0% at 4; of steps: 2.5% at iteration 1, 10.0% at 4." in charts
    assert "Steps per cluster. 3 at iteration 1, 6 at 4." in charts and "Matched pairs. 10 at iteration 1, 40 at 4." in charts
    branch = next(t for t in charts if t.startswith("Branch. "))
    assert branch.count("at iteration") == 3 and "zero: 0.0% at iteration 1, 0.0% at 4" in branch
    assert "Actions per cluster. 2 at iteration 1, 5 at 4." in charts
    assert not any(t.startswith(("parts_", "pace_")) for t in charts), "once each"
    text = Page(render_run(run)).text
    assert "not drawn: parts_largest 0.5, pace_parsed 1." in text, "constant metrics are listed as text"


def test_each_world_has_its_own_cluster_charts(tmp_path):
    run = write_run(tmp_path / "run")
    lines = [
        {"one/success": s / 9, "two/success": s / 8, **clusters(s, s / 10, "one/"), **clusters(s, s / 20, "two/")}
        for s in (1, 2)
    ]
    write_metrics(run, lines)
    charts = labels(render_run(run))
    assert "Singletons, two. of clusters: 5.0% at iteration 1, 10.0% at 2; of steps: 1.2% at iteration 1, 2.5% at 2." in charts
    assert "Steps per cluster. one: 3 at iteration 1, 4 at 2; two: 3 at iteration 1, 4 at 2." in charts


@pytest.fixture
def compared(tmp_path):
    place = write_comparison(tmp_path / "compared")
    for seed in (0, 1, 2):
        lines = [clusters(s, 0.1 * (seed + 1)) for s in range(1, 4)]
        write_metrics(place / f"runs/countdown/reuserl/{seed}", lines)
        write_metrics(place / f"runs/countdown/bipace/{seed}", [{**line, **branches(1 + i)} for i, line in enumerate(lines)])
        write_metrics(place / f"runs/countdown/grpo/{seed}", [{}, {}, {}])
    return place


@pytest.mark.slow
def test_comparison_shows_methods_side_by_side(compared):
    page = Page(render_comparison(compared))
    charts = labels(render_comparison(compared))
    assert "Steps per cluster. bipace: 3 at iteration 1, 5 at 3; reuserl: 3 at iteration 1, 5 at 3." in charts
    assert "Branch, PACE. 51.0% at iteration 1, 53.0% at 3." in charts, "only one of them has it"
    assert not any(t.startswith("Largest cluster") for t in charts), "it never moves: the table has it"
    row = "bipace 20.0% 5.0% 4 20 50.0% 52.0% 48.0% 0.0% 3 20.0% 100.0%"
    assert row in page.text and "reuserl 20.0% 5.0% 4 20 50.0% – – – – – –" in page.text
    assert "Singletons, of clusters Singletons, of steps Steps per cluster" in page.text


@pytest.mark.slow
def test_long_runs_are_drawn_as_means_of_neighbors(compared):
    for seed in (0, 1, 2):
        write_metrics(compared / f"runs/countdown/bipace/{seed}", [clusters(s, s / 1000) for s in range(1, 200)])
    text = render_comparison(compared)
    assert "each point is the mean of 4 neighbors" in Page(text).text
    figure = next(svg for svg in Page(text).all("svg") if str(svg["aria-label"]).startswith("Matched pairs"))
    assert [len(line["points"]) for line in json.loads(str(figure["data-chart"]))["series"]] == [50, 3] and MAX_POINTS == 60


def test_comparison_without_step_credit_has_no_such_section(tmp_path):
    assert "Step credit" not in Page(render_comparison(write_comparison(tmp_path / "compared"))).text
