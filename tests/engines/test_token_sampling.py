"""Sampling tokens from logits: numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from interpreted import assert_interpreted

from tacit.core.protocols import Sampling
from tacit.engines.local.sampling import has_sampling_kernel, sample_tokens

PROBS = torch.tensor([[0.5, 0.0, 0.3, 0.2]])


def _sample(uniform: float, **options) -> tuple[int, float]:
    tokens, logprobs = sample_tokens(PROBS.log(), torch.tensor([uniform]), Sampling(**options))
    return int(tokens[0]), float(logprobs[0])


def test_inverse_cdf():
    assert [_sample(u)[0] for u in (0.01, 0.49, 0.51, 0.79, 0.81, 0.99)] == [0, 0, 2, 2, 3, 3]
    np.testing.assert_allclose(_sample(0.6)[1], np.log(0.3), rtol=1e-6)


def test_truncation_changes_the_token_not_the_logprob():
    # the two likeliest, 0.5 and 0.3, share u in the ratio 5 : 3
    assert [_sample(u, top_k=2)[0] for u in (0.62, 0.63, 0.999)] == [0, 2, 2]
    assert [_sample(u, top_p=0.7)[0] for u in (0.62, 0.63, 0.999)] == [0, 2, 2]
    assert [_sample(u, top_p=0.5)[0] for u in (0.01, 0.999)] == [0, 0]
    assert [_sample(u, top_p=1e-6)[0] for u in (0.01, 0.999)] == [0, 0]
    np.testing.assert_allclose(_sample(0.7, top_k=2)[1], np.log(0.3), rtol=1e-6)
    # top-p is a share of what top-k left: 0.5 / 0.8 holds 60 per cent
    assert _sample(0.999, top_k=2, top_p=0.6)[0] == 0


def test_temperature_and_greedy():
    token, logprob = _sample(0.999, temperature=0)
    assert token == 0
    np.testing.assert_allclose(logprob, np.log(0.5), rtol=1e-6)
    squared = np.array([0.25, 0.0, 0.09, 0.04]) / 0.38  # temperature one half squares the probabilities
    np.testing.assert_allclose(_sample(0.95, temperature=0.5)[1], np.log(squared[3]), rtol=1e-5)


def test_the_largest_uniform_never_leaves_the_support():
    probs = torch.zeros(1, 1000)
    probs[0, :700] = torch.rand(700, generator=torch.Generator().manual_seed(0))
    largest = torch.tensor([1 - 2.0**-24])
    for options in ({}, {"top_p": 0.9}, {"top_k": 900}, {"top_k": 10}):
        tokens, logprobs = sample_tokens(probs.log(), largest, Sampling(**options))
        assert probs[0, tokens[0]] > 0 and torch.isfinite(logprobs).all()


INTERPRETED = """
import torch
from tacit.engines.local import sampling
cpu = torch.device("cpu")
assert sampling._check_kernel(cpu, torch.float32) and sampling._check_kernel(cpu, torch.bfloat16)
probs = torch.tensor([[0.5, 0.0, 0.3, 0.2]])
drawn = [sampling._sample_with_kernel(probs.log(), torch.tensor([u]), 1.0) for u in (0.01, 0.49, 0.51, 0.79, 0.81, 1 - 2**-24)]
assert [int(token) for token, _ in drawn] == [0, 0, 2, 2, 3, 3], drawn
torch.testing.assert_close(torch.cat([logprob for _, logprob in drawn]).exp(), torch.tensor([0.5, 0.5, 0.3, 0.3, 0.2, 0.2]))
(token,), (logprob,) = sampling._sample_with_kernel(torch.full((1, 4), float("nan")), torch.tensor([0.5]), 1.0)
assert 0 <= token < 4 and logprob.isnan()  # the sampler raises on NaN, but must be able to read it
"""


# seven of nine slots, some of which stay at the last position
STATE = """
import numpy as np, torch
from tacit.core.protocols import Sampling
from tacit.engines.local import sampling
from tacit.engines.local.decoding import DecodeState
generator, seen = torch.Generator().manual_seed(0), []
logits, noise = torch.randn(4, 7, 5000, generator=generator) * 3, np.random.default_rng(0).random((7, 4), np.float32)
for kernel in (False, True):
    sampling.has_sampling_kernel = lambda *known: kernel
    state = DecodeState(9, 4, torch.device("cpu"))
    state.assign(np.arange(7), torch.arange(7), np.arange(12, 19))
    state.load_noise(noise)
    for step in range(3):
        state.sample(logits[step], Sampling(), 19)
        if step == 1:
            undo = state.save()
            state.sample(logits[3], Sampling(), 19)
            undo()
    assert state.positions_B[:7].tolist() == [15, 16, 17, 18, 18, 18, 18]
    tokens, logprobs = state.fetch_tokens(7, 3)()
    assert state.tokens_B[:7].tolist() == tokens[:, 2].tolist()
    seen.append((tokens, logprobs))
np.testing.assert_array_equal(seen[0][0], seen[1][0])
np.testing.assert_allclose(seen[0][1], seen[1][1], atol=1e-5)
"""


@pytest.mark.parametrize("program", [INTERPRETED, STATE])
def test_interpreted_kernel_matches_torch(program):
    assert_interpreted(program)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernel_on_a_gpu():
    pytest.importorskip("triton")
    assert has_sampling_kernel(torch.device("cuda"), torch.float32) and has_sampling_kernel(
        torch.device("cuda"), torch.bfloat16
    )
    logits = torch.randn(32, 49_152, device="cuda") * 3
    uniform = torch.rand(32, device="cuda")
    here, there = sample_tokens(logits, uniform, Sampling()), sample_tokens(logits.cpu(), uniform.cpu(), Sampling())
    assert (here[0].cpu() == there[0]).float().mean() > 0.9  # rounding decides where u falls between two tokens
    same = here[0].cpu() == there[0]
    torch.testing.assert_close(here[1].cpu()[same], there[1][same], atol=1e-4, rtol=1e-4)
