"""Alarms: each fires for its own failure and stays silent otherwise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.runs.alarms import check_alarms, first_alarms

HEALTHY = {"entropy": 0.8, "completion_tokens": 20.0, "repeated": 0.1, "valid": 0.95, "parts_largest": 0.2}


def run(*later: dict, healthy: int = 5) -> list[dict]:
    return [{"step": i + 1, **HEALTHY, **change} for i, change in enumerate([{}] * healthy + list(later))]


def names(records) -> list[str]:
    return [alarm.name for alarm in check_alarms(records)]


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        ({"entropy": 0.05}, "entropy_low", "from 0.8 to 0.05"),
        ({"entropy": 4.0}, "entropy_high", "from 0.8 to 4"),
        ({"completion_tokens": 60.0}, "length_high", "grew from 20.0 to 60.0 tokens"),
        ({"completion_tokens": 4.0}, "length_low", "shrank from 20.0 to 4.0 tokens"),
        ({"repeated": 0.7}, "repetition", "70% of all actions"),
        ({"valid": 0.5}, "valid", "50% of all completions parse, 95% at best"),
        ({"parts_largest": 0.7}, "giant", "the largest cluster holds 70% of a group's steps"),
    ],
)
def test_alarm_fires_after_three_bad_iterations_only(change, name, words):
    (alarm,) = check_alarms(run(*[change] * 3))
    assert alarm.name == name and words in alarm.message and alarm.step == 8
    assert names(run(change)) == [], "one odd iteration is no collapse"
    assert names(run(*[change] * 3, *[{}] * 3)) == [], "and it falls silent when all is well again"


def test_learning_policy_raises_no_alarm():
    learning = [{"entropy": 0.8 - 0.02 * i, "completion_tokens": 20 + i, "repeated": 0.1, "valid": 0.95} for i in range(20)]
    assert first_alarms(run(*learning)) == []
    assert check_alarms([]) == [] and names(run()) == []


def test_too_few_iterations_raise_no_alarm():
    assert names(run({"entropy": 0.0}, {"entropy": 0.0}, {"entropy": 0.0}, healthy=2)) == []


def test_repeats_are_compared_with_the_start_of_the_run():
    records = [{"step": i, **HEALTHY, "repeated": 0.6} for i in range(10)]
    assert names(records) == []
    assert names([*records, *({"step": 10 + i, **HEALTHY, "repeated": 0.9} for i in range(3))]) == ["repetition"]


def test_giant_cluster_alarm_fires_in_the_first_iterations():
    """Appendix M: a giant cluster is visible before anything is learned."""
    giant = [{"step": i, "parts_largest": 0.9} for i in range(1, 5)]
    assert [alarm.step for alarm in first_alarms(giant)] == [3]
    assert first_alarms([{"step": i, "parts_largest": 0.5} for i in range(9)]) == [], "half of a group is not more than half"


def test_giant_cluster_advice_depends_on_adaptive_radius():
    giant = [{"step": i, "parts_largest": 1.0} for i in range(1, 4)]
    assert "a smaller --epsilon (or --adaptive), another --layer" in check_alarms(giant)[0].message
    (alarm,) = check_alarms([{**record, "radius": 0.3125} for record in giant])
    assert "an --epsilon below the 0.31 of --adaptive, another --layer" in alarm.message


def test_valid_share_is_compared_with_its_best():
    rising = [{"valid": 0.3}] * 3 + [{"valid": 0.9}] * 3 + [{"valid": 0.6}] * 3
    assert names([{"step": i, **r} for i, r in enumerate(rising)]) == ["valid"]


def test_missing_and_nan_values_are_ignored():
    strange = [{"entropy": None}, {"entropy": float("nan")}, {}]
    assert names(run(*strange * 3)) == []
    assert names([{"step": i} for i in range(9)]) == []


def test_first_alarms_reports_each_alarm_once_at_its_step():
    records = run(*[{"valid": 0.2}] * 6, *[{"valid": 0.2, "entropy": 0.01}] * 6)
    found = {alarm.name: alarm.step for alarm in first_alarms(records)}
    assert found == {"valid": 6, "entropy_low": 14}


def test_overlong_alarm_fires_at_once():
    (alarm,) = check_alarms([{"step": 1, "stop_prompt_too_long": 0.5}])
    assert alarm.name == "overlong" and alarm.message.startswith("50% of the episodes ended because the prompt does not fit")
    assert names([{"step": 1, "stop_prompt_too_long": 0.05}]) == [], "few long episodes are usual"


def test_unparsed_alarm_fires_at_once():
    (alarm,) = check_alarms([{"step": 1, "valid": 0.0, "turns": 40}])
    assert alarm.name == "unparsed" and "--sft.steps" in alarm.message and "--max-tokens" in alarm.message
    (loose,) = check_alarms([{"step": 1, "valid": 0.0, "effective": 0.6, "turns": 40}])
    assert "no completion has the full format, though 60% of the actions run" in loose.message
    assert names([{"step": 1, "valid": 0.05, "turns": 40}]) == [] == names([{"step": 1, "valid": 0.0, "turns": 0}])


def test_uncredited_alarm_fires_when_no_group_is_mixed_and_few_succeed():
    alike = {"credited_groups": 0.0, "success": 0.0}
    (alarm,) = check_alarms([{"step": 1, **alike}])
    assert alarm.name == "uncredited" and "no group of this iteration is mixed, and 0% of the episodes" in alarm.message
    assert "the last 3 iterations" in check_alarms([{"step": i, **alike} for i in range(4)])[0].message
    assert names([{"step": 1, **alike}, {"step": 2, **alike, "credited_groups": 0.1}]) == []
    assert names([{"step": 1, "credited_groups": 0.0, "success": 1.0}]) == [], "what is mastered is no trouble"
    assert names([{"step": 1, **alike, "crashed": 14, "episodes": 16}]) == ["crashed"], "the world is the trouble"
    assert names([{"step": 1, **alike, "crashed": 1, "episodes": 16}]) == ["uncredited", "crashed"]


def trained(*successes: float, groups: int = 8, size: int = 8, alike: float = 0.0) -> list[dict]:
    """Metrics of iterations with this success. Groups vary as by chance (`alike` 0) or as if every task were always solved
    or never (1)."""
    spread = [math.sqrt(p * (1 - p) * (alike + (1 - alike) / size)) for p in successes]
    return [
        {"step": i, "success": p, "groups": groups, "group_spread": s, "episodes": groups * size}
        for i, (p, s) in enumerate(zip(successes, spread, strict=True), start=1)
    ]


QUICKSTART = (
    *(67.2, 98.4, 57.8, 65.6, 60.9, 71.9, 53.1, 71.9, 93.8, 60.9),
    *(98.4, 75.0, 62.5, 76.6, 75.0, 85.9, 95.3, 87.5, 87.5, 85.9),
)
"""percent of 64 episodes of eight tasks per iteration, from a healthy run"""


@pytest.mark.parametrize("alike", [0.0, 0.5, 1.0])
def test_varying_task_difficulty_is_not_a_fall(alike):
    assert first_alarms(trained(*(p / 100 for p in QUICKSTART), alike=alike)) == []


def test_steady_policy_rarely_raises_a_false_fall_alarm():
    """60 runs of 60 iterations; the tasks of each iteration are drawn anew and vary in difficulty."""
    rung = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        rates = rng.beta(1.2, 0.6, (60, 8))
        tried = rng.binomial(8, rates) / 8
        rung += bool(first_alarms([
            {"step": i, "success": t.mean(), "groups": 8, "group_spread": t.std()} for i, t in enumerate(tried)
        ]))  # fmt: skip
    assert rung <= 6


@pytest.mark.parametrize("alike", [0.0, 0.5])
def test_fall_alarm_fires_soon_after_a_collapse(alike):
    start = [p / 100 for p in QUICKSTART[:6]]
    (alarm,) = first_alarms(trained(*start, 0.3, 0.1, 0.05, 0.05, alike=alike))
    assert alarm.name == "fall" and alarm.step <= 9
    assert alarm.message.startswith("success fell from 74% at the start to")
    slow = [0.8 - 0.03 * i for i in range(20)]
    (alarm,) = first_alarms(trained(*slow, alike=alike))
    assert alarm.step <= 14, "from 77% to less than half"


def test_fall_alarm_needs_enough_groups():
    fell = (0.5, 0.5, 0.5, 0.3, 0.3, 0.3)
    assert [a.name for a in check_alarms(trained(*fell, groups=64))] == ["fall"]
    assert names(trained(*fell, groups=2)) == [] == names(trained(*(0.5, 0.5, 0.5, 0.45, 0.45, 0.45), groups=64))
    assert names([{"step": i, "success": p, "episodes": 512} for i, p in enumerate(fell)]) == []


def test_crashed_alarm_fires_at_once():
    (alarm,) = check_alarms([{"step": 1, "crashed": 3, "episodes": 64}])
    assert alarm.name == "crashed" and alarm.message.startswith("3 of 64 episodes ended because the world broke")


def test_sampler_alarm_fires_only_for_current_weights():
    (alarm,) = check_alarms([{"step": 1, "sampler_gap": 0.3, "versions_behind": 0.0}])
    assert alarm.name == "sampler" and "differ by 0.3" in alarm.message
    assert names([{"step": 1, "sampler_gap": 0.02}]) == [], "number formats differ by as much"
    assert names([{"step": 1, "sampler_gap": 0.3, "versions_behind": 1.0}]) == [], "the weights have moved since"


def test_unskilled_alarm_fires_when_hindsight_has_no_skills():
    (alarm,) = check_alarms([{"step": 1, **HEALTHY, "hindsight/without_skill": 0.75}])
    assert alarm.name == "unskilled" and "no skill for 75% of episodes" in alarm.message
    assert names([{"step": 1, **HEALTHY, "hindsight/without_skill": 0.25}]) == []
    of_one_world = {"countdown/hindsight/without_skill": 1.0, "cooking/hindsight/without_skill": 0.0}
    assert names([{"step": 1, **HEALTHY, **of_one_world}]) == ["unskilled"]


def test_ungraded_alarm_fires_when_judge_answers_have_no_grade():
    (alarm,) = check_alarms([{"step": 1, **HEALTHY, "judge_unread": 1.0}])
    assert alarm.name == "ungraded" and "100% of episodes" in alarm.message
    assert names([{"step": 1, **HEALTHY, "judge_unread": 0.4}]) == names([{"step": 1, **HEALTHY}]) == []
