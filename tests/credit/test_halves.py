"""WithinConditions: every credit compares only within the guided or the free half of a group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stepwise import make_group, make_step, outcomes, seen, slow_cluster_relative, slow_hgpo, slow_pace, values_of

from tacit.core.credit import Rewards
from tacit.core.errors import TacitError
from tacit.core.method import Explained
from tacit.core.types import Condition, Group, IterationInfo
from tacit.credit.episode import EpisodeRelative, WithinConditions
from tacit.credit.partitions import Clusters, HashNgram, Identity
from tacit.credit.step_relative import ActionPeers, HistoryHierarchy, StepRelative, explain_credit
from tacit.methods import get_method
from tacit.worlds import get_environment

GUIDED = Condition("guided", "note", "1")
WORLD = get_environment("countdown")


def guide(group: Group, guided: tuple[int, ...]) -> Group:
    """The group with these members guided and the others free."""
    members = [replace(t, condition=GUIDED if i in guided else Condition()) for i, t in enumerate(group.trajectories)]
    return Group(group.task, tuple(members))


def applied(term, group: Group, rewards: Rewards) -> Explained:
    return term([group], [rewards], None, IterationInfo())


def test_step_credit_compares_within_each_half():
    # all four saw x; guided returns 10 and 0, free 4 and 2. Means 5 and 3; the joint mean would be 4.
    group = guide(seen("x", "x", "x", "x"), (0, 2))
    rewards = outcomes(group, [10, 4, 0, 2])
    steps = StepRelative(std=None, gamma=1.0)
    assert values_of(applied(WithinConditions(steps), group, rewards)[0]) == [5.0, 1.0, -5.0, -1.0]
    assert values_of(applied(steps, group, rewards)[0]) == [6.0, 0.0, -4.0, -2.0], "joint: reading the note is praised"


def test_action_peers_come_from_the_same_half():
    # guided: left 10, left 4, right 1 → V̂ 5, Q̂(left) 7, right by leave-one-out: 1 − 7. free: left 0, right 2, leave-one-out
    group = make_group([[make_step("x", did)] for did in ("left", "left", "left", "right", "right")])
    group = guide(group, (0, 1, 4))
    rewards = outcomes(group, [10, 4, 0, 2, 1])
    given_ = applied(WithinConditions(ActionPeers(gamma=1.0)), group, rewards)
    assert values_of(given_[0]) == [2.0, 2.0, -2.0, 2.0, -6.0]
    (marks,) = given_.marks
    assert marks["v"] == [5.0, 5.0, 1.0, 1.0, 5.0] and marks["branch"] == [2, 2, 1, 1, 1]
    assert marks["part"] == [0, 0, 1, 1, 0], "labels go on from one half to the next"
    assert given_.metrics["parts"] == 2 and given_.metrics["parts_mean_size"] == 2.5


def test_history_hierarchy_compares_within_each_half():
    group = guide(seen("xy", "xy", "xy", "zy"), (0, 1))
    rewards = outcomes(group, [10, 0, 10, 0])
    values = values_of(applied(WithinConditions(HistoryHierarchy(2, std=None, gamma=1.0)), group, rewards)[0])
    # guided: x and y at ±5, y also after x. Free: y at ±5 by observation alone; x and z occur once in that half
    assert values == [5.0, 5.0, -5.0, -5.0, 0.0, 5.0, 0.0, -5.0]


def test_steps_without_a_part_keep_label_minus_one():
    group = guide(seen("xy", "xy", "xy", "xy"), (0, 2))

    def last_alone(groups, rewards, policy, moment):
        return explain_credit(groups, [np.zeros(4)] * 2, [np.array([-1, 0, -1, 1])] * 2, {}, {})

    given_ = applied(WithinConditions(last_alone), group, outcomes(group, [1, 0, 1, 0]))
    assert given_.marks[0]["part"] == [-1, 0, -1, 2, -1, 1, -1, 3]


@pytest.mark.parametrize(
    "term",
    [
        EpisodeRelative(),
        StepRelative(),
        StepRelative(Clusters(HashNgram(), 0.25)),
        ActionPeers(Clusters(Identity(), 0.0)),
        ActionPeers(form="difference"),
        HistoryHierarchy(base=True),
    ],
    ids=lambda term: type(term).__name__,
)
def test_single_condition_gives_plain_credit_bit_for_bit(term):
    rng = np.random.default_rng(3)
    groups = [seen(*("".join(rng.choice(list("abc"), rng.integers(1, 5))) for _ in range(6))) for _ in range(3)]
    rewards = [Rewards(g, rng.normal(size=len(g.steps)), -0.1 * rng.integers(0, 2, len(g.steps))) for g in groups]
    for condition in (Condition(), GUIDED):
        alike = [Group(g.task, tuple(replace(t, condition=condition) for t in g.trajectories)) for g in groups]
        earned = [Rewards(g, r.flow_N, r.local_N) for g, r in zip(alike, rewards, strict=True)]
        plain, within = (one(alike, earned, None, IterationInfo()) for one in (term, WithinConditions(term)))
        assert [c.tokens_T.tolist() for c in within] == [c.tokens_T.tolist() for c in plain]
        assert all(a.group is b for a, b in zip(within, alike, strict=True))
        assert {**plain.metrics, "step_credit_seconds": 0} == {**within.metrics, "step_credit_seconds": 0}
        columns = [{name: np.asarray(values).tolist() for name, values in noted.items()} for noted in plain.marks]
        assert [dict(noted) for noted in within.marks] == (columns or [{}] * 3)


episodes = st.lists(
    st.tuples(st.booleans(), st.text("ab", min_size=1, max_size=4), st.sampled_from([0.0, 1.0, 10.0])), min_size=1, max_size=7
)


@settings(max_examples=60, deadline=None)
@given(episodes, st.integers(0, 9))
def test_credit_within_halves_matches_slow_reference(played, seed):
    rng = np.random.default_rng(seed)
    actions = [[str(rng.integers(2)) for _ in saw] for _, saw, _ in played]
    group = make_group(
        [[make_step(x, a) for x, a in zip(saw, did, strict=True)] for (_, saw, _), did in zip(played, actions, strict=True)]
    )
    group = guide(group, tuple(i for i, (guided, _, _) in enumerate(played) if guided))
    rewards = outcomes(group, [worth for _, _, worth in played])
    places = [(guided, x) for guided, saw, _ in played for x in saw]
    part = [places.index(place) for place in places]
    returns = rewards.returns_N(0.95).tolist()
    key = [a for did in actions for a in did]
    np.testing.assert_allclose(
        values_of(applied(WithinConditions(StepRelative()), group, rewards)[0]),
        slow_cluster_relative(returns, part, "population"),
        atol=1e-9,
    )
    for form in ("q", "difference"):
        values = applied(WithinConditions(ActionPeers(form=form)), group, rewards)
        np.testing.assert_allclose(values_of(values[0]), slow_pace(returns, part, key, form)[0], atol=1e-9)
        label = values.marks[0]["part"]
        assert all((label[i] == label[j]) == (part[i] == part[j]) for i in range(len(part)) for j in range(len(part)))
    own = np.array([guided for guided, _ in places])
    expected = np.zeros(len(places))
    for half in (True, False):
        expected[own == half] = slow_hgpo(
            np.array(returns)[own == half].tolist(), [saw for guided, saw, _ in played if guided == half], 3, 1.0
        )
    values = applied(WithinConditions(HistoryHierarchy()), group, rewards)
    np.testing.assert_allclose(values_of(values[0]), expected, atol=1e-9)


@pytest.mark.parametrize("beside", ["", "+bipace", "+bigpo", "+gigpo", "+hgpo", "+rloo", "+opid", "+ppo"])
def test_every_relative_credit_is_wrapped_in_within_conditions(beside):
    name = f"complementary{beside}"
    method = get_method(name)().build(WORLD)
    joint = replace(get_method(name)(), advantage="joint").build(WORLD)
    assert len(method.credits) == len(joint.credits)
    for split, plain in zip(method.credits, joint.credits, strict=True):
        assert not isinstance(plain, WithinConditions)
        if not plain.compares_episodes:
            assert type(split) is type(plain), "it compares nobody"
        else:
            assert split == WithinConditions(plain) and split.needs == plain.needs


def test_batch_relative_credit_is_refused_with_split_advantage():
    for baseline in ("none", "group"):
        with pytest.raises(
            TacitError, match=r"BatchRelative, which compares episodes across the whole batch.*--advantage joint"
        ):
            replace(get_method("complementary+reinforce_pp")(), baseline=baseline).build(WORLD)
    assert replace(get_method("complementary+reinforce_pp")(), advantage="joint").build(WORLD)
