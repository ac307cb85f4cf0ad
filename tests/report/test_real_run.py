"""From `tacit train` to the report page, with the files of a real run."""

from __future__ import annotations

import io
import json
import shutil
import sys

import pytest
from parsed import Page

from tacit.cli.main import main
from tacit.report.page import format_interval, format_percent
from tacit.report.run_page import CHARTED
from tacit.runs.directory import read_metrics, read_summary

pytestmark = pytest.mark.slow

TRAIN = (
    "train --world countdown --model tiny-0.5m --method grpo --kl 0.05 --tasks 4 --max-steps 4 --groups 2 --group-size 2 "
    "--iterations 2 --lr 1e-2 --epochs 2 --history 1 --sft.steps 3 --sft.batch 4 --sft.tasks 4 --evaluation.tasks 6 "
    "--evaluation.every 1 --evaluation.max-steps 4 --engine.device cpu --engine.threads 1 --tiny.vocab 512 "
    "--tiny.hidden 32 --tiny.layers 1 --tiny.heads 2 --tiny.kv-heads 2 --tiny.intermediate 64"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("real") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(sys, "stdout", io.StringIO())
        assert main([*TRAIN.split(), "--out", str(place)]) == 0
        assert main(["report", str(place)]) == 0
    return place


@pytest.fixture(scope="module")
def page(run):
    return Page((run / "report.html").read_text(encoding="utf-8"))


def test_page_has_no_notices(page):
    assert "Please note" not in page.text


def test_every_evaluation_is_on_the_page(run, page):
    evaluations = read_summary(run)["evaluations"]
    assert [e["stage"] for e in evaluations] == ["untrained", "sft", "rl", "rl"]
    for e in evaluations:
        assert (
            f"{format_percent(e['success'])} {format_interval(e['interval'])} {e['successes']} / {e['episodes']}" in page.text
        )
        assert e["panel_hash"] in page.text


def test_every_chart_has_a_recorded_metric(run, page):
    recorded = {name for record in read_metrics(run / "metrics.jsonl") for name in record}
    charted = {metric for chart in CHARTED for metric in chart.metrics.values()}
    assert charted <= recorded, charted - recorded
    charts = [str(svg["aria-label"]) for svg in page.all("svg")]
    assert any(t.startswith("KL to the reference, nats/token. ") for t in charts), charts


@pytest.mark.parametrize("world", ["countdown", "nowhere.py:WORLD"])
def test_page_does_not_need_the_world(run, page, tmp_path, monkeypatch, world):
    """Labels, skills and prompts are recorded in the run."""
    monkeypatch.setattr("tacit.worlds.get_environment", lambda name: pytest.fail("the page loaded the world"))
    shutil.copytree(run, tmp_path / "run")
    settings = json.loads((run / "settings.json").read_text())
    (tmp_path / "run" / "settings.json").write_text(json.dumps({**settings, "world": world}))
    assert main(["report", str(tmp_path / "run")]) == 0
    again = Page((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    assert again.blocks["episodes"]["texts"] == page.blocks["episodes"]["texts"]
    assert "why episodes failed" in again.text and "Please note" not in again.text


def test_chosen_settings_come_first_with_the_command(page):
    assert "--sft.steps 3 0" in page.text and "--group-size 2 8" in page.text, "here, then the default"
    assert "tacit train --world countdown --method grpo --model tiny-0.5m --seed 0" in page.text


def test_prompts_are_recorded_with_their_history(page):
    viewer = page.blocks["episodes"]
    for episode in viewer["episodes"]:
        assert episode["prompts"] == "as recorded", episode["prompts"]
        names = [[name for name, _ in turn["prompt"]] for turn in episode["turns"]]
        assert "history" not in names[0] and all("history" in sections for sections in names[1:])
    trained = [e for e in viewer["episodes"] if e["from"] == "training, iteration 2"]
    assert trained and all("credit" in turn and "reward" in turn for e in trained for turn in e["turns"])


def test_behavior_has_columns_for_start_end_and_training(page):
    assert "evaluation, untrained evaluation after rl 2 training, iteration 2" in page.text
    assert "why episodes failed" in page.text
