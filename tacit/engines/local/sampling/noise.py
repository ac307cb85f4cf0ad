"""Randomness as a function: the uniform number behind the n-th token of a request depends on its seed and n alone.

    key = mix(seed + γ)        u(seed, n) = (top 23 bits of mix(key + (n + 1)·γ) + ½) / 2²³        in (0, 1)

`mix` is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014) and γ its odd constant, so each request reads its own
SplitMix64 stream from a scrambled start. Integer arithmetic modulo 2⁶⁴ is the same on every machine; the numbers are
computed on the host and handed to whatever device draws the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_BITS = 23
"""with the added half, as many as a float32 holds exactly"""


def uniforms(seeds: Sequence[int], count: int) -> np.ndarray:
    """[len(seeds), count] float32: row r holds u(seeds[r], 0), u(seeds[r], 1), … Seeds are taken modulo 2⁶⁴."""
    seeds_B = np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64)
    steps_N = np.arange(1, count + 1, dtype=np.uint64) * _GAMMA
    bits_BN = _mix(_mix(seeds_B + _GAMMA)[:, None] + steps_N[None, :]) >> np.uint64(64 - _BITS)
    return (bits_BN.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-_BITS)


def _mix(x: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit integers in which every input bit flips about half of the output bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
