"""When one rank runs out of memory, all ranks use smaller micro-batches, or the run ends with an error that names the cause."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from forked_ranks import forked_ranks
from torch.distributed.fsdp import FSDPModule

from tacit.core.credit import Batch
from tacit.core.errors import EngineLost, TacitError
from tacit.core.protocols import ModelSource
from tacit.engines.local import memory, scoring, update
from tacit.engines.sharded import launch, rank
from tacit.engines.sharded import policy as sharded
from tacit.engines.sharded.policy import ShardedPolicy, check_room, load_policy
from tacit.engines.sharded.servers import WeightTransfer
from tacit.engines.sharded.settings import ShardedSettings
from tacit.testing.engines import small_checkpoint

LR = 1e-3
GIB = 2**30


class _ShortGoingBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory, said the backward pass")


@dataclass(frozen=True)
class Short:
    """Runs out of memory above `rows` rows on rank `on`, in the forward pass or (`back`) in the backward pass."""

    rows: int
    on: int = 1
    back: bool = False
    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, view: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        logprobs_T = view.logprobs_T
        if torch.distributed.get_rank() == self.on and len(view.lengths_R) > self.rows:
            if not self.back:
                raise torch.OutOfMemoryError("CUDA out of memory, said the loss")
            logprobs_T = _ShortGoingBack.apply(logprobs_T)
        return -logprobs_T.sum() / view.total_tokens, {}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("checkpoint"))


Open = Callable[..., ShardedPolicy]


@pytest.fixture
def opened(checkpoint: Path) -> Iterator[Open]:
    policies: list[ShardedPolicy] = []

    def open_one(**wished: Any) -> ShardedPolicy:
        settings = ShardedSettings(**{"device": "cpu", "threads": 1, "ranks": 2, "timeout_s": 60.0, **wished})
        with forked_ranks():
            policies.append(load_policy(ModelSource(str(checkpoint), seed=3), settings))
        return policies[-1]

    yield open_one
    for policy in policies:
        policy.close()


def a_batch(rows: int = 16) -> Batch:
    draw = np.random.default_rng(0)
    return Batch.imitation(*([draw.integers(2, 200, size=n) for _ in range(rows)] for n in (12, 8)))


@pytest.mark.slow
@pytest.mark.parametrize("wished", [{}, {"dtype": "bfloat16"}, {"lora_rank": 2}], ids=["float32", "bfloat16", "lora"])
def test_all_ranks_retry_with_half_the_budget(opened: Open, wished: dict[str, Any]) -> None:
    """In the forward or the backward pass. A partial gradient of the failed attempt must not be counted."""
    policy, plain, batch = opened(**wished), opened(**wished), a_batch()
    for short in (Short(4), Short(2, on=0, back=True), Short(2)):
        metrics = policy.update(batch, [short], LR)
        expected = plain.update(batch, [Short(99)], LR)
        assert metrics["loss"] == pytest.approx(expected["loss"], rel=1e-2 if wished else 1e-5)
        assert metrics["grad_norm"] == pytest.approx(expected["grad_norm"], rel=2e-2 if wished else 1e-4)
    assert metrics["token_budget"] <= 2 * 20 < 8 * 20 and "token_budget" not in expected
    if not wished:
        for ours, theirs in zip(*(p.logprobs(batch.prompts, batch.completions) for p in (policy, plain)), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.slow
def test_ranks_stay_usable_after_a_row_that_does_not_fit(opened: Open) -> None:
    policy, batch = opened(), a_batch()
    before = policy.digest()
    with pytest.raises(
        TacitError, match=r"out of GPU memory in an update, even with a single row per pass \(the longest has 19 tokens\)"
    ):
        policy.update(batch, [Short(0)], LR)
    assert policy.digest() == before
    assert policy.update(batch, [Short(1)], LR)["token_budget"] == 19


SLEPT: list[float] = []
"""seconds slept; each rank's process has its own list"""


@dataclass(frozen=True)
class ShortForAWhile:
    """Rank 1 runs out of memory until it has waited `waits` times. Other processes hold most of the GPU of rank `crowded`."""

    waits: int
    crowded: int = 1
    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, view: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        rank = torch.distributed.get_rank()
        memory.available_and_total = lambda device: ((10 if rank == self.crowded else 90) * GIB, 100 * GIB)
        update.free_bytes = lambda device: 100 * GIB
        memory.time = SimpleNamespace(sleep=SLEPT.append)
        if rank == 1 and len(SLEPT) < self.waits:
            raise torch.OutOfMemoryError("CUDA out of memory, said the loss")
        return -view.logprobs_T.sum() / view.total_tokens, {"slept_max": float(len(SLEPT))}


@pytest.mark.slow
def test_update_at_the_minimum_budget_waits_for_other_processes(opened: Open) -> None:
    policy, plain, batch = opened(token_budget=19), opened(token_budget=19), a_batch()
    waited, expected = policy.update(batch, [ShortForAWhile(3)], LR), plain.update(batch, [ShortForAWhile(0)], LR)
    assert waited["slept_max"] == 3 and expected["slept_max"] == 0
    assert waited["loss"] == expected["loss"] and policy.digest() == plain.digest()


@pytest.mark.slow
@pytest.mark.parametrize(("crowded", "waits"), [(1, len(memory.WAITS_S)), (0, 0)], ids=["ten minutes", "a need of its own"])
def test_wait_is_limited_and_only_for_memory_held_by_other_processes(opened: Open, crowded: int, waits: int) -> None:
    policy, batch = opened(token_budget=19), a_batch()
    with pytest.raises(TacitError, match=r"even with a single row per pass \(the longest has 19 tokens\)"):
        policy.update(batch, [ShortForAWhile(99, crowded)], LR)
    assert policy.update(batch, [ShortForAWhile(0)], LR)["slept_max"] == waits


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short grace period, because the other ranks cannot answer."""
    monkeypatch.setattr(launch, "GRACE_S", 3.0)


@pytest.mark.slow
def test_update_out_of_memory_with_gather_layer_ends_the_run(opened: Open, soon: None) -> None:
    """The other ranks wait for its layers, so none can continue. A restarted run uses half the budget."""
    policy = opened(gather="layer")
    with pytest.raises(EngineLost, match=r"rank 1 .*out of GPU memory in an update with a token_budget of 2048") as lost:
        policy.update(a_batch(), [Short(2)], LR)
    assert lost.value.settings == {"token_budget": 1024}


def _no_room(*_: Any, **__: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory, said the weights")


@dataclass(frozen=True)
class Rigged:
    """A zero loss that patches the rank's process. `scoring`: scoring passes run out of memory above 24 tokens on rank 1.
    `gather`: rank 1 cannot gather whole weights. `room`: GPUs have free memory, but rank 1 little."""

    what: str
    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, view: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        second = torch.distributed.get_rank() == 1
        if self.what == "room":
            memory.available_and_total = lambda device: (GIB, 100 * GIB)
            update.free_bytes = lambda device: GIB if second else 100 * GIB
            update.SLACK = 1e-9 if not second else 1e9
        elif self.what == "gather" and second:
            FSDPModule.unshard = _no_room
        elif self.what == "scoring" and second:
            scored = scoring.token_logprobs

            def short(model: Any, hidden_TD: torch.Tensor, *rest: Any) -> Any:
                if len(hidden_TD) > 24:
                    raise torch.OutOfMemoryError("CUDA out of memory, said the head")
                return scored(model, hidden_TD, *rest)

            scoring.token_logprobs = short
        return 0.0 * view.logprobs_T.sum(), {}


@pytest.mark.slow
def test_scoring_pass_is_split_when_one_rank_runs_out_of_memory(opened: Open) -> None:
    policy, batch = opened(), a_batch()
    truth = policy.logprobs(batch.prompts, batch.completions)
    policy.update(batch, [Rigged("scoring")], 0.0)
    for ours, theirs in zip(policy.logprobs(batch.prompts, batch.completions), truth, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_scoring_out_of_memory_with_gather_layer_ends_the_run(opened: Open) -> None:
    policy, batch = opened(gather="layer"), a_batch()
    policy.update(batch, [Rigged("scoring")], 0.0)
    with pytest.raises(EngineLost, match="scoring pass with a token_budget of 2048") as lost:
        policy.logprobs(batch.prompts, batch.completions)
    assert lost.value.settings == {"token_budget": 1024}


@pytest.mark.slow
def test_whole_weights_that_do_not_fit_suggest_gather_layer(opened: Open, soon: None) -> None:
    """No rank can gather without the one that failed. All end soon and do not wait for the timeout."""
    policy, batch = opened(timeout_s=600.0), a_batch()
    policy.update(batch, [Rigged("gather")], 0.0)
    with pytest.raises(EngineLost, match=r"rank 1 .*out of GPU memory for the whole weights.*--engine.gather") as lost:
        policy.update(batch, [Short(99)], LR)
    assert lost.value.settings == {"gather": "layer"}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("gather", ["whole", "layer"])
def test_token_budget_is_planned_by_the_rank_with_least_free_memory(opened: Open, gather: str) -> None:
    policy, batch = opened(gather=gather, token_budget=100_000), a_batch()
    truth = policy.update(batch, [Rigged("room"), Short(99)], 0.0)
    planned = policy.update(batch, [Short(99)], 0.0)
    assert "token_budget" not in truth and planned["token_budget"] == update.PROBE_TOKENS
    assert planned["loss"] == pytest.approx(truth["loss"]) and planned["grad_norm"] == pytest.approx(truth["grad_norm"])


@dataclass(frozen=True)
class Crowded:
    """A zero loss. From then on rank 1's GPU is nearly full, and each rank that empties its cache leaves a file in `notes`."""

    notes: Path
    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, view: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        number = torch.distributed.get_rank()
        rank.is_nearly_full = lambda device: number == 1
        rank.empty_cache = lambda device: (self.notes / str(number)).touch()
        return 0.0 * view.logprobs_T.sum(), {}


def test_ranks_free_cached_memory_before_a_server_loads_weights(opened: Open, tmp_path: Path) -> None:
    """A server that briefly needs more than its share failed when a rank kept the rest after an update."""
    policy = opened()
    policy.update(a_batch(), [Crowded(tmp_path)], 0.0)
    assert not list(tmp_path.iterdir())
    handover = WeightTransfer(policy.engine.ranks, policy.engine.replica, str(tmp_path / "weights"))
    handover.publish("default", 0)
    handover.close()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["1", "weights"]


@pytest.mark.parametrize(("weights", "wished", "fits"), [(8, {}, False), (8, {"lora_rank": 16}, True), (1, {}, True)])
def test_model_that_does_not_fit_is_refused_with_settings_that_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: int, wished: dict[str, Any], fits: bool
) -> None:
    """An 8B model on two GPUs of 80 GB, with 30% for a server. Only the config of the model is read."""
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 4 * weights, "num_attention_heads": 32}
    config = {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80e9))
    check = partial(check_room, str(tmp_path), ShardedSettings(ranks=2, servers=1, **wished), torch.device("cuda"))
    if fits:
        check(torch.bfloat16)
        return
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_experts": 8}))
    check(torch.bfloat16)  # plans do not cover mixtures of experts
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        TacitError, match=r"does not fit: each of 2 ranks needs .* 52 of them usable. What would fit: .*lora-rank 16.*ranks"
    ):
        check(torch.bfloat16)
    # The driver must check before it loads the model, with and without servers.
    monkeypatch.setattr(sharded, "resolve_device", lambda _: (torch.device("cuda"), torch.bfloat16))
    monkeypatch.setattr(sharded, "find_checkpoint", lambda name, *_: name)
    monkeypatch.setattr(sharded, "load_pretrained", lambda *_: pytest.fail("it was loaded first"))
    for servers in (0, 1):
        with pytest.raises(TacitError, match=r"does not fit: each of 2 ranks needs .* What would"):
            sharded.load_policy(ModelSource(str(tmp_path)), ShardedSettings(ranks=2, servers=servers, threads=1))
