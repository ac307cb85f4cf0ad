"""A run's page: all numbers are shown, text is escaped, damaged files are reported."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest
from parsed import Page
from written import HOSTILE, episode, evaluation, write_run

from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.evaluation.scores import over_worlds
from tacit.report.run_page import render_run
from tacit.runs.trajectories import write_records


def test_evaluations_are_shown_with_interval_final_and_peak(tmp_path):
    page = Page(render_run(write_run(tmp_path / "run")))
    for share, interval in (("5.0%", "[1.4, 16.5]"), ("77.5%", "[62.5, 87.7]"), ("57.5%", "[42.2, 71.5]")):
        assert share in page.text and interval in page.text
    assert "after rl 10 final 57.5%" in page.text and "after rl 5 peak 77.5%" in page.text
    for number in ("2 / 40", "31 / 40", "23 / 40", "0.578", "17.2", "15.5", "1.2%", "6.2%", "81.5", "6.8"):
        assert number in page.text, number
    assert "hash 0123456789abcdef" in page.text and "640 episodes" in page.text and "1 min 15 s" in page.text


def test_families_come_from_the_last_evaluation(tmp_path):
    run = write_run(tmp_path / "run")
    assert "By family" not in Page(render_run(run)).text
    summary = json.loads((run / "summary.json").read_text())
    families = {"a": {"episodes": 10, "successes": 1, "success": 0.1, "interval": [0.018, 0.404]}, "b": {"success": "damaged"}}
    summary["evaluations"][-1] |= {"families": families, "macro": 0.417, "macro_interval": [0.25, 0.625]}
    (run / "summary.json").write_text(json.dumps(summary))
    text = Page(render_run(run)).text
    assert "By family, after rl 10 family success" in text and "a 10.0% [1.8, 40.4] 1 / 10 b – – / –" in text
    assert "mean of the families 41.7% [25.0, 62.5]" in text


def rewrite(run, name: str, **changes) -> None:
    document = json.loads((run / name).read_text())
    (run / name).write_text(json.dumps({**document, **changes}))


def test_stopped_run_says_why_it_stopped(tmp_path):
    run = write_run(tmp_path / "run")
    assert "seed 3 finished" in Page(render_run(run)).text
    rewrite(run, "summary.json", stopped="callback")
    assert "seed 3 stopped by a callback" in Page(render_run(run)).text
    rewrite(run, "summary.json", stopped="patience")
    assert "seed 3 stopped early: no improvement" in Page(render_run(run)).text


def test_run_in_several_worlds_shows_mean_and_each_world(tmp_path):
    """The summary has the mean over worlds and, within it, the result of each world."""
    run = write_run(tmp_path / "run")
    other = {"panel": "words/test/20", "panel_hash": "fedcba9876543210", "successes": 10, "success": 0.25}
    alone = [evaluation("untrained", 0, 2), evaluation("rl", 5, 31), evaluation("rl", 10, 23)]
    scores = [over_worlds([{**own, "world": "letters"}, {**own, **other, "world": "words"}]) for own in alone]
    families = {name: {"episodes": 10, "successes": 1, "success": 0.1, "interval": [0.018, 0.404]} for name in "ab"}
    hard = {**evaluation("rl", 10, 4), "panel": "letters/hard/40", "families": families}
    further = [hard, {**hard, "world": "letters", "condition": {"name": "guided"}}]
    rewrite(run, "settings.json", world="letters,words")
    rewrite(run, "summary.json", evaluations=scores, further=further)
    page = Page(render_run(run))
    assert "left out" not in page.text and "mine in letters, words, model" in page.text
    assert "Mean of 2 worlds, equally weighted" in page.text
    ends = ", ".join(f"{100 * end:.1f}" for end in scores[-1]["interval"])
    assert f"after rl 10 final 41.2% [{ends}] 57.5% 25.0%" in page.text, "the mean, its interval, and each world's"
    assert page.text.count("untrained 5.0%") == 1 and page.text.count("after rl 10 final 57.5%") == 1
    assert "Panel words/test/20, hash fedcba9876543210" in page.text and "Panel letters/hard/40" in page.text
    assert "final success, mean of the worlds 41.2%" in page.text and "peak success, mean of the worlds 51.2%" in page.text
    assert "final success, letters 57.5%" in page.text and "peak success, letters" not in page.text
    of_families = "By family, after rl 10, letters/hard/40"
    assert page.text.count(of_families) == 2 and f"{of_families}, under condition guided" in page.text
    charts = [str(svg["aria-label"]) for svg in page.all("svg")]
    lines = "letters: 5.0% at iteration 0, 57.5% at 10; words: 25.0% at iteration 0, 25.0% at 10; all: 15.0% at iteration 0, "
    assert any(t.startswith(f"Success on the panel. {lines}41.2% at 10.") for t in charts), charts


def test_metrics_of_several_worlds_share_one_chart(tmp_path):
    run = write_run(tmp_path / "run")
    lines = [
        {"stage": "rl", "step": s, "success": s / 10, "one:WORLD/success": s / 20, "two/success": s / 40, "loss/kl": s,
         "one:WORLD/crashed": 0, "two/crashed": 1, "two/odd": s}
        for s in range(1, 5)
    ]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = Page(render_run(run))
    charts = [str(svg["aria-label"]).removesuffix(" Arrow keys read the values.") for svg in page.all("svg")]
    assert (
        "Success in training. all: 10.0% at iteration 1, 40.0% at 4; one:WORLD: 5.0% at iteration 1, 20.0% at 4; "
        "two: 2.5% at iteration 1, 10.0% at 4." in charts
    )
    assert "loss/kl. 1 at iteration 1, 4 at 4." in charts, "loss is no world"
    assert "odd. 1 at iteration 1, 4 at 4." in charts and "one:WORLD/crashed 0, two/crashed 1." in page.text


def test_phase_seconds_share_one_chart(tmp_path):
    run = write_run(tmp_path / "run")
    lines = [
        {"stage": "rl", "step": s, "seconds": 3.0 + s, "seconds_rollout": 2.0 + s, "seconds_update": 1.0} for s in range(1, 4)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    charts = [str(svg["aria-label"]) for svg in Page(render_run(run)).all("svg")]
    line = "rollout: 3 at iteration 1, 5 at 3; update: 1 at iteration 1, 1 at 3; all: 4 at iteration 1, 6 at 3."
    assert any(t.startswith(f"Seconds of each phase. {line}") for t in charts), charts
    assert not any(t.startswith("seconds") for t in charts)


def test_pass_at_k_and_later_evaluations_are_shown(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "evaluations").mkdir()
    older = {**evaluation("rl", 10, 9), "checkpoint": "rl-000010", "pass_at": {"4": 0.375}, "majority_at": {"4": 0.125}}
    second = {**older, "checkpoint": "rl-000005", "pass_at": {"10": 0.5, "4": 0.4}}
    second |= {"pass_interval": {"4": [0.25, 0.5], "10": "damaged"}, "majority_interval": {"4": [0.0625, 0.25]}}
    for number, later in enumerate((older, second)):
        del later["stage"]
        (run / "evaluations" / f"{number}.json").write_text(json.dumps(later))
    text = Page(render_run(run)).text
    assert "written tokens crashed pass@4 pass@10 SC@4 untrained 5.0%" in text, "on the run's own panel: in its table"
    assert "rl-000010, measured later 22.5%" in text and "37.5% – 12.5% rl-000005" in text, "an older one has no intervals"
    assert "rl-000005, measured later 22.5%" in text and "40.0% [25.0, 50.0] 50.0% 12.5% [6.2, 25.0]" in text
    rewrite(run, "evaluations/0.json", sampling={"temperature": 0})
    text = Page(render_run(run)).text
    assert "hash 0123456789abcdef, temperature 0 evaluated success" in text, "under other conditions: in a table of its own"


def test_curves_have_axes_label_and_table(tmp_path):
    page = Page(render_run(write_run(tmp_path / "run")))
    charts = [svg["aria-label"] for svg in page.all("svg")]
    assert any(t.startswith("Success on the panel. 5.0% at iteration 0, 57.5% at 10.") for t in charts)
    assert any(t.startswith("Entropy, nats/token. 1.4 at iteration 1, 0.5 at 10.") for t in charts)
    assert any(t.startswith("KL to the reference") for t in charts) and "Values of every iteration as a table" in page.text
    (chart,) = [
        json.loads(svg["data-chart"]) for svg in page.all("svg") if svg["aria-label"].startswith("Success on the panel")
    ]
    assert [p[:2] for p in chart["series"][0]["points"]] == [[0, 0.05], [5, 0.775], [10, 0.575]]


def test_hostile_text_is_escaped(tmp_path):
    hostile = episode(1, True, text=HOSTILE, goal=HOSTILE, family=HOSTILE, detail=HOSTILE, task=HOSTILE)
    hostile["turns"][0] |= {"wrote": HOSTILE, "action": HOSTILE, "label": HOSTILE, HOSTILE: HOSTILE}
    run = write_run(tmp_path / "run", episodes=[hostile, episode(2, False)])
    settings = json.loads((run / "settings.json").read_text())
    (run / "settings.json").write_text(json.dumps({**settings, "world": HOSTILE, "model": HOSTILE, HOSTILE: HOSTILE}))
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"stage": HOSTILE, "step": 1, HOSTILE: 2.0}) + "\n")
    html = render_run(run)
    page = Page(html)
    assert "<img" not in html and 'onerror="' not in html and "\x1b" not in html
    assert not page.all("img") and not page.all("b\u2028")
    assert [script.get("type") for script in page.all("script")] == ["application/json", None], "the page's own, and no other"
    viewer = page.blocks["episodes"]
    assert viewer["episodes"][0]["goal"] == HOSTILE and HOSTILE in viewer["texts"], "nothing is lost either"
    assert not [a for _, attributes in page.elements for a in attributes if a.startswith("on")]


def test_page_loads_no_external_resources(tmp_path):
    page = Page(render_run(write_run(tmp_path / "run")))
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert not [a for _, a in page.elements if (a.get("src") or "") or (a.get("href") or "#")[0] not in "#d"]


def test_trajectories_are_chosen_by_family_and_outcome(tmp_path):
    run = write_run(tmp_path / "run")
    page = Page(render_run(run, most_trajectories=6))
    chosen = page.blocks["episodes"]["episodes"]
    assert {e["stop"] for e in chosen} == {"success", "out of steps"}, "in words"
    assert [(e["family"], e["success"]) for e in chosen[:6]] == [
        ("pick", True), ("place", True), ("pick", True), ("pick", False), ("place", False), ("pick", False)
    ]  # fmt: skip
    assert (
        "6 episodes, chosen from 12 of evaluation after rl 10 and 3 of training, iteration 10: the other 9 are not" in page.text
    )
    turn = chosen[2]["turns"][1]
    assert (turn["reward"], turn["credit"], turn["effective"]) == (0.25, -0.5, False)
    everything = Page(render_run(run, most_trajectories=99))
    assert len(everything.blocks["episodes"]["episodes"]) == 15 and "are not on this page" not in everything.text
    assert "No trajectories were requested; 15 are available" in Page(render_run(run, most_trajectories=0)).text


def test_step_signals_are_shown_as_text(tmp_path):
    recorded = episode(1, True)
    recorded["turns"][0]["signals"] = {"progress": 0.02, "error": 0.0}
    turns = Page(render_run(write_run(tmp_path / "run", episodes=[recorded]))).blocks["episodes"]["episodes"][0]["turns"]
    assert turns[0]["signals"] == "progress 0.02, error 0"


def test_long_texts_are_truncated_with_a_note(tmp_path):
    run = write_run(tmp_path / "run", episodes=[episode(1, True, text="x" * 20_000)])
    texts = Page(render_run(run)).blocks["episodes"]["texts"]
    assert max(map(len, texts)) < 8_100 and any("12,008 more characters are not on this page" in t for t in texts)


def test_page_without_trajectories(tmp_path):
    run = write_run(tmp_path / "run")
    shutil.rmtree(run / "trajectories")
    page = Page(render_run(run))
    assert not page.blocks and "No trajectories were recorded" in page.text and "57.5%" in page.text


def test_unfinished_run_shows_its_checkpoints_evaluations(tmp_path):
    run = write_run(tmp_path / "run", finished=False)
    for name, scores in (("rl-000005", [evaluation("rl", 5, 31)]), ("sft-000600", [])):
        (run / "checkpoints" / name).mkdir(parents=True)
        stage, _, step = name.partition("-")
        (run / "checkpoints" / name / "state.json").write_text(
            json.dumps({"stage": stage, "step": int(step), "evaluations": scores})
        )
    html = render_run(run)
    text = Page(html).text
    assert "This run has not finished; it has reached rl 10." in text
    assert f"<code>tacit train --resume {run}</code> continues it." in html
    assert "latest success, not final 77.5%" in text and "final success" not in text and "not finished" in text
    (run / "summary.json").write_text("{half")
    text = Page(render_run(run)).text
    assert "summary.json cannot be read" in text and "latest success, not final 77.5%" in text


def test_damaged_files_are_reported_and_the_rest_is_shown(tmp_path):
    run = write_run(tmp_path / "run")
    broken = run / "trajectories" / "eval-rl-000010.jsonl.gz"
    lines = "".join(json.dumps(episode(n, False)) + "\n" for n in range(400))
    broken.write_bytes(gzip.compress(lines.encode())[:-900])
    (run / "versions.json").write_text("{half")
    (run / "metrics.jsonl").write_text('{"stage": "rl"\nnonsense\n[]\n' + (run / "metrics.jsonl").read_text())
    page = Page(render_run(run))
    assert "eval-rl-000010.jsonl.gz is damaged" in page.text and "the part before the damage is shown" in page.text
    assert "versions.json cannot be read" in page.text and "3 of 13 lines of metrics.jsonl cannot be read" in page.text
    assert len(page.blocks["episodes"]["episodes"]) == 24 and "57.5%" in page.text
    broken.write_bytes(b"not gzip at all")
    text = Page(render_run(run)).text
    assert (
        "is damaged" in text
        and "evaluation after rl 10" not in text.partition("Behavior")[2]
        and "training, iteration 10" in text
    )
    (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text() + '{"stage": "rl", "st')
    assert "3 of 13 lines of metrics.jsonl" in Page(render_run(run)).text, "half a line is what a killed write leaves"


def test_page_without_metrics(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    page = Page(render_run(run))
    assert "There are no metrics (metrics.jsonl)" in page.text
    assert any(svg["aria-label"].startswith("Success on the panel") for svg in page.all("svg")), (
        "evaluations still make a curve"
    )


def test_unreadable_episodes_are_left_out_and_counted(tmp_path):
    uncounted = episode(4, True)
    uncounted["turns"][0]["tokens"] = -1
    strange = [{"task": "old", "steps": []}, {**episode(3, True), "stop": "bored"}, uncounted]
    run = write_run(tmp_path / "run", episodes=[episode(1, True), *strange])
    text = Page(render_run(run)).text
    assert "3 of 4 lines of trajectories/eval-rl-000010.jsonl.gz cannot be read by this version: left out." in text


def test_alarms_are_listed(tmp_path):
    run = write_run(tmp_path / "run")
    assert 'id="alarms"' not in render_run(run)
    (run / "alarms.jsonl").write_text(json.dumps({"name": "entropy_low", "step": 7, "message": "entropy fell"}) + "\n")
    assert "7 entropy low entropy fell" in Page(render_run(run)).text
    (run / "alarms.jsonl").write_text("broken\n")
    assert "1 of 1 lines of alarms.jsonl cannot be read" in Page(render_run(run)).text


def test_report_command_writes_the_run_page(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    assert main(["report", str(run)]) == 0
    assert str(run / "report.html") in capsys.readouterr().out
    text = Page((run / "report.html").read_text()).text
    assert "This version cannot read these settings (unknown method 'mine'" in text and "57.5%" in text
    assert main(["report", str(run), "--out", str(tmp_path / "elsewhere.html"), "--trajectories", "2"]) == 0
    assert len(Page((tmp_path / "elsewhere.html").read_text()).blocks["episodes"]["episodes"]) == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["EMPTY"], "is neither a run nor a comparison: it has no settings.json and no comparison.json. `tacit train`"),
        (["ABOVE"], "It contains runs: above/runs/run; name one of them."),
        (["RUNS"], "It contains runs: above/runs/run; name one of them."),
        (["FILE"], "a.txt is a file; name a run"),
        (["RUN", "--trajectories", "-1"], "--trajectories -1 must not be negative"),
        (["RUN", "--out", "nowhere/at/all.html"], "the directory nowhere/at does not exist"),
    ],
)
def test_report_refuses_bad_arguments(tmp_path, monkeypatch, capsys, words, reason):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "above" / "runs" / "run")
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "empty").mkdir()
    places = {"EMPTY": "empty", "ABOVE": "above", "RUNS": "above/runs", "RUN": "above/runs/run", "FILE": "a.txt"}
    assert main(["report", *(places.get(word, word) for word in words)]) == 2
    assert reason in capsys.readouterr().err


def test_unreadable_settings_are_refused(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "settings.json").write_text("{")
    with pytest.raises(TacitError, match="cannot read the settings"):
        render_run(run)


def test_episode_without_steps_is_embedded(tmp_path):
    run = write_run(tmp_path / "run", episodes=[episode(1, False, 0, stop="world_error", detail="it broke")])
    write_records(run / "trajectories" / "rl-000010.jsonl.gz", [])
    viewer = Page(render_run(run)).blocks["episodes"]["episodes"]
    assert [e["turns"] for e in viewer] == [[]] and viewer[0]["detail"] == "it broke"
