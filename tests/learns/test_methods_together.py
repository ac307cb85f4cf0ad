"""Every allowed combination of two methods trains a real policy with finite losses. Pairs with GRPO cover each method alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scripted import Kit

from tacit.core.errors import TacitError
from tacit.core.method import Schedule
from tacit.engines.local.policy import load_policy
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.tiny import TinySettings
from tacit.methods import METHODS, get_method
from tacit.prompts.history import PromptSettings
from tacit.rollout.worlds import InProcessPool
from tacit.training.loop import Collector, Loop
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
SMALL = {"prompt": PromptSettings(wording="terse", style="bare", admissible=False, history=1)}
SCHEDULE = Schedule(groups=2, group_size=4, lr=1e-3)


def can_be_added(*names: str) -> bool:
    try:
        get_method("+".join(names))().build(WORLD)
    except TacitError:
        return False
    return True


ALLOWED = [pair for pair in combinations(METHODS, 2) if can_be_added(*pair)]
ALLOWED += [("reuserl", "bipace", "constant_context"), ("reuserl", "gigpo", "dapo", "ppo")]


@pytest.fixture(scope="module")
def policy():
    sizes = TinySettings(vocab=512, hidden=32, layers=2, heads=2, kv_heads=2, intermediate=64, context=256)
    settings = EngineSettings(device="cpu", threads=1, value_head=True)
    return load_policy("tiny", settings, 0, world_texts=lambda: WORLD.example_texts(0), tiny=sizes)


@pytest.mark.quick_cases(len(METHODS) - 1)
@pytest.mark.parametrize("names", ALLOWED, ids="+".join)
def test_method_combination_trains_with_finite_loss(policy, names, tmp_path):
    settings = get_method("+".join(names))(**SMALL)
    layer = {"layer": -1} if hasattr(settings, "layer") else {}
    method = replace(settings, schedule=SCHEDULE, **layer).build(WORLD, Kit(policy, tmp_path))
    policy.freeze_reference()
    loop = Loop([Collector(method, WORLD.tasks("train", 8, 0), InProcessPool(WORLD.make), 12, 3)], policy, iterations=2)
    for number in (1, 2) if "grpo" in names else (1,):
        done = loop.iterate(number)
        assert np.isfinite(done.metrics["loss"]) and np.isfinite(done.metrics["grad_norm"])
        assert len(done.groups) >= 1 and done.metrics["tokens"] > 0


def test_number_of_allowed_pairs_matches_the_docs():
    page = (Path(__file__).parents[2] / "docs" / "guides" / "combine_methods.md").read_text(encoding="utf-8")
    with_grpo = len(METHODS) - 1
    assert len([names for names in ALLOWED if len(names) == 2]) == page.count("✓") / 2 + with_grpo
