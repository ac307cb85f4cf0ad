"""Hashes of this world's panels: split -> number of tasks -> hash. The 1,000 published products we never had."""

from __future__ import annotations

PANELS: dict[str, dict[int, str]] = {
    "train": {
        16: "43f61def4f7b33ad",
        128: "f01a67aae0be9720",
        256: "f3eb3a2dc60d0422",
        512: "681d6ff2ff3b310a",
        1024: "e4ceba2061d3c9a5",
    },
    "test": {
        16: "ed5b648a0742c756",
        128: "db186117a7857449",
        256: "4e6644e55069dd74",
        512: "6475a0c5cb76e649",
        1024: "a332d3a13616a96e",
    },
}
