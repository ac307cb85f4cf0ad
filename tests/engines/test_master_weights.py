"""Steps far below the spacing of bfloat16 move a bfloat16 model as far as a float32 one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.core.credit import Batch
from tacit.losses.surrogates import Imitation

LR = 2e-5


def a_batch() -> Batch:
    rng = np.random.default_rng(0)
    return Batch.imitation([rng.integers(2, 250, size=12) for _ in range(8)], [rng.integers(2, 250, size=6) for _ in range(8)])


def rounded(policy, dtype: torch.dtype):
    """Scales the weights to the size they have in large models and rounds them to bfloat16."""
    with torch.no_grad():
        for tensor in policy.engine.model.hf.state_dict().values():
            tensor.copy_((tensor.float() * (4.0 if tensor.ndim > 1 else 1.0)).bfloat16().to(dtype))
    policy.engine.weights_changed("default")
    return policy


def learned(policy, steps: int = 10) -> float:
    """The decrease of the loss."""
    batch = a_batch()
    losses = [policy.update(batch, [Imitation()], LR)["loss"] for _ in range(steps)]
    return losses[0] - losses[-1]


@pytest.fixture
def exact(make_policy):
    return rounded(make_policy(dtype="float32"), torch.float32)


@pytest.fixture
def coarse(make_policy):
    return rounded(make_policy(dtype="bfloat16"), torch.bfloat16)


@pytest.mark.slow
def test_bfloat16_model_learns_as_fast_as_float32(exact, coarse, monkeypatch, make_policy):
    expected, found = learned(exact), learned(coarse)
    assert found == pytest.approx(expected, rel=0.15)
    on_grid = rounded(make_policy(dtype="bfloat16"), torch.bfloat16)
    monkeypatch.setattr(type(on_grid.engine.member("default").weights), "dither_masters", lambda self: None)
    assert learned(on_grid) < 0.6 * expected, "without dithering it learns more slowly"


def test_master_weights_are_dithered_once_within_rounding(coarse):
    weights, before = coarse.engine.member("default").weights, coarse.digest()
    on_grid = {name: p.detach().clone() for name, p in weights.params.items()}
    weights.dither_masters()
    first = {name: p.detach().clone() for name, p in weights.master.items()}
    assert all(torch.equal(first[name].bfloat16(), on_grid[name]) for name in on_grid)
    far = torch.cat([((first[n] - w.float()) / w.float())[w != 0].flatten() for n, w in on_grid.items()])
    assert abs(float(far.mean())) < 1e-4 and float((far.abs() > 2**-10).float().mean()) > 0.5
    weights.dither_masters()
    assert all(torch.equal(p, first[name]) for name, p in weights.master.items())
    coarse.update(a_batch(), [Imitation()], 0.0)
    assert all(torch.equal(p, first[name]) for name, p in weights.master.items())
    assert all(torch.equal(p, on_grid[name]) for name, p in weights.params.items())
    assert coarse.engine.digest(masters=False) == before


def test_dithering_does_not_change_a_float32_policy(exact):
    weights, before = exact.engine.member("default").weights, exact.digest()
    weights.dither_masters()
    assert exact.digest() == before
