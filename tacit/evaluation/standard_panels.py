"""Hashes of our panels, so that a machine that makes other tasks under the same name notices.

`world/split` -> number of tasks -> hash. Published ALFWorld splits are those of its release 2.1.1.
"""

from __future__ import annotations

VERSION = "1"
"""raised, with the hashes, whenever a world's panels change"""

HASHES: dict[str, dict[int, str]] = {
    "countdown/train": {
        16: "541ba3d932674ebd",
        128: "700e3b8081487440",
        256: "edcde876b02e9766",
        512: "c7a0eefacafd9eed",
        1024: "0834aff843f17264",
    },
    "countdown/test": {
        16: "7d09d6740b442f0a",
        128: "65e52a882e6f7b61",
        256: "7b6df9cbf1f87a77",
        512: "61e6a24d700a989c",
        1024: "9d5638b37cabda0d",
    },
    "countdown/hard": {
        16: "0351ea03d89b0bc4",
        128: "4c1810295cab772c",
        256: "0113646fb2b8edef",
        512: "aa6bb44469cf3344",
        1024: "e2eeb1c1263b6e9b",
    },
    "alfworld/train": {
        16: "4c49786f8c448fb5",
        128: "c3ea4c2a87d010ce",
        256: "f1302c4d4e46b73c",
        512: "7407b294eb0ba311",
    },
    "alfworld/seen": {
        16: "0ee8995080643594",
        128: "178b5783b55455b3",
        256: "f2923eda962cdb2d",
        512: "2ff30e7fab31391f",
    },
    "alfworld/unseen": {
        16: "9971628ae8bc11bb",
        128: "1f5d84b8cb0a8941",
        256: "bc6558bae9aab813",
        512: "4b7ddf16575af08e",
    },
    "alfworld/published_train": {
        16: "8dba921207b86c4c",
        128: "74133d37179e0cb2",
        256: "16771f08e60b2f65",
        512: "7b6bedd268b55e6a",
    },
    "alfworld/valid_seen": {
        16: "98d1887b768a725e",
        128: "76f52842355f1432",
        140: "3975d5a97cdb5737",
    },
    "cooking/train": {
        16: "71112a93f14fe34e",
        128: "2f8e620503771b10",
        256: "a135883ec72d43ef",
        512: "6878ea2625edc2c9",
        1000: "c877083cfa7074c4",
    },
    "cooking/test": {
        16: "d24f95f8041bac45",
        128: "fb2e835f4871eb6a",
        256: "d1d24d3323b36d03",
        512: "d06a8943b8516309",
        1000: "450ba95f56a6ca77",
    },
    "cooking/hard": {
        16: "6753d3df6fab3815",
        128: "8d192095aed6f32c",
        256: "93b08bf73da918ff",
        512: "9135eb0a4aa15669",
        1000: "9951415060be21b4",
    },
}
