"""A comparison page: the table, notes on missing runs, links to the runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from parsed import Page
from written import HOSTILE, write_comparison, write_run

from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.report.comparison_page import mean_curves, render_comparison
from tacit.report.run_files import read_comparison


@pytest.fixture
def place(tmp_path) -> Path:
    return write_comparison(tmp_path / "compared")


def rewrite(place: Path, **changes) -> None:
    found = json.loads((place / "comparison.json").read_text())
    (place / "comparison.json").write_text(json.dumps({**found, **changes}))


def test_table_has_means_intervals_and_significance(place):
    text = Page(render_comparison(place)).text
    found = json.loads((place / "comparison.json").read_text())
    for row in found["table"]:
        final = row["final"]
        cell = f"{100 * final['mean']:.1f}% [{100 * final['low']:.1f}, {100 * final['high']:.1f}]"
        assert cell in text, cell
    assert "bipace 73.3%" in text and "+23.3 [+13.3, +33.3] 21 : 9 0.042 0.500 3 / 3" in text
    assert "grpo baseline" in text and "hash 0123456789abcdef" in text


def test_missing_and_failed_runs_are_reported(place):
    page = Page(render_comparison(place))
    assert "letters / reuserl / seed 1 failed: tacit: the loss is not a number at iteration 21." in page.text
    assert (
        "letters / reuserl / seed 2 has not started." in page.text and "letters / bipace / seed 2 was interrupted." in page.text
    )
    assert "Budgets differ between the methods." in page.text and "15 / 18" in page.text and "not complete" in page.text


def test_curves_are_means_over_finished_seeds(place):
    found = read_comparison(place)
    series = next(line for line in mean_curves(found, "countdown") if line.name == "grpo")
    assert [p.x for p in series.points] == list(range(0, 41, 5)) and series.points[-1].y == pytest.approx(0.565)
    assert [line[-1].y for line in series.thin] == pytest.approx([0.55, 0.565, 0.58])
    only = next(line for line in mean_curves(found, "letters") if line.name == "reuserl")
    assert len(only.thin) == 1, "one seed has finished"


def test_method_without_finished_runs_is_drawn_from_unfinished_ones(place):
    found = json.loads((place / "comparison.json").read_text())
    cells = [c for c in found["cells"] if c["status"] == "unfinished"]
    rewrite(place, cells=cells, table=[])
    page = Page(render_comparison(place))
    assert "There is no table" in page.text and "unfinished runs for methods without a finished one" in page.text
    assert any("Success on the panel, letters" in (svg["aria-label"] or "") for svg in page.all("svg"))


@pytest.mark.slow
def test_links_to_runs_are_relative_to_the_page(place, tmp_path):
    links = [a["href"] for a in Page(render_comparison(place)).all("a") if not a["href"].startswith("#")]
    assert "runs/countdown/grpo/0/" in links and not any("letters/reuserl/2" in link for link in links), "nothing leads nowhere"
    (place / "runs" / "countdown" / "grpo" / "0" / "report.html").write_text("")
    elsewhere = [a["href"] for a in Page(render_comparison(place, beside=tmp_path)).all("a")]
    assert "compared/runs/countdown/grpo/0/report.html" in elsewhere and "compared/runs/countdown/grpo/1/" in elsewhere


def test_thresholds_behavior_and_settings_are_shown(place):
    text = Page(render_comparison(place)).text
    assert "≥ 25% ≥ 50%" in text and "10 3 of 3 not reached 0 of 3" in text
    assert "out of steps 100.0% 100.0% 100.0%" in text and "Prompt tokens by turn" in text
    assert "--kl 0.04 0.06 0.07" in text


@pytest.mark.slow
def test_arrival_plots_show_finished_seeds(place):
    found = json.loads((place / "comparison.json").read_text())
    for cell in found["cells"]:
        step = None if cell["seed"] == 2 else 10 + cell["seed"]
        cell["steps_to"] = [{"threshold": 0.25, "step": step}, {"threshold": 0.5, "step": "damaged"}]
    rewrite(place, cells=found["cells"])
    charts = [svg["aria-label"] for svg in Page(render_comparison(place)).all("svg")]
    assert [t for t in charts if t.startswith("First evaluation at 25% or above.")] == [
        "First evaluation at 25% or above. grpo 10, 11, never; bipace 10, 11, never; reuserl 10, 11, never.",
        "First evaluation at 25% or above. grpo 10, 11, never; bipace 10, 11; reuserl 10.",
    ], "one picture per world"
    assert any(t.startswith("First evaluation at 50% or above. grpo never, never, never") for t in charts)


def test_hostile_names_are_escaped(place):
    found = json.loads((place / "comparison.json").read_text())
    for cell in found["cells"]:
        cell |= {"method": HOSTILE, "error": HOSTILE, "run": "javascript:alert(1)"}
    table = [{**row, "method": HOSTILE} for row in found["table"]]
    rewrite(place, cells=found["cells"], table=table, name=HOSTILE, description=HOSTILE, methods=[HOSTILE], notes=[HOSTILE])
    html = render_comparison(place)
    page = Page(html)
    assert "<img" not in html and not page.all("img") and "\x1b" not in html
    assert not [a for a in page.all("a") if "javascript" in (a["href"] or "")]


def test_other_format_and_broken_cells_are_reported(place):
    found = json.loads((place / "comparison.json").read_text())
    rewrite(
        place,
        format=7,
        cells=[*found["cells"], "nonsense", {"world": "x"}],
        starts={"countdown": {"status": "failed", "error": "no"}},
    )
    text = Page(render_comparison(place)).text
    assert "has format 7, this version reads 1" in text and "2 of 20 cells cannot be read" in text
    assert "The shared start of countdown is failed: no." in text and "73.3%" in text


@pytest.mark.parametrize("content", ["{", "[]", '{"cells": 3}'])
def test_file_that_is_not_a_comparison_is_refused(place, content):
    (place / "comparison.json").write_text(content)
    with pytest.raises(TacitError, match="tacit compare"):
        render_comparison(place)


def test_report_command_writes_the_comparison_page(place, capsys):
    assert main(["report", str(place)]) == 0
    page = Page((place / "report.html").read_text())
    assert "three methods" in page.text and str(place / "report.html") in capsys.readouterr().out


@pytest.mark.slow
def test_report_command_writes_pages_of_runs(place, capsys):
    shutil.rmtree(place / "runs" / "countdown" / "grpo" / "0")
    write_run(place / "runs" / "countdown" / "grpo" / "0")
    assert main(["report", str(place), "--runs"]) == 0
    links = [a["href"] for a in Page((place / "report.html").read_text()).all("a")]
    assert "runs/countdown/grpo/0/report.html" in links and "runs/countdown/grpo/1/" in links, "the others hold no settings"
    assert "57.5%" in Page((place / "runs" / "countdown" / "grpo" / "0" / "report.html").read_text()).text
    capsys.readouterr()
    assert main(["report", str(place / "runs" / "countdown" / "grpo" / "0"), "--runs"]) == 2
    assert "--runs is for comparisons" in capsys.readouterr().err


def test_outcome_has_its_own_column(place):
    found = json.loads((place / "comparison.json").read_text())
    found["table"][0]["outcome"] = {"mean": 0.123, "low": 0.1, "high": 0.2, "per_seed": [0.123]}
    rewrite(place, table=found["table"], outcome="mean:3")
    text = Page(render_comparison(place)).text
    assert "final mean of last 3 peak" in text and "12.3%" in text and "the mean of the last 3 evaluations" in text


def test_many_missing_runs_are_listed_in_one_sentence(place):
    cells = json.loads((place / "comparison.json").read_text())["cells"]
    for cell in cells:
        if cell["world"] == "letters" and cell["method"] != "grpo":
            cell["status"] = "missing"
    rewrite(place, cells=cells)
    text = Page(render_comparison(place)).text
    assert "letters: 6 runs have not started: bipace (seed 0, 1, 2); reuserl (seed 0, 1, 2)." in text
    assert "has not started" not in text
