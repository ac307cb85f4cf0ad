"""Rewards and Credit: construction, addition, scaling and returns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import make_group

from tacit.core.credit import Credit, Rewards, check_results
from tacit.core.errors import TacitError

lengths = st.lists(st.integers(0, 6), min_size=1, max_size=5)
unit = st.floats(-10, 10, allow_nan=False, width=32)


def slow_returns(flow, local, lengths, gamma):
    """Slow reference: R_t = Σ_u γ^(u−t) r_u + local_t."""
    out, start = [], 0
    for length in lengths:
        for t in range(length):
            ahead = sum(gamma ** (u - t) * flow[start + u] for u in range(t, length))
            out.append(ahead + local[start + t])
        start += length
    return np.array(out)


def test_flow_is_discounted_back_but_local_stays_on_its_step():
    group = make_group([[1, 1, 1]])
    rewards = Rewards.per_step(group, np.array([0.0, 1.0, 4.0])) + Rewards.local(group, np.array([0.0, -0.5, 0.0]))
    # R_2 = 4, R_1 = 1 + 0.5·4 − 0.5, R_0 = 0 + 0.5·(1 + 0.5·4)
    assert rewards.returns_N(0.5).tolist() == [1.5, 2.5, 4.0]
    assert rewards.outcomes_G().tolist() == [5.0]


def test_returns_do_not_cross_trajectories():
    group = make_group([[1, 1], [1]])
    rewards = Rewards.per_step(group, np.array([1.0, 2.0, 8.0]))
    assert rewards.returns_N(1.0).tolist() == [3.0, 2.0, 8.0]
    assert rewards.returns_N(0.0).tolist() == [1.0, 2.0, 8.0]


def test_computing_returns_does_not_modify_rewards():
    rewards = Rewards.per_step(make_group([[1, 1]]), np.array([1.0, 2.0]))
    rewards.returns_N(0.9)
    assert rewards.flow_N.tolist() == [1.0, 2.0]


@given(lengths, st.floats(0, 1), st.data())
def test_returns_match_the_explicit_sum(shape, gamma, data):
    group = make_group([[1] * n for n in shape])
    n = sum(shape)
    flow = np.array(data.draw(st.lists(unit, min_size=n, max_size=n)))
    local = np.array(data.draw(st.lists(unit, min_size=n, max_size=n)))
    rewards = Rewards.per_step(group, flow) + Rewards.local(group, local)
    np.testing.assert_allclose(rewards.returns_N(gamma), slow_returns(flow, local, shape, gamma), atol=1e-9)
    np.testing.assert_allclose(rewards.outcomes_G(), [flow[a:b].sum() for a, b in spans(shape)], atol=1e-9)


def spans(shape):
    ends = np.cumsum(shape)
    return [(end - n, end) for end, n in zip(ends, shape, strict=True)]


def test_final_reward_goes_to_the_last_step():
    group = make_group([[], [1, 1], [], [1], []])
    rewards = Rewards.at_the_end(group, np.array([7.0, 1.0, 7.0, 2.0, 7.0]))
    assert rewards.flow_N.tolist() == [0.0, 1.0, 2.0]
    assert rewards.outcomes_G().tolist() == [0.0, 1.0, 0.0, 2.0, 0.0]


def test_group_without_steps_gives_empty_returns_and_credit():
    group = make_group([[], []])
    rewards = Rewards.at_the_end(group, np.array([1.0, 2.0])) + Rewards.zeros(group)
    assert rewards.returns_N(0.9).shape == (0,)
    assert rewards.outcomes_G().tolist() == [0.0, 0.0]
    assert Credit.zeros(group).steps() == []


def test_per_step_credit_is_copied_to_every_token():
    group = make_group([[2, 0], [3]])
    credit = Credit.per_step(group, np.array([1.0, 9.0, -1.0]))
    assert credit.tokens_T.tolist() == [1.0, 1.0, -1.0, -1.0, -1.0]
    assert [part.tolist() for part in credit.steps()] == [[1.0, 1.0], [], [-1.0, -1.0, -1.0]]


@given(st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=4), st.data())
def test_credit_steps_splits_tokens_by_step(shape, data):
    group = make_group(shape)
    values = [np.array(data.draw(st.lists(unit, min_size=n, max_size=n)), dtype=float) for row in shape for n in row]
    back = Credit(group, np.concatenate(values)).steps() if values else []
    assert len(back) == len(values)
    assert all(np.array_equal(a, b) for a, b in zip(back, values, strict=True))


def test_credit_adds_and_scales_without_mutation():
    group = make_group([[1, 2]])
    episode = Credit.per_step(group, np.array([1.0, 2.0]))
    step = Credit(group, np.array([10.0, 20.0, 30.0]))
    assert (episode + 0.5 * step).tokens_T.tolist() == [6.0, 12.0, 17.0]
    assert (step * 0.5).tokens_T.tolist() == (0.5 * step).tokens_T.tolist() == (np.float64(0.5) * step).tokens_T.tolist()
    assert (episode + 0.0 * step).tokens_T.tolist() == episode.tokens_T.tolist()
    assert episode.tokens_T.tolist() == [1.0, 2.0, 2.0], "adding returns a new credit"


@pytest.mark.parametrize("kind", [Rewards, Credit])
def test_adding_terms_of_different_groups_is_refused(kind):
    with pytest.raises(ValueError, match="two different groups"):
        kind.zeros(make_group([[1]])) + kind.zeros(make_group([[1]]))


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda g: Rewards.per_step(g, np.zeros(2)), "one number per step"),
        (lambda g: Rewards.local(g, np.zeros((3, 1))), "one number per step"),
        (lambda g: Rewards.at_the_end(g, np.zeros(3)), "one number per trajectory"),
        (lambda g: Credit.per_step(g, np.zeros(4)), "one number per step"),
    ],
)
def test_arrays_of_wrong_size_are_refused(build, what):
    with pytest.raises(ValueError, match=what):
        build(make_group([[2, 2], [2]]))


class Bonus:
    """A user-defined term."""


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (lambda group: [], r"one Rewards for each of the 1 groups, but returned \[\], of length 0"),
        (lambda group: None, "but returned None"),
        (lambda group: 0.5, "but returned 0.5"),
        (lambda group: [0.5], r"but returned \[float\], of length 1"),
        (lambda group: [Credit.zeros(group)], r"but returned \[Credit\], of length 1"),
        (lambda group: [Rewards.zeros(group)] * 5, r"but returned \[Rewards, Rewards, Rewards, …\], of length 5"),
        (
            lambda group: [Rewards.per_step(group, np.array([1.0, np.nan]))],
            "returned nan for the group of task '.*'; its numbers must",
        ),
    ],
)
def test_invalid_output_error_names_the_term(found, message):
    group = make_group([[2], [1]])
    with pytest.raises(TacitError, match=f"the term Bonus .*{message}"):
        check_results(Bonus(), found(group), [group], Rewards)
    fine = [Rewards.zeros(group)]
    assert check_results(Bonus(), fine, [group], Rewards) is fine
    with pytest.raises(TacitError, match="the term Bonus returned inf"):
        check_results(Bonus(), [Credit.per_step(group, np.array([np.inf, 0.0]))], [group], Credit)
