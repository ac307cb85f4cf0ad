"""Skills of ScienceWorld by hand, for methods that retrieve one: how a task of a family goes, never where a thing is."""

from __future__ import annotations

HANDBOOK = {
    "": (
        "open a door before going through it and look around in every new room; focus only on what the task asks for, since a "
        "wrong focus ends it; where a number is asked for, answer with the number alone"
    ),
    "find_X": "look around in the rooms until such a thing is seen, focus on it, pick it up, move it to the box that is named",
    "lifespan": "go where the animals are, look around, focus on the longest-lived or shortest-lived, in the order asked",
    "conductivity": (
        "focus on the thing; wire a battery and a light bulb into a ring with the thing in it; wait and look whether the bulb "
        "is on; then move the thing to the box of the answer"
    ),
    "measurement": (
        "pick up the thermometer and focus on it, find the substance and focus on it, use the thermometer on it (for a melting "
        "point, again and again while it is heated), then focus on the box of the answer"
    ),
    "growth": (
        "bring the seeds to pots with soil, pour water into each, and wait; for fruit let the bees out of their hive; water "
        "again when it is dry, and focus when the plant or fruit is there"
    ),
    "state_change": (
        "focus on the substance, put it into a container that stands the heat or cold, move it onto the stove or into the "
        "freezer, activate that, and look at it with the thermometer until its state has changed"
    ),
    "power": "focus on the part, connect it by two wires to both ends of the power source that is asked for, then let that run",
    "chemistry": "read the recipe or think of the colours, pour all into one container, mix it, and focus on what came of it",
    "life_stages": "look around where the thing lives, and focus on each of its stages from the earliest on; wait for the next",
    "inclined_plane": "let the block slide down each plane, the stopwatch running, read the time, focus on the plane that fits",
    "genetics": "grow seeds in pots with water and bees, look which trait the offspring have, focus on the box of the answer",
}
