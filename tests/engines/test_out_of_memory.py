"""Running out of memory anywhere in an update does not change its result, and checkpoints stay valid. Errors are simulated."""

from __future__ import annotations

import copy
import hashlib
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tacit.core.credit import Batch
from tacit.core.errors import OutOfGPUMemory
from tacit.core.protocols import Request, Sampling
from tacit.engines.local import checkpoint, update
from tacit.engines.local import engine as engine_module
from tacit.engines.local.update import LossMetrics, MasterWeights
from tacit.losses.surrogates import Imitation

pytestmark = pytest.mark.filterwarnings("ignore:out of GPU memory")

LOADING = "CUDA error: out of memory"
"""the driver's own message, for example when a kernel is loaded on first use"""


def shortage() -> Exception:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")


def short_once(work: Callable, at: int = 1, error: Exception | None = None, late: bool = False) -> Callable:
    """`work`, but call number `at` fails: before the work, or after it (`late`)."""
    calls = []

    def tried(*arguments, **options):
        calls.append(1)
        if len(calls) != at:
            return work(*arguments, **options)
        if late:
            work(*arguments, **options)
        raise error or shortage()

    return tried


class ShortInBackward:
    """Imitation whose backward pass fails in the second micro-batch."""

    needs: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.passes = 0

    def __call__(self, view):
        loss, metrics = Imitation()(view)
        self.passes += 1
        if self.passes == 2:
            view.logprobs_T.register_hook(lambda gradient: (_ for _ in ()).throw(shortage()))
        return loss, metrics


def weights(policy) -> dict[str, torch.Tensor]:
    member = policy.engine.member("default")
    return {name: p.detach().clone() for name, p in member.trained_tensors().items()}


def a_batch(seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch.imitation([rng.integers(2, 250, size=20) for _ in range(8)], [rng.integers(2, 250, size=5) for _ in range(8)])


PLACES = {
    "backward": lambda patch: None,
    "adding up": lambda patch: patch.setattr(
        MasterWeights, "accumulate_gradients", short_once(MasterWeights.accumulate_gradients, 2, late=True)
    ),
    "moments": lambda patch: patch.setattr(
        MasterWeights, "allocate_moments", short_once(MasterWeights.allocate_moments, late=True)
    ),
    "norm": lambda patch: patch.setattr(MasterWeights, "gradient_norm", short_once(MasterWeights.gradient_norm)),
    "reading": lambda patch: patch.setattr(LossMetrics, "read", short_once(LossMetrics.read)),
    "loading a step's kernel": lambda patch: patch.setattr(
        torch, "_fused_adamw_", short_once(torch._fused_adamw_, error=RuntimeError(LOADING))
    ),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("place", "settings"),
    [
        *((place, {}) for place in PLACES),
        *((place, {"lora_rank": 4}) for place in ("backward", "moments", "loading a step's kernel")),
        *((place, {"dtype": "bfloat16"}) for place in ("backward", "adding up", "norm")),
    ],
)
def test_weights_are_the_same_wherever_an_update_runs_out_of_memory(make_policy, monkeypatch, place, settings):
    finer, short = make_policy(token_budget=50, **settings), make_policy(token_budget=100, **settings)
    batches = a_batch(0), a_batch(1), a_batch(2)
    for batch in batches:
        finer.update(batch, [Imitation()], 1e-2)
    PLACES[place](monkeypatch)
    term = ShortInBackward() if place == "backward" else Imitation()
    budgets = [short.update(batch, [term], 1e-2).get("token_budget") for batch in batches]
    assert budgets == [50.0] * 3  # the budget was halved exactly once
    ours, theirs = weights(short), weights(finer)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert short.engine.member("default").steps == 3


def test_out_of_memory_in_the_middle_of_an_optimizer_step_is_an_error(make_policy, monkeypatch):
    policy = make_policy()
    policy.update(a_batch(), [Imitation()], 1e-2)
    optimizer = policy.engine.member("default").weights.optimizer
    monkeypatch.setattr(optimizer, "step", short_once(optimizer.step, error=RuntimeError(LOADING), late=True))
    with pytest.raises(OutOfGPUMemory, match="during an optimizer step: some weights have changed and others have not"):
        policy.update(a_batch(), [Imitation()], 1e-2)


def test_checkpoint_is_written_completely_after_out_of_memory(make_policy, monkeypatch, tmp_path):
    policy, other = make_policy(), make_policy()
    policy.update(a_batch(), [Imitation()], 1e-2)
    policy.sample([Request(np.arange(5, 15))], Sampling(max_tokens=3))
    monkeypatch.setattr(checkpoint, "write_tensors", short_once(checkpoint.write_tensors))
    policy.save(tmp_path / "saved")
    assert policy.engine.sampler.llama_decoder is None  # the sampler released its cache
    other.load(tmp_path / "saved")
    assert other.digest() == policy.digest()
    for policy_ in (policy, other):
        policy_.update(a_batch(1), [Imitation()], 1e-2)
    assert other.digest() == policy.digest()


def test_digest_moves_weights_to_the_cpu_before_converting_them():
    class OnGPU:
        """The part of a tensor that a digest uses."""

        shape = (2,)

        def detach(self):
            return self

        def cpu(self):
            return torch.ones(2, dtype=torch.bfloat16)

        def float(self):
            raise shortage()

    found, expected = hashlib.sha256(), hashlib.sha256()
    engine_module.update_digest(found, "default", "weight", OnGPU())
    engine_module.update_digest(expected, "default", "weight", torch.ones(2, dtype=torch.bfloat16))
    assert found.hexdigest() == expected.hexdigest()


class NoMoments(dict):
    """A checkpoint's tensors, whose moments fail with out of memory `times` times."""

    times = 1

    def __getitem__(self, name):
        if name.startswith("exp_avg/") and NoMoments.times:
            NoMoments.times -= 1
            raise shortage()
        return super().__getitem__(name)


def test_out_of_memory_while_loading_is_not_reported_as_damage(make_policy, monkeypatch, tmp_path):
    policy, other = make_policy(), make_policy()
    policy.update(a_batch(), [Imitation()], 1e-2)
    policy.save(tmp_path / "saved")
    read = checkpoint.read_tensors
    monkeypatch.setattr(checkpoint, "read_tensors", lambda file: NoMoments(read(file)))
    NoMoments.times = 1
    other.load(tmp_path / "saved")
    assert other.digest() == policy.digest()
    NoMoments.times = 99
    with pytest.raises(OutOfGPUMemory, match="out of GPU memory in loading a checkpoint"):
        other.load(tmp_path / "saved")


@pytest.mark.parametrize("what", ["reference", "masters"])
def test_indivisible_allocations_can_use_the_samplers_cache_memory(make_policy, monkeypatch, what):
    policy = make_policy(dtype="bfloat16")
    policy.sample([Request(np.arange(5, 15))], Sampling(max_tokens=3))
    sampler = policy.engine.sampler

    def only_without_cache(work: Callable) -> Callable:
        def tried(*arguments, **options):
            if sampler.llama_decoder is not None:
                raise shortage()
            return work(*arguments, **options)

        return tried

    if what == "reference":
        monkeypatch.setattr(copy, "deepcopy", only_without_cache(copy.deepcopy))
        policy.freeze_reference()
    else:
        monkeypatch.setattr(engine_module, "MasterWeights", only_without_cache(engine_module.MasterWeights))
        policy.update(a_batch(), [Imitation()], 1e-2)
    assert sampler.llama_decoder is None


def test_first_memory_probe_is_freed_before_the_second(make_policy, monkeypatch):
    policy, losses, count, add = make_policy(), [], update.count_saved_bytes, update.LossMetrics.add

    def counted(*arguments):
        assert all(loss() is None for loss in losses)
        return count(*arguments)

    def remembered(*arguments):
        loss = add(*arguments)
        losses.append(weakref.ref(loss))
        return loss

    monkeypatch.setattr(update.LossMetrics, "add", remembered)
    monkeypatch.setattr(update, "count_saved_bytes", counted)
    update.measure_activation_bytes(policy.engine.make_updater("default"), a_batch(), [Imitation()], np.arange(8))
    assert len(losses) == 2
