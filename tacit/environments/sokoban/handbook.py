"""Skills of Sokoban by hand, for methods that retrieve one."""

from __future__ import annotations

HANDBOOK = {
    "": (
        "look where a box has to be pushed from before pushing it, and walk round to that side; never push a box into a corner "
        "or along a wall without a target, for it cannot be pulled back"
    ),
    "two_boxes": "decide first which box goes to which target, and do not let one box stand in the way of the other",
}
