"""Rollouts where each episode runs at its own pace: repeatable bit for bit, with the same tokens as in lockstep."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.core.credit import Batch
from tacit.core.method import Alike
from tacit.core.protocols import Sampling
from tacit.core.types import Group, HiddenState
from tacit.losses.surrogates import Imitation
from tacit.prompts.history import History
from tacit.rollout.episodes import rollout_groups
from tacit.rollout.worlds import InProcessPool
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
CONTEXT = History(WORLD.wording("terse"), turns=1, admissible=False, style="bare")


def play(policy, **options) -> list[Group]:
    sampling, tasks = Sampling(temperature=1.2, max_tokens=24, stop=("3", "7")), WORLD.tasks("train", 4, 0)
    return rollout_groups(
        tasks, 4, 3, Alike(), CONTEXT, InProcessPool(WORLD.make), policy, sampling, 6, HiddenState(1), **options
    )


def steps(groups: list[Group]) -> list:
    return [step for group in groups for step in group.steps]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"max_batch": 5}, {"lora_rank": 4}])
def test_paced_rollout_is_repeatable_and_matches_lockstep(make_policy, settings):
    policy = make_policy(**settings)
    assert policy.repeatable, "a rollout waits for every world"
    paced = play(policy)
    lengths = {len(step.completion.tokens) for step in steps(paced)}
    assert len(steps(paced)) > 60 and min(lengths) < 4 and max(lengths) == 24, "completions must differ in length"
    for again, exact in ((play(policy), True), (play(make_policy(**settings)), True), (play(policy, lockstep=True), False)):
        for a, b in zip(steps(paced), steps(again), strict=True):
            assert a.completion.text == b.completion.text and a.completion.tokens.tolist() == b.completion.tokens.tolist()
            close = {"rtol": 0, "atol": 0 if exact else 1e-4}
            np.testing.assert_allclose(a.completion.logprobs, b.completion.logprobs, **close)
            np.testing.assert_allclose(a.completion.hidden, b.completion.hidden, **close)
            assert a.prompt_tokens.tolist() == b.prompt_tokens.tolist()


@pytest.mark.slow
def test_steps_carry_the_weight_version_and_match_the_scorer(make_policy, rows):
    policy = make_policy()
    for version in range(2):
        played = steps(play(policy))
        assert {step.completion.version for step in played} == {version}
        scored = policy.logprobs([s.prompt_tokens for s in played], [s.completion.tokens for s in played], 1.2)
        for step, expected in zip(played, scored, strict=True):
            np.testing.assert_allclose(step.completion.logprobs, expected, atol=1e-4)
        policy.update(Batch.imitation(*rows), [Imitation()], 1e-2)
