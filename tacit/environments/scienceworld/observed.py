"""What the simulator's sentences say: the event of a turn, the room one is in, what one carries."""

from __future__ import annotations

import re
from dataclasses import dataclass

REFUSED = re.compile(
    r"^(?:No known action|Unknown action|It'?s not clear|I'm not sure how|You must |You can't |That can't |Connections must "
    r"|Something can't |That container is empty|There is only one thing|Mixing the contents of .* does not"
    r"|(?:The|A) .*(?: is not | is already | isn't | does not contain | appears broken))"
)
"""how an action is turned down, or said to change nothing"""
UNREADABLE = re.compile(r"^(?:No known action|Unknown action)")
AMBIGUOUS = "Ambiguous request"

_EVENTS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("went", r"^You move (?:through the door )?to the (.+)\.$"),
        ("took", r"^(?:\(.*?\))?You move the (.+?) to the inventory\.$"),
        ("moved", r"^(?:\(.*?\))?You move the (.+?) to the (.+)\.$"),
        ("poured", r"^You pour the contents of the (.+?) into the (.+)\.$"),
        ("focused", r"^You focus on the (.+)\.$"),
        ("opened", r"^The (.+) is now open\.$"),
        ("started", r"^The (.+) is now activated\.$"),
        ("stopped", r"^The (.+) is now deactivated\.$"),
        ("connected", r"^.+? on (.+) is now connected to .+? on (.+?)\.?$"),
        ("measured", r"^the (?:.+) measures a temperature of (-?\d+) degrees celsius"),
        ("timed", r"^a stopwatch.*The time reads (\d+) ticks"),
        ("mixed", r"^(.+) mix to produce (.+)\.$"),
        ("read", r"^The (.+) reads:"),
        ("waited", r"^You decide to wait for (\d+)"),
    )
)
_ROOM = re.compile(r"^This (?:room|outside location) is called the (.+?)\.")
_CARRIED = re.compile(r"^In your inventory, you see:")
_ARTICLE = re.compile(r"^(?:an?|the|some) (?:substance called )?", re.IGNORECASE)
_MORE = re.compile(r"[,.(].*")
_DOOR = re.compile(r"A door to the (.+?) \(that is (open|closed)\)")


@dataclass(frozen=True)
class Event:
    """`took thermometer`, `moved lead (to) metal pot`, `connected battery (to) red wire`, `measured 83`; nothing where
    nothing of that kind happened."""

    kind: str = ""
    what: str = ""
    where: str = ""


def read_event(text: str) -> Event:
    if REFUSED.match(text):
        return Event("refused")
    for kind, pattern in _EVENTS:
        found = pattern.match(text)
        if found:
            return Event(kind, *found.groups()[:2])
    return Event("room", found[1]) if (found := _ROOM.match(text)) else Event()


def read_room(text: str) -> str:
    """The room that is seen or entered, empty where the text is of something else."""
    event = read_event(text)
    return event.what if event.kind in ("went", "room") else ""


def read_doors(text: str) -> dict[str, bool]:
    """room beyond -> whether the door is open"""
    return {room: state == "open" for room, state in _DOOR.findall(text)}


def read_inventory(text: str) -> tuple[str, ...] | None:
    """What is carried, by its plain names; None where the text is no inventory."""
    if not _CARRIED.match(text):
        return None
    lines = (line.strip() for line in text.split("\n")[1:] if line.startswith("\t"))
    return tuple(plain(line) for line in lines if plain(line) != "nothing")


def plain(line: str) -> str:
    """`a metal pot (containing nothing)` -> `metal pot`"""
    return _MORE.sub("", _ARTICLE.sub("", line.strip())).strip()


def is_refused(text: str) -> bool:
    return bool(REFUSED.match(text))
