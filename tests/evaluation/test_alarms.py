"""Alarms ring for what they are for, and for nothing else."""

from __future__ import annotations

import pytest

from tacit.runs.alarms import Thresholds, alarms_at, first_alarms

HEALTHY = {"entropy": 0.8, "completion_tokens": 20.0, "repeated": 0.1, "valid": 0.95, "parts_largest": 0.2}


def run(*later: dict, healthy: int = 5) -> list[dict]:
    return [{"step": i + 1, **HEALTHY, **change} for i, change in enumerate([{}] * healthy + list(later))]


def names(records) -> list[str]:
    return [alarm.name for alarm in alarms_at(records)]


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
    (alarm,) = alarms_at(run(*[change] * 3))
    assert alarm.name == name and words in alarm.message and alarm.step == 8
    assert names(run(change)) == [], "one odd iteration is no collapse"
    assert names(run(*[change] * 3, *[{}] * 3)) == [], "and it falls silent when all is well again"


def test_a_policy_that_learns_rings_nothing():
    learning = [{"entropy": 0.8 - 0.02 * i, "completion_tokens": 20 + i, "repeated": 0.1, "valid": 0.95} for i in range(20)]
    assert first_alarms(run(*learning)) == []
    assert alarms_at([]) == [] and names(run()) == []


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
    assert first_alarms(records, Thresholds(window=1))[0].step == 6


def test_thresholds_can_be_others():
    assert [a.name for a in alarms_at(run(*[{"completion_tokens": 30.0}] * 3), Thresholds(length_high=1.2))] == ["length_high"]


def test_completions_none_of_which_parses_ring_at_once():
    (alarm,) = alarms_at([{"step": 1, "valid": 0.0, "turns": 40}])
    assert alarm.name == "unparsed" and "--sft.steps" in alarm.message and "--max-tokens" in alarm.message
    assert names([{"step": 1, "valid": 0.05, "turns": 40}]) == [] == names([{"step": 1, "valid": 0.0, "turns": 0}])


def test_groups_that_are_all_alike_ring_while_few_succeed():
    alike = {"credited_groups": 0.0, "success": 0.0}
    (alarm,) = alarms_at([{"step": 1, **alike}])
    assert alarm.name == "uncredited" and "no group of this iteration is mixed, and 0% of the episodes" in alarm.message
    assert "the last 3 iterations" in alarms_at([{"step": i, **alike} for i in range(4)])[0].message
    assert names([{"step": 1, **alike}, {"step": 2, **alike, "credited_groups": 0.1}]) == []
    assert names([{"step": 1, "credited_groups": 0.0, "success": 1.0}]) == [], "what is mastered is no trouble"


def test_a_fall_below_the_start_rings_where_it_is_more_than_chance():
    def fell(episodes: int, now: float) -> list[str]:
        return names([{"step": i, "success": 0.5 if i < 4 else now, "episodes": episodes} for i in range(8)])

    assert fell(64, 0.3) == ["fall"] and fell(64, 0.45) == [] and fell(64, 0.9) == []
    assert fell(4, 0.3) == [], "3 × 4 episodes against 3 × 4 say little"


def test_a_world_that_broke_rings():
    (alarm,) = alarms_at([{"step": 1, "crashed": 3, "episodes": 64}])
    assert alarm.name == "crashed" and alarm.message.startswith("3 of 64 episodes ended because the world broke")


def test_a_sampler_with_other_weights_rings_at_once():
    (alarm,) = alarms_at([{"step": 1, "sampler_gap": 0.3, "versions_behind": 0.0}])
    assert alarm.name == "sampler" and "0.3 from what the sampler said" in alarm.message
    assert names([{"step": 1, "sampler_gap": 0.02}]) == [], "number formats differ by as much"
    assert names([{"step": 1, "sampler_gap": 0.3, "versions_behind": 1.0}]) == [], "the weights have moved since"


def test_hindsight_that_has_no_skills_is_told_of_at_once():
    (alarm,) = alarms_at([{"step": 1, **HEALTHY, "hindsight/without_skill": 0.75}])
    assert alarm.name == "unskilled" and "no skill for 75% of episodes" in alarm.message
    assert names([{"step": 1, **HEALTHY, "hindsight/without_skill": 0.25}]) == []
    of_one_world = {"countdown/hindsight/without_skill": 1.0, "cooking/hindsight/without_skill": 0.0}
    assert names([{"step": 1, **HEALTHY, **of_one_world}]) == ["unskilled"]


def test_a_judge_whose_answers_have_no_grade_is_told_of_at_once():
    (alarm,) = alarms_at([{"step": 1, **HEALTHY, "judge_unread": 1.0}])
    assert alarm.name == "ungraded" and "100% of episodes" in alarm.message
    assert names([{"step": 1, **HEALTHY, "judge_unread": 0.4}]) == names([{"step": 1, **HEALTHY}]) == []
