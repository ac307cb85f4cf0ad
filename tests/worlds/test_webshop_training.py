"""Every method trains on WebShop with a tiny model, from imitation to RL."""

from __future__ import annotations

import json

import pytest

from tacit.cli.main import main


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("method", ["grpo", "reuserl", "bipace", "constant_context"])
def test_method_trains_on_webshop(method, tmp_path):
    words = ["train", "--world", "webshop", "--model", "tiny-0.5m", "--method", method, "--out", str(tmp_path / "run")]
    words += [
        "--sft.steps",
        "2",
        "--sft.tasks",
        "4",
        "--sft.batch",
        "4",
        "--iterations",
        "1",
        "--groups",
        "1",
        "--group-size",
        "2",
    ]
    words += ["--tasks", "8", "--max-steps", "3", "--evaluation.tasks", "2", "--evaluation.max-steps", "3"]
    assert main(words) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert summary and not any(line.get("crashed") for line in lines)


@pytest.mark.slow
def test_modules_train_makes_one_module_for_the_shop(tmp_path):
    words = ["modules", "train", "--world", "webshop", "--model", "tiny-0.5m", "--method", "constant_context"]
    words += ["--sft.steps", "2", "--sft.tasks", "4", "--sft.batch", "4", "--iterations", "0", "--tasks", "8"]
    words += ["--evaluation.tasks", "2", "--evaluation.max-steps", "3", "--out", str(tmp_path / "modules")]
    assert main(words) == 0
    assert {path.name for path in (tmp_path / "modules").iterdir() if path.is_dir()} == {"runs", "shop"}
