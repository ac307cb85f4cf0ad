"""Settings of Complementary RL: the extractor table, and options that only the released code has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scripted import Kit, ScriptedPolicy, group_extractor, solve_countdown

from tacit.api import parse_settings
from tacit.companions.experience.bank import Origin
from tacit.companions.experience.companion import GUIDED
from tacit.config.checks import check_values
from tacit.config.recipe import Recipe
from tacit.core.credit import Batch
from tacit.core.errors import TacitError
from tacit.core.method import Schedule
from tacit.core.protocols import PinnedSampler, Request, Sampling
from tacit.engines.local.policy import load_policy
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.tiny import TinySettings
from tacit.losses.surrogates import ClippedSurrogate
from tacit.methods import get_method
from tacit.prompts.history import PromptSettings
from tacit.prompts.search_and_ask import ASK, ASKED, NONE_LEFT
from tacit.rollout.worlds import InProcessPool
from tacit.training.loop import Collector, Loop
from tacit.worlds import get_environment

WORLD = get_environment("countdown")


def document(**method):
    return {"world": "countdown", "model": "owner/name", "method": {"name": "complementary", **method}}


def test_old_top_level_extractor_key_is_refused():
    with pytest.raises(TacitError, match=r"unknown key `extractor_lr` in \[method\]; did you mean `extractor`"):
        Recipe.from_json(document(extractor_lr=1e-4))


def test_extractor_settings_do_not_shadow_actor_settings():
    overrides = parse_settings({"lr": 1.0, "temperature": 0.5, "extractor": {"lr": 2.0}}, "complementary")
    assert overrides == {("schedule", "lr"): 1.0, ("schedule", "temperature"): 0.5, ("method", "extractor", "lr"): 2.0}


def test_bad_extractor_setting_error_names_the_key():
    with pytest.raises(TacitError, match=r"extractor.clip = 0.0 must be above 0"):
        check_values(Recipe.from_json(document(extractor={"clip": 0.0})))
    with pytest.raises(TacitError, match=r"unknown key `tokns` in \[method.extractor\]; did you mean `tokens`"):
        Recipe.from_json(document(extractor={"tokns": 3}))


# Options of the released code that the paper does not mention


TERSE = {"prompt": PromptSettings(wording="terse", style="bare", admissible=False, history=0), "extractor_style": "terse"}


def play(place, actor, **settings):
    """(groups, companion, actor, extractor) after one iteration with an entry in the bank"""
    extractor, player = (
        ScriptedPolicy(lambda prompt, seed: "advice" if prompt.endswith("advice:") else "return"),
        ScriptedPolicy(actor),
    )
    options = group_extractor({**TERSE, "merge_every": 0, "kl": 0.0, "extractor_batch": 4, **settings})
    schedule = Schedule(groups=2, group_size=4, lr=1e-3, temperature=0.9, top_p=0.8, top_k=7)
    method = replace(get_method("complementary")(**options), schedule=schedule).build(WORLD, Kit(extractor, place))
    experience = method.companions[0]
    text = "which numbers go first: the largest"
    experience.manager.bank.add(text, experience.manager.embedding([text])[0], Origin(world="countdown"))
    loop = Loop([Collector(method, WORLD.tasks("train", 6, 0), InProcessPool(WORLD.make), 24, 6)], player, iterations=3)
    return loop.iterate(1).groups, experience, player, extractor


def always_asking(prompt: str, seed: int) -> str:
    return f"{ASK} and now?"


def test_episode_may_ask_two_questions_by_default(tmp_path):
    groups, _, player, extractor = play(tmp_path, always_asking)
    guided = [t for g in groups for t in g.trajectories if t.condition.name == GUIDED]
    for trajectory in guided:
        assert [step.answer for step in trajectory.steps] == ["advice", "advice", *[NONE_LEFT] * 4]
        assert all(ASKED in step.signals for step in trajectory.steps)
        invited = [f"ask: {ASK}" in step.prompt.text for step in trajectory.steps]
        assert invited == [True, True, False, False, False, False]
    assert (player.samplings[0].temperature, player.samplings[0].top_p, player.samplings[0].top_k) == (0.9, 0.8, 7)
    assert {(s.temperature, s.top_p, s.top_k, s.max_tokens) for s in extractor.samplings} == {(1.0, 0.99, 50, 8192)}
    groups, *_ = play(tmp_path / "more", always_asking, questions=0)
    guided = [t for g in groups for t in g.trajectories if t.condition.name == GUIDED]
    assert all(step.answer == "advice" for t in guided for step in t.steps)


@pytest.mark.parametrize("trained", [True, False])
def test_answers_train_extractor_only_if_refinements_are_on(trained, tmp_path):
    def actor(prompt: str, seed: int) -> str:
        if f"ask: {ASK}" in prompt and "<note>\nwhat" not in prompt:
            return f"{ASK} what {seed % 9}?"
        return solve_countdown(next(line for line in prompt.splitlines() if " > " in line)) if seed % 2 else "hm"

    groups, experience, _, extractor = play(tmp_path, actor, extractor_refinements=trained, extractor_batch=3)
    guided = [t for g in groups for t in g.trajectories if t.condition.name == GUIDED]
    rewards = {t.steps[0].action: [] for t in guided}
    for t in guided:
        rewards[t.steps[0].action].append(1.0 if t.success else -1.0)
    buffer, updates = experience.manager.extractor.buffer, extractor.updates
    if not trained:
        assert not buffer and not updates, "the entry was put there by hand"
        return
    assert len(buffer) + 3 * len(updates) == len(rewards) and len(rewards) >= 3
    means = np.array([np.mean(r) for r in rewards.values()])[:3]
    np.testing.assert_allclose([a[0] for a in updates[0][0].advantages], means - means.mean())
    assert not experience.manager.bank.usage[1].trained, "its own call was not trained on"


# Sampling during an update


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 4])
def test_pinned_weights_are_sampled_during_an_update(rank):
    tiny = TinySettings(hidden=32, layers=1, heads=2, kv_heads=2)
    policy = load_policy(
        "tiny", EngineSettings(device="cpu", threads=1, lora_rank=rank), 0, lambda: ["one two three four"] * 9, tiny
    )
    assert isinstance(policy, PinnedSampler)
    requests, sampling = [Request(policy.encode_prompt("one two"), 3)], Sampling(1.0, max_tokens=6)
    (first,) = policy.sample(requests, sampling)
    batch = Batch(
        prompts=[requests[0].prompt], completions=[first.tokens], behavior=[first.logprobs],
        advantages=[np.full(len(first.tokens), -5.0)], group=np.zeros(1, np.int64), trajectory=np.zeros(1, np.int64),
        step=np.zeros(1, np.int64), temperature=1.0,
    )  # fmt: skip
    with policy.pin_weights():
        policy.update(batch, (ClippedSurrogate(0.2, 0.2),), 0.5)
        (pinned,) = policy.sample(requests, sampling)
        np.testing.assert_array_equal(pinned.logprobs, first.logprobs)
        assert pinned.version == first.version and pinned.tokens.tolist() == first.tokens.tolist()
    (after,) = policy.sample(requests, sampling)
    with policy.pin_weights():
        (again,) = policy.sample(requests, sampling)
        np.testing.assert_allclose(again.logprobs, after.logprobs, atol=1e-6)
    assert after.version == first.version + 1 and not np.array_equal(after.logprobs, first.logprobs)
