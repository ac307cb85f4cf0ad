"""The comparison table, from small cells whose numbers can be computed by hand."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from tacit.comparison.pages import average_spans, csv_text, draw, markdown, p_text, table_text
from tacit.comparison.plan import read_outcome
from tacit.comparison.results import check_same_panel, make_table
from tacit.core.errors import TacitError
from tacit.evaluation.statistics import bounded_interval, share_interval, t_interval, wilson

THRESHOLDS = [0.25, 0.75]


def evaluation(stage: str, step: int, outcomes: str, seed: int = 0, **more: Any) -> dict[str, Any]:
    successes = outcomes.count("1")
    return {
        "stage": stage, "step": step, "panel": "w/test/4", "panel_hash": "aaaa", "episodes": len(outcomes), "seed": seed,
        "successes": successes, "success": successes / len(outcomes), "score": successes / len(outcomes), "steps": 3.0,
        "success_steps": 2.0 + seed if successes else 0.0, "invalid": 0.1 * seed, "ineffective": 0.0,
        "outcomes": [outcomes], "sampling": {"temperature": 1}, **more,
    }  # fmt: skip


START = evaluation("sft", 9, "1000")


def make_cell(method: str, seed: int, *rl: str, world: str = "w", start: dict[str, Any] | None = START) -> dict[str, Any]:
    """A finished cell if it has RL evaluations, one every five iterations; otherwise a failed cell."""
    trained = [evaluation("rl", 5 * (i + 1), outcomes, seed) for i, outcomes in enumerate(rl)]
    curve = [(0, START["success"]), *((e["step"], e["success"]) for e in trained)]
    return {
        "world": world, "method": method, "seed": seed, "run": f"runs/{world}/{method}/{seed}",
        "status": "finished" if rl else "failed", "error": None if rl else "out of luck", "versions": None,
        "evaluations": trained, "start": start, "final": trained[-1] if rl else None,
        "peak": max(trained, key=lambda e: e["success"]) if rl else None,
        "curve": [{"step": s, "success": v, "score": v} for s, v in curve] if rl else [],
        "steps_to": [{"threshold": t, "step": next((s for s, v in curve if v >= t), None)} for t in THRESHOLDS],
        "area": 0.5 if rl else None, "further": {}, "outcomes": [d == "1" for d in rl[-1]] if rl else None,
    }  # fmt: skip


CELLS = [
    make_cell("grpo", 0, "1100", "1000"),
    make_cell("grpo", 1, "1100", "1100"),
    make_cell("better", 0, "1110", "1110"),
    make_cell("better", 1, "1111", "1110"),
    make_cell("lost", 0, "1000", "0100"),
    make_cell("lost", 1),
]


@pytest.fixture
def rows() -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in make_table(CELLS, ["w"], ["grpo", "better", "lost"], THRESHOLDS)}


def test_final_and_peak_are_separate_and_start_is_counted_once(rows):
    grpo, better = rows["grpo"], rows["better"]
    assert grpo["final"]["mean"] == 0.375 and grpo["peak"]["mean"] == 0.5
    assert grpo["final"]["per_seed"] == [0.25, 0.5] and better["peak"]["per_seed"] == [0.75, 1.0]
    # Both seeds solve the first task, one the second. Task means are 1, ½, 0, 0, so eight episodes count as 4.09.
    assert (grpo["final"]["low"], grpo["final"]["high"]) == share_interval([0.25, 0.5], 4.09090909090909)
    # Both seeds share one start, which was evaluated once on four episodes.
    assert (grpo["start"]["low"], grpo["start"]["high"]) == pytest.approx(wilson(1, 4))
    assert grpo["success_length"]["mean"] == 2.5 and grpo["invalid"]["mean"] == 0.05


def test_equal_values_have_no_interval(rows):
    assert rows["better"]["score"] == {"mean": 0.75, "low": None, "high": None, "per_seed": [0.75, 0.75]}
    assert (rows["grpo"]["score"]["low"], rows["grpo"]["score"]["high"]) == bounded_interval([0.25, 0.5])


def test_intervals_stay_in_bounds(rows):
    assert t_interval([0.25, 0.5])[0] < 0 and t_interval([0.25, 0.5])[1] > 1, "two seeds: the plain interval leaves [0, 1]"
    for name in ("score", "invalid"):
        assert 0 <= rows["grpo"][name]["low"] < rows["grpo"][name]["mean"] < rows["grpo"][name]["high"] <= 1
    assert t_interval([2.0, 3.0])[0] < 0 == rows["grpo"]["success_length"]["low"]


def test_score_out_of_range_falls_back_to_t_interval():
    cells = [make_cell("grpo", seed, "1000") for seed in (0, 1)]
    for cell, score in zip(cells, (0.5, 7.0), strict=True):
        cell["final"] = {**cell["final"], "score": score}
    found = make_table(cells, ["w"], ["grpo"], THRESHOLDS)[0]["score"]
    assert (found["low"], found["high"]) == t_interval([0.5, 7.0])


def test_missing_seeds_are_listed(rows):
    assert rows["lost"]["seeds"] == [0] and rows["lost"]["missing"] == [1]
    assert rows["lost"]["against"]["seeds"] == [0] and rows["lost"]["against"]["p_seeds"] is None


def test_differences_are_paired_by_seed_and_task(rows):
    against = rows["better"]["against"]
    assert rows["grpo"]["against"] is None
    assert against["difference"]["per_seed"] == [0.5, 0.25]
    assert (against["won"], against["lost"]) == (3, 0) and against["p"] == 2 / 8
    assert against["p_seeds"] == 2 / 4
    lost = rows["lost"]["against"]
    assert (lost["won"], lost["lost"], lost["p"]) == (1, 1, 1.0)
    # Holm corrects for two tests over seeds × tasks and one over seeds.
    assert against["p_holm"] == 2 * against["p"] and lost["p_holm"] == 1.0 and against["p_seeds_holm"] == against["p_seeds"]


def test_steps_to_threshold_count_seeds_that_never_reach_it(rows):
    first, second = rows["better"]["steps_to"]
    assert (first["median"], first["reached"], first["of"]) == (0, 2, 2)  # the start already reaches it
    assert (second["median"], second["reached"], second["of"]) == (5, 2, 2)
    assert (rows["grpo"]["steps_to"][1]["median"], rows["grpo"]["steps_to"][1]["reached"]) == (None, 0)


def test_equal_differences_of_all_seeds_still_have_an_interval():
    cells = [make_cell(m, s, o) for s in (0, 1) for m, o in (("grpo", "1000"), ("same", "1000"))]
    difference = make_table(cells, ["w"], ["grpo", "same"], THRESHOLDS)[1]["against"]["difference"]
    assert difference["mean"] == 0.0 and difference["low"] < -0.1 and difference["high"] > 0.1


def test_outcome_may_be_the_mean_of_the_last_evaluations():
    methods = ["grpo", "better", "lost"]
    rows = {row["method"]: row for row in make_table(CELLS, ["w"], methods, THRESHOLDS, outcome=2)}
    assert rows["grpo"]["outcome"]["per_seed"] == [0.375, 0.5] and rows["better"]["outcome"]["per_seed"] == [0.75, 0.875]
    against = rows["better"]["against"]
    assert against["difference"]["per_seed"] == [0.375, 0.375] and against["p_seeds"] == 2 / 4
    # Mean differences of the tasks are 0, 1/4, 1, 1/4. Of the 8 sign flips of three numbers, 2 are as extreme.
    assert against["p"] == 2 / 8 and (against["won"], against["lost"]) == (6, 0)
    result = found() | {"table": list(rows.values()), "outcome": "mean:2"}
    head, cells = table_text(result, "w")
    assert head[4] == "mean of last 2" and cells[1][4].startswith("81.2 [") and cells[1][-3].startswith("+37.5 [")
    assert "the mean of the last 2 evaluations" in markdown(result) and "outcome_low" in csv_text(result).splitlines()[0]
    assert [read_outcome(text) for text in ("last", "mean:3")] == [1, 3]
    with pytest.raises(TacitError, match="must be last, or mean:N"):
        read_outcome("mean")


def test_panels_with_different_hashes_cannot_share_a_table():
    other = evaluation("rl", 5, "1000", panel_hash="bbbb")
    with pytest.raises(TacitError, match=r"aaaa in runs/one, and w/test/4 with panel_hash bbbb in runs/two"):
        check_same_panel("w", {"runs/one": START, "runs/two": other})
    with pytest.raises(TacitError, match="sampling"):
        check_same_panel("w", {"runs/one": START, "runs/two": evaluation("rl", 5, "1000", sampling={"temperature": 0})})
    assert check_same_panel("w", {"a": START, "b": START}) == {"name": "w/test/4", "hash": "aaaa", "episodes": 4}
    assert check_same_panel("w", {}) is None


def found() -> dict[str, Any]:
    methods = ["grpo", "better", "lost"]
    return {
        "name": "made up", "description": "", "worlds": ["w"], "methods": methods, "seeds": [0, 1], "thresholds": THRESHOLDS,
        "baseline": "grpo", "notes": ["budgets differ."], "panels": {"w": check_same_panel("w", {"a": START})}, "starts": {},
        "further": {"w": []},
        "cells": CELLS, "table": make_table(CELLS, ["w"], methods, THRESHOLDS),
        "differences": {"w": [{"setting": "kl", "values": {"grpo": 0.1, "lost": 0.0}, "named_by": ["lost"], "unequal": False}]},
    }  # fmt: skip


def test_markdown_page_has_table_failures_and_differences():
    text = markdown(found())
    lines = text.splitlines()
    assert "Panel `w/test/4` (hash `aaaa`), 4 episodes at every evaluation." in lines
    assert "- lost, seed 1: failed: out of luck" in lines and "Note: budgets differ." in lines
    assert "- kl: 0.1 in grpo; 0.0 in lost" in lines
    (row,) = [line for line in lines if line.startswith("| better")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert len(cells) == len(table_text(found(), "w")[0])
    assert cells[1] == "2/2" and cells[3].startswith("75.0 [") and cells[-5:-3] == ["0 (2/2)", "5 (2/2)"]
    assert cells[-3].startswith("+37.5 [") and cells[-2:] == ["0.500", "0.500"]


def test_threshold_and_p_value_text():
    result = found()
    assert table_text(result, "w")[1][0][8:10] == ["0 (2/2)", "never (0/2)"]
    result["table"][0]["steps_to"][1] |= {"reached": 1}
    assert table_text(result, "w")[1][0][9] == "later (1/2)"
    assert (p_text(None), p_text(0.0004), p_text(1.0)) == ("–", "<0.001", "1.000")


def test_csv_can_be_read_back():
    rows = list(csv.DictReader(io.StringIO(csv_text(found()))))
    assert [r["method"] for r in rows] == ["grpo", "better", "lost"]
    assert float(rows[1]["final"]) == 0.75 and float(rows[1]["p"]) == 0.25 and rows[0]["p"] == ""
    assert rows[0]["steps_to_0.75"] == "" and rows[0]["reached_0.75"] == "0" and rows[2]["missing"] == "1"


@pytest.mark.slow
def test_plots_name_every_method_and_are_deterministic(tmp_path):
    first, second = draw(found(), tmp_path / "a"), draw(found(), tmp_path / "b")
    assert [p.name for p in first] == [
        "learning-w.png", "learning-w.svg", "thresholds-w.png", "thresholds-w.svg",
    ]  # fmt: skip
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    curves, steps = first[1].read_text(), first[3].read_text()
    assert all(f">{method}  " in curves for method in ("grpo", "better", "lost")) and "grpo  37.5" in curves
    assert all(word in steps for word in (">better<", ">never<", "≥ 75%"))


def test_world_without_curves_is_not_drawn(tmp_path):
    nothing = {**found(), "cells": [make_cell("grpo", 0)]}
    assert draw(nothing, tmp_path) == []


def test_training_metrics_are_drawn_as_span_averages(tmp_path):
    """Twenty iterations in ten spans of two. A span without values has no point."""
    points = [[step, float(step)] for step in range(1, 21) if step not in (7, 8)]
    spans = average_spans(points)
    assert spans == {2 * n: 2 * n - 0.5 for n in (1, 2, 3, 5, 6, 7, 8, 9, 10)} and average_spans([]) == {}
    cells = [{**cell, "practice": {"a/b": points if cell["method"] != "lost" else []}} for cell in CELLS]
    found = {"worlds": ["w"], "methods": ["grpo", "better", "lost"], "cells": cells, "thresholds": [], "metrics": ["a/b"]}
    assert {path.name for path in draw(found, tmp_path)} == {
        f"{kind}-w{suffix}" for kind in ("learning", "a-b") for suffix in (".png", ".svg")
    }
