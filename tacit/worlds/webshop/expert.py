"""Two who know how to shop: one who reads, as the agent it teaches must, and one who knows what is meant."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task
from tacit.worlds.webshop.catalogue import Goal
from tacit.worlds.webshop.pages import PER_PAGE, SEPARATOR, Offer, Seen, Wish, read_parts, read_wish
from tacit.worlds.webshop.tracker import Visit, after, begin

STEPS = 15
"""a visit may take: when they run out, the best that was seen is bought"""
PAGES = 3
"""of results that are looked through before one settles"""
LOOK = 4
"""steps to look at a product and come back: its page, its features, and twice back"""


class _Remembering(ABC):
    """Keeps what has been seen of the visit, and decides from that."""

    def __init__(self, task: Task) -> None:
        self._task, self._action, self._turn = task, "", 0
        self._visit: Visit | None = None

    def act(self, observation: Observation) -> str:
        self._turn += 1
        if self._visit is None:
            self._visit = begin(self._task.goal, observation)
        else:
            self._visit = after(self._visit, self._action, observation)
        self._action = self._choose(self._visit)
        return self._action

    def happened(self, action: str) -> None:
        self._action = action

    @abstractmethod
    def _choose(self, visit: Visit) -> str: ...


class Shopper(_Remembering):
    """Searches for the thing and the options in the words of the sentence, opens what is found in its order, reads the
    features where words are still missing, and buys what has all of them, with the options that are asked for.

    A product that does not offer an option, or costs too much, is left. Where nothing has all the words, the one that has most
    is bought before the steps run out. It makes no random choice.
    """

    def _choose(self, visit: Visit) -> str:
        kind = visit.page.kind
        if kind == "search":
            return _search(visit)
        if kind == "results":
            return self._browse(visit)
        if kind == "detail":
            return "click[< prev]"
        return self._consider(visit)

    def _browse(self, visit: Visit) -> str:
        """The most promising that has not been opened; the best that was, once another look would cost too much."""
        here = [offer.id for offer in visit.page.offers]
        fresh = [product for product in _fresh(visit) if product in here]
        best = self._best(visit)
        if best and (not self._time_for_another(visit, 0) or not _fresh(visit)):
            if best in here:
                return f"click[{best}]"
            return "click[< prev]" if visit.page.number > 1 else _search(visit)
        if fresh:
            return f"click[{fresh[0]}]"
        if visit.page.number < min(PAGES, -(-visit.page.total // PER_PAGE)):
            return "click[next >]"
        return f"click[{here[0]}]" if here else "click[back to search]"

    def _consider(self, visit: Visit) -> str:
        """Read on, choose, buy, or leave."""
        product, about = visit.product, visit.known[visit.product]
        missing, left = visit.missing(product), self._left
        if self._lacks(visit, product) and left >= 3 + len(visit.wanted):  # back, another, its options, and buy it
            return "click[< prev]"
        if missing and "features" not in about.details and left >= len(visit.remaining) + 3:
            return "click[features]"
        best = self._best(visit)
        better = bool(best) and best != product and left >= len(visit.wanted) + 3
        if (missing and _fresh(visit) and self._time_for_another(visit, 1)) or (better and not visit.chosen):
            return "click[< prev]"
        for name, value in visit.remaining.items():
            if value in (about.options or {}).get(name, ()):
                return f"click[{value}]"
        return "click[buy now]"

    @property
    def _left(self) -> int:
        """steps, this one among them"""
        return STEPS - self._turn + 1

    def _time_for_another(self, visit: Visit, more: int) -> bool:
        """Whether one can look at another product, and still come back to the best and buy it."""
        return self._left >= more + LOOK + 1 + len(visit.wish.options) + 1

    def _best(self, visit: Visit) -> str:
        """The opened product with fewest words missing, among those that offer what is asked for."""
        fit = [p for p in visit.opened if not self._lacks(visit, p)]
        return min(fit, key=lambda p: len(visit.missing(p)), default="")

    def _lacks(self, visit: Visit, product: str) -> bool:
        about = visit.known[product]
        options = about.options or {}
        wanted = visit.wish.wanted(options)
        missing = any(value not in options.get(name, ()) for name, value in wanted.items())
        return missing or not about.affordable(visit.wish.limit)


class Oracle(_Remembering):
    """Knows which product is meant: searches by its title, pages to it, chooses, buys."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._goal = Goal.from_data(task.data["goal"])

    def _choose(self, visit: Visit) -> str:
        wanted = self._goal.product.lower()
        if visit.page.kind == "item" and visit.product == wanted:
            chosen = visit.chosen
            done = [chosen.get(name) == value if name else value in chosen.values() for name, value in self._goal.options]
            left = [value for (_, value), there in zip(self._goal.options, done, strict=True) if not there]
            return f"click[{left[0]}]" if left else "click[buy now]"
        if visit.page.kind in ("item", "detail"):
            return "click[< prev]"
        if visit.page.kind == "results" and visit.page.offers:
            there = wanted in [offer.id for offer in visit.page.offers]
            return f"click[{wanted}]" if there else "click[next >]"
        return f"search[{self._goal.title}]"


def _search(visit: Visit) -> str:
    return f"search[{' '.join((visit.wish.thing, *visit.wish.options.values())).lower()}]"


def _fresh(visit: Visit) -> list[str]:
    """Products that were listed and not opened, and may be had for the money, in the order they were listed."""
    return [p for p, known in visit.known.items() if p not in visit.opened and known.affordable(visit.wish.limit)]


# A rule that shops by its prompt alone: what the state block is worth without any learning.
#
# It has no memory and sees no list of actions. Each turn it is given the text a policy would be given, in either form of the
# block and either wording. It opens the first product listed that it has not opened before (where the block says which), leaves
# it if an option that is asked for is not offered, or words of the sentence are still missing after its features were read, and
# otherwise chooses and buys. With the paper's fields alone it cannot tell one product from another, and buys the first that can
# be paid.

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
