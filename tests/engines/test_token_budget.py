"""The token budget is planned before the first update from measured bytes per token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tacit.core.credit import Batch
from tacit.engines.local import update
from tacit.engines.local.update import count_saved_bytes, gradient_and_moment_bytes, measure_activation_bytes, plan_token_budget
from tacit.losses.surrogates import Imitation


def test_saved_bytes_count_each_tensor_once_and_no_weights() -> None:
    weight, x = torch.randn(4, 6, requires_grad=True), torch.randn(10, 6)

    def work() -> torch.Tensor:
        hidden = (x @ weight.t()).relu()
        return hidden * hidden.sum()  # three operations save `hidden`, which is one tensor

    kept, result = count_saved_bytes(work, [weight])
    assert kept == (10 * 6 + 10 * 4 + 1) * 4
    assert result.shape == (10, 4)


def net_bytes(work: Callable[[], Any]) -> int:
    """Bytes allocated and not freed."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        work()
    return sum(event.nbytes() for event in watched.profiler.kineto_results.events() if event.name() == "[memory]")


def test_measuring_saved_bytes_frees_everything(make_policy) -> None:
    """Operations that save their own output (exp, attention) must not form a reference cycle that keeps the graph alive."""
    weight = torch.randn(64, 64, requires_grad=True)
    assert net_bytes(lambda: count_saved_bytes(lambda: (torch.randn(1000, 64) @ weight).exp().sum(), [weight])) == 0
    rng, learning = np.random.default_rng(0), make_policy().engine.make_updater("default")
    batch = Batch.imitation([rng.integers(2, 250, size=20) for _ in range(8)], [rng.integers(2, 250, size=5) for _ in range(8)])
    count = lambda: measure_activation_bytes(learning, batch, [Imitation()], np.arange(len(batch)))  # noqa: E731
    count()  # allocations that happen once are done now
    assert net_bytes(count) == 0


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 2}, {"dtype": "bfloat16"}])
def test_gradient_and_moment_bytes_match_the_optimizer_state(make_policy, rows, settings) -> None:
    policy = make_policy(**settings)
    member = policy.engine.member("default")
    count = sum(p.numel() for p in member.parameters.values())
    live = 2 * count if settings.get("dtype") else 0
    assert gradient_and_moment_bytes(member.weights) == 12 * count + live
    policy.update(Batch.imitation(*rows), [Imitation()], 1e-3)
    assert gradient_and_moment_bytes(member.weights) == 4 * count + live  # the moments are allocated now


def test_planned_budget_matches_the_free_memory(make_policy, monkeypatch) -> None:
    rng = np.random.default_rng(0)
    batch = Batch.imitation([rng.integers(2, 250, size=20) for _ in range(8)], [rng.integers(2, 250, size=5) for _ in range(8)])
    policy, rooms = make_policy(token_budget=500), []
    learning = policy.engine.make_updater("default")
    there = {"free": 10**12}
    monkeypatch.setattr(update, "free_bytes", lambda device: there["free"])
    monkeypatch.setattr(update, "free_memory", lambda device: rooms.append(1))
    plan = lambda: plan_token_budget(learning, batch, [Imitation()])  # noqa: E731
    assert plan() == 500 and not rooms
    anyway = gradient_and_moment_bytes(learning.weights) + 16 * batch.total_tokens * policy.engine.model.vocabulary
    fixed, per_token = measure_activation_bytes(learning, batch, [Imitation()], np.arange(8))
    monkeypatch.setattr(update, "PROBE_TOKENS", 60)
    fixed, per_token_of_few = measure_activation_bytes(learning, batch, [Imitation()], np.arange(8))
    assert per_token_of_few == pytest.approx(per_token, rel=0.1)
    width = policy.engine.model.width
    assert per_token > 4 * width * policy.engine.model.layers  # each layer saves at least its input
    there["free"] = int(anyway + fixed + update.SLACK * per_token_of_few * 100) + 1
    assert plan() == 100 and rooms == [1]
    there["free"] = 0
    assert plan() == 60  # no fewer than were measured: the update itself will show
    assert all(p.grad is None for p in policy.engine.model.hf.parameters())


def test_logits_chunk_is_not_counted_per_token(make_policy, monkeypatch) -> None:
    """A small probe saves them, a large batch recomputes them. The plan accounts for them separately."""
    rng = np.random.default_rng(0)
    batch = Batch.imitation([rng.integers(2, 250, size=5) for _ in range(8)], [rng.integers(2, 250, size=20) for _ in range(8)])
    learning = make_policy().engine.make_updater("default")
    monkeypatch.setattr(update, "PROBE_TOKENS", 60)
    chunks = {}
    for size in (10**6, 1):
        monkeypatch.setattr(type(learning.model), "chunk_tokens", size)
        chunks[size] = measure_activation_bytes(learning, batch, [Imitation()], np.arange(8))[1]
    assert chunks[10**6] == pytest.approx(chunks[1], rel=0.1)


def test_default_budget_uses_only_a_share_of_the_free_memory(make_policy, monkeypatch) -> None:
    rng = np.random.default_rng(0)
    batch = Batch.imitation([rng.integers(2, 250, size=20) for _ in range(8)], [rng.integers(2, 250, size=5) for _ in range(8)])
    monkeypatch.setattr(update, "free_bytes", lambda device: 10**12)
    monkeypatch.setattr(update, "PROBE_TOKENS", 60)
    chosen, left_open = (
        make_policy(token_budget=2000).engine.make_updater("default"),
        make_policy().engine.make_updater("default"),
    )
    _, per_token = measure_activation_bytes(left_open, batch, [Imitation()], np.arange(8))
    for learning, plenty, expected in ((left_open, 100, 100), (left_open, 5, 60), (left_open, 9999, 2048), (chosen, 100, 2000)):
        monkeypatch.setattr(update, "SHARE", (plenty + 0.5) * per_token / 10**12)
        assert plan_token_budget(learning, batch, [Imitation()]) == expected


def test_failed_measurement_frees_memory_and_plans_the_smallest_budget(make_policy, rows, monkeypatch) -> None:
    policy, rooms = make_policy(token_budget=10**6), []
    learning = policy.engine.make_updater("default")

    def too_much(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory: others have it")

    monkeypatch.setattr(update, "measure_activation_bytes", too_much)
    monkeypatch.setattr(update, "free_memory", lambda device: rooms.append(1))
    batch = Batch.imitation(*rows)
    assert plan_token_budget(learning, batch, [Imitation()]) == update.PROBE_TOKENS and rooms == [1]
