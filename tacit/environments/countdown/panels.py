"""Hashes of this world's panels: split -> number of tasks -> hash."""

from __future__ import annotations

PANELS: dict[str, dict[int, str]] = {
    "train": {
        16: "541ba3d932674ebd",
        128: "700e3b8081487440",
        256: "edcde876b02e9766",
        512: "c7a0eefacafd9eed",
        1024: "0834aff843f17264",
    },
    "test": {
        16: "7d09d6740b442f0a",
        128: "65e52a882e6f7b61",
        256: "7b6df9cbf1f87a77",
        512: "61e6a24d700a989c",
        1024: "9d5638b37cabda0d",
    },
    "hard": {
        16: "0351ea03d89b0bc4",
        128: "4c1810295cab772c",
        256: "0113646fb2b8edef",
        512: "aa6bb44469cf3344",
        1024: "e2eeb1c1263b6e9b",
    },
}
