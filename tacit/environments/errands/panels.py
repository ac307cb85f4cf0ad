"""Hashes of this world's panels: split -> number of tasks -> hash."""

from __future__ import annotations

PANELS: dict[str, dict[int, str]] = {
    "train": {
        16: "0d0d03bd9e4b7228",
        128: "2c888f14c9fab39f",
        256: "90420f126a7c15a1",
        432: "d1f42695298c3667",
    },
    "test": {
        16: "e3b3a12a1318ae31",
        128: "3ad4b80612680539",
        144: "8e820e60eac31816",
    },
    "elsewhere": {
        16: "85c3720eec588c04",
        128: "dfa480065039f54c",
        256: "e831081bf262eaec",
        512: "d8369a1275eb8f15",
        1024: "cd0e566c67f0e12d",
    },
}
