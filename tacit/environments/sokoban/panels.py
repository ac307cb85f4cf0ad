"""Hashes of this world's panels: split -> number of tasks -> hash."""

from __future__ import annotations

PANELS: dict[str, dict[int, str]] = {
    "train": {
        16: "782b299c4ccce693",
        128: "438b7e1254cc9612",
        256: "5363c905911aedf0",
        512: "7ec5d9c88225b887",
        1024: "150dd604ff7a3e09",
    },
    "test": {
        16: "7cb35d0b1431c918",
        128: "98d939cd8b817291",
        256: "d7a69dc900177fbc",
        512: "8a5a2075681273e8",
        1024: "f0b4352f45b22758",
    },
    "hard": {
        16: "6a04cc66c7303021",
        128: "0359b607f119b994",
        256: "89ebbcf4587148a8",
        512: "5ead9a2a8366a082",
        1024: "566cf67d71c0006b",
    },
}
