"""Step-level estimators: hand-computed values, comparison with slow references, limit cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stepwise import (
    make_group,
    make_step,
    outcomes,
    seen,
    slow_cluster_relative,
    slow_hgpo,
    slow_pace,
    values_of,
)

from tacit.core.credit import Rewards
from tacit.core.method import Explained
from tacit.core.types import Prompt
from tacit.credit.episode import EpisodeRelative, standardize, step_scores
from tacit.credit.partitions import Clusters, HashNgram, Identity, SameKey
from tacit.credit.step_relative import (
    BRANCHES,
    LEAVE_ONE_OUT,
    PACE,
    ZERO,
    ActionPeers,
    HistoryHierarchy,
    StepRelative,
    action_keys,
    action_peers,
    action_values,
    cluster_relative,
    pace_metrics,
    partition_metrics,
)

records = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 2.5, 10.0, -0.1]), st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=24
)


def columns(rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    returns, part, key = zip(*rows, strict=True)
    return np.array(returns, float), np.unique(part, return_inverse=True)[1], np.unique(key, return_inverse=True)[1]


def test_cluster_relative_matches_hand_computed_values():
    returns_N, cluster_N = np.array([1.0, 3.0, 5.0, 5.0, 9.0]), np.array([0, 0, 1, 1, 2])
    assert cluster_relative(returns_N, cluster_N, None).tolist() == [-1, 1, 0, 0, 0]
    np.testing.assert_allclose(cluster_relative(returns_N, cluster_N, "population", 0.0), [-1, 1, 0, 0, 0])
    np.testing.assert_allclose(cluster_relative(returns_N, cluster_N, "sample", 0.0), [-(0.5**0.5), 0.5**0.5, 0, 0, 0])
    assert cluster_relative(returns_N, np.full(5, -1), None).tolist() == [0.0] * 5, "in no part"


@given(records, st.sampled_from(["population", "sample", None]))
def test_cluster_relative_matches_slow_reference(rows, std):
    returns_N, cluster_N, _ = columns(rows)
    expected = slow_cluster_relative(returns_N.tolist(), cluster_N.tolist(), std)
    np.testing.assert_allclose(cluster_relative(returns_N, cluster_N, std), expected, atol=1e-9)


def test_step_credit_uses_discounted_returns():
    # both members saw x first; returns 0.5·10 and 0.5·0; y and z occur once
    group = seen("xy", "xz")
    (credit,) = StepRelative(gamma=0.5, std=None, weight=2.0)([group], [outcomes(group, [10, 0])])
    assert values_of(credit) == [5.0, 0.0, -5.0, 0.0]
    # on x the actions differ, so leave-one-out: 5 − 0 and 0 − 5; on y all actions are equal, so Q̂ is V̂
    group = make_group([[make_step("x", did), make_step("y")] for did in ("left", "right")])
    (credit,) = ActionPeers(gamma=0.5, weight=2.0)([group], [outcomes(group, [10, 0])])
    assert values_of(credit) == [10.0, 0.0, -10.0, 0.0]


def test_local_penalty_affects_only_its_own_step():
    group = seen("xy", "xy")
    rewards = outcomes(group, [1, 1]) + Rewards.local(group, np.array([0, -0.5, 0, 0]))
    (credit,) = StepRelative(gamma=1.0, std=None)([group], [rewards])
    assert values_of(credit) == [0.0, -0.25, 0.0, 0.25]


def test_pace_matches_hand_computed_values():
    # cluster of four: action a twice (10, 6), b once (4), c once (0); mean 5
    returns_N, cluster_N, key_N = np.array([10.0, 6.0, 4.0, 0.0]), np.zeros(4, int), np.array([0, 0, 1, 2])
    values_N, branch_N = action_peers(returns_N, cluster_N, key_N, "q")
    np.testing.assert_allclose(values_N, [3.0, 3.0, 4 - 16 / 3, 0 - 20 / 3])
    assert branch_N.tolist() == [PACE, PACE, LEAVE_ONE_OUT, LEAVE_ONE_OUT]
    values_N, branch_N = action_peers(returns_N, cluster_N, key_N, "difference")
    np.testing.assert_allclose(values_N, [8.0, 4.0, 4 - 16 / 3, 0 - 20 / 3])
    assert branch_N.tolist() == [PACE] * 4


@given(records, st.sampled_from(["q", "difference"]))
def test_pace_matches_slow_reference(rows, form):
    returns_N, cluster_N, key_N = columns(rows)
    values_N, branch_N = action_peers(returns_N, cluster_N, key_N, form)
    expected, branches = slow_pace(returns_N.tolist(), cluster_N.tolist(), key_N.tolist(), form)
    np.testing.assert_allclose(values_N, expected, atol=1e-9)
    names = {ZERO: "zero", LEAVE_ONE_OUT: "leave one out", PACE: "pace"}
    assert [names[int(b)] for b in branch_N] == branches


@pytest.mark.parametrize("form", ["q", "difference"])
def test_singleton_clusters_get_zero_credit(form):
    values_N, branch_N = action_peers(np.array([3.0, 8.0]), np.array([0, 1]), np.array([0, 0]), form)
    assert values_N.tolist() == [0.0, 0.0] and branch_N.tolist() == [ZERO, ZERO]
    group = seen("ab", "cd")
    assert values_of(StepRelative()([group], [outcomes(group, [10, 0])])[0]) == [0.0] * 4


def test_cluster_with_one_action_uses_leave_one_out_in_difference_form():
    returns_N, cluster_N, key_N = np.array([9.0, 3.0, 0.0]), np.zeros(3, int), np.zeros(3, int)
    values_N, branch_N = action_peers(returns_N, cluster_N, key_N, "difference")
    np.testing.assert_allclose(values_N, [7.5, -1.5, -6.0])
    assert branch_N.tolist() == [LEAVE_ONE_OUT] * 3
    values_N, branch_N = action_peers(returns_N, cluster_N, key_N, "q")
    assert values_N.tolist() == [0.0] * 3 and branch_N.tolist() == [PACE] * 3, "Q̂ is V̂: the action explains nothing"


def test_action_keys_use_the_action_or_the_first_tokens():
    steps = [
        make_step("s", "go left", tokens=[1, 2, 3]),
        make_step("s", "go left", tokens=[1, 2, 4]),
        make_step("s", "go right", tokens=[1, 2, 3, 9]),
        make_step("s", "go left", valid=False, tokens=[1, 2, 3]),
        make_step("s", "mumble", valid=False, tokens=[1, 2, 3]),
    ]
    assert action_keys(steps, "tag").tolist() == [0, 0, 1, 2, 2], "what does not parse is known by its first tokens"
    assert action_keys(steps, "tokens", 3).tolist() == [0, 1, 0, 0, 0]
    assert action_keys(steps, "tokens", 8).tolist() == [0, 1, 2, 0, 0]


def test_action_values_match_hand_computed_values():
    returns_N, cluster_N, key_N = np.array([10.0, 6.0, 4.0, 0.0, 3.0]), np.array([0, 0, 0, 0, 1]), np.array([0, 0, 1, 2, 0])
    q_N, v_N = action_values(returns_N, cluster_N, key_N)
    assert q_N.tolist() == [8.0, 8.0, 4.0, 0.0, 3.0] and v_N.tolist() == [5.0] * 4 + [3.0]
    assert [a.tolist() for a in action_values(np.zeros(0), np.zeros(0, int), np.zeros(0, int))] == [[], []]


def make_turn(saw: str, block: str, before: str = "", did: str = "act"):
    """A step whose prompt has more than its observation: a state block and history."""
    step = make_step(saw, did)
    return replace(step, prompt=Prompt("task", f"{block} | {saw}", history=(before,) if before else ()))


def test_key_can_be_observation_state_or_prompt():
    """Three steps with one observation, two states (before and after the knife is found) and three prompts."""
    turns = [("shelf", "no knife"), ("shelf", "knife"), ("shelf", "knife", "opened a drawer")]
    group = make_group([[make_turn(*turn) for turn in turns]])
    parts = {key: SameKey(key)([group])[0].tolist() for key in ("observation", "state", "prompt")}
    assert parts == {"observation": [0, 0, 0], "state": [0, 1, 1], "prompt": [0, 1, 2]}
    assert SameKey()([group])[0].tolist() == parts["observation"]
    for key, expected in parts.items():
        assert Clusters(Identity(key), 0.0)([group], None)[0].tolist() == expected
        assert HistoryHierarchy(1, key=key)([group], [Rewards.zeros(group)]).marks[0]["part"].tolist() == expected
    near = HashNgram(key="state")([group])[0]
    assert not np.array_equal(near[0], near[1]) and np.array_equal(near[1], near[2])


def test_pace_on_identity_clusters_equals_pace_on_exact_observations():
    """GiGPO's parts with PACE's credit, bit for bit for any radius below 1."""
    rng = np.random.default_rng(3)
    members = [[make_step("xyz"[rng.integers(3)], "lr"[rng.integers(2)]) for _ in range(6)] for _ in range(5)]
    group = make_group(members)
    rewards = outcomes(group, rng.integers(0, 2, 5) * 10.0)
    for form in ("q", "difference"):
        (exact,) = ActionPeers(SameKey(), form=form)([group], [rewards])
        assert any(values_of(exact))
        for radius in (0.0, 0.25):
            (identity,) = ActionPeers(Clusters(Identity(), radius), form=form)([group], [rewards])
            assert identity.tokens_T.tobytes() == exact.tokens_T.tobytes()
        (state_only,) = StepRelative(Clusters(Identity(), 0.0), std=None)([group], [rewards])
        assert values_of(state_only) != values_of(exact)


def test_action_peers_can_be_divided_by_the_std():
    group = make_group([[make_step("s", did)] for did in "aabb"])
    rewards = outcomes(group, [10, 6, 4, 0])
    (plain,) = ActionPeers()([group], [rewards])
    assert values_of(plain) == [3.0, 3.0, -3.0, -3.0]
    (divided,) = ActionPeers(std="population", delta=0.0)([group], [rewards])
    np.testing.assert_allclose(values_of(divided), np.array([3.0, 3.0, -3.0, -3.0]) / 13**0.5)


members_seen = st.lists(st.text("xyz", min_size=1, max_size=6), min_size=1, max_size=6)


@settings(deadline=None)
@given(members_seen, st.integers(1, 4), st.sampled_from([0.0, 1.0, 2.0]), st.integers(0, 99))
def test_hgpo_matches_slow_reference(members, depth, alpha, seed):
    group = seen(*members)
    rewards = outcomes(group, np.random.default_rng(seed).integers(0, 2, len(members)) * 10.0)
    (credit,) = HistoryHierarchy(depth, alpha)([group], [rewards])
    expected = slow_hgpo(rewards.returns_N(0.95).tolist(), members, depth, alpha)
    np.testing.assert_allclose(values_of(credit), expected, atol=1e-9)


def test_hgpo_matches_hand_computed_values():
    # last step: xz twice (1, 0), z three times (1, 0, 0.5 with γ): depth 2 weighs 3, depth 1 weighs 2
    group = seen("xz", "xz", "yz")
    rewards = Rewards.per_step(group, np.array([0, 1.0, 0, 0, 0, 0.5]))
    term = HistoryHierarchy(depth=2, std=None, gamma=0.0)
    (credit,) = term([group], [rewards])
    np.testing.assert_allclose(values_of(credit)[1::2], [(2 * 0.5 + 3 * 0.5) / 5, (2 * -0.5 + 3 * -0.5) / 5, 0.0])
    (whole,) = HistoryHierarchy(None, std=None, gamma=0.0)([group], [rewards])
    np.testing.assert_array_equal(values_of(whole), values_of(credit), err_msg="no history here is longer than 2")


def test_hgpo_with_depth_one_is_gigpo_step_credit():
    group = seen("xyx", "xy", "zy")
    rewards = outcomes(group, [10, 0, 10])
    (one,) = HistoryHierarchy(depth=1)([group], [rewards])
    (gigpo,) = StepRelative()([group], [rewards])
    np.testing.assert_allclose(one.tokens_T, gigpo.tokens_T)
    (based,) = HistoryHierarchy(depth=1, base=True)([group], [rewards])
    episode = standardize(step_scores(rewards), rewards.outcomes_G())
    has_peers = np.array([abs(v) > 0 for v in values_of(gigpo)])
    expected = (episode + 2 * np.array(values_of(gigpo))) / np.where(has_peers, 3, 1)
    np.testing.assert_allclose(values_of(based), expected, atol=1e-12)
    # with equal outcomes, level zero drops out
    group = seen("xy", "xy")
    rewards = Rewards.per_step(group, np.array([1.0, 0.0, 0.0, 1.0]))
    (based,), (plain,) = HistoryHierarchy(1, base=True)([group], [rewards]), HistoryHierarchy(1)([group], [rewards])
    assert values_of(based) == values_of(plain) and any(values_of(plain))


@settings(deadline=None)
@given(members_seen, st.integers(0, 99))
def test_identity_clusters_at_radius_zero_are_gigpo_bit_for_bit(members, seed):
    group = seen(*members)
    rewards = outcomes(group, np.random.default_rng(seed).random(len(members)))
    (gigpo,) = StepRelative(SameKey())([group], [rewards])
    (bigpo,) = StepRelative(Clusters(Identity(), 0.0))([group], [rewards])
    assert gigpo.tokens_T.tobytes() == bigpo.tokens_T.tobytes()


@pytest.mark.parametrize("term", [StepRelative(), ActionPeers(), ActionPeers(form="difference"), ActionPeers(std="sample")])
def test_weight_zero_is_grpo(term):
    group = make_group([[make_step("x", did), make_step("y")] for did in ("left", "right", "right")])
    rewards = outcomes(group, [10, 0, 0])
    (episode,) = EpisodeRelative()([group], [rewards])
    (step,) = replace(term, weight=0.0)([group], [rewards])
    assert (episode + step).tokens_T.tolist() == episode.tokens_T.tolist()
    (weighed,) = term([group], [rewards])
    assert any(values_of(weighed)), "or the weight would not matter"


def test_step_credit_reports_marks_and_partition_metrics():
    groups = [seen("xy", "xz"), seen("q")]
    rewards = [outcomes(groups[0], [1, 0]), outcomes(groups[1], [1])]
    done = StepRelative(std=None)(groups, rewards)
    assert isinstance(done, Explained) and len(done) == 2 and done[1].group is groups[1]
    assert done.marks[0]["part"].tolist() == [0, 1, 0, 2]
    assert done.marks[0]["step_credit"].tolist() == values_of(done[0])
    # parts {x, x}, {y}, {z}, {q}: three of four stand alone, and three of five steps with them
    assert done.metrics["parts"] == 4 and done.metrics["parts_singleton"] == 0.75
    assert done.metrics["parts_singleton_steps"] == pytest.approx(3 / 5)
    assert done.metrics["parts_mean_size"] == 1.25 and done.metrics["parts_pairs"] == 1
    assert done.metrics["parts_largest"] == (2 / 4 + 1 / 1) / 2, "of each group's steps, then the mean over groups"
    assert done.metrics["step_credit_seconds"] > 0


def test_pace_marks_contain_return_q_v_and_branch():
    group = make_group([[make_step("s", did)] for did in "aabb"] + [[make_step("t", "a")]])
    (marks,) = ActionPeers()([group], [outcomes(group, [10, 6, 4, 0, 1])]).marks
    assert marks["return"].tolist() == [10, 6, 4, 0, 1] and marks["v"].tolist() == [5, 5, 5, 5, 1]
    assert marks["q"].tolist() == [8, 8, 2, 2, 1] and marks["branch"].tolist() == [PACE] * 4 + [ZERO]
    assert (marks["q"] - marks["v"] == marks["step_credit"]).all()
    assert [BRANCHES[b] for b in (ZERO, LEAVE_ONE_OUT, PACE)] == ["zero", "leave one out", "PACE"]


def test_pace_metrics_match_hand_computed_values():
    parts, keys = [np.array([0, 0, 0, 1, 2, 2])], [np.array([0, 0, 1, 0, 2, 2])]
    branches = [action_peers(np.arange(6.0), parts[0], keys[0], "q")[1]]
    metrics = pace_metrics(parts, keys, branches, [np.array([True, True, True, False, True, True])])
    assert metrics["pace_used"] == pytest.approx(4 / 6)
    assert metrics["pace_leave_one_out"] == metrics["pace_zero"] == pytest.approx(1 / 6)
    assert metrics["pace_keys_per_part"] == 1.5 and metrics["pace_parts_contrasted"] == 0.5
    assert metrics["pace_parsed"] == pytest.approx(5 / 6)
    assert partition_metrics([]) == pace_metrics([], [], [], []) == {}


def test_no_groups_and_empty_groups_give_no_credit():
    empty = make_group([])
    for term in (StepRelative(), ActionPeers(), ActionPeers(std="sample"), HistoryHierarchy(), HistoryHierarchy(base=True)):
        assert list(term([], [])) == []
        assert [c.tokens_T.tolist() for c in term([empty], [Rewards.zeros(empty)])] == [[]]
