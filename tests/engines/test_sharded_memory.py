"""Memory that runs out on one rank: all cut finer, or are ended in words that say what was too much."""

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
from tacit.engines.sharded import group, rank
from tacit.engines.sharded import policy as sharded
from tacit.engines.sharded.policy import ShardedPolicy, check_room, load_policy
from tacit.engines.sharded.server import WeightTransfer
from tacit.engines.sharded.settings import ShardedSettings
from tacit.testing.plain import small_checkpoint

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
    """Has no memory for more than `rows` rows at once, on one rank, on the way there or on the way back."""

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
def test_all_begin_again_with_half_as_much(opened: Open, wished: dict[str, Any]) -> None:
    """On the way there, and on the way back, where half a gradient has been left behind; it must not be counted."""
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
def test_what_cannot_be_cut_is_refused_and_the_ranks_go_on(opened: Open) -> None:
    policy, batch = opened(), a_batch()
    before = policy.digest()
    with pytest.raises(
        TacitError, match=r"out of GPU memory in an update, even with a single row per pass \(the longest has 19 tokens\)"
    ):
        policy.update(batch, [Short(0)], LR)
    assert policy.digest() == before
    assert policy.update(batch, [Short(1)], LR)["token_budget"] == 19


SLEPT: list[float] = []
"""in the process of a rank"""


@dataclass(frozen=True)
class ShortForAWhile:
    """Has no memory for anything on the second rank until that has waited so often; others hold most of the GPU of one rank."""

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
def test_the_longest_row_alone_waits_for_others_on_the_gpu(opened: Open) -> None:
    policy, plain, batch = opened(token_budget=19), opened(token_budget=19), a_batch()
    waited, expected = policy.update(batch, [ShortForAWhile(3)], LR), plain.update(batch, [ShortForAWhile(0)], LR)
    assert waited["slept_max"] == 3 and expected["slept_max"] == 0
    assert waited["loss"] == expected["loss"] and policy.digest() == plain.digest()


@pytest.mark.slow
@pytest.mark.parametrize(("crowded", "waits"), [(1, len(memory.WAITS_S)), (0, 0)], ids=["ten minutes", "a need of its own"])
def test_nobody_waits_for_longer_or_for_what_others_do_not_hold(opened: Open, crowded: int, waits: int) -> None:
    policy, batch = opened(token_budget=19), a_batch()
    with pytest.raises(TacitError, match=r"even with a single row per pass \(the longest has 19 tokens\)"):
        policy.update(batch, [ShortForAWhile(99, crowded)], LR)
    assert policy.update(batch, [ShortForAWhile(0)], LR)["slept_max"] == waits


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others, who cannot answer, are not waited for as long as ranks far apart might need."""
    monkeypatch.setattr(group, "GRACE_S", 3.0)


@pytest.mark.slow
def test_gathered_layer_by_layer_it_is_said_what_was_too_much(opened: Open, soon: None) -> None:
    """The others wait for its layers: nobody can go on, and a run begins again with half of it."""
    policy = opened(gather="layer")
    with pytest.raises(EngineLost, match=r"rank 1 .*out of GPU memory in an update with a token_budget of 2048") as lost:
        policy.update(a_batch(), [Short(2)], LR)
    assert lost.value.settings == {"token_budget": 1024}


def _no_room(*_: Any, **__: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory, said the weights")


@dataclass(frozen=True)
class Rigged:
    """A loss of nothing that changes the process it is computed in: from then on its scoring passes have memory for few tokens,
    or none for whole weights, or its GPU has room, on the second rank little."""

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
def test_a_scoring_pass_is_cut_by_the_rank_that_must(opened: Open) -> None:
    policy, batch = opened(), a_batch()
    truth = policy.logprobs(batch.prompts, batch.completions)
    policy.update(batch, [Rigged("scoring")], 0.0)
    for ours, theirs in zip(policy.logprobs(batch.prompts, batch.completions), truth, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_scoring_pass_layer_by_layer_is_not_cut_by_one_rank(opened: Open) -> None:
    policy, batch = opened(gather="layer"), a_batch()
    policy.update(batch, [Rigged("scoring")], 0.0)
    with pytest.raises(EngineLost, match="scoring pass with a token_budget of 2048") as lost:
        policy.logprobs(batch.prompts, batch.completions)
    assert lost.value.settings == {"token_budget": 1024}


@pytest.mark.slow
def test_whole_weights_that_do_not_fit_are_gathered_layer_by_layer_the_next_time(opened: Open, soon: None) -> None:
    """Nobody can gather without the rank that has no room: all are ended, soon and not at the limit of a piece of work."""
    policy, batch = opened(timeout_s=600.0), a_batch()
    policy.update(batch, [Rigged("gather")], 0.0)
    with pytest.raises(EngineLost, match=r"rank 1 .*out of GPU memory for the whole weights.*--engine.gather") as lost:
        policy.update(batch, [Short(99)], LR)
    assert lost.value.settings == {"gather": "layer"}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("gather", ["whole", "layer"])
def test_the_rank_with_least_room_says_how_much_is_done_at_once(opened: Open, gather: str) -> None:
    policy, batch = opened(gather=gather, token_budget=100_000), a_batch()
    truth = policy.update(batch, [Rigged("room"), Short(99)], 0.0)
    planned = policy.update(batch, [Short(99)], 0.0)
    assert "token_budget" not in truth and planned["token_budget"] == update.PROBE_TOKENS
    assert planned["loss"] == pytest.approx(truth["loss"]) and planned["grad_norm"] == pytest.approx(truth["grad_norm"])


@dataclass(frozen=True)
class Crowded:
    """A loss of nothing; from then on other processes have most of the second rank's GPU, and what is left to them is noted."""

    notes: Path
    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, view: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        number = torch.distributed.get_rank()
        rank.is_nearly_full = lambda device: number == 1
        rank.empty_cache = lambda device: (self.notes / str(number)).touch()
        return 0.0 * view.logprobs_T.sum(), {}


def test_a_server_on_the_same_gpu_finds_what_a_rank_only_kept(opened: Open, tmp_path: Path) -> None:
    """A server that takes more than its share at times left with an error once a rank had learned and kept the rest."""
    policy = opened()
    policy.update(a_batch(), [Crowded(tmp_path)], 0.0)
    assert not list(tmp_path.iterdir())
    handover = WeightTransfer(policy.engine.ranks, policy.engine.replica, str(tmp_path / "weights"))
    handover.publish("default", 0)
    handover.close()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["1", "weights"]


@pytest.mark.parametrize(("weights", "wished", "fits"), [(8, {}, False), (8, {"lora_rank": 16}, True), (1, {}, True)])
def test_a_model_that_does_not_fit_is_refused_with_what_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: int, wished: dict[str, Any], fits: bool
) -> None:
    """8 billion weights on two GPUs of 80 GB, of which a server has 30%; nothing of the model is read but its sizes."""
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 4 * weights, "num_attention_heads": 32}
    told = {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(told))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80e9))
    check = partial(check_room, str(tmp_path), ShardedSettings(ranks=2, servers=1, **wished), torch.device("cuda"))
    if fits:
        check(torch.bfloat16)
        return
    (tmp_path / "config.json").write_text(json.dumps({**told, "num_experts": 8}))
    check(torch.bfloat16)  # of which a plan knows nothing
    (tmp_path / "config.json").write_text(json.dumps(told))
    with pytest.raises(
        TacitError, match=r"does not fit: each of 2 ranks needs .* it can use 52. What would fit: .*lora-rank 16.*ranks"
    ):
        check(torch.bfloat16)
    # The driver reads all of it before any rank is asked, and onto a GPU where there are no servers.
    monkeypatch.setattr(sharded, "resolve_device", lambda _: (torch.device("cuda"), torch.bfloat16))
    monkeypatch.setattr(sharded, "find_checkpoint", lambda name, *_: name)
    monkeypatch.setattr(sharded, "load_pretrained", lambda *_: pytest.fail("it was loaded first"))
    for servers in (0, 1):
        with pytest.raises(TacitError, match=r"does not fit: each of 2 ranks needs .* What would"):
            sharded.load_policy(ModelSource(str(tmp_path)), ShardedSettings(ranks=2, servers=servers, threads=1))
