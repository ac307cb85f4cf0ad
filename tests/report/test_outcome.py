"""The report starts with one text on the outcome and the learning curves; settings come last."""

from __future__ import annotations

from tacit.report.run_page import Panel, describe_outcome


def score(stage: str, step: int, success: float, low: float, high: float) -> dict:
    return {"stage": stage, "step": step, "success": success, "interval": [low, high], "world": "alfworld"}


def outcome(*scores: dict) -> str:
    return describe_outcome([Panel(scores, scores, None, None)])


def test_outcome_sentence_compares_rl_with_its_start():
    start = score("sft", 200, 0.5, 0.4, 0.6)
    text = outcome(score("untrained", 0, 0.0, 0.0, 0.1), start, score("rl", 10, 0.6, 0.5, 0.7), score("rl", 20, 0.8, 0.7, 0.9))
    assert text == "Success on alfworld: 0.0% untrained, 50.0% after sft 200, 80.0% after rl 20. RL training raised it."
    assert outcome(start, score("rl", 20, 0.2, 0.1, 0.3)).endswith("RL training lowered it.")
    assert outcome(start, score("rl", 20, 0.55, 0.45, 0.65)).endswith(
        "RL training made no difference beyond the 95% intervals."
    )
    assert outcome(start) == "Success on alfworld: 50.0% after sft 200."
    assert outcome(score("rl", 5, 0.5, 0.4, 0.6)) == "Success on alfworld: 50.0% after rl 5."
    assert describe_outcome([]) == ""
