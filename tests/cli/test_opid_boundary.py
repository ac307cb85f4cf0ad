"""Evaluation of an OPID run shows the agent no skill. An analyzer that cannot be loaded is refused before the first rollout."""

from __future__ import annotations

import pytest

from tacit.cli.main import main
from tacit.engines.local.policy import LocalPolicy
from tacit.prompts.history import CLOSE, OPEN
from tacit.runs.directory import read_metrics

SIZES = {"vocab": 512, "hidden": 32, "layers": 2, "heads": 2, "kv_heads": 2, "intermediate": 64, "context": 512}
SMALL = [
    "--world", "countdown", "--model", "tiny", *(f"--tiny.{name}={size}" for name, size in SIZES.items()), "--history", "1",
    "--tasks", "8", "--max-steps", "3", "--iterations", "1", "--groups", "2", "--group-size", "2", "--lr", "1e-3", "--kl", "0",
    "--evaluation.tasks", "2", "--evaluation.max-steps", "3", "--no-evaluation.untrained", "--engine.threads", "1",
    "--engine.device", "cpu",
]  # fmt: skip


@pytest.fixture
def prompts(monkeypatch):
    """The text of every prompt submitted to a scheduler of this process."""
    texts: list[str] = []
    plain = LocalPolicy.open_scheduler

    def recording(policy, *words, **named):
        scheduler = plain(policy, *words, **named)
        submit = scheduler.submit

        def noting(request):
            texts.append(policy.decode(request.prompt))
            return submit(request)

        scheduler.submit = noting
        return scheduler

    monkeypatch.setattr(LocalPolicy, "open_scheduler", recording)
    return texts


def has_a_note(text: str) -> bool:
    return OPEN in text or CLOSE in text


def test_evaluated_opid_run_sees_no_note(tmp_path, prompts):
    run = tmp_path / "run"
    assert main(["train", "--method", "opid", *SMALL, "--out", str(run)]) == 0
    (row,) = [row for row in read_metrics(run / "metrics.jsonl") if row["stage"] == "rl"]
    assert row["skill_shift/with_skill"] > 0, "there were skills to tell"
    trained = len(prompts)
    assert main(["eval", str(run)]) == 0
    assert len(prompts) > trained > 0 and not any(map(has_a_note, prompts))


def test_skill_grpo_prompts_contain_notes(tmp_path, prompts):
    """Positive control: the Skill-GRPO agent does read its skill."""
    assert main(["train", "--method", "skill_grpo", *SMALL, "--out", str(tmp_path / "run")]) == 0
    assert any(map(has_a_note, prompts))


def test_policy_with_too_short_context_is_refused_as_analyzer(tmp_path, capsys, prompts):
    words = ["train", "--method", "opid", "--analyzer", "policy", *SMALL, "--out", str(tmp_path / "run")]
    assert main(words) != 0
    assert "the analyzer's context has 512 tokens" in " ".join(capsys.readouterr().err.split())
    assert not prompts and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("files", "remedy"),
    [
        (None, "the directory does not exist; give a saved transformers model"),
        ({"readme.txt": "weights to follow"}, "has no config.json; give the directory of a saved"),
        ({"config.json": "{}", "tokenizer.json": "{}"}, "Check the files in it"),
    ],
)
def test_analyzer_that_cannot_be_loaded_is_refused_before_rollout(tmp_path, capsys, prompts, files, remedy):
    place = tmp_path / "analyzer"
    for name, text in (files or {}).items():
        place.mkdir(exist_ok=True)
        (place / name).write_text(text)
    config = tmp_path / "opid.toml"
    config.write_text(f'method = {{ name = "opid", analyzer = "model" }}\n[policies.analyzer]\nmodel = "{place}"\n')
    assert main(["train", "--config", str(config), *SMALL, "--out", str(tmp_path / "run")]) != 0
    errors = capsys.readouterr().err
    assert "[policies.analyzer]: " in errors and repr(str(place)) in errors and remedy in errors
    assert not prompts and not (tmp_path / "run").exists()
