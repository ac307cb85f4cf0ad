"""Skills of the household by hand, for methods that retrieve one: what to do, never where a thing is."""

from __future__ import annotations

_APPLIANCE = "find the object, take it, go to the {appliance}, {verb} it there, then go to the destination and move it there"

HANDBOOK = {
    "": (
        "look in the likeliest places first and in each only once; open what is closed before looking inside; "
        "do not repeat what had no effect"
    ),
    "pick": "find the object, take it, go to the destination, open it if it is closed, and move it there",
    "pick2": "bring one object to the destination, then find a second one of the same kind and bring it to the same place",
    "look": "find the object and take it, then go to the lamp and use it with the object in hand",
    "clean": _APPLIANCE.format(appliance="sinkbasin", verb="clean"),
    "heat": _APPLIANCE.format(appliance="microwave", verb="heat"),
    "cool": _APPLIANCE.format(appliance="fridge", verb="cool"),
}
