"""A visit to the shop as somebody would remember it who forgets nothing: a fold over actions and what was then seen.

It knows what the text tells. Which options are chosen no page shows: they are known by the clicks, so the action that was
really taken has to be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tacit.core.types import Observation
from tacit.environments.webshop.instruction import Wish, read_wish, stem, words_of
from tacit.environments.webshop.observed import DETAIL_CLICKS, Seen, read_page


@dataclass(frozen=True)
class Known:
    """What was read of one product."""

    title: str
    prices: tuple[float, ...]
    words: frozenset[str]
    """stems of all that was read of it"""
    options: Mapping[str, tuple[str, ...]] | None = None
    """None before its page was opened"""
    details: frozenset[str] = frozenset()
    """the pages about it that were read"""

    def affordable(self, limit: float | None) -> bool:
        """Whether it may cost no more than that; a range may."""
        return limit is None or min(self.prices, default=0.0) <= limit


@dataclass(frozen=True)
class Visit:
    wish: Wish
    page: Seen
    query: str = ""
    product: str = ""
    """the one that is looked at"""
    chosen: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, Known] = field(default_factory=dict)
    """by id, in the order they were first seen"""
    opened: tuple[str, ...] = ()
    """products whose page was opened, in order"""

    @property
    def wanted(self) -> Mapping[str, str]:
        """The options that are asked for, as far as one can tell here."""
        here = self.known.get(self.product)
        return self.wish.wanted(here.options or {} if here else {})

    @property
    def remaining(self) -> Mapping[str, str]:
        """What is asked for and not chosen; all of it where no product is looked at."""
        return {name: value for name, value in self.wanted.items() if self.chosen.get(name) != value}

    @property
    def ready(self) -> bool:
        """On a product with everything chosen that is asked for."""
        return bool(self.product) and not self.remaining

    def missing(self, product: str) -> tuple[str, ...]:
        """Words of the wish that were not read of a product."""
        words = self.known[product].words if product in self.known else frozenset()
        return tuple(word for word in self.wish.words if stem(word) not in words)


def begin(sentence: str, observation: Observation) -> Visit:
    return Visit(read_wish(sentence), read_page(observation))


def after(visit: Visit, action: str, observation: Observation) -> Visit:
    """The visit after one more action and what was then seen."""
    page, before = read_page(observation), visit.page
    name, _, argument = action.strip().partition("[")
    argument = argument.removesuffix("]").lower()
    known = dict(visit.known)
    for offer in page.offers:
        known.setdefault(offer.id, Known(offer.title, offer.prices, _stems(offer.title)))
    if page.kind in ("search", "results"):
        query = argument.strip() if name == "search" and page.kind == "results" else visit.query
        return replace(visit, page=page, query=query, product="", chosen={}, known=known)
    if page.kind == "item":
        product, chosen, opened = visit.product, visit.chosen, visit.opened
        if before.kind == "results":
            product, chosen = argument, {}
            opened = (*(p for p in opened if p != product), product)
        elif before.kind == "item" and name == "click":
            group = next((g for g, values in reversed(list(page.options.items())) if argument in values), "")
            chosen = {**chosen, group: argument} if group else chosen
        about = known.get(product, Known(page.title, page.prices, frozenset()))
        known[product] = replace(about, words=about.words | _stems(page.title), options=page.options)
        return replace(visit, page=page, product=product, chosen=chosen, known=known, opened=opened)
    if page.kind == "detail" and visit.product in known:
        about = known[visit.product]
        details = about.details | {argument} if argument in DETAIL_CLICKS else about.details
        known[visit.product] = replace(about, words=about.words | _stems(" ".join(page.told)), details=details)
    return replace(visit, page=page, known=known)


def _stems(text: str) -> frozenset[str]:
    return frozenset(stem(word) for word in words_of(text))
