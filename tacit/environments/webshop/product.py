"""What is sold: a product as the shop shows it, and what a buyer pays for it.

A price that the catalogue gives as a range is somewhere in it, at a point that a digest of the product's id decides: the same
on every machine and in every process. (The original draws it anew in each process.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

UNPRICED = 100.0
"""what a product costs whose record names no price, as in the original"""


@dataclass(frozen=True)
class Review:
    title: str
    score: str
    body: str


@dataclass(frozen=True)
class Product:
    id: str
    title: str
    query: str
    """the kind of thing it is, in the words one would search for: `bar stools`"""
    family: str
    """the department: beauty, electronics, fashion, garden or grocery"""
    path: str
    """its place in the tree of categories, steps parted by ›"""
    pricing: tuple[float, ...] = ()
    """nothing, one price, or the ends of a range"""
    description: str = ""
    features: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """name -> the values one may choose from, in the order they are shown"""
    attributes: tuple[str, ...] = ()
    """what was found to be true of it, in short phrases: what goals ask for"""
    reviews: tuple[Review, ...] = ()
    rating: str = "N.A."

    @property
    def price(self) -> float:
        """What is paid."""
        if len(self.pricing) > 1:
            return Random(f"webshop/price/{self.id}").uniform(*self.pricing[:2])
        return self.pricing[0] if self.pricing else UNPRICED

    @property
    def tag(self) -> str:
        """What is shown: `$19.99`, or `$19.99 to $27.99`."""
        return " to ".join(f"${price}" for price in self.pricing[:2] or (UNPRICED,))

    @property
    def indexed(self) -> str:
        """The text it is found by."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join((self.title, self.description, *self.features[:1], options))
