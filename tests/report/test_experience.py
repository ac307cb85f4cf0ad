"""Experience-bank section: success with and without an entry, and the most useful and harmful entries."""

from __future__ import annotations

import json

from parsed import Page
from written import HOSTILE, write_run

from tacit.companions.experience.bank import Bank, Origin
from tacit.companions.experience.retrieval import NgramEmbedding
from tacit.report.run_page import render_run

EMBED = NgramEmbedding(3, 16)


def write_metrics(run, lines):
    rows = [{"stage": "rl", "step": s, "success": s / 20, **line} for s, line in enumerate(lines, start=1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rows))


def labels(html: str) -> list[str]:
    return [str(svg["aria-label"]).removesuffix(" Arrow keys read the values.") for svg in Page(html).all("svg")]


def tracks(step: int, prefix: str = "") -> dict[str, float]:
    values = {"success_guided": 0.1 * step, "success_free": 0.05 * step, "entries": 10.0 * step, "search_ms": 2.0 + step}
    return {f"{prefix}experience/{name}": value for name, value in values.items()}


def test_guided_and_free_success_are_charted(tmp_path):
    run = write_run(tmp_path / "run")
    assert "Experience" not in Page(render_run(run)).text
    lines = [tracks(s) for s in (1, 2, 3)]
    lines[2]["experience/extractor_reward"] = -0.25
    write_metrics(run, lines)
    html = render_run(run)
    charts = labels(html)
    both = "Success with and without an entry. guided: 10.0% at iteration 1, 30.0% at 3; free: 5.0% at iteration 1, 15.0% at 3."
    assert both in charts
    assert "Entries in the bank. 10 at iteration 1, 30 at 3." in charts
    assert "Search of a group, ms. 3 at iteration 1, 5 at 3." in charts
    assert any(t.startswith("Reward of the extractor's entries. −0.25") for t in charts)
    assert not any(t.startswith("experience/") for t in charts), "once each"
    assert "Most useful" not in Page(html).text, "there is no bank"


def test_each_world_has_its_own_experience_charts(tmp_path):
    run = write_run(tmp_path / "run")
    worlds = [{"one/success": s / 9, "two/success": s / 8, **tracks(s, "one/"), **tracks(s, "two/")} for s in (1, 2)]
    write_metrics(run, worlds)
    charts = labels(render_run(run))
    assert any(t.startswith("Success with and without an entry, two. guided: 10.0%") for t in charts)
    assert "Entries in the bank. one: 10 at iteration 1, 20 at 2; two: 10 at iteration 1, 20 at 2." in charts


def test_entries_name_their_world_if_there_are_several(tmp_path):
    run = write_run(tmp_path / "run")
    bank = Bank(run / "experience" / "bank.sqlite", EMBED.name, EMBED.dimensions)
    for world, task in (("alfworld", "train/look-1"), ("countdown", "countdown/train/3")):
        bank.add(task, EMBED([task])[0], Origin(world=world, task=task))
    bank.record("guided", [1, 2], 1, "t", True)
    bank.close()
    text = Page(render_run(run)).text
    assert "alfworld: train/look-1" in text and "countdown: train/3" in text


def test_most_useful_and_harmful_entries_are_listed_without_writing(tmp_path):
    run = write_run(tmp_path / "run")
    path = run / "experience" / "bank.sqlite"
    bank = Bank(path, EMBED.name, EMBED.dimensions)
    for text in ("look first", f"never look {HOSTILE}", "unused"):
        bank.add(text, EMBED([text])[0], Origin(task="letters/train/1"))
    bank.record("guided", [1, 1], 1, "t", True)
    bank.record("guided", [2], 1, "t", False)
    bank.close()
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    page = Page(render_run(run))
    assert "Most useful entries" in page.text and "look first" in page.text and "never look" in page.text
    assert "unused" not in page.text and not page.all("img"), "texts of entries stay text"
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before
    path.write_bytes(b"junk" * 1000)
    assert "is damaged" in Page(render_run(run)).text
