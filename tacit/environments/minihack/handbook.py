"""Skills of MiniHack by hand, for methods that retrieve one."""

from __future__ import annotations

HANDBOOK = {
    "": (
        "walk straight to the stairs > once they are seen; until then go where nothing has been seen yet, and do not step back "
        "to where you came from; what is refused once is refused again"
    ),
    "room": "it is five by five: cross it towards the far corner, and walk round monsters rather than fight them",
    "maze": "follow one wall; in a dead end go back to the last branching and take the way not taken",
    "keyroom": "find the key ( and stand on it to pick_up; then stand straight beside the door +, never diagonally, and apply",
    "river": "get behind a boulder ` and push it east into the river }; two in one row make a way across, then go over it",
}
