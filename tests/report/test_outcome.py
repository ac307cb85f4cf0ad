"""The report opens with one sentence on what happened and the learning curves; settings come last."""

from __future__ import annotations

from tacit.report.run_page import Panel, describe_outcome


def score(stage: str, step: int, success: float, low: float, high: float) -> dict:
    return {"stage": stage, "step": step, "success": success, "interval": [low, high], "world": "alfworld"}


def outcome(*scores: dict) -> str:
    return describe_outcome([Panel(scores, scores, None, None)])


def test_the_sentence_compares_the_first_and_the_last_evaluation():
    start = score("sft", 200, 0.5, 0.4, 0.6)
    assert outcome(start, score("rl", 20, 0.8, 0.7, 0.9)) == (
        "Success on alfworld rose from 50.0% (after sft 200) to 80.0% (after rl 20)."
    )
    assert "fell from 50.0%" in outcome(start, score("rl", 20, 0.2, 0.1, 0.3))
    assert outcome(start, score("rl", 20, 0.55, 0.45, 0.65)).endswith("; the 95% intervals overlap.")
    assert outcome(start) == "Success is 50.0% after sft 200, the only evaluation so far."
    assert describe_outcome([]) == ""
