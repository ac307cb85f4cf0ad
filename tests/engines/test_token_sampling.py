"""Sampling tokens from logits: numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import torch

from tacit.core.protocols import Sampling
from tacit.engines.local.decoding import DecodeState
from tacit.engines.local.sampling import sample_tokens

PROBS = torch.tensor([[0.5, 0.0, 0.3, 0.2]])


def _sample(uniform: float, **options) -> tuple[int, float]:
    tokens, logprobs = sample_tokens(PROBS.log(), torch.tensor([uniform]), Sampling(**options))
    return int(tokens[0]), float(logprobs[0])


def test_tokens_are_sampled_by_inverse_cdf():
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


def test_temperature_rescales_and_zero_is_greedy():
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


def test_decode_state_samples_and_advances_its_slots():
    """Seven of nine slots, some of which stay at the last position."""
    logits, noise = torch.randn(4, 7, 50, generator=torch.Generator().manual_seed(0)) * 3, np.random.default_rng(0)
    noise_BK = noise.random((7, 4), np.float32)
    state = DecodeState(9, 4, torch.device("cpu"))
    state.assign(np.arange(7), torch.arange(7), np.arange(12, 19))
    state.load_noise(noise_BK)
    for step in range(3):
        state.sample(logits[step], Sampling(), 19)
        if step == 1:
            undo = state.save()
            state.sample(logits[3], Sampling(), 19)
            undo()
    assert state.positions_B[:7].tolist() == [15, 16, 17, 18, 18, 18, 18]
    tokens, logprobs = state.fetch_tokens(7, 3)()
    assert state.tokens_B[:7].tolist() == tokens[:, 2].tolist()
    for step in range(3):
        expected = sample_tokens(logits[step], torch.from_numpy(noise_BK[:, step]), Sampling())
        assert tokens[:, step].tolist() == expected[0].tolist() and logprobs[:, step].tolist() == expected[1].tolist()
