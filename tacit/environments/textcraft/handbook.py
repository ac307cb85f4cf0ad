"""Skills of TextCraft by hand, for methods that retrieve one."""

from __future__ import annotations

HANDBOOK = {
    "": (
        "work back from the goal through the recipes and count what each takes; get everything that no recipe makes, in the "
        "number that is needed in all; then craft from the bottom up, with exactly the ingredients of the recipe"
    ),
    "depth_4": "what is made on the way is an ingredient again: craft it as often as the recipes above it take it",
}
