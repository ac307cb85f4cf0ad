"""Seeds derived from seeds and names. No generator is stored: code that needs randomness derives a seed for a named place."""

from __future__ import annotations

import hashlib


def derive(seed: int, *place: int | str) -> int:
    """A 63-bit seed for one named place under `seed`, the same on every machine.

    >>> derive(0, "rollout", 3) != derive(0, "rollout", 4)
    True

    Parts are joined by slashes, so `derive(0, "a/b") == derive(0, "a", "b")` and `derive(0, 1) == derive(0, "1")`. This cannot
    change, because recorded runs depend on these seeds; choose names that do not collide.
    """
    text = "/".join([str(seed), *(str(p) for p in place)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
