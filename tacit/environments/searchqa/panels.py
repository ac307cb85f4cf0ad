"""Hashes of this world's generated panels: split -> number of tasks -> hash. What files hold is their owner's."""

from __future__ import annotations

PANELS: dict[str, dict[int, str]] = {
    "train": {
        16: "31566ca9517afa40",
        128: "f50226e6bda05ed7",
        256: "9c1b1c15a2519030",
        512: "8b9f9f28fe20ad43",
        1024: "7774f2fc8d3e35a8",
    },
    "test": {
        16: "cfdd23168a5bd6eb",
        128: "dc267d2d7a5558d2",
        256: "6b1b08ed90fc3892",
        512: "855356dbfabd5037",
        1024: "5a3879f294d1e5ca",
    },
    "hard": {
        16: "ce06a395437720a9",
        128: "02407ef46908fc85",
        256: "d6a33c55b0ad6e35",
        512: "0a70d005535801d6",
        1024: "976756c77bf001ab",
    },
}
