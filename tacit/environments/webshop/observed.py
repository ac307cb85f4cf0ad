"""What a page says, as data: for the expert, the tracker and the wordings, which see no more than the observation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from tacit.core.types import Observation
from tacit.environments.webshop.pages import BACK, BUY, DETAILS, PREVIOUS, SEPARATOR, THANKS

_HEADING = re.compile(r"Page (\d+) \(Total results: (\d+)\)")
_PRICE = re.compile(r"\$([\d.]+)")
_NAMES = """
color, color name, fit type, flavor, flavor name, item shape, material, material type, number of items, pattern, pattern name,
scent, shape, size, size name, style, volume, width
"""
_USUAL_NAMES = frozenset(name.strip() for name in _NAMES.split(","))
"""what options are called, for where no list of actions tells names from values"""


class Offer(NamedTuple):
    """One line of the results."""

    id: str
    title: str
    prices: tuple[float, ...]

    @property
    def lowest(self) -> float:
        return min(self.prices, default=0.0)


@dataclass(frozen=True)
class Seen:
    """A page taken apart."""

    kind: str
    """search, results, item, detail or done"""
    offers: tuple[Offer, ...] = ()
    number: int = 0
    """of the page of results"""
    total: int = 0
    title: str = ""
    prices: tuple[float, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    told: tuple[str, ...] = ()
    """what a detail page says, or the done page"""


@lru_cache(4096)
def read_page(observation: Observation) -> Seen:
    clickables = tuple(action[6:-1] for action in observation.actions if action.startswith("click["))
    return read_parts(parts_of(observation.text), clickables)


def parts_of(text: str) -> tuple[str, ...]:
    """The parts of a page below its instruction."""
    parts = text.split(SEPARATOR)
    begin = parts.index("Instruction:") + 2 if "Instruction:" in parts else 0
    return tuple(parts[begin:])


def read_parts(parts: Sequence[str], clickables: Sequence[str] = (), names: Sequence[str] = ()) -> Seen:
    """A page from its parts; `names` are those that options may have, where nothing is known of what can be clicked."""
    if parts and parts[0] == THANKS:
        return Seen("done", told=tuple(parts))
    if not parts or parts[0] != BACK:
        return Seen("search")
    heading = _HEADING.fullmatch(parts[1]) if len(parts) > 1 else None
    if heading:
        return Seen("results", tuple(_offers(parts[2:])), int(heading[1]), int(heading[2]))
    below = [part for part in parts[1:] if part != PREVIOUS]
    if parts[-1] == BUY:
        return _item(below, clickables, {*_USUAL_NAMES, *names})
    return Seen("detail", told=tuple(below))


def prices_in(text: str) -> tuple[float, ...]:
    return tuple(float(price.rstrip(".")) for price in _PRICE.findall(text) if price.strip("."))


def _offers(parts: Sequence[str]) -> list[Offer]:
    """Each ends with its price."""
    found: list[Offer] = []
    line: list[str] = []
    for part in parts:
        if not line and part in (PREVIOUS, "Next >"):
            continue
        line.append(part)
        if len(line) > 1 and part.startswith("$"):
            found.append(Offer(line[0].lower(), " ".join(line[1:-1]), prices_in(part)))
            line = []
    return found


def _item(parts: Sequence[str], clickables: Sequence[str], names: set[str]) -> Seen:
    place = next((n for n, part in enumerate(parts) if part.startswith("Price: ")), 0)
    options: dict[str, list[str]] = {}
    for part in parts[: max(place - 1, 0)]:
        if part not in clickables if clickables else part in names or not options:
            options[part] = []
        elif options:
            options[next(reversed(options))].append(part)
    title = parts[place - 1] if place else ""
    shown = {name: tuple(values) for name, values in options.items()}
    return Seen("item", title=title, prices=prices_in(parts[place]) if place else (), options=shown)


DETAIL_CLICKS = tuple(name.lower() for name in DETAILS)
