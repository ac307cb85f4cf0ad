"""Self-imitation: trajectories above their group mean are imitated in a separate update."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scripted import Kit, ScriptedPolicy, make_group

from tacit.companions.imitation import select_above_mean
from tacit.core.method import Schedule
from tacit.core.types import Group, IterationInfo
from tacit.losses.surrogates import Imitation
from tacit.methods import METHODS, get_method
from tacit.prompts.history import PromptSettings
from tacit.rollout.worlds import InProcessPool
from tacit.training.loop import Collector, Loop
from tacit.worlds import get_environment
from tacit.worlds.errands.world import DOORS

WORLD = get_environment("errands")
SMALL = {"prompt": PromptSettings(wording="terse", style="bare", admissible=False, history=0), "kl": 0.0}


def acting(prompt: str, seed: int) -> str:
    """Takes the wanted thing if visible; otherwise opens a random door or, sometimes, says nothing."""
    lines = prompt.splitlines()
    thing = lines[0].rpartition(": ")[2]
    return f"take {thing}" if thing in lines[-1] else "" if seed % 3 == 0 else f"open {DOORS[seed % 8]}"


def play(tmp_path, name: str = "self_imitation", iterations: int = 3, **settings):
    """(the results of the iterations, the actor)"""
    actor = ScriptedPolicy(acting)
    chosen = replace(get_method(name)(**SMALL), schedule=Schedule(groups=6, group_size=4, lr=1e-3), **settings)
    method = chosen.build(WORLD, Kit(ScriptedPolicy(lambda prompt, seed: "add: doors open"), tmp_path))
    loop = Loop(
        [Collector(method, WORLD.tasks("train", 24, 0), InProcessPool(WORLD.make), 12, 3)], actor, iterations=iterations
    )
    return [loop.iterate(n + 1) for n in range(iterations)], actor


def scored(scores: list[float]) -> Group:
    group = make_group([[2]] * len(scores))
    return Group(group.task, tuple(replace(t, score=score) for t, score in zip(group.trajectories, scores, strict=True)))


def imitated(actor: ScriptedPolicy) -> list:
    return [(batch, lr) for batch, losses, lr in actor.updates if losses == (Imitation(),)]


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [([1.0, 0.0, 0.0, 1.0], [0, 3]), ([0.2, 0.4, 0.9], [2]), ([1.0, 1.0], []), ([0.0, 0.0, 0.0], []), ([0.5], [])],
)
def test_select_above_mean_keeps_scores_above_group_mean(scores, chosen):
    group = scored(scores)
    assert select_above_mean(group) == [group.trajectories[i] for i in chosen]


def test_select_above_mean_uses_only_a_share_of_members():
    group = scored([1.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    assert select_above_mean(group, 0.5) == [group.trajectories[0], group.trajectories[2]] and not select_above_mean(group, 0.0)


def test_select_above_mean_can_keep_only_the_shortest():
    group = make_group([[2, 2], [2], [2, 2], [2]], success=[True, False, True, True])
    assert [len(t) for t in select_above_mean(group)] == [2, 2, 1]
    assert select_above_mean(group, quickest=True) == [group.trajectories[3]], "the one that lost was as quick"
    assert select_above_mean(group, 0.75, True) == [group.trajectories[0], group.trajectories[2]]


def test_imitation_batch_has_original_prompts_and_valid_completions(tmp_path):
    done, actor = play(tmp_path)
    steps, rounds = imitated(actor), [[t for g in d.groups for t in select_above_mean(g)] for d in done]
    assert all(rounds) and len(steps) == len(done) and len(actor.updates) == 2 * len(done), "a step of its own after GRPO's"
    for (batch, lr), won, d in zip(steps, rounds, done, strict=True):
        acted = [step for t in won for step in t.steps if step.valid]
        assert lr == 1e-3 and not batch.sampled and d.metrics["self_imitation/imitated"] == len(won)
        for prompt, completion, turn in zip(batch.prompts, batch.completions, acted, strict=True):
            np.testing.assert_array_equal(prompt, turn.prompt_tokens)
            np.testing.assert_array_equal(completion, turn.completion.tokens)
        assert np.isfinite(d.metrics["self_imitation/imitated_loss"])
    assert not all(step.valid for won in rounds for t in won for step in t.steps), "some won despite an empty answer"


def test_imitation_lr_and_interval_are_settings(tmp_path):
    done, actor = play(tmp_path, imitation_lr=3e-4, imitation_every=3)
    assert [lr for _, lr in imitated(actor)] == [3e-4]
    assert ["self_imitation/imitated" in d.metrics for d in done] == [False, False, True]


def test_no_update_when_no_episode_is_above_the_mean(tmp_path):
    actor = ScriptedPolicy(lambda prompt, seed: "look")
    method = get_method("self_imitation")(**SMALL).build(WORLD, Kit(actor, tmp_path))
    (companion,) = method.companions
    assert (
        companion.learn([scored([0.0, 0.0])], actor, IterationInfo()) == {"self_imitation/imitated": 0.0} and not actor.updates
    )


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"grpo"}))
def test_self_imitation_combines_with_every_method(name, tmp_path):
    if name in ("reuserl", "round_length"):
        pytest.skip("errands have no alphabet of skills")
    settings = {"iterations": 1} if name == "skill_prompt" else {}
    combined = replace(get_method(f"{name}+self_imitation")(**SMALL), schedule=Schedule(**settings))
    assert "imitating" in [c.name for c in combined.build(WORLD).companions]
