"""A rule that shops by its prompt alone: what the state block is worth without any learning.

It has no memory and sees no list of actions. Each turn it is given the text a policy would be given, in either form of the
block and either wording. It opens the first product listed that it has not opened before (where the block says which), leaves
it if an option that is asked for is not offered, or words of the sentence are still missing after its features were read, and
otherwise chooses and buys. With the paper's fields alone it cannot tell one product from another, and buys the first that can
be paid.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tacit.core.errors import TacitError
from tacit.environments.webshop.instruction import Wish, read_wish
from tacit.environments.webshop.observed import Offer, Seen, read_parts
from tacit.environments.webshop.pages import SEPARATOR

PATIENCE = 3
"""products that are opened before one settles for what is there"""
_FIELD = re.compile(
    r"^(phase|query|product|chosen|to choose|not read of it|pages read|opened before|"
    r"inspected_product|remaining_options|ready_to_purchase): (.*)$",
    re.M,
)
_TASK = re.compile(r"^Your task is to: (.*)\.$", re.M)
_NOW = re.compile(r"your current observation is: (.*)\.\n(?:Now it's|Your admissible)", re.S | re.I)
_RESULTS = re.compile(r"p(\d+) of (\d+)")
_OFFER = re.compile(r"(\S+) (.*) ([\d.]+(?:-[\d.]+)?)")


@dataclass(frozen=True)
class Sheet:
    """A prompt taken apart."""

    wish: Wish
    fields: dict[str, str]
    page: Seen

    @property
    def to_choose(self) -> dict[str, str]:
        told = self.fields.get("to choose", self.fields.get("remaining_options", ""))
        pairs = (option.partition(": ") for option in told.split("; "))
        return {name: value for name, _, value in pairs if value}

    @property
    def opened(self) -> list[str]:
        told = self.fields.get("opened before", "none")
        return [] if told == "none" else told.split(", ")

    @property
    def unread(self) -> bool:
        """Words are missing, and its features were not looked at."""
        return self.missing and "features" not in self.fields.get("pages read", "features")

    @property
    def missing(self) -> bool:
        return self.fields.get("not read of it", "none") != "none"


def act(prompt: str) -> str:
    """The action for what this prompt says."""
    sheet = take_apart(prompt)
    kind = sheet.page.kind
    if kind == "results":
        return _open(sheet)
    if kind == "item":
        return _shop(sheet)
    if kind == "detail":
        return "click[< prev]"
    return f"search[{' '.join((sheet.wish.thing, *sheet.wish.options.values())).lower()}]"


def take_apart(prompt: str) -> Sheet:
    fields = dict(_FIELD.findall(prompt))
    if not fields.keys() & {"phase", "ready_to_purchase"}:
        raise TacitError("the shop's reader reads a state block, and this prompt has none: --state-block --history 1.")
    task, now = _TASK.search(prompt), _NOW.search(prompt)
    if task and now:
        wish = read_wish(task[1])
        parts = [part[1:-1] for part in now[1].split(SEPARATOR)]
        return Sheet(wish, fields, read_parts(parts, names=tuple(wish.options)))
    lines = prompt.strip().split("\n")
    return Sheet(_terse_wish(lines[0]), fields, _terse_page(lines[-1].removesuffix(">").strip()))


def _open(sheet: Sheet) -> str:
    limit = sheet.wish.limit
    payable = [offer for offer in sheet.page.offers if limit is None or offer.lowest <= limit]
    fresh = [offer.id for offer in payable if offer.id not in sheet.opened]
    if fresh:
        return f"click[{fresh[0]}]"
    return f"click[{payable[0].id}]" if payable else "click[next >]"


def _shop(sheet: Sheet) -> str:
    patient = "opened before" in sheet.fields and len(sheet.opened) < PATIENCE
    offered = {name: value for name, value in sheet.to_choose.items() if value in sheet.page.options.get(name, ())}
    if patient and len(offered) < len(sheet.to_choose):
        return "click[< prev]"
    if sheet.unread:
        return "click[features]"
    if patient and sheet.missing:
        return "click[< prev]"
    return f"click[{next(iter(offered.values()))}]" if offered else "click[buy now]"


def _terse_wish(line: str) -> Wish:
    """`waterproof backpacks / color: navy / under 40`"""
    thing, *rest = line.split(" / ")
    options = dict(part.split(": ", 1) for part in rest if ": " in part)
    limit = next((part.removeprefix("under ") for part in rest if re.fullmatch(r"under [\d.]+", part)), None)
    return Wish(thing, options, float(limit) if limit else None)


def _terse_page(line: str) -> Seen:
    first, *rest = line.split(" / ")
    results = _RESULTS.fullmatch(first)
    if results:
        matches = (_OFFER.fullmatch(part) for part in rest)
        offers = tuple(Offer(m[1], m[2], tuple(float(price) for price in m[3].split("-"))) for m in matches if m)
        return Seen("results", offers, int(results[1]), int(results[2]))
    if first == "search" and not rest:
        return Seen("search")
    if rest and re.fullmatch(r"[\d.]+(?:-[\d.]+)?", rest[0]):
        options = dict(part.split(": ", 1) for part in rest[1:] if ": " in part)
        return Seen("item", title=first, options={name: tuple(values.split(", ")) for name, values in options.items()})
    return Seen("detail", told=(line,))
