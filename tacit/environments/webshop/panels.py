"""Hashes of this world's panels: split -> number of tasks -> hash. The 1,000 published products we never had."""

from __future__ import annotations

PANELS: dict[str, dict[int, str]] = {
    "train": {
        16: "7e55a8122bce2801",
        128: "fa10c1e5b8c24dcb",
        256: "0b33ad5fc4ffcb01",
        512: "708b2ca2b6a482f9",
        1024: "68fe03adb550e694",
    },
    "test": {
        16: "0afcfe540f2c1953",
        128: "4ca1164a39d8d04d",
        256: "e29aafc7658f649e",
        512: "ae303b7fc25f3840",
        1024: "333f9384ae0babff",
    },
}
