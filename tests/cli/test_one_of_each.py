"""Output uses the singular for a count of one."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from tacit.cli.main import main

THINGS = "episode|turn|step|task|token|iteration|run|seed|evaluation|answer|line|group|round|time|family|families|entry|entries"
WRONG = re.compile(rf"(?<![\d.,×/-])\b1 (?:won |logged )?(?:{THINGS})(?<!y)s\b|\b1 (?:families|entries)\b")


def words_of(page: str) -> str:
    return unescape(re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL))


@pytest.fixture
def run(tmp_path):
    return str(tmp_path / "run")


def test_plural_pattern_matches_wrong_plurals_only():
    assert WRONG.findall("1 episodes, 21 episodes, 0.1 tokens, 1 episode, of 1 won episodes, 1 families") == [
        "1 episodes",
        "1 won episodes",
        "1 families",
    ]


@pytest.mark.slow
def test_output_uses_singular_for_one(run, capsys):
    one = ["--sft.steps", "1", "--sft.batch", "1", "--sft.tasks", "1", "--iterations", "1", "--groups", "1", "--tasks", "1"]
    short = ["--max-steps", "1", "--evaluation.max-steps", "1", "--evaluation.tasks", "1", "--group-size", "2"]
    assert main(["train", "--world", "countdown", "--model", "tiny-0.5m", "--out", run, *one, *short]) == 0
    assert main(["eval", run, "--tasks", "1"]) == 0
    assert main(["eval", run, "--tasks", "1"]) == 0
    assert main(["play", "--policy", run, "--max-steps", "1"]) in (0, 1)
    assert main(["report", run]) == 0
    output = capsys.readouterr().out
    assert "1 iteration of 1 task × 2 episodes" in output and "of 1 episode on countdown/test/1" in output
    assert "already played: 1 episode, in" in output
    assert WRONG.findall(output) == []
    assert WRONG.findall(words_of(Path(run, "report.html").read_text())) == []
