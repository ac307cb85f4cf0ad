"""Hashes of this world's panels: split -> number of tasks -> hash."""

from __future__ import annotations

PANELS: dict[str, dict[int, str]] = {
    "train": {
        16: "5b1d9f463240e6bb",
        128: "1d17ac97e9d74b4b",
        256: "09c5f3a356cc3096",
        512: "23326d775065964d",
        1024: "e4f47614ddb638e2",
    },
    "test": {
        16: "4da114159fed905d",
        128: "76d7002391e6fff8",
        256: "ffee8600588aba87",
        512: "9ff5399033fb0e66",
        1024: "ee2d82e31a3ea2f1",
    },
    "hard": {
        16: "0f354ee6fb9ab64e",
        128: "9844bea4df8d5b79",
        256: "dbd68d31ce630830",
        512: "f08ba93327bbf19e",
        1024: "46da4ef76af08c6d",
    },
}
