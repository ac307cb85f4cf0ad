"""The sharded engine: gradients match one process, checkpoints load on any number of ranks, and errors name a lost rank."""

from __future__ import annotations

import json
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from forked_ranks import forked_ranks
from random_models import make_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tacit.core.credit import Batch
from tacit.core.errors import NonFiniteLoss, TacitError
from tacit.core.protocols import ModelSource, Request, Sampling
from tacit.engines import get_engine
from tacit.engines.sharded.launch import RankGroup, Worker
from tacit.engines.sharded.messages import Channel
from tacit.engines.sharded.policy import ShardedPolicy, load_policy, start_ranks
from tacit.engines.sharded.settings import ShardedSettings
from tacit.engines.sharded.shards import read_layout
from tacit.losses.distillation import Divergence
from tacit.losses.surrogates import ClippedSurrogate, EntropyBonus, ReferenceKL, ValueLoss
from tacit.testing.engines import small_checkpoint

LR = 1e-3
Open = Callable[..., ShardedPolicy]


@dataclass(frozen=True)
class Squashed:
    """A term that is zero, without a gradient, in micro-batches where no advantage is above 1."""

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, view: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        chosen_T = view.advantages_T > 1
        if not chosen_T.any():
            return torch.zeros(()), {"squashed": 0.0}
        return 1e-3 * (view.logprobs_T[chosen_T] ** 2).sum() / view.total_tokens, {"squashed": chosen_T.sum()}


@dataclass(frozen=True)
class OnOneRank:
    """Does something to the process of one rank, in the middle of an update."""

    rank: int
    what: str
    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, view: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        if torch.distributed.get_rank() == self.rank:
            if self.what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.what == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif self.what == "fail":
                raise RuntimeError("no more memory, say")
        factor = float("nan") if self.what == "nan" and torch.distributed.get_rank() == self.rank else 1.0
        return factor * view.logprobs_T.sum() / view.total_tokens, {}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def settings_for(ranks: int, **wished: Any) -> ShardedSettings:
    return ShardedSettings(**{"device": "cpu", "threads": 1, "ranks": ranks, "timeout_s": 60.0, **wished})


@pytest.fixture(scope="module")
def open_on(checkpoint: Path) -> Iterator[Open]:
    """open_on(ranks, **settings) -> a policy; it replaces the previous one on the same group of ranks"""
    groups: dict[int, RankGroup] = {}

    def opened(ranks: int, **wished: Any) -> ShardedPolicy:
        settings = settings_for(ranks, **wished)
        if ranks not in groups or groups[ranks].closed:
            with forked_ranks():
                groups[ranks] = start_ranks(settings)
        return load_policy(ModelSource(str(checkpoint), seed=3), settings, groups[ranks])

    yield opened
    for group in groups.values():
        group.close()


def local(checkpoint: Path, **wished: Any) -> Any:
    engine = get_engine("local")
    return engine.load(ModelSource(str(checkpoint), seed=3), engine.settings(**{"device": "cpu", "threads": 1, **wished}))


def a_batch(rows: int = 11) -> Batch:
    """Ragged rows, two of which share a prompt, one without a completion."""
    draw = np.random.default_rng(rows)
    prompts = [draw.integers(2, 200, size=draw.integers(1, 40)) for _ in range(rows)]
    completions = [draw.integers(2, 200, size=draw.integers(1, 12)) for _ in range(rows)]
    if rows > 5:
        prompts[4], completions[5] = prompts[2], np.zeros(0, np.int64)
    batch = Batch.imitation(prompts, completions)

    def numbers(mean: float) -> list[np.ndarray]:
        return [(mean + 0.3 * draw.standard_normal(len(c))).astype(np.float32) for c in completions]

    batch = replace(batch, sampled=True, behavior=numbers(-5.0), advantages=numbers(float(rows > 5)))
    batch = batch.with_column("reference", "token", numbers(-5.0)).with_column("returns", "row", draw.random(rows))
    return batch.with_column("teacher_prompts", "prompt", [np.concatenate([[7, 8, 9], p]) for p in prompts])


LOSSES = (ClippedSurrogate(), EntropyBonus(0.01), ValueLoss(), ReferenceKL(0.1), Divergence(), Squashed())


LORA = {"lora_rank": 4}


def gradients(policy: Any, place: Path) -> dict[str, torch.Tensor]:
    """AdamW's first moment after one step is a tenth of the gradient."""
    policy.save(place)
    if (place / "shards").is_dir():
        files = [load_file(file) for file in sorted((place / "shards").glob("rank-*.safetensors"))]
        layout = read_layout(place / "shards")
        whole = {name: torch.cat([f[name] for f in files]) if own["rows"] else files[0][name] for name, own in layout.items()}
        state = {name.removeprefix("default/"): t for name, t in whole.items()}
    else:
        state = load_file(place / "training" / "default.safetensors")
    return {name.removeprefix("exp_avg/"): 10 * t for name, t in state.items() if name.startswith("exp_avg/")}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("ranks", "gather", "kept", "rows"),
    [
        *((2, "whole", {}, 11), (2, "whole", LORA, 1), (2, "layer", {}, 1), (2, "layer", LORA, 11)),
        *((3, "whole", LORA, 11), (3, "layer", {}, 1), (1, "whole", {}, 1), (1, "layer", LORA, 11)),
    ],
)
def test_gradients_match_one_process(
    checkpoint: Path, open_on: Open, tmp_path: Path, ranks: int, gather: str, kept: dict[str, Any], rows: int
) -> None:
    """Every kind of loss, shared prompts, more ranks than rows."""
    shared = {"value_head": True, "clip_norm": 0.0, "token_budget": 60, **kept}
    one, many = local(checkpoint, **shared), open_on(ranks, gather=gather, **shared)
    batch = a_batch(rows)
    expected, ours = (policy.update(batch, LOSSES, LR) for policy in (one, many))
    theirs, found = gradients(one, tmp_path / "one"), gradients(many, tmp_path / "many")
    assert set(found) == set(theirs) and "value_head.weight" in found
    largest = max(float(g.abs().max()) for g in theirs.values())
    assert max(float((found[n] - g).abs().max()) for n, g in theirs.items()) < 2e-6 * max(1.0, largest)
    for name in set(expected) - {"computed_share"}:  # differs with the micro-batches
        assert ours[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("gather", ["whole", "layer"])
def test_long_teacher_prompts_on_one_rank_do_not_block_the_others(checkpoint: Path, open_on: Open, gather: str) -> None:
    """Each rank has two rows. On one rank, both teacher prompts together exceed the token budget."""
    draw = np.random.default_rng(0)
    prompts, completions = ([draw.integers(2, 200, size=size) for _ in range(4)] for size in (15, 5))
    longer = [np.concatenate([draw.integers(2, 200, size=n), p]) for n, p in zip((5, 5, 40, 40), prompts, strict=True)]
    batch = Batch.imitation(prompts, completions).with_column("teacher_prompts", "prompt", longer)
    one, many = local(checkpoint), open_on(2, gather=gather, token_budget=64, timeout_s=20.0)
    expected, ours = (policy.update(batch, [Divergence()], LR) for policy in (one, many))
    assert ours["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("gather", ["whole", "layer"])
def test_any_architecture_can_be_sharded(open_on: Open, tokenizer: Any, tmp_path: Path, gather: str) -> None:
    """GPT-2: other layers, a tied head, no packed decoder."""
    make_model("gpt2").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    ranks = open_on(2).engine.ranks
    one, many = local(tmp_path), load_policy(ModelSource(str(tmp_path), seed=3), settings_for(2, gather=gather), ranks)
    batch = a_batch()
    assert many.digest() == one.digest()
    for _ in range(2):
        expected, ours = (policy.update(batch, [ClippedSurrogate(), EntropyBonus(0.01)], LR) for policy in (one, many))
        assert ours["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
    for mine, theirs in zip(many.logprobs(*_rows(batch)), one.logprobs(*_rows(batch)), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)


def test_ranks_are_closed_after_an_interrupted_call(open_on: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = open_on(2)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tacit.engines.sharded.launch.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            policy.logprobs(*_rows(a_batch()))
    with pytest.raises(TacitError, match="interrupted"):
        policy.digest()


@pytest.mark.slow
@pytest.mark.parametrize("gather", ["whole", "layer"])
@pytest.mark.parametrize("kept", [{}, {"lora_rank": 4}], ids=["all", "lora"])
def test_bfloat16_model_takes_steps_in_float32(checkpoint: Path, open_on: Open, gather: str, kept: dict[str, Any]) -> None:
    """A step far below the spacing of bfloat16 numbers is not lost. The sampler uses the same rounded weights as the scorer."""
    one, many = local(checkpoint, dtype="bfloat16", **kept), open_on(2, dtype="bfloat16", gather=gather, **kept)
    batch = a_batch()
    for _ in range(2):
        expected, ours = (policy.update(batch, [ClippedSurrogate()], LR) for policy in (one, many))
        assert ours["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.05)
    for mine, theirs in zip(many.logprobs(*_rows(batch)), one.logprobs(*_rows(batch)), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=0.05)
    done = many.sample([Request(p, seed=i) for i, p in enumerate(batch.prompts)], Sampling(max_tokens=6))
    for mine, theirs in zip(done, many.logprobs(batch.prompts, [c.tokens for c in done]), strict=True):
        np.testing.assert_allclose(mine.logprobs, theirs, atol=0.05)
    before, rounded = many.engine.digest(), many.engine.digest(masters=False)
    many.update(batch, [ClippedSurrogate()], 1e-8)
    assert many.engine.digest() != before != rounded


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_dithered_master_weights_match_the_local_engine(checkpoint: Path, open_on: Open, tmp_path: Path, ranks: int) -> None:
    """To the same values for any sharding. The bfloat16 weights do not change."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(tmp_path)
    source, settings = ModelSource(str(tmp_path), seed=3), settings_for(ranks, dtype="bfloat16")
    one, many = local(tmp_path, dtype="bfloat16"), load_policy(source, settings, open_on(ranks).engine.ranks)
    before, rounded = many.digest(), many.engine.digest(masters=False)
    for policy in (one, many):
        policy.update(a_batch(), [ClippedSurrogate()], 0.0)
    assert many.digest() == one.digest() != before
    assert many.engine.digest(masters=False) == rounded


@pytest.mark.slow
def test_several_steps_match_the_local_engine(checkpoint: Path, open_on: Open) -> None:
    one, many = local(checkpoint), open_on(2)
    batch = replace(a_batch(), temperature=0.8)
    for _ in range(3):
        one.update(batch, [ClippedSurrogate()], LR)
        many.update(batch, [ClippedSurrogate()], LR)
    requests, sampling = [Request(p, seed=i) for i, p in enumerate(batch.prompts)], Sampling(0.8, max_tokens=8)
    for ours, theirs in zip(many.sample(requests, sampling), one.sample(requests, sampling), strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist() and ours.version == many.version == 3
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-4)
    written = many.sample(requests, sampling)
    again = replace(batch, completions=[c.tokens for c in written], behavior=[c.logprobs for c in written])
    again = replace(again, advantages=[np.ones(len(c.tokens)) for c in written], tokens={}, rows={}, contexts={})
    assert many.update(again, [ClippedSurrogate()], LR)["behaviour_gap_max"] < 1e-4


@pytest.mark.slow
def test_digest_does_not_depend_on_the_sharding(checkpoint: Path, open_on: Open) -> None:
    one = local(checkpoint, value_head=True).digest()
    assert {open_on(2, value_head=True, gather=gather).digest() for gather in ("whole", "layer")} == {one}
    assert open_on(3, value_head=True).digest() == one


@pytest.mark.slow
@pytest.mark.parametrize("kept", [{}, {"lora_rank": 4}], ids=["all", "lora"])
def test_checkpoint_continues_on_another_number_of_ranks(
    checkpoint: Path, open_on: Open, tmp_path: Path, kept: dict[str, Any]
) -> None:
    """Weights, moments, value head and reference. The saved files also load in transformers or peft."""
    batch, losses = a_batch(), LOSSES[:3]
    policy = open_on(2, value_head=True, **kept)
    policy.freeze_reference()
    policy.update(batch, losses, LR)
    policy.save(tmp_path / "saved")
    saved, frozen = policy.digest(), policy.reference().logprobs(batch.prompts, batch.completions)
    policy.update(batch, losses, LR)
    after = policy.logprobs(batch.prompts, batch.completions)
    other = open_on(3, value_head=True, gather="layer", **kept)
    other.load(tmp_path / "saved")
    assert other.digest() == saved
    for ours, theirs in zip(other.reference().logprobs(batch.prompts, batch.completions), frozen, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    other.update(batch, losses, LR)
    for ours, theirs in zip(other.logprobs(batch.prompts, batch.completions), after, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    np.testing.assert_allclose(other.values(batch.prompts), policy.values(batch.prompts), atol=1e-4)
    plain = local(checkpoint, **kept) if kept else local(tmp_path / "saved" / "model")
    if kept:
        plain.load_adapter(tmp_path / "saved" / "adapters" / "default")
    other.load(tmp_path / "saved")
    for ours, theirs in zip(other.logprobs(*_rows(batch)), plain.logprobs(*_rows(batch)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_weights_are_saved_without_the_optimizer(open_on: Open, tmp_path: Path) -> None:
    policy = open_on(2)
    policy.update(a_batch(), [ClippedSurrogate()], LR)
    policy.save(tmp_path / "saved", optimizer=False)
    digest = policy.digest()
    fresh = open_on(2)
    assert fresh.digest() != digest
    fresh.load(tmp_path / "saved")
    assert fresh.digest() == digest


@pytest.mark.slow
def test_new_stage_matches_the_local_engine(checkpoint: Path, open_on: Open) -> None:
    batch = a_batch()
    back = replace(batch, advantages=[-a for a in batch.advantages])
    found = []
    for policy, stage in ((local(checkpoint), True), (open_on(2), True), (open_on(2), False)):
        policy.update(batch, [ClippedSurrogate()], LR)
        if stage:
            policy.begin_stage()
        policy.update(back, [ClippedSurrogate()], LR)
        found.append(np.concatenate(policy.logprobs(*_rows(batch))))
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)
    assert np.abs(found[2] - found[0]).max() > 1e-3


def test_nonfinite_loss_on_one_rank_changes_no_weights(open_on: Open) -> None:
    policy = open_on(3)
    before, batch = policy.digest(), a_batch()
    with pytest.raises(NonFiniteLoss) as caught:
        policy.update(batch, [OnOneRank(1, "nan")], LR)
    assert caught.value.batch is batch
    assert policy.digest() == before and policy.version == 0
    policy.update(batch, [ClippedSurrogate()], LR)  # the ranks stay usable


def test_bad_input_is_refused_and_the_ranks_stay_usable(open_on: Open, tmp_path: Path) -> None:
    policy = open_on(2)
    for refused, words in (
        (lambda: policy.values([np.array([3])]), "value_head"),
        (policy.reference, "freeze_reference"),
        (lambda: policy.logprobs([np.full(300, 3)], [np.array([4])]), "context"),
        (lambda: policy.hidden_states([np.array([3])], 99), "layer 99"),
        (lambda: policy.hidden_states([np.array([3])], 1, "median"), "pooling"),
        (lambda: policy.distributions([np.array([3])], [np.array([4])], 10_000), "top_k"),
        (lambda: policy.adapter("other"), "--engine.lora-rank"),
        (lambda: policy.load(tmp_path / "nothing"), "policy.json"),
    ):
        with pytest.raises(TacitError, match=words):
            refused()
    assert policy.logprobs([], []) == []
    assert len(policy.logprobs([np.array([3])], [np.array([4])])) == 1


@pytest.mark.slow
def test_damaged_or_incompatible_checkpoint_is_refused(checkpoint: Path, open_on: Open, tmp_path: Path) -> None:
    policy = open_on(2)
    policy.update(a_batch(), [ClippedSurrogate()], LR)
    policy.save(tmp_path / "saved")
    with pytest.raises(TacitError, match="lora_rank above 0"):
        open_on(2, lora_rank=4).load(tmp_path / "saved")
    with pytest.raises(TacitError, match="does not fit"):
        open_on(2, value_head=True).load(tmp_path / "saved")
    file = tmp_path / "saved" / "shards" / "rank-00001.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(TacitError, match="damaged"):
        open_on(2).load(tmp_path / "saved")
    local(checkpoint).save(tmp_path / "local")
    with pytest.raises(TacitError, match="another engine"):
        open_on(2).load(tmp_path / "local")


class Canary:
    """Unpickling it creates a file."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return Path.touch, (self.place,)


def test_checkpoint_contains_and_loads_no_pickle(open_on: Open, tmp_path: Path) -> None:
    policy, saved = open_on(2), tmp_path / "saved"
    policy.save(saved)
    shards = saved / "shards"
    assert sorted(file.name for file in shards.iterdir()) == ["layout.json", *(f"rank-0000{n}.safetensors" for n in (0, 1))]
    (shards / ".metadata").write_bytes(pickle.dumps(Canary(tmp_path / "ran")))
    policy.load(saved)
    (shards / "layout.json").unlink()
    with pytest.raises(TacitError, match=r"of an older version: shards/.metadata is a pickle, which is never loaded"):
        policy.load(saved)
    assert not (tmp_path / "ran").exists()
    (shards / ".metadata").unlink()
    with pytest.raises(TacitError, match=r"cannot read the checkpoint .*layout.json"):
        policy.load(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda layout: layout.update(format=2),
        lambda layout: layout["tensors"].popitem(),
        lambda layout: layout.update(tensors=[]),
        lambda layout: next(iter(layout["tensors"].values())).update(rows=[10**9, -(10**9)]),
        lambda layout: next(iter(layout["tensors"].values())).update(rows=["../../x"]),
        lambda layout: next(iter(layout["tensors"].values())).update(dtype="int8"),
    ],
)
def test_inconsistent_layout_is_refused(open_on: Open, tmp_path: Path, change: Any) -> None:
    policy = open_on(2)
    policy.save(tmp_path / "saved")
    file = tmp_path / "saved" / "shards" / "layout.json"
    layout = json.loads(file.read_text())
    change(layout)
    file.write_text(json.dumps(layout))
    with pytest.raises(TacitError, match=r"cannot read the checkpoint|does not fit"):
        policy.load(tmp_path / "saved")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["before", "die", "stop", "fail"])
def test_lost_rank_is_named_within_the_timeout(open_on: Open, what: str) -> None:
    """Killed while idle, or killed, stopped or failing in the middle of an update."""
    policy = open_on(2)
    ranks = policy.engine.ranks
    ranks.timeout_s = 5.0
    pids = [int(rank.started.name.split()[-1]) for rank in ranks.ranks]
    start = time.monotonic()
    if what == "before":
        os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(TacitError, match=f"rank 1 .*process {pids[1]}") as caught:
        policy.update(a_batch(), [OnOneRank(1, what)], LR)
    assert time.monotonic() - start < 5.0 + 5.0
    message = str(caught.value)
    assert {"before": "SIGKILL", "die": "SIGKILL", "stop": "--engine.timeout_s", "fail": "no more memory"}[what] in message
    assert "--resume" in message
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(TacitError, match="were stopped"):
        policy.logprobs([np.array([3])], [np.array([4])])


def test_rank_on_a_dead_machine_is_reported_before_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is left to close the connection, but Ray reports the death."""
    here, there = Pipe()
    gone = SimpleNamespace(name="Ray actor 1", exit_reason=lambda: "its machine died", last_output=str, stop=lambda: None)
    ranks = object.__new__(RankGroup)
    rank = Worker(0, SimpleNamespace(role=SimpleNamespace(name="rank")))  # type: ignore[arg-type]
    rank._started, rank._channel = gone, Channel(here)
    ranks.size, ranks.closed, ranks.ranks = 1, "", [rank]
    monkeypatch.setattr(ranks, "_finalizer", lambda: None, raising=False)
    looks = iter([[], []])
    monkeypatch.setattr("tacit.engines.sharded.launch.wait", lambda *_, **__: next(looks))
    with pytest.raises(TacitError, match=r"rank 0 of 1 \(Ray actor 1\) was lost in 'update': its machine died"):
        ranks._call("update", (), time.monotonic() + 1800.0, "timeout_s")
    there.close()


def test_impossible_configurations_are_refused(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TacitError, match="at least 1"):
        settings_for(0)
    with pytest.raises(TacitError, match="no model at"):
        load_policy(ModelSource("./not/there"), settings_for(2))
    with pytest.raises(TacitError, match="torch finds no GPU"):
        load_policy(ModelSource(str(checkpoint)), settings_for(2, device="cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(TacitError, match=r"ranks = 2, but this machine has 1 GPU.*ranks 1"):
        start_ranks(settings_for(2, device="cuda"))


def test_ranks_that_do_not_start_in_time_are_named() -> None:
    with pytest.raises(TacitError, match=r"waited in 'starting' for rank .*process.*start_timeout_s"):
        start_ranks(settings_for(2, start_timeout_s=0.05))


def _rows(batch: Batch) -> tuple[Any, Any]:
    return batch.prompts, batch.completions
