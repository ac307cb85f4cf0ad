"""ReuseRL and round length: published settings, differences from GRPO, limit cases, and the examples of §E."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from skilled import ABC, episode, group, step, won

from tacit.companions.dictionary import Dictionary, SkillDictionary
from tacit.core.credit import Rewards
from tacit.core.errors import TacitError
from tacit.core.method import Method, Schedule
from tacit.core.types import Observation, StopReason, Task, Trajectory
from tacit.credit.episode import EpisodeRelative
from tacit.methods import get_method
from tacit.methods.grpo import GRPO
from tacit.methods.reuserl import ReuseRL, RoundLength
from tacit.rewards.outcome import InvalidPenalty, Outcome
from tacit.rewards.segmentation import SegmentationCost
from tacit.training.loop import sum_terms
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
PLAIN = GRPO(invalid_penalty=0.01, schedule=Schedule(iterations=300)).build(WORLD)


def differs(method: Method, other: Method = PLAIN) -> set[str]:
    return {f.name for f in fields(Method) if getattr(method, f.name) != getattr(other, f.name)} - {"name"}


def rewards_of(method: Method, groups) -> list[Rewards]:
    for companion in method.companions:
        companion.observe(groups, None)
    return sum_terms(term(groups) for term in method.rewards)


def test_reuserl_defaults_match_the_paper():
    method = ReuseRL().build(WORLD)
    assert differs(method) == {"rewards", "companions"}
    outcome, invalid, cost = method.rewards
    (dictionary,) = method.companions
    assert (outcome, invalid) == (Outcome(10.0), InvalidPenalty(0.01))
    assert isinstance(dictionary, SkillDictionary) and cost.code is dictionary, "the term reads the companion of its own method"
    assert (cost.horizon, cost.efficiency, cost.alphabet) == (30, 10.0, WORLD.alphabet)
    assert (dictionary.max_phrase, dictionary.buffer, dictionary.horizon) == (4, 256, 30)
    assert method.schedule == Schedule(16, 8, 300, 1e-6, 1.0, top_p=1.0, top_k=0, epochs=1, minibatches=1)


def test_round_length_defaults_match_the_paper():
    method = RoundLength().build(WORLD)
    assert differs(method) == {"rewards"}
    assert method.rewards[2] == SegmentationCost(WORLD.alphabet, Dictionary(WORLD.alphabet.skills), 30, 10.0)


@pytest.mark.parametrize(("world", "skills", "steps"), [("countdown", 26, 30), ("alfworld", 5, 50), ("cooking", 10, 40)])
def test_skill_count_and_horizon_per_world(world, skills, steps):
    method = ReuseRL().build(get_environment(world))
    assert len(method.companions[0].alphabet.skills) == skills and method.rewards[2].horizon == steps


def test_buffer_can_be_disabled():
    assert ReuseRL(buffer=0).build(WORLD).companions[0].buffer == 0


def test_two_builds_have_separate_dictionaries():
    settings = ReuseRL()
    one, two = settings.build(WORLD), settings.build(WORLD)
    assert one == two and one.companions[0] is not two.companions[0]


def toy(**settings):
    return replace(WORLD, name="toy", alphabet=ABC, max_steps=20, **settings)


GROUPS = [won(*["ABAB"] * 12, "CCC"), group(episode("AB"), episode("CB", success=False))]


def test_efficiency_zero_is_grpo():
    plain = rewards_of(GRPO(invalid_penalty=0.01).build(toy()), GROUPS)
    for settings in (ReuseRL(efficiency=0.0), RoundLength(efficiency=0.0)):
        for actual, expected in zip(rewards_of(settings.build(toy()), GROUPS), plain, strict=True):
            assert (actual.flow_N + 0.0).tolist() == expected.flow_N.tolist()


def test_max_phrase_one_is_round_length():
    """L = 1 never merges, so ReuseRL's rewards are those of round length (Proposition 1)."""
    single = rewards_of(ReuseRL(max_phrase=1).build(toy()), GROUPS)
    length = rewards_of(RoundLength().build(toy()), GROUPS)
    assert [r.flow_N.tolist() for r in single] == [r.flow_N.tolist() for r in length]
    assert length[0].outcomes_G().tolist() == [10 - 10 * 4 / 20] * 12 + [10 - 10 * 3 / 20]


def test_reuserl_prefers_reusable_phrases_over_shorter_episodes():
    """ABAB is one phrase, CCC three. ReuseRL prefers the longer success, round length the shorter one."""
    for settings, prefers_reuse in ((ReuseRL(), True), (RoundLength(), False)):
        method = settings.build(toy())
        rewards = rewards_of(method, GROUPS)
        (credit, _) = EpisodeRelative()(GROUPS, rewards, None)
        tokens = credit.steps()
        assert bool(tokens[0][0] > tokens[-1][0]) is prefers_reuse


def test_batch_without_success_gets_no_length_cost():
    failed = [group(episode("AB", success=False), episode("C", success=False))]
    (rewards,) = rewards_of(ReuseRL().build(toy()), failed)
    assert rewards.flow_N.tolist() == [0.0, 0.0, 0.0]


def test_world_without_alphabet_is_refused():
    bare = replace(WORLD, name="bare", alphabet=None)
    for settings in (ReuseRL(), RoundLength()):
        with pytest.raises(TacitError, match="needs an alphabet of skills, but world 'bare' has none"):
            settings.build(bare)


def test_out_of_range_settings_are_refused():
    for settings in (ReuseRL(horizon=0), RoundLength(horizon=0)):
        with pytest.raises(TacitError, match="horizon = 0 must be at least 1"):
            settings.build(WORLD)
    with pytest.raises(TacitError, match="buffer = -1"):
        ReuseRL(buffer=-1).build(WORLD)


def test_reuserl_combines_with_dapo_but_not_round_length():
    reuse = ReuseRL().build(WORLD)
    both = get_method("reuserl+dapo")().build(WORLD)
    assert both.selection is not None and both.companions == reuse.companions and both.rewards == reuse.rewards
    assert both.companions[0] is both.rewards[2].code, "the reward uses the dictionary that learns"
    with pytest.raises(TacitError, match="both add a length cost, which would be counted twice"):
        get_method("reuserl+round_length")().build(WORLD)


WORKED = {
    # §E.1 prints TRANSPORT for `clean …`; Table 3 says TRANSFORM.
    "alfworld": (
        "go to drawer 1; open drawer 1; take ladle 1 from drawer 1; go to sinkbasin 1; clean ladle 1 with sinkbasin 1; "
        "go to countertop 1; put ladle 1 on countertop 1",
        "EXPLORE EXPLORE TAKE TRANSPORT TRANSFORM TRANSPORT DELIVER",
        {},
    ),
    "cooking": (
        "examine cookbook; open fridge; take carrot from fridge; dice carrot; cook carrot with stove; prepare meal; eat meal",
        "READ_RECIPE OPEN TAKE CUT COOK PREPARE_MEAL EAT_MEAL",
        {},
    ),
    "countdown": (
        "op(-, 80, 28); op(+, 52, 2); op(*, 54, 1)",
        "OP_SUB-LARGE-SMALL OP_ADD-NEAR_TARGET-SMALL OP_MUL-NEAR_TARGET-SMALL",
        {"numbers": [80, 2, 28, 1], "target": 54},
    ),
}


@pytest.mark.parametrize("name", WORKED)
def test_worked_examples_of_section_e(name):
    """Projections as printed. Each skill costs 1 / T; a phrase of two skills costs as much as one skill."""
    world = get_environment(name)
    actions, skills, data = WORKED[name]
    task = Task(name, f"{name}/worked", world.families[0], "train", 0, "", data)
    steps = tuple(step(action) for action in actions.split("; "))
    trajectory = Trajectory(task, steps, True, 1.0, StopReason.SUCCESS, Observation(""))
    assert world.alphabet(trajectory) == tuple(skills.split())
    by_length = RoundLength().build(world).rewards[2]
    assert by_length.reward(trajectory) == pytest.approx(-10 * len(steps) / world.max_steps)
    phrase = tuple(skills.split())[-2:]
    code = Dictionary(world.alphabet.skills, (phrase,))
    assert replace(by_length, code=code).reward(trajectory) == pytest.approx(-10 * (len(steps) - 1) / world.max_steps)
