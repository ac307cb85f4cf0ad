"""Derived seeds. No generator state is stored: code that needs randomness derives a seed from the run's seed and a name."""

from __future__ import annotations

import hashlib


def derive(seed: int, *name: int | str) -> int:
    """A 63-bit seed derived from `seed` and a name, the same on every machine.

    >>> derive(0, "rollout", 3) != derive(0, "rollout", 4)
    True

    Parts are joined by slashes, so `derive(0, "a/b") == derive(0, "a", "b")` and `derive(0, 1) == derive(0, "1")`. This cannot
    change, because recorded runs depend on these seeds; choose names that do not collide.
    """
    text = "/".join([str(seed), *(str(part) for part in name)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
