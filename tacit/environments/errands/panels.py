"""Hashes of this world's panels: split -> number of tasks -> hash."""

from __future__ import annotations

PANELS: dict[str, dict[int, str]] = {
    "train": {
        16: "b38f736249276508",
        128: "0e2efba9faecfcff",
        256: "07987212343daeb0",
        432: "fb3c145910351241",
    },
    "test": {
        16: "2a92d3fb448484c2",
        128: "95e22fee5a77f326",
        144: "a840be5fd6797d08",
    },
    "elsewhere": {
        16: "069cad34aceb0ef7",
        128: "993e923294f7540a",
        256: "06aa2e970d233d9a",
        512: "1b47d24b5d27693a",
        1024: "ac197f471530816f",
    },
}
