"""Seeds derived from seeds. No generator is ever carried along: whoever needs randomness names the place it is for."""

from __future__ import annotations

import hashlib


def derive(seed: int, *place: int | str) -> int:
    """A 63-bit seed for one named place under `seed`, the same on every machine.

    >>> derive(0, "rollout", 3) != derive(0, "rollout", 4)
    True

    The parts of a place are joined by slashes before they are hashed, so parts that hold a slash, and a number and its digits,
    can name the same place: `derive(0, "a/b") == derive(0, "a", "b")` and `derive(0, 1) == derive(0, "1")`. Every recorded run
    rests on these seeds, so it stays that way; name places so that it cannot matter.
    """
    text = "/".join([str(seed), *(str(p) for p in place)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
