"""Methods on two ranks and a vLLM server give the same episodes, credit and weights as the local engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from on_servers import needs_vllm, on_one, on_servers
from safetensors.torch import load_file
from scripted import Kit

from tacit.core.method import Schedule
from tacit.core.protocols import ModelSource
from tacit.engines import get_engine
from tacit.methods import get_method
from tacit.prompts.history import PromptSettings
from tacit.rollout.worlds import InProcessPool
from tacit.training.demonstrations import demonstrate
from tacit.training.imitation import imitate
from tacit.training.loop import Collector, Loop
from tacit.training.settings import SupervisedSettings
from tacit.worlds import get_environment

pytestmark = needs_vllm

METHODS = ("grpo", "bipace", "ppo", "reuserl", "constant_context", "opid")
WORLD = get_environment("countdown")
SMALL = {"prompt": PromptSettings(wording="terse", style="bare", history=0, admissible=False)}
OWN = {"bipace": {"layer": -1}}
"""the published layer is deeper than this model"""
LR = 1e-4
ITERATIONS = 3
Opened = tuple[Any, Any, Path]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy pretrained by imitation to succeed sometimes; without any success there is no credit."""
    engine = get_engine("local")
    policy = engine.load(ModelSource("tiny-base", seed=0), engine.settings(device="cpu", threads=1))
    context = get_method("grpo")(**SMALL).build(WORLD, Kit(policy, tmp_path_factory.mktemp("kit"))).context
    examples = demonstrate(WORLD, WORLD.tasks("train", 64, 0), context, policy, 4, "", 0.0, 0)
    for _ in imitate(policy, examples, SupervisedSettings(steps=30, batch=32), 0, 0):
        pass
    place = tmp_path_factory.mktemp("base")
    policy.save(place, optimizer=False)
    return place / "model"


@pytest.fixture(scope="module")
def opened(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    many, one = on_servers(base, value_head=True), on_one(base, value_head=True)
    place = tmp_path_factory.mktemp("start")
    many.save(place / "many")
    one.save(place / "one")
    yield many, one, place
    many.close()


@pytest.mark.parametrize("name", METHODS)
def test_three_iterations_match_the_local_engine(opened: Opened, tmp_path: Path, name: str) -> None:
    many, one, _ = opened
    loops = _loops(opened, tmp_path, name)
    credited = 0
    for number in range(1, ITERATIONS + 1):
        ours, theirs = (loop.collect(number) for loop in loops)
        assert _texts(ours) == _texts(theirs)
        assert {s.completion.version for g in ours.groups[0] for s in g.steps} == {many.version}
        mine, other = (loop.learn(ours) for loop in loops)
        for a, b in zip(mine.credits, other.credits, strict=True):
            np.testing.assert_allclose(a.tokens_T, b.tokens_T, atol=1e-4)
            credited += int(np.any(np.abs(a.tokens_T) > 1e-3))
        assert mine.metrics["behaviour_gap_max"] < 1e-4
        assert mine.metrics["loss"] == pytest.approx(other.metrics["loss"], abs=1e-4)
        assert mine.metrics["grad_norm"] == pytest.approx(other.metrics["grad_norm"], rel=1e-3)
        steps = [s for g in ours.groups[0] for s in g.steps]
        rows = [s.prompt_tokens for s in steps], [s.completion.tokens for s in steps]
        for a, b in zip(many.logprobs(*rows), one.logprobs(*rows), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4)
    assert credited
    _check_weights(opened, tmp_path)


@pytest.mark.parametrize("name", ["opid", "reuserl"])
def test_overlapped_rollouts_match_the_local_engine_in_the_same_order(opened: Opened, tmp_path: Path, name: str) -> None:
    """Iteration n + 1 is played with the weights from before update n. The local engine does the same one after the other; its
    credits and weights must be equal, also for methods with companions."""
    beside, in_turn = _loops(opened, tmp_path, name)
    beside.overlap = True
    done = [beside.iterate(number) for number in range(1, ITERATIONS + 1)]
    ahead = in_turn.collect(1)
    for number, ours in enumerate(done, start=1):
        played, ahead = ahead, in_turn.collect(number + 1)
        theirs = in_turn.learn(played)
        for a, b in zip(ours.credits, theirs.credits, strict=True):
            np.testing.assert_allclose(a.tokens_T, b.tokens_T, atol=1e-4)
        assert ours.metrics["versions_behind"] == theirs.metrics["versions_behind"] == float(number > 1)
        assert ours.metrics["behaviour_gap"] == pytest.approx(theirs.metrics["behaviour_gap"], abs=1e-4)
    assert done[-1].metrics["behaviour_gap"] > 1e-3, "ratios are relative to the previous weights"
    _check_weights(opened, tmp_path)


def _loops(opened: Opened, place: Path, name: str) -> list[Loop]:
    """Loops of the sharded and the local engine, from the same initial weights."""
    many, one, start = opened
    many.load(start / "many")
    one.load(start / "one")
    loops = []
    for policy in (many, one):
        settings = get_method(name)(
            **SMALL, **OWN.get(name, {}), schedule=Schedule(groups=4, group_size=4, iterations=ITERATIONS, lr=LR)
        )
        method = settings.build(WORLD, Kit(policy, place / type(policy).__name__))
        if "reference" in method.needs:
            policy.freeze_reference()
        collector = Collector(method, WORLD.tasks("train", 24, 0), InProcessPool(WORLD.make), 16, 4)
        loops.append(Loop([collector], policy, 0, ITERATIONS))
    return loops


def _check_weights(opened: Opened, place: Path) -> None:
    many, one, start = opened
    began = load_file(start / "one" / "model" / "model.safetensors")
    now, there = (_weights(policy, place / name) for policy, name in ((many, "many"), (one, "one")))
    assert max(float((there[n] - began[n]).abs().max()) for n in began) > LR, "something was learned"
    assert max(float((now[n] - there[n]).abs().max()) for n in began) < 1e-4


def _texts(collected: Any) -> list[list[str]]:
    return [[s.completion.text for s in t.steps] for here in collected.played for g in here for t in g.trajectories]


def _weights(policy: Any, place: Path) -> dict[str, Any]:
    policy.save(place)
    return load_file(place / "model" / "model.safetensors")
