"""Hashes of this world's panels: split -> number of tasks -> hash."""

from __future__ import annotations

PANELS: dict[str, dict[int, str]] = {
    "train": {
        16: "2c6665be6fe42b0d",
        128: "91918401f98fae5c",
        256: "64b8961df481651e",
        288: "3391c67715e4c7c2",
    },
    "test": {
        16: "daff7dd99ac86f68",
        96: "a7f932b2c837fcbd",
    },
    "elsewhere": {
        16: "3e5361fd706cf606",
        128: "cdc7ae7f4ae8f6f6",
        256: "8040a5068b6d8a38",
        512: "033cb46daec9d39c",
        1024: "14e4c33b29cbee4c",
    },
}
