"""What is to be bought, and the sentence that asks for it.

A product of the original has one sentence of its own ("Find me easy assemble bar stools with steel frame"); a goal adds one
choice of options and a price ("with color: red, and size: large, and price lower than 60.00 dollars"). The limit is the larger
of two of the next four full tens above the price, drawn by a digest of the product's id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product as combinations
from random import Random
from typing import Any

from tacit.environments.webshop.product import Product

NO_LIMIT = 1_000_000.0
TENS = tuple(10.0 * n for n in range(1, 100))


@dataclass(frozen=True)
class Goal:
    product: str
    """the id of one product that is right; others may be as good"""
    family: str
    sentence: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    """(name, value), the name empty where people said the value alone"""
    limit: float
    query: str
    path: str
    title: str

    @property
    def key(self) -> str:
        """What is unchangeable about it: the product, the sentence, the options."""
        told = json.dumps([self.product, self.sentence, self.options], ensure_ascii=False)
        return f"{self.product}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"

    def to_data(self) -> dict[str, Any]:
        return {**asdict(self), "attributes": list(self.attributes), "options": [list(pair) for pair in self.options]}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Goal:
        attributes = tuple(str(attribute) for attribute in data["attributes"])
        options = tuple((str(name), str(value)) for name, value in data["options"])
        return Goal(**{**data, "attributes": attributes, "options": options, "limit": float(data["limit"])})


def synthetic_goals(product: Product, sentence: str, attributes: Sequence[str]) -> Iterator[Goal]:
    """One for each choice of options."""
    limit = price_limit(product.price, Random(f"webshop/limit/{product.id}"))
    names = sorted(product.options)
    for values in combinations(*(product.options[name] for name in names)):
        options = tuple(zip(names, values, strict=True))
        yield _goal(product, sentence + told_options(options), attributes, options, limit)


def human_goal(product: Product, sentence: str, attributes: Sequence[str], values: Sequence[str]) -> Goal:
    limit = price_limit(product.price, Random(f"webshop/limit/{product.id}/{sentence}"))
    return _goal(product, sentence.strip("."), attributes, tuple(("", value) for value in values), limit)


def price_limit(price: float, rng: Random) -> float:
    """A full ten above the price, NO_LIMIT where fewer than two of them are left."""
    above = [ten for ten in TENS if ten > price][:4]
    return max(rng.sample(above, 2)) if len(above) >= 2 else NO_LIMIT


def told_options(options: Sequence[tuple[str, str]]) -> str:
    return f" with {', and '.join(f'{name}: {value}' for name, value in options)}" if options else ""


def _goal(
    product: Product, sentence: str, attributes: Sequence[str], options: tuple[tuple[str, str], ...], limit: float
) -> Goal:
    price = f", and price lower than {limit:.2f} dollars" if limit < NO_LIMIT else ""
    return Goal(
        product=product.id,
        family=product.family,
        sentence=sentence + price,
        attributes=tuple(attributes),
        options=options,
        limit=limit,
        query=product.query,
        path=product.path,
        title=product.title,
    )
