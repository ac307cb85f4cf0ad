"""Hashes of this world's panels: split -> number of tasks -> hash. Published splits are those of release 2.1.1."""

from __future__ import annotations

PANELS: dict[str, dict[int, str]] = {
    "train": {
        16: "4c49786f8c448fb5",
        128: "c3ea4c2a87d010ce",
        256: "f1302c4d4e46b73c",
        512: "7407b294eb0ba311",
    },
    "seen": {
        16: "0ee8995080643594",
        128: "178b5783b55455b3",
        256: "f2923eda962cdb2d",
        512: "2ff30e7fab31391f",
    },
    "unseen": {
        16: "9971628ae8bc11bb",
        128: "1f5d84b8cb0a8941",
        256: "bc6558bae9aab813",
        512: "4b7ddf16575af08e",
    },
    "published_train": {
        16: "8dba921207b86c4c",
        128: "74133d37179e0cb2",
        256: "16771f08e60b2f65",
        512: "7b6bedd268b55e6a",
    },
    "valid_seen": {
        16: "98d1887b768a725e",
        128: "76f52842355f1432",
        140: "3975d5a97cdb5737",
    },
}
