"""The page of a run: every number is on it, nothing hostile gets through, and what is broken is said."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest
from parsed import Page
from written import HOSTILE, episode, evaluation, write_run

from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.report.run_page import run_page
from tacit.runs.records import write_records


def test_every_evaluation_is_there_with_its_interval_and_final_and_peak_are_apart(tmp_path):
    page = Page(run_page(write_run(tmp_path / "run")))
    for share, interval in (("5.0%", "[1.4, 16.5]"), ("77.5%", "[62.5, 87.7]"), ("57.5%", "[42.2, 71.5]")):
        assert share in page.text and interval in page.text
    assert "after rl 10 final 57.5%" in page.text and "after rl 5 peak 77.5%" in page.text
    for number in ("2 / 40", "31 / 40", "23 / 40", "0.578", "17.2", "15.5", "1.2%", "6.2%", "81.5", "6.8"):
        assert number in page.text, number
    assert "hash 0123456789abcdef" in page.text and "640 episodes" in page.text and "1 min 15 s" in page.text


def test_families_are_counted_from_the_episodes_or_taken_from_the_evaluation(tmp_path):
    run = write_run(tmp_path / "run")
    counted = Page(run_page(run)).text
    assert "place 33.3% [9.7, 70.0] 2 / 6" in counted and "pick 33.3% [9.7, 70.0] 2 / 6" in counted
    summary = json.loads((run / "summary.json").read_text())
    summary["evaluations"][-1]["families"] = {"a": {"episodes": 10, "successes": 1}, "b": {"episodes": 30, "successes": 22}}
    (run / "summary.json").write_text(json.dumps(summary))
    said = Page(run_page(run)).text
    assert "a 10.0% [1.8, 40.4] 1 / 10" in said and "mean of the families 41.7%" in said and "2 / 6" not in said


def test_several_tries_and_later_evaluations(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "evaluations").mkdir()
    older = {**evaluation("rl", 10, 9), "checkpoint": "rl-000010", "pass_at": {"4": 0.375}, "majority_at": {"4": 0.125}}
    priced = {**older, "checkpoint": "rl-000005", "pass_at": {"10": 0.5, "4": 0.4}, "cost": 0.25}
    priced |= {"pass_interval": {"4": [0.25, 0.5], "10": "damaged"}, "majority_interval": {"4": [0.0625, 0.25]}}
    for number, later in enumerate((older, priced)):
        del later["stage"]
        (run / "evaluations" / f"{number}.json").write_text(json.dumps(later))
    text = Page(run_page(run)).text
    assert "Measured later with tacit eval" in text and "rl-000010 22.5%" in text and "1 0.25 letters/test/40" in text
    assert "evaluated pass@4 pass@10 SC@4 rl-000010 37.5% – 12.5%" in text, "an older one has no intervals"
    assert "rl-000005 40.0% [25.0, 50.0] 50.0% 12.5% [6.2, 25.0]" in text


def test_curves_have_axes_a_sentence_and_a_table(tmp_path):
    page = Page(run_page(write_run(tmp_path / "run")))
    told = [svg["aria-label"] for svg in page.all("svg")]
    assert any(t.startswith("Success on the panel. 5.0% at iteration 0, 57.5% at 10.") for t in told)
    assert any(t.startswith("Entropy, nats/token. 1.4 at iteration 1, 0.5 at 10.") for t in told)
    assert any(t.startswith("KL to the reference") for t in told) and "Values of every iteration as a table" in page.text
    (chart,) = [
        json.loads(svg["data-chart"]) for svg in page.all("svg") if svg["aria-label"].startswith("Success on the panel")
    ]
    assert [p[:2] for p in chart["series"][0]["points"]] == [[0, 0.05], [5, 0.775], [10, 0.575]]


def test_hostile_text_stays_text(tmp_path):
    told = episode(1, True, text=HOSTILE, goal=HOSTILE, family=HOSTILE, detail=HOSTILE, task=HOSTILE)
    told["turns"][0] |= {"wrote": HOSTILE, "action": HOSTILE, "label": HOSTILE, HOSTILE: HOSTILE}
    run = write_run(tmp_path / "run", episodes=[told, episode(2, False)])
    settings = json.loads((run / "settings.json").read_text())
    (run / "settings.json").write_text(json.dumps({**settings, "world": HOSTILE, "model": HOSTILE, HOSTILE: HOSTILE}))
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"stage": HOSTILE, "step": 1, HOSTILE: 2.0}) + "\n")
    html = run_page(run)
    page = Page(html)
    assert "<img" not in html and 'onerror="' not in html and "\x1b" not in html
    assert not page.all("img") and not page.all("b\u2028")
    assert [script.get("type") for script in page.all("script")] == ["application/json", None], "the page's own, and no other"
    shown = page.blocks["episodes"]
    assert shown["episodes"][0]["goal"] == HOSTILE and HOSTILE in shown["texts"], "nothing is lost either"
    assert not [a for _, attributes in page.elements for a in attributes if a.startswith("on")]


def test_the_page_asks_for_nothing(tmp_path):
    page = Page(run_page(write_run(tmp_path / "run")))
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert not [a for _, a in page.elements if (a.get("src") or "") or (a.get("href") or "#")[0] not in "#d"]


def test_trajectories_are_chosen_by_family_and_outcome_and_capped(tmp_path):
    run = write_run(tmp_path / "run")
    page = Page(run_page(run, most_trajectories=6))
    chosen = page.blocks["episodes"]["episodes"]
    assert [(e["family"], e["success"]) for e in chosen[:6]] == [
        ("pick", True), ("place", True), ("pick", True), ("pick", False), ("place", False), ("pick", False)
    ]  # fmt: skip
    assert (
        "6 episodes, chosen from 12 of evaluation after rl 10 and 3 of training, iteration 10: the other 9 are not" in page.text
    )
    turn = chosen[2]["turns"][1]
    assert (turn["reward"], turn["credit"], turn["effective"]) == (0.25, -0.5, False)
    everything = Page(run_page(run, most_trajectories=99))
    assert len(everything.blocks["episodes"]["episodes"]) == 15 and "are not on this page" not in everything.text
    assert "No trajectories were asked for; 15 can be read" in Page(run_page(run, most_trajectories=0)).text


def test_long_texts_are_cut_and_say_so(tmp_path):
    run = write_run(tmp_path / "run", episodes=[episode(1, True, text="x" * 20_000)])
    texts = Page(run_page(run)).blocks["episodes"]["texts"]
    assert max(map(len, texts)) < 8_100 and any("12,008 more characters are not on this page" in t for t in texts)


def test_without_trajectories(tmp_path):
    run = write_run(tmp_path / "run")
    shutil.rmtree(run / "trajectories")
    page = Page(run_page(run))
    assert not page.blocks and "No trajectories were recorded" in page.text and "57.5%" in page.text


def test_an_unfinished_run_says_so_and_shows_what_its_checkpoint_knows(tmp_path):
    run = write_run(tmp_path / "run", finished=False)
    for name, scores in (("rl-000005", [evaluation("rl", 5, 31)]), ("sft-000600", [])):
        (run / "checkpoints" / name).mkdir(parents=True)
        stage, _, step = name.partition("-")
        (run / "checkpoints" / name / "state.json").write_text(
            json.dumps({"stage": stage, "step": int(step), "evaluations": scores})
        )
    text = Page(run_page(run)).text
    assert "This run has not finished: it has come to rl 10." in text and "tacit train --resume" in text
    assert "latest success, not final 77.5%" in text and "final success" not in text and "not finished" in text


def test_damage_is_said_and_the_rest_is_shown(tmp_path):
    run = write_run(tmp_path / "run")
    broken = run / "trajectories" / "eval-rl-000010.jsonl.gz"
    lines = "".join(json.dumps(episode(n, False)) + "\n" for n in range(400))
    broken.write_bytes(gzip.compress(lines.encode())[:-900])
    (run / "versions.json").write_text("{half")
    (run / "metrics.jsonl").write_text('{"stage": "rl"\nnonsense\n[]\n' + (run / "metrics.jsonl").read_text())
    page = Page(run_page(run))
    assert "eval-rl-000010.jsonl.gz is damaged" in page.text and "episodes are shown" in page.text
    assert "versions.json cannot be read" in page.text and "3 of 13 lines of metrics.jsonl cannot be read" in page.text
    assert len(page.blocks["episodes"]["episodes"]) == 24 and "57.5%" in page.text
    broken.write_bytes(b"not gzip at all")
    text = Page(run_page(run)).text
    assert "is damaged" in text and "it is left out" in text and "training, iteration 10" in text


def test_without_metrics(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    page = Page(run_page(run))
    assert "There are no metrics (metrics.jsonl)" in page.text
    assert any(svg["aria-label"].startswith("Success on the panel") for svg in page.all("svg")), (
        "evaluations still make a curve"
    )


def test_episodes_of_another_version_are_left_out_by_count(tmp_path):
    strange = [{"task": "old", "steps": []}, {**episode(3, True), "stop": "bored"}]
    run = write_run(tmp_path / "run", episodes=[episode(1, True), *strange])
    text = Page(run_page(run)).text
    assert "1 of 3 episodes in trajectories/eval-rl-000010.jsonl.gz lack what this version reads" in text
    assert "1 episodes of evaluation after rl 10 are told in a way this version does not know" in text


def test_alarms(tmp_path):
    run = write_run(tmp_path / "run")
    assert 'id="alarms"' not in run_page(run)
    (run / "alarms.jsonl").write_text(json.dumps({"name": "entropy_low", "step": 7, "message": "entropy fell"}) + "\n")
    assert "7 entropy low entropy fell" in Page(run_page(run)).text
    (run / "alarms.jsonl").write_text("broken\n")
    assert "alarms.jsonl cannot be read" in Page(run_page(run)).text


def test_alarms_of_a_run_that_kept_none_follow_from_its_metrics(tmp_path):
    run = write_run(tmp_path / "run")
    lines = [{"stage": "rl", "step": s, "entropy": 1.0 if s < 6 else 0.01} for s in range(1, 12)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "8 entropy low entropy fell from 1 to 0.01" in Page(run_page(run)).text


def test_recorded_prompts_are_shown_as_they_are(tmp_path):
    told = episode(1, True, 2)
    told["turns"][0]["prompt"] = {"task": "the task", "history": ["one", "two"], "step_note": ""}
    told["turns"][1]["prompt"] = "one text"
    shown = Page(run_page(write_run(tmp_path / "run", episodes=[told]))).blocks["episodes"]
    first = next(e for e in shown["episodes"] if e["task"] == "letters/test/1")
    read = [[(name, shown["texts"][i]) for name, i in turn["prompt"]] for turn in first["turns"]]
    assert read == [[("task", "the task"), ("history", "one\ntwo")], [("prompt", "one text")]]


def test_the_command_writes_it(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    assert main(["report", str(run)]) == 0
    assert str(run / "report.html") in capsys.readouterr().out
    text = Page((run / "report.html").read_text()).text
    assert "These settings are not this version's (unknown method 'mine'" in text and "57.5%" in text
    assert main(["report", str(run), "--out", str(tmp_path / "elsewhere.html"), "--trajectories", "2"]) == 0
    assert len(Page((tmp_path / "elsewhere.html").read_text()).blocks["episodes"]["episodes"]) == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nowhere"], "there is no directory nowhere"),
        (["EMPTY"], "is neither a run nor a comparison: it has no settings.json and no comparison.json. `tacit train`"),
        (["ABOVE"], "It holds runs, though: run; name one of them."),
        (["RUN", "--trajectories", "-1"], "--trajectories must not be negative"),
        (["RUN", "--out", "nowhere/at/all.html"], "there is no directory nowhere/at"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, capsys, words, reason):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "above" / "run")
    (tmp_path / "empty").mkdir()
    places = {"EMPTY": "empty", "ABOVE": "above", "RUN": "above/run"}
    assert main(["report", *(places.get(word, word) for word in words)]) == 2
    assert reason in capsys.readouterr().err


def test_settings_that_cannot_be_read_are_the_end(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "settings.json").write_text("{")
    with pytest.raises(TacitError, match="cannot be read as settings"):
        run_page(run)


def test_an_episode_that_ended_before_its_first_step(tmp_path):
    run = write_run(tmp_path / "run", episodes=[episode(1, False, 0, stop="world_error", detail="it broke")])
    write_records(run / "trajectories" / "rl-000010.jsonl.gz", [])
    shown = Page(run_page(run)).blocks["episodes"]["episodes"]
    assert [e["turns"] for e in shown] == [[]] and shown[0]["detail"] == "it broke"
