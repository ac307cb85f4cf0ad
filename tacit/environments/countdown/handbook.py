"""Skills of Countdown by hand, for methods that retrieve one."""

from __future__ import annotations

HANDBOOK = {
    "": (
        "work back from the target: look for two numbers whose sum, difference, product or quotient leaves what the others "
        "can still make; reset when the numbers left cannot reach it"
    ),
}
