"""Hashes of this world's panels: split -> number of tasks -> hash."""

from __future__ import annotations

PANELS: dict[str, dict[int, str]] = {
    "train": {
        16: "71112a93f14fe34e",
        128: "2f8e620503771b10",
        256: "a135883ec72d43ef",
        512: "6878ea2625edc2c9",
        1000: "c877083cfa7074c4",
    },
    "test": {
        16: "d24f95f8041bac45",
        128: "fb2e835f4871eb6a",
        256: "d1d24d3323b36d03",
        512: "d06a8943b8516309",
        1000: "450ba95f56a6ca77",
    },
    "hard": {
        16: "6753d3df6fab3815",
        128: "8d192095aed6f32c",
        256: "93b08bf73da918ff",
        512: "9135eb0a4aa15669",
        1000: "9951415060be21b4",
    },
}
