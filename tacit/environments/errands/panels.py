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
        16: "99d1e8650f9aeeb6",
        128: "99a0e9d5ed40e951",
        256: "c53ce7caf1f29476",
        512: "6c6c518b4e59760e",
        1024: "6aa18881ce85ba76",
    },
}
