"""Hashes of this world's panels: split -> number of tasks -> hash."""

from __future__ import annotations

PANELS: dict[str, dict[int, str]] = {
    "train": {
        16: "8a1cced8ce209113",
        128: "d38a5332cf441ba7",
        256: "0d6904b9a3001e7f",
        512: "3a83978f1d2f0828",
        1024: "f77714a95577e5b1",
    },
    "test": {
        16: "c4174012c725bada",
        128: "e62623a698370827",
        256: "9058fd93d6a616e0",
        512: "a8573dc6efbfecbc",
        1024: "40df043ad19f81d9",
    },
    "hard": {
        16: "ee8c0381005a4908",
        128: "d8f23a77169afaef",
        256: "246a06c2daff1345",
        512: "678b2a61a05fd0e8",
        1024: "f87d0464254aec63",
    },
}
