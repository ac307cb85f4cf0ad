"""`tacit watch` over HTTP: runs in any state, refused requests, and no writes into the run."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest
from parsed import Page
from watching import contents, grow, watching
from written import HOSTILE, episode, write_comparison, write_run

from tacit.cli.main import main
from tacit.companions.dictionary import FILE
from tacit.report.run_page import render_run


def page_of(server, path="/runs/0") -> Page:
    status, text, _ = server.get(path)
    assert status == 200, text
    return Page(text)


@pytest.mark.slow
def test_run_is_followed_from_start_to_end_without_writing(tmp_path):
    run = tmp_path / "run"
    with watching(run) as server:
        assert server.notes == [f"{run} has not started; it is shown when it does"], "where, so that a slip can be seen"
        assert "There is no directory" in page_of(server).text
        run.mkdir()
        (run / ".lock").touch()
        assert "has no settings.json yet" in page_of(server).text
        shutil.rmtree(run)
        write_run(run, finished=False)
        first = page_of(server)
        assert "not finished" in first.text and "This run has not finished" not in first.text, (
            "it is running, which is no fault"
        )
        stamp = server.get("/runs/0")[2]["etag"]
        assert server.get("/runs/0", if_none_match=stamp)[0] == 304

        grow(run, 11, won=2)
        before = contents(run)
        status, text, headers = server.get("/runs/0", if_none_match=stamp)
        assert status == 200 and headers["etag"] != stamp
        page = Page(text)
        assert "training, iteration 11 : 2 of 3 won" in page.text and "66.7% at 11" in text
        assert [a for a in page.all("a") if a.get("href") == "/runs/0/episodes/rl-000011#episode=1"]
        marks = [i["class"] for i in page.all("i")]
        assert {"plus", "minus", "minus hollow"} <= set(marks), "credit per turn; the second action was refused"

        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"stage": "rl", "step": 12, "succ')
        half = page_of(server)
        assert "lines of metrics.jsonl" not in half.text and "66.7% at 11" in server.get("/runs/0")[1], (
            "a line that is being written is not there yet"
        )
        (run / "metrics.jsonl").write_bytes(before["metrics.jsonl"][1])
        after = contents(run)
        assert {name: data for name, (_, data) in after.items()} == {name: data for name, (_, data) in before.items()}

        (run / "summary.json").write_text(json.dumps({"evaluations": [], "episodes": 7, "wall_s": 2.0}))
        assert "finished" in page_of(server).text and "7 episodes" in page_of(server).text
        shutil.rmtree(run)
        assert "There is no directory" in page_of(server).text


@pytest.mark.slow
def test_recording_pages_match_their_links(tmp_path):
    run = write_run(tmp_path / "run", finished=False)
    grow(run, 11)
    with watching(run) as server:
        links = [a["href"] for a in page_of(server).all("a") if "#episode=" in str(a.get("href"))]
        assert links == [f"/runs/0/episodes/rl-000011#episode={n}" for n in (1, 2, 3)]
        episodes = page_of(server, "/runs/0/episodes/rl-000011").blocks["episodes"]["episodes"]
        strips = Page(server.get("/runs/0")[1]).text
        assert [e["goal"] for e in episodes] == sorted((e["goal"] for e in episodes), key=strips.index), "the same order"
        for nothing in (
            "/runs/0/episodes/rl-000099",
            "/runs/0/episodes/..%2F..%2Fsettings",
            "/runs/7",
            "/runs/-1",
            "/runs/x",
            "/else",
        ):
            status, text, _ = server.get(nothing)
            assert status == 404 and "There is nothing at" in Page(text).text, nothing


@pytest.mark.slow
def test_runs_are_shown_side_by_side(tmp_path):
    one, other = write_run(tmp_path / "a" / "run"), write_run(tmp_path / "b" / "run", finished=False)
    settings = json.loads((other / "settings.json").read_text())
    (other / "settings.json").write_text(json.dumps(settings | {"seed": 4, "world": HOSTILE}))
    with watching(one, other, tmp_path / "later", one) as server:
        page = page_of(server, "/")
        assert "3 runs" in page.text and "state finished at rl 10 not started" in page.text, "the one named twice is one"
        assert "later: There is no directory" in page.text and "seed 3 4" in page.text and "--seed 3 4" in page.text
        charts = [str(svg["aria-label"]) for svg in page.all("svg")]
        assert any(t.startswith("Success in training. a/run: 5.0% at iteration 1, 50.0% at 10; b/run: 5.0%") for t in charts)
        assert not page.all("img"), "names are names"
        own = page_of(server, "/runs/1")
        linked = [a["href"] for a in own.all("a") if not str(a["href"]).startswith(("#", "/runs/1/"))]
        assert linked == ["/", "/runs/0", "/runs/2"]
        stamp = server.get("/")[2]["etag"]
        grow(other, 11)
        assert server.get("/", if_none_match=stamp)[0] == 200 and server.get("/", if_none_match="x")[0] == 200


@pytest.mark.slow
def test_damage_is_reported_and_the_rest_is_shown(tmp_path):
    run = write_run(tmp_path / "run", finished=False)
    whole = gzip.compress("".join(json.dumps(episode(n, True)) + "\n" for n in range(200)).encode())
    (run / "trajectories" / "rl-000011.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with watching(run) as server:
        text = page_of(server).text
        assert "rl-000011.jsonl.gz is damaged" in text and "Success in training" in text
        (run / "settings.json").write_text('{"world": ')
        assert "Cannot be shown" in page_of(server).text and "settings.json cannot be read" in page_of(server).text
        assert "settings.json cannot be read" in page_of(server, "/runs/0/episodes/rl-000010").text


@pytest.mark.slow
def test_requests_from_other_hosts_are_refused(tmp_path):
    with watching(write_run(tmp_path / "run")) as server:
        assert server.get("/runs/0", host="evil.example:80")[0] == 403
        status, _, headers = server.get("/")
        assert status == 307 and headers["location"] == "/runs/0", "one run needs no overview"
        assert "connect-src 'self'" in server.get("/runs/0")[1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_text("x"), "is a file; name the directory of a run"),
        (lambda path: (path / "photos").mkdir(parents=True), "is neither a run nor a comparison"),
        (lambda path: write_run(path / "first"), "place/first; name one of them"),
        (write_comparison, "is a comparison; `tacit report"),
    ],
)
def test_watch_refuses_a_path_that_is_not_a_run(tmp_path, capsys, make, words):
    make(tmp_path / "place")
    assert main(["watch", str(tmp_path / "place")]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_port_in_use_is_reported(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    with watching(run) as server:
        assert main(["watch", str(run), "--port", server.address.rpartition(":")[2]]) == 2
    assert "Choose another --port" in capsys.readouterr().err


def test_phrases_of_the_newest_dictionary_are_on_the_page(tmp_path):
    run = write_run(tmp_path / "run")
    assert "Phrases" not in Page(render_run(run)).text
    for step, uses in ((1, [[1, [[0, 4]]]]), (2, [[1, [[0, 4]]], [2, [[0, 2], [1, 9]]]])):
        home = run / "checkpoints" / f"rl-{step:06d}" / "companions" / "dictionary"
        home.mkdir(parents=True)
        history = {"iteration": step, "phrases": [["go", "take"], ["open", HOSTILE]], "steps": uses}
        (home / FILE).write_text(json.dumps({"history": history}))
        (home.parents[1] / "state.json").write_text("{}")
    page = Page(render_run(run))
    assert "Phrases as of rl-000002" in page.text and "go › take 2 1 100.0%" in page.text and not page.all("img")
    assert page.text.index("open ›") < page.text.index("go › take"), "used more"
    (run / "checkpoints" / "rl-000002" / "companions" / "dictionary" / FILE).write_text('{"history": 3}')
    assert "cannot be read" in Page(render_run(run)).text
