"""Every baseline method learns the right letter with the real loop and engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from letters import Lenient, environment

from tacit.core.method import Schedule
from tacit.core.protocols import Sampling
from tacit.engines.local.policy import load_policy
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.tiny import TinySettings
from tacit.evaluation.evaluate import evaluate
from tacit.evaluation.panels import Panel, Rules
from tacit.methods import METHODS, get_method
from tacit.rollout.worlds import InProcessPool
from tacit.training.demonstrations import demonstrate
from tacit.training.imitation import imitate
from tacit.training.loop import Collector, Loop
from tacit.training.settings import SupervisedSettings

BASELINES = ("grpo", "rloo", "reinforce_pp", "dapo", "gspo", "cispo", "ppo")
SIZES = TinySettings(vocab=512, hidden=32, layers=1, heads=2, kv_heads=2, intermediate=64, context=32)


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> Path:
    """A policy that has imitated the format and writes a random letter."""
    world = environment(Lenient)
    policy = make_policy()
    context = get_method("grpo")().with_prompt(wording="terse", style="bare", history=0).build(world).context
    examples = demonstrate(world, world.tasks("train", 400, 0), context, policy, 1)
    for _ in imitate(policy, examples, SupervisedSettings(steps=60, batch=32, lr=1e-2), seed=0):
        pass
    place = tmp_path_factory.mktemp("taught")
    policy.save(place / "policy")
    return place / "policy"


def make_policy():
    world = environment()
    settings = EngineSettings(device="cpu", threads=1, value_head=True)
    return load_policy("tiny", settings, seed=0, world_texts=lambda: world.example_texts(0), tiny=SIZES)


def success(policy, method, world) -> float:
    panel = Panel.of(world, "test", 200)
    score, _ = evaluate(panel, Rules(Sampling(max_tokens=4), 1), InProcessPool(world.make), method.context, policy)
    return score.success


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", BASELINES)
def test_method_learns_the_right_letter(name: str, taught: Path) -> None:
    world = environment()
    settings = get_method(name)().with_prompt(wording="terse", style="bare", history=0)
    schedule = Schedule(groups=4, group_size=8, iterations=25, lr=3e-3)
    method = dataclasses.replace(settings, schedule=schedule).build(world)
    policy = make_policy()
    policy.load(taught)
    policy.freeze_reference()
    before = success(policy, method, world)
    loop = Loop([Collector(method, world.tasks("train", 64, 0), InProcessPool(world.make), 4, 1)], policy)
    for number in range(schedule.iterations):
        loop.iterate(number)
    after = success(policy, method, world)
    assert before < 0.45, "imitation must not know the answer"
    assert after > 0.9, f"{name} went from {before:.0%} to {after:.0%}"


def test_baselines_are_known_methods() -> None:
    assert set(BASELINES) <= set(METHODS)
