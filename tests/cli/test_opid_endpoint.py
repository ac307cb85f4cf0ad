"""OPID with an analyzer behind a local HTTP server: a complete run, a resumed run, and a server that refuses the key."""

from __future__ import annotations

import json
import re
import time

import pytest
from chat_server import says, serving

from tacit.cli.main import main
from tacit.runs.directory import read_metrics

RECIPE = """
world = "countdown"
model = "tiny"
max_steps = 3

[method]
name = "opid"
analyzer = "model"
skill_weight = 0.1
kl = 0.0

[prompt]
history = 1

[schedule]
iterations = 2
groups = 2
group_size = 2
lr = 1e-3

[tiny]
vocab = 512
hidden = 32
layers = 2
heads = 2
kv_heads = 2
intermediate = 64
context = 512

[evaluation]
tasks = 4
untrained = false

[engine]
device = "cpu"
threads = 1

[policies.analyzer]
model = "analyst"
engine = {{ name = "chat", url = "{url}" }}
"""


def write(tmp_path, url: str):
    file = tmp_path / "opid.toml"
    file.write_text(RECIPE.format(url=url))
    return ["train", "--config", str(file), "--out", str(tmp_path / "run")]


def skilful(body):
    """One answer in four is unusable. The others name a skill for the first step."""
    text = body["messages"][0]["content"]
    if "Answer with the word yes" in text:
        return 200, says("yes")
    if len(re.findall("wrote", text)) % 4 == 0:
        return 200, says("I would rather not.")
    return 200, says(json.dumps({"episode_summary": "s", "episode_skill": "sum them", "step_skills": {"0": "add first"}}))


@pytest.mark.slow
def test_opid_run_with_endpoint_analyzer(tmp_path, capsys):
    with serving(skilful) as server:
        assert main(write(tmp_path, server.url)) == 0
        count = len(server.requests)
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2]
    assert sum(row["hindsight/asked"] for row in rows) == count - 1, "but for the word yes"
    assert all(row["skill_shift/with_skill"] > 0 and row["hindsight/tokens_written"] > 0 for row in rows)
    assert all(row["hindsight/tokens_read"] > 0 for row in rows)
    assert len((tmp_path / "run" / "hindsight" / "answers.jsonl").read_text().splitlines()) <= count
    capsys.readouterr()
    assert main(["inspect", "skills", str(tmp_path / "run")]) == 0
    output = capsys.readouterr().out
    assert "skill: add first" in output and "sum them" in output
    assert main(["inspect", "skills", str(tmp_path / "run"), "--json", "--episode", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["turns"]


@pytest.mark.slow
def test_malformed_analyses_yield_no_skills_and_are_reported(tmp_path, capsys):
    hostile = [{"episode_skill": "half \ud800"}, {"episode_skill": "", "step_skills": {"9" * 5000: "y"}}]
    questions: list[str] = []

    def reply(body):
        text = body["messages"][0]["content"]
        questions.append(text)
        return 200, says("yes" if "Answer with the word yes" in text else json.dumps(hostile[len(questions) % 2]))

    with serving(reply) as server:
        assert main(write(tmp_path, server.url)) == 0
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if row["stage"] == "rl"]
    assert [(row["hindsight/without_skill"], row["skill_shift/with_skill"]) for row in rows] == [(1.0, 0.0)] * 2
    assert sum(row["hindsight/asked"] for row in rows) == len(questions) - 1
    output = " ".join(capsys.readouterr().out.split())
    assert "hindsight has no skill for 100% of episodes" in output
    assert "no episode_skill and no valid step skill" in output


@pytest.mark.parametrize("status", [401, 404])
def test_refusing_endpoint_fails_before_first_episode(tmp_path, capsys, status):
    with serving(lambda body: (status, {"error": {"message": "no"}})) as server:
        assert main(write(tmp_path, server.url)) != 0
    errors = capsys.readouterr().err
    assert "refuses the key" in errors or "has no such path or model" in errors
    assert not list((tmp_path / "run").glob("trajectories/*"))


@pytest.mark.slow
def test_resumed_run_asks_only_unanswered_questions(tmp_path):
    """Two iterations ask eight questions. The server answers three and then refuses."""

    def questions() -> list[str]:
        texts = [request["messages"][0]["content"] for request in server.requests]
        return [text for text in texts if "Answer with the word yes" not in text]

    def failing(body):
        if body["messages"][0]["content"] in questions()[3:]:
            time.sleep(0.3)  # wait until the earlier answers have arrived
            return 403, {"error": {"message": "quota"}}
        return skilful(body)

    answers = tmp_path / "run" / "hindsight" / "answers.jsonl"
    with serving(failing) as server:
        assert main(write(tmp_path, server.url)) != 0
        kept = len(answers.read_text().splitlines())
        assert kept == 3
        before = questions()
        server.reply = skilful  # same address, so cached answers stay valid
        assert main(["train", "--resume", str(tmp_path / "run"), "--trust-code"]) == 0
    after = questions()[len(before) :]
    assert len(before) == 4 and not set(after) & set(before[:kept]), "what was answered is kept"
    assert len(set(after)) == 8 - kept and len(answers.read_text().splitlines()) == len(after) + kept
