"""Sampling noise: a fixed generator, uniform, and uncorrelated between seeds and indices."""

from __future__ import annotations

import numpy as np
from scipy.stats import chisquare, kstest

from tacit.engines.local.slots import draw_uniforms


def _splitmix64(state: int):
    """The published generator, in Python's unbounded integers."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        yield z ^ (z >> 31)


def test_noise_is_splitmix64():
    assert next(_splitmix64(0)) == 0xE220A8397B1DCDAF  # the reference implementation's first number
    for seed in (0, 1, 17, 2**63, 2**64 - 1):
        stream = _splitmix64(next(_splitmix64(seed)))
        expected = [((next(stream) >> 41) + 0.5) / 2**23 for _ in range(5)]
        np.testing.assert_array_equal(draw_uniforms([seed], 5)[0], np.float32(expected))


def test_noise_depends_only_on_seed_and_index():
    many = draw_uniforms([5, 9, 5, -1], 20)
    np.testing.assert_array_equal(many[0], many[2])
    np.testing.assert_array_equal(many[1, :7], draw_uniforms([9], 7)[0])
    np.testing.assert_array_equal(many[3], draw_uniforms([2**64 - 1], 20)[0])


def test_noise_is_uniform_and_uncorrelated():
    along_indices, along_seeds = draw_uniforms([3], 20000)[0], draw_uniforms(range(20000), 1)[:, 0]
    for values in (along_indices, along_seeds):
        assert values.min() > 0 and values.max() < 1
        assert kstest(values, "uniform").pvalue > 0.01
    table = draw_uniforms(range(200), 200)
    for a, b in ((table[:, :-1], table[:, 1:]), (table[:-1], table[1:]), (table[1:, :-1], table[:-1, 1:])):
        pairs = np.histogram2d(a.ravel(), b.ravel(), bins=8, range=((0, 1), (0, 1)))[0].ravel()
        assert chisquare(pairs).pvalue > 0.001
