"""Alarms ring for what they are for, and for nothing else."""

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
        ({"parts_largest": 0.7}, "giant", "the largest part holds 70% of a group's steps"),
    ],
)
def test_each_alarm(change, name, words):
    (alarm,) = check_alarms(run(*[change] * 3))
    assert alarm.name == name and words in alarm.message and alarm.step == 8
    assert names(run(change)) == [], "one odd iteration is no collapse"
    assert names(run(*[change] * 3, *[{}] * 3)) == [], "and it falls silent when all is well again"


def test_a_policy_that_learns_rings_nothing():
    learning = [{"entropy": 0.8 - 0.02 * i, "completion_tokens": 20 + i, "repeated": 0.1, "valid": 0.95} for i in range(20)]
    assert first_alarms(run(*learning)) == []
    assert check_alarms([]) == [] and names(run()) == []


def test_too_few_iterations_say_nothing():
    assert names(run({"entropy": 0.0}, {"entropy": 0.0}, {"entropy": 0.0}, healthy=2)) == []


def test_many_repeats_from_the_start_are_the_worlds_own_way():
    records = [{"step": i, **HEALTHY, "repeated": 0.6} for i in range(10)]
    assert names(records) == []
    assert names([*records, *({"step": 10 + i, **HEALTHY, "repeated": 0.9} for i in range(3))]) == ["repetition"]


def test_a_giant_is_told_of_in_the_first_iterations():
    """Appendix M: it can be known before anything has been learnt."""
    giant = [{"step": i, "parts_largest": 0.9} for i in range(1, 5)]
    assert [alarm.step for alarm in first_alarms(giant)] == [3]
    assert first_alarms([{"step": i, "parts_largest": 0.5} for i in range(9)]) == [], "half of a group is not more than half"


def test_what_is_on_already_is_not_advised():
    giant = [{"step": i, "parts_largest": 1.0} for i in range(1, 4)]
    assert "a smaller --epsilon (or --adaptive), another --layer" in check_alarms(giant)[0].message
    (alarm,) = check_alarms([{**record, "radius": 0.3125} for record in giant])
    assert "an --epsilon below the 0.31 of --adaptive, another --layer" in alarm.message


def test_valid_is_compared_with_the_best_there_was():
    rising = [{"valid": 0.3}] * 3 + [{"valid": 0.9}] * 3 + [{"valid": 0.6}] * 3
    assert names([{"step": i, **r} for i, r in enumerate(rising)]) == ["valid"]


def test_numbers_that_are_missing_or_no_numbers_are_passed_over():
    strange = [{"entropy": None}, {"entropy": float("nan")}, {}]
    assert names(run(*strange * 3)) == []
    assert names([{"step": i} for i in range(9)]) == []


def test_first_alarms_come_once_and_at_their_step():
    records = run(*[{"valid": 0.2}] * 6, *[{"valid": 0.2, "entropy": 0.01}] * 6)
    found = {alarm.name: alarm.step for alarm in first_alarms(records)}
    assert found == {"valid": 6, "entropy_low": 14}


def test_completions_none_of_which_parses_ring_at_once():
    (alarm,) = check_alarms([{"step": 1, "valid": 0.0, "turns": 40}])
    assert alarm.name == "unparsed" and "--sft.steps" in alarm.message and "--max-tokens" in alarm.message
    (loose,) = check_alarms([{"step": 1, "valid": 0.0, "effective": 0.6, "turns": 40}])
    assert "no completion has the full format, though 60% of the actions run" in loose.message
    assert names([{"step": 1, "valid": 0.05, "turns": 40}]) == [] == names([{"step": 1, "valid": 0.0, "turns": 0}])


def test_groups_that_are_all_alike_ring_while_few_succeed():
    alike = {"credited_groups": 0.0, "success": 0.0}
    (alarm,) = check_alarms([{"step": 1, **alike}])
    assert alarm.name == "uncredited" and "no group of this iteration is mixed, and 0% of the episodes" in alarm.message
    assert "the last 3 iterations" in check_alarms([{"step": i, **alike} for i in range(4)])[0].message
    assert names([{"step": 1, **alike}, {"step": 2, **alike, "credited_groups": 0.1}]) == []
    assert names([{"step": 1, "credited_groups": 0.0, "success": 1.0}]) == [], "what is mastered is no trouble"
    assert names([{"step": 1, **alike, "crashed": 14, "episodes": 16}]) == ["crashed"], "the world is the trouble"
    assert names([{"step": 1, **alike, "crashed": 1, "episodes": 16}]) == ["uncredited", "crashed"]


def trained(*successes: float, groups: int = 8, size: int = 8, alike: float = 0.0) -> list[dict]:
    """Iterations with this success, their groups spread as chance alone would have it (`alike` 0), or as where a task is either
    always solved or never (1)."""
    spread = [math.sqrt(p * (1 - p) * (alike + (1 - alike) / size)) for p in successes]
    return [
        {"step": i, "success": p, "groups": groups, "group_spread": s, "episodes": groups * size}
        for i, (p, s) in enumerate(zip(successes, spread, strict=True), start=1)
    ]


QUICKSTART = (
    *(67.2, 98.4, 57.8, 65.6, 60.9, 71.9, 53.1, 71.9, 93.8, 60.9),
    *(98.4, 75.0, 62.5, 76.6, 75.0, 85.9, 95.3, 87.5, 87.5, 85.9),
)
"""per cent of 64 episodes, of eight tasks each time; nothing was wrong"""


@pytest.mark.parametrize("alike", [0.0, 0.5, 1.0])
def test_iterations_of_easier_and_harder_tasks_are_no_fall(alike):
    assert first_alarms(trained(*(p / 100 for p in QUICKSTART), alike=alike)) == []


def test_a_steady_policy_is_not_said_to_fall_however_long_one_looks():
    """Tasks between easy and hard, drawn anew in every iteration, for 60 runs of 60 iterations."""
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
def test_a_collapse_rings_within_the_iterations_it_is_a_mean_over(alike):
    begun = [p / 100 for p in QUICKSTART[:6]]
    (alarm,) = first_alarms(trained(*begun, 0.3, 0.1, 0.05, 0.05, alike=alike))
    assert alarm.name == "fall" and alarm.step <= 9
    assert alarm.message.startswith("success fell from 74% at the start to")
    slow = [0.8 - 0.03 * i for i in range(20)]
    (alarm,) = first_alarms(trained(*slow, alike=alike))
    assert alarm.step <= 14, "from 77% to less than half"


def test_few_groups_say_little_and_a_run_that_counted_none_nothing():
    fell = (0.5, 0.5, 0.5, 0.3, 0.3, 0.3)
    assert [a.name for a in check_alarms(trained(*fell, groups=64))] == ["fall"]
    assert names(trained(*fell, groups=2)) == [] == names(trained(*(0.5, 0.5, 0.5, 0.45, 0.45, 0.45), groups=64))
    assert names([{"step": i, "success": p, "episodes": 512} for i, p in enumerate(fell)]) == []


def test_a_world_that_broke_rings():
    (alarm,) = check_alarms([{"step": 1, "crashed": 3, "episodes": 64}])
    assert alarm.name == "crashed" and alarm.message.startswith("3 of 64 episodes ended because the world broke")


def test_a_sampler_with_other_weights_rings_at_once():
    (alarm,) = check_alarms([{"step": 1, "sampler_gap": 0.3, "versions_behind": 0.0}])
    assert alarm.name == "sampler" and "differ by 0.3" in alarm.message
    assert names([{"step": 1, "sampler_gap": 0.02}]) == [], "number formats differ by as much"
    assert names([{"step": 1, "sampler_gap": 0.3, "versions_behind": 1.0}]) == [], "the weights have moved since"


def test_hindsight_that_has_no_skills_is_told_of_at_once():
    (alarm,) = check_alarms([{"step": 1, **HEALTHY, "hindsight/without_skill": 0.75}])
    assert alarm.name == "unskilled" and "no skill for 75% of episodes" in alarm.message
    assert names([{"step": 1, **HEALTHY, "hindsight/without_skill": 0.25}]) == []
    of_one_world = {"countdown/hindsight/without_skill": 1.0, "cooking/hindsight/without_skill": 0.0}
    assert names([{"step": 1, **HEALTHY, **of_one_world}]) == ["unskilled"]


def test_a_judge_whose_answers_have_no_grade_is_told_of_at_once():
    (alarm,) = check_alarms([{"step": 1, **HEALTHY, "judge_unread": 1.0}])
    assert alarm.name == "ungraded" and "100% of episodes" in alarm.message
    assert names([{"step": 1, **HEALTHY, "judge_unread": 0.4}]) == names([{"step": 1, **HEALTHY}]) == []
