"""Constant context learns the right letter from its tracker's signals alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from letters import Lenient, environment

from tacit.core.method import Schedule
from tacit.core.protocols import Sampling
from tacit.engines.local.policy import load_policy
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.tiny import TinySettings
from tacit.evaluation.evaluate import evaluate
from tacit.evaluation.panels import Panel, Rules
from tacit.methods.constant_context import ConstantContext
from tacit.rollout.worlds import InProcessPool
from tacit.training.demonstrations import demonstrate
from tacit.training.imitation import imitate
from tacit.training.loop import Collector, Loop
from tacit.training.settings import SupervisedSettings

SIZES = TinySettings(vocab=512, hidden=32, layers=1, heads=2, kv_heads=2, intermediate=64, context=64)


class RightOrWrong:
    version = "letters-1"
    components = ()

    def start(self, task, observation):
        return "open"

    def update(self, state, action, transition):
        return "right" if transition.success else "wrong"

    def render(self, state):
        return state

    def signals(self, before, after):
        return {"progress": float(after == "right"), "error": 0.3 * (after == "wrong")}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("penalty", ["sampled", "k3"])
def test_constant_context_learns_the_right_letter(penalty):
    world, lenient = (replace(environment(*make), tracker=RightOrWrong()) for make in ((), (Lenient,)))
    schedule = Schedule(groups=4, group_size=8, iterations=25, lr=3e-3)
    settings = ConstantContext(success_reward=1e-6, penalty=penalty, schedule=schedule).with_prompt(wording="terse")
    method = settings.build(world)
    engine = EngineSettings(device="cpu", threads=1)
    policy = load_policy("tiny", engine, seed=0, world_texts=lambda: world.example_texts(0), tiny=SIZES)
    examples = demonstrate(lenient, world.tasks("train", 400, 0), method.context, policy, 1)
    for _ in imitate(policy, examples, SupervisedSettings(steps=60, batch=32, lr=1e-2), seed=0):
        pass
    policy.freeze_reference()

    def success() -> float:
        panel = Panel.of(world, "test", 200)
        score, _ = evaluate(panel, Rules(Sampling(max_tokens=4), 1), InProcessPool(world.make), method.context, policy)
        return score.success

    before = success()
    loop = Loop([Collector(method, world.tasks("train", 64, 0), InProcessPool(world.make), 4, 1)], policy)
    for number in range(schedule.iterations):
        loop.iterate(number)
    after = success()
    assert before < 0.45, "imitation must not know the answer"
    assert after > 0.9, f"went from {before:.0%} to {after:.0%}"
