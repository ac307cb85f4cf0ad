"""Agreement of credit with the true advantage: by hand, with noise removed, with a task bootstrap, and in the maze."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from small_maze import GAMMA, TASKS, make_setup
from test_credit_truth import exact

from tacit.core.errors import TacitError
from tacit.credit.episode import EpisodeRelative
from tacit.credit.partitions import SameKey
from tacit.evaluation.credit_agreement import (
    STAGES,
    Estimate,
    Geometry,
    GroupCredit,
    MeasuredGroup,
    credit_groups,
    credit_per_step,
    ending_of,
    make_estimators,
    partitions,
    quality,
    stages_of,
)


def measure(credit, one, two=None, task: str = "t", v=None, part=None, ending="mixed") -> MeasuredGroup:
    credit = np.asarray(credit, float)
    n = len(credit)
    two = one if two is None else two
    v = np.zeros((2, n)) if v is None else np.asarray(v, float)
    part = np.zeros(n, int) if part is None else np.asarray(part)
    group = GroupCredit(task, ending, np.arange(n) * 3 // max(n, 1), {"GRPO": credit}, {"p": part})
    return MeasuredGroup(group, np.array([one, two], float), v)


def of(found, name: str = "GRPO", on: str = "all"):
    return next(a for a in found.agreements if (a.estimator, a.on) == (name, on))


def test_agreement_by_hand():
    agreement = of(quality([measure([1, 2, 3], [1, 3, 2])]))
    assert agreement.correlation.value == pytest.approx(0.5) and agreement.raw == pytest.approx(0.5)
    assert agreement.cosine.value == pytest.approx((1 + 6 + 6) / 14) and agreement.steps == 3
    assert agreement.gain.value is None and agreement.correlation.low is None, "one task says nothing about another"
    assert of(quality([measure([-1, -2, -3], [1, 3, 2])])).correlation.value == pytest.approx(-0.5)
    # Halves that differ: their mean in the numerator, their covariance in the denominator.
    c, one, two = np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 2]), np.array([1.0, 4, 2, 3])
    agreement = of(quality([measure(c, one, two)]))
    expected = np.cov(c, (one + two) / 2, ddof=0)[0, 1] / (np.var(c) * np.cov(one, two, ddof=0)[0, 1]) ** 0.5
    assert agreement.correlation.value == pytest.approx(expected) and 0 < expected < 1


def test_undefined_agreement_is_none():
    flat = quality([measure([0, 0, 0], [1, 3, 2])])
    assert of(flat).correlation.value is None and of(flat).cosine.value is None
    nothing = quality([measure([1, 2, 3], [1, 0, -1], [-1, 0, 1])])
    assert of(nothing).correlation.value is None, "the halves share nothing: no truth was found above the noise"
    assert quality([]).agreements == [] and quality([]).reliability is None
    constant = quality([measure([0.1 + 0.2, 0.3, 0.3], [1, 3, 2])])
    assert of(constant).correlation.value is None, "what is only rounding is no variance"


def test_rounding_errors_are_not_variance():
    alike = quality([measure([1, 2, 3], [0.1 + 0.2, 0.3, 0.3])])
    assert of(alike).correlation.value is None and of(alike).raw is None, "an advantage that is the same everywhere"
    assert alike.reliability is None and alike.spread is None and alike.noise == 0
    values = [0.95**k for k in range(9, -1, -1)]
    always = [0.95 * after - before for before, after in pairwise(values)] + [1 - values[-1]]
    assert 0 < np.abs(always).max() < 1e-15, "a policy that always wins: nothing matters but rounding"
    won = quality(
        [
            measure(range(10), always, task="a", ending="all won"),
            measure(range(10), [0] * 10, task="b", ending="all lost"),
        ]
    )
    assert all((a.correlation.value, a.cosine.value, a.raw) == (None, None, None) for a in won.agreements)
    assert won.reliability is None
    # noise in one half, rounding errors in the other: their covariance is still rounding
    halves = quality([measure([1, 2, 3], [0.004, 0, 0], [1e-16, 0, 0], task=task) for task in "ab"])
    assert of(halves).correlation.to_json() == of(halves).cosine.to_json() == [None, None, None]
    v = [0.1 + 0.2, 0.3, 0.3]
    (left,) = quality([measure([1, 2, 3], [1, 3, 2], v=[v, v])]).partitions
    assert left.unexplained.value is None, "V is the same everywhere"


def test_correlation_above_one_is_unknown():
    """The halves share almost nothing, so cov(c, Â) / √(var c · cov(Â₁, Â₂)) would be 1.5."""
    c, one, two = [1.0, 2, 3], [1.0, 2, 3], [2.0, 1, 2.01]
    product, shared = np.cov(c, (np.array(one) + two) / 2, ddof=0)[0, 1], np.cov(one, two, ddof=0)[0, 1]
    assert product / (np.var(c) * shared) ** 0.5 > 1.5
    agreement = of(quality([measure(c, one, two)]))
    assert agreement.correlation.value is None and 0 < agreement.raw < 1
    wide = of(quality(noisy(np.random.default_rng(0), tasks=12, steps=10, noise=2.5, share=0.9)[0])).correlation
    assert wide.value < 1 and wide.high == 1, "draws beyond it count as one: left out they would pull the interval down"
    opposed = quality([measure(c, [1, 0, -1], [-1, 0.1, 1])])
    assert opposed.reliability == 0 and opposed.spread == 0, "halves that say the contrary measure nothing"


def test_outcome_with_one_task_has_no_interval():
    """A bootstrap of one task always draws the same task, which would look like certainty."""
    one = measure([1, 2, 3], [1, 3, 2], task="a")
    others = [measure([1, 2, 3], [3, 1, 2 + i], task=f"{i}", ending="all lost") for i in range(3)]
    result = quality([one, *others])
    assert of(result, on="mixed").correlation.to_json() == [0.5, None, None]
    assert of(result, on="mixed").cosine.low is None and of(result, on="all lost").correlation.low is not None


def noisy(rng, tasks: int, steps: int, noise: float, share: float) -> tuple[list[MeasuredGroup], float]:
    """Credit with a known correlation to the truth, and a noisy measurement of the truth."""
    measured = []
    for task in range(tasks):
        truth_N = rng.normal(size=steps)
        credit_N = share * truth_N + (1 - share**2) ** 0.5 * rng.normal(size=steps)
        one_N, two_N = truth_N + noise * rng.normal(size=(2, steps))
        measured.append(measure(credit_N, one_N, two_N, f"task {task}"))
    return measured, share


def test_measurement_noise_does_not_lower_the_correlation():
    measured, share = noisy(np.random.default_rng(0), tasks=60, steps=100, noise=3.0, share=0.4)
    found = quality(measured)
    agreement = of(found)
    reliability = 1 / (1 + 3.0**2 / 2)
    assert found.reliability == pytest.approx(reliability, abs=0.03) and found.spread == pytest.approx(1.0, abs=0.1)
    assert found.noise == pytest.approx(3.0 / 2**0.5, abs=0.05)
    assert agreement.raw == pytest.approx(share * reliability**0.5, abs=0.03), "as measured it is less than half of what it is"
    assert agreement.correlation.value == pytest.approx(share, abs=0.07)
    assert agreement.correlation.low < share < agreement.correlation.high
    assert agreement.cosine.value == pytest.approx(share, abs=0.07)


def test_intervals_resample_tasks_not_steps():
    """All steps of a task are alike, so ten tasks are ten draws, however many steps they have."""
    rng = np.random.default_rng(1)
    wide = []
    for task in range(10):
        truth, other = rng.normal(size=2)
        little = 0.01 * rng.normal(size=(2, 200))
        wide.append(measure(truth + other + little[0], truth + little[1], task=f"{task}"))
    interval = of(quality(wide)).correlation
    assert interval.high - interval.low > 0.15, "two thousand independent steps would give 0.04"
    again = of(quality([*wide, *wide])).correlation
    assert again.high - again.low == pytest.approx(interval.high - interval.low, abs=1e-9), "a task seen twice is one task"


@pytest.mark.slow
def test_coverage_of_the_intervals():
    """About 95 of 100 intervals cover the truth; with twenty tasks slightly fewer."""
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(100):
        measured, share = noisy(rng, tasks=20, steps=30, noise=1.0, share=0.5)
        interval = of(quality(measured, resamples=300)).correlation
        covered += interval.low <= share <= interval.high
    assert 85 <= covered <= 100


def test_gain_is_resampled_with_the_same_tasks():
    rng = np.random.default_rng(3)
    measured, _ = noisy(rng, tasks=20, steps=20, noise=0.0, share=0.5)
    both = []
    for m in measured:
        credits = {"GRPO": m.group.credits["GRPO"], "better": m.group.credits["GRPO"] + 0.5 * m.a_HN[0]}
        both.append(replace(m, group=replace(m.group, credits=credits)))
    found = quality(both)
    better, base = of(found, "better"), of(found)
    assert better.gain.value == pytest.approx(better.correlation.value - base.correlation.value)
    assert better.gain.low > 0 and better.gain.high - better.gain.low < base.correlation.high - base.correlation.low


def test_agreement_by_outcome_and_stage():
    a, b = measure([1, 2, 3], [1, 2, 3], task="a"), measure([3, 2, 1], [1, 2, 3], task="b", ending="all lost")
    found = quality([a, b])
    assert of(found, on="mixed").correlation.value == pytest.approx(1.0)
    assert of(found, on="all lost").correlation.value == pytest.approx(-1.0)
    assert of(found, on="all won").correlation.value is None and of(found, on="all won").steps == 0
    assert [of(found, on=stage).steps for stage in STAGES] == [2, 2, 2]
    assert found.endings == {"mixed": 1, "all won": 0, "all lost": 1} and found.tasks == 2


def test_unexplained_variance_of_v_by_partition():
    v = [0.0, 0.0, 1.0, 1.0]
    for part, expected in (([0, 0, 1, 1], 0.0), ([0, 0, 0, 0], 1.0), ([0, 1, 1, 0], 1.0), ([0, 0, 0, 1], 2 / 3)):
        (left,) = quality([measure([0] * 4, [0] * 4, v=[v, v], part=part)]).partitions
        assert left.unexplained.value == pytest.approx(expected)
    assert left.metrics["parts"] == 2 and left.metrics["parts_singleton_steps"] == 0.25
    # Noise in V would look like unexplained variance, but the halves do not share it.
    rng = np.random.default_rng(4)
    v_N = np.repeat([0.0, 1.0], 500)
    halves = v_N + rng.normal(size=(2, 1000))
    (left,) = quality([measure(np.zeros(1000), np.zeros(1000), v=halves, part=v_N.astype(int))]).partitions
    assert abs(left.unexplained.value) < 0.2


def test_figure_of_missing_and_normal_samples():
    assert Estimate.of(float("nan"), np.array([1.0])).to_json() == [None, None, None]
    assert Estimate.of(0.5, np.array([])).to_json() == [0.5, None, None]
    assert Estimate.of(0.5, np.linspace(0, 1, 101)).to_json() == [0.5, 0.025, 0.975]


SETUP = make_setup()
GROUPS = SETUP.collect(1)


def measured_exactly(geometries=()) -> list[MeasuredGroup]:
    parts, _ = partitions(GROUPS, SETUP.policy, geometries)
    credited = credit_groups(GROUPS, SETUP.policy, make_estimators(parts, GAMMA, 1), parts)
    found = []
    for known, group in zip(credited, GROUPS, strict=True):
        q_N, v_N = exact(group)
        found.append(MeasuredGroup(known, np.array([q_N - v_N] * 2), np.array([v_N] * 2)))
    return found


def test_estimators_in_the_maze():
    """Credit for the action in its state is closer to the true advantage than credit for the episode."""
    found = quality(measured_exactly([Geometry(-1, "last", 0.0), Geometry(-1)]))
    value = {a.estimator: a.correlation.value for a in found.agreements if a.on == "all"}
    assert value["PACE-Q, exact state"] > value["GiGPO, exact state"] > value["GRPO"] > 0
    assert value["PACE-Q, exact state"] > 0.8
    assert value["PACE-Q, exact observation"] == pytest.approx(value["PACE-Q, exact state"]), (
        "here the observation is the state"
    )
    assert {"BiPACE-Q, layer -1 last, ε 0", "BiPACE-diff, layer -1 last, ε searched", "BiGPO, n-grams, ε searched"} <= set(
        value
    )
    assert {"step returns", "HGPO", "HGPO, exact state"} <= set(value)
    assert found.reliability == pytest.approx(1.0)
    left = {p.partition: p.unexplained.value for p in found.partitions}
    assert left["exact prompt"] <= left["exact observation"] < 0.5, "what is left is the time that is left"


def test_all_won_group_gives_no_grpo_credit():
    group = GROUPS[0]
    only = replace(group, trajectories=tuple(t for t in group.trajectories if t.success))
    assert ending_of(only) == "all won" and ending_of(replace(group, trajectories=only.trajectories[:1])) == "all won"
    (credit_N,) = credit_per_step((EpisodeRelative(),), [only], None)
    assert not credit_N.any()


def test_stages_are_thirds_of_a_trajectory():
    lengths = [len(t) for t in GROUPS[0].trajectories]
    stage_N = stages_of(GROUPS[0])
    assert len(stage_N) == sum(lengths)
    start = 0
    for n in lengths:
        assert stage_N[start : start + n].tolist() == [3 * t // n for t in range(n)]
        start += n


def test_custom_credit_is_measured_and_round_trips():
    parts = {"p": SameKey()}
    own = [np.arange(len(g.steps), dtype=float) for g in GROUPS]
    (first, *_) = credit_groups(GROUPS, None, {"mine": (EpisodeRelative(), EpisodeRelative())}, parts, {"own": own})
    once = credit_per_step((EpisodeRelative(),), GROUPS, None)[0]
    np.testing.assert_allclose(first.credits["mine"], 2 * once)
    assert first.credits["own"].tolist() == own[0].tolist() and first.task == TASKS[0].id
    measured = MeasuredGroup(first, np.ones((2, len(once))), np.zeros((2, len(once))), 7, 8, 9.0)
    again = MeasuredGroup.from_json(json.loads(json.dumps(measured.to_json())))
    assert again.to_json() == measured.to_json()


def test_geometry_is_parsed():
    assert Geometry.parse("-2:last") == Geometry(-2, "last") and Geometry.parse("-1:mean:0.0675") == Geometry(
        -1, "mean", 0.0675
    )
    for text in ("-2", "x:last", "-2:sum", "-2:last:wide"):
        with pytest.raises(TacitError, match="must be LAYER:POOLING"):
            Geometry.parse(text)
