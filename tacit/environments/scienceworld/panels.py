"""Hashes of this world's panels: split -> number of tasks -> hash. The last of each is all of it."""

from __future__ import annotations

PANELS: dict[str, dict[int, str]] = {
    "train": {
        16: "9961587944ab5f41",
        128: "f7ffe625b55ea6ba",
        3592: "a46ab6d32f5f0fc6",
    },
    "dev": {
        16: "c5803020aa5c1d71",
        128: "3ae2fcc1e945710d",
        1796: "e7c7e01d2f314d59",
    },
    "test": {
        16: "f272c5485830859b",
        128: "adc4bae7c7f0ce54",
        1819: "5fe05c2f0c1da92a",
    },
    "eto_test": {
        16: "82e240583047e4c5",
        128: "8e8e06ba507e50ea",
        211: "56182514a4d3547d",
    },
    "eto_train": {
        16: "dbf68d89ca803eb8",
        128: "bc103a7d182bdb75",
        1483: "b03df8e2ba7c0256",
    },
    "eto_dev": {
        16: "25e528b39e58650c",
        128: "57eac4ddeaaec500",
        194: "09e52ef1b8cb33bd",
    },
}
