"""The fast-path contract (tacit/engines/local/fast/contract.md): `fast = auto` and `fast = off` agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.core.credit import Batch
from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling
from tacit.engines.local.fast import kernels
from tacit.engines.local.fast.kernels import capability_probe, fast_paths, is_fast_enabled
from tacit.engines.local.fast.layers import can_compile
from tacit.engines.local.settings import EngineSettings
from tacit.losses.surrogates import EntropyBonus, Imitation

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
LORA = {"lora_rank": 4}


def make_pair(make_policy, device: str, **settings):
    """(fast, plain) with the same random weights; adapters are not zero."""
    pair = [make_policy(device=device, fast=fast, **settings) for fast in ("auto", "off")]
    for policy in pair:
        with torch.no_grad():
            for name, p in sorted(policy.engine.members["default"].parameters.items()):
                if "lora_B" in name:
                    p.copy_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(len(name))))
        policy.engine.weights_changed("default")
    return pair


def gradients(policy, batch: Batch) -> dict[str, torch.Tensor]:
    updater, losses = policy.engine.make_updater("default"), [Imitation(), EntropyBonus(0.1)]
    rows = np.array([i for i, c in enumerate(batch.completions) if len(c)])
    needs = frozenset().union(*(loss.needs for loss in losses))
    updater.accumulate_gradient(batch, losses, rows, needs, 40)
    found = {name: p.grad.cpu() for name, p in updater.weights.master.items() if p.grad is not None}
    updater.weights.zero_grad()
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("settings", [{}, LORA], ids=["full", "lora"])
def test_logprobs_and_gradients_match_the_plain_path(make_policy, rows, device, settings) -> None:
    fast, plain = make_pair(make_policy, device, **settings)
    exact = device == "cpu"
    assert plain.engine.model.packed_decoder is None and fast.engine.model.packed_decoder is not None
    for ours, theirs in zip(fast.logprobs(*rows, 0.7), plain.logprobs(*rows, 0.7), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4 if exact else 0.5)
    if not exact:
        ours, theirs = (np.concatenate(policy.logprobs(*rows)) for policy in (fast, plain))
        assert np.abs(ours - theirs).mean() < 0.1
    batch = Batch.imitation(*rows)
    ours, theirs = gradients(fast, batch), gradients(plain, batch)
    assert ours.keys() == theirs.keys()
    error = torch.stack([(ours[name] - theirs[name]).norm() for name in ours])
    norm = torch.stack([theirs[name].norm() for name in ours])
    assert (error <= 1e-3 * norm + 1e-7).all() if exact else error.norm() < 0.1 * norm.norm()


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("settings", [{}, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.6, top_p=0.9), Sampling(temperature=0.0)])
def test_same_tokens_are_sampled_on_a_cpu(make_policy, rows, settings, sampling) -> None:
    fast, plain = make_pair(make_policy, "cpu", **settings)
    requests = [Request(prompt, seed=i, max_tokens=12) for i, prompt in enumerate(rows[0])]
    for ours, theirs in zip(fast.sample(requests, sampling), plain.sample(requests, sampling), strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-4)
    assert plain.engine.sampler.llama_decoder is None, "the plain path decodes with transformers"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_sampled_logprobs_match_the_scorer_on_a_gpu(make_policy, rows) -> None:
    """bfloat16 may draw another token; the sampled log-probabilities must still be those of the plain scorer."""
    requests = [Request(prompt, seed=i, max_tokens=12) for i, prompt in enumerate(rows[0])]
    fast, plain = make_pair(make_policy, "cuda")
    for policy in (fast, plain):
        completions = policy.sample(requests, Sampling())
        scored = plain.logprobs(rows[0], [completion.tokens for completion in completions])
        sampled = np.concatenate([completion.logprobs for completion in completions])
        assert np.abs(sampled - np.concatenate(scored)).mean() < 0.1


def test_logprobs_stay_equal_after_several_updates(make_policy, rows) -> None:
    fast, plain = make_pair(make_policy, "cpu")
    for _ in range(3):
        for policy in (fast, plain):
            policy.update(Batch.imitation(*rows), [Imitation()], 1e-3)
    for ours, theirs in zip(fast.logprobs(*rows), plain.logprobs(*rows), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-3)


def test_capability_probes_return_false_while_fast_paths_are_off(monkeypatch) -> None:
    runs = []
    probe = capability_probe(lambda size: not runs.append(size))
    with fast_paths(False):
        assert not probe(1) and not runs and not is_fast_enabled()
        with fast_paths(True):
            assert probe(1)
    assert probe(1) and is_fast_enabled() and runs == [1], "cached"
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: object())
    with fast_paths(False):
        assert not can_compile(torch.device("cuda"))


def test_invalid_choice_for_fast_is_refused() -> None:
    with pytest.raises(TacitError, match="fast = 'never' must be one of auto, off"):
        EngineSettings(fast="never")  # type: ignore[arg-type]
