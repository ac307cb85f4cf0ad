"""Skills of the cooking game by hand, for methods that retrieve one."""

from __future__ import annotations

HANDBOOK = {
    "": (
        "find the kitchen and examine the cookbook first; gather every ingredient; cut before cooking; look whether something "
        "is cooked already, since what is cooked twice burns; then prepare meal in the kitchen and eat meal"
    ),
}
