"""A run that is killed and resumed ends with bit-identical weights to an uninterrupted run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from forked import start

from tacit.runs.directory import read_metrics

FLAGS = [
    *("--world", "countdown", "--method", "grpo", "--model", "tiny", "--seed", "3", "--tasks", "32", "--max-steps", "3"),
    *("--tiny.vocab", "512", "--tiny.hidden", "32", "--tiny.layers", "2", "--tiny.heads", "2", "--tiny.kv-heads", "2"),
    *("--wording", "terse", "--style", "bare", "--no-admissible", "--history", "1", "--groups", "2", "--group-size", "4"),
    *("--iterations", "6", "--lr", "1e-3", "--checkpoint-every", "1", "--keep", "2", "--kl", "0.05", "--entropy", "0.01"),
    *("--sft.steps", "24", "--sft.batch", "8", "--sft.tasks", "32", "--engine.threads", "1", "--engine.device", "cpu"),
    *("--evaluation.tasks", "4", "--evaluation.every", "2", "--evaluation.max-steps", "3", "--evaluation.temperature", "1.0"),
]


def kill_after(run: Path, records: int, extra_s: float, *words: str | Path) -> None:
    """Train until the metrics file has `records` lines, wait `extra_s` seconds, then SIGKILL."""
    process = start("train", *words)
    process.until(lambda: len(read_metrics(run / "metrics.jsonl")) >= records)
    time.sleep(extra_s)
    process.kill()


HERE = Path(__file__).parents[1]
MANY = [
    *("--world", f"countdown=0.75,{HERE / 'guessing.py'}:SAME=0.25", "--method", f"{HERE / 'teaching.py'}:Teaching+reuserl"),
    *("--kl", "0.0", "--groups", "4", "--efficiency", "1.0"),
]
"""two policies and two worlds, with companions in each"""


def flags(*others: str) -> list[str]:
    """FLAGS with some values replaced."""
    flags_by_name = dict(zip(others[::2], others[1::2], strict=True))
    kept = [word for i, word in enumerate(FLAGS) if word not in flags_by_name and (i == 0 or FLAGS[i - 1] not in flags_by_name)]
    return [*kept, *others]


@pytest.mark.slow
@pytest.mark.parametrize("words", [FLAGS, flags(*MANY)], ids=["one", "many"])
def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path, words: list[str]) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    start("train", *words, "--out", whole).finish()

    kill_after(broken, 13, 0.0, *words, "--out", broken)  # inside imitation, between two checkpoints
    kill_after(broken, 25, 0.02, "--resume", broken)  # inside the first RL iterations
    kill_after(broken, 28, 0.05, "--resume", broken)  # 50 ms later: often while a checkpoint is written
    start("train", "--resume", broken).finish()

    expected, actual = (json.loads((run / "summary.json").read_text()) for run in (whole, broken))
    assert actual["digest"] == expected["digest"]
    assert [e["success"] for e in actual["evaluations"]] == [e["success"] for e in expected["evaluations"]]
    for key in ("episodes", "turns", "generated_tokens", "panel_hash"):
        assert actual[key] == expected[key], key

    def numbers(run: Path) -> list[dict]:
        timing = ("at", "seconds", "tokens_per_s")
        kept = read_metrics(run / "metrics.jsonl")
        return [{k: v for k, v in r.items() if k not in timing and "seconds" not in k} for r in kept]

    assert numbers(whole) == numbers(broken)
    for path in sorted((whole / "trajectories").iterdir()):
        assert path.read_bytes() == (broken / "trajectories" / path.name).read_bytes(), path.name
    assert not list((broken / "checkpoints").glob(".*"))
    if str(MANY[1]) in words:
        check_company(whole, broken, numbers(whole)[-1])


def check_company(whole: Path, broken: Path, last: dict) -> None:
    """The second policy and every companion have the same state, and each world got its share of episodes."""
    for file in ("policies/pupil/policy.json", "companions/countdown/dictionary/dictionary.json",
                 "companions/countdown/lessons/turns.json"):  # fmt: skip
        one, other = (json.loads((run / "checkpoints" / "rl-000006" / file).read_text()) for run in (whole, broken))
        assert one == other, file
    assert last["countdown/episodes"] == 3 * 4 and last["same/turns_taught"] > 0 < last["countdown/turns_taught"]
    evaluated = json.loads((whole / "summary.json").read_text())["final"]
    assert len(evaluated["worlds"]) == 2 and evaluated["episodes"] == 8
