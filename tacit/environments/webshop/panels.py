"""Hashes of this world's panels: split -> number of tasks -> hash. The 1,000 published products we never had."""

from __future__ import annotations

PANELS: dict[str, dict[int, str]] = {}
