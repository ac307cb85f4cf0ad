"""Everything the shop sells and everything one may be asked to buy there; which split a goal is in.

Goals are held out by what they are about: products that share a sentence, and sentences that share a product, belong together,
and a digest of the smallest sentence among them decides the split for all. So no product of `test` is asked for in `train`, and
no sentence of `test` asks there, whatever the order and the seed. The shop is one: what is asked for in `test` stands on the
pages of results that are read in `train`, and can be bought there, wrongly.

What people wrote moves nothing: sentences made from attributes decide for the products that have them, whether
items_human_ins.json lies beside the products or not. A person's sentence about products of both sides is for tests alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tacit.environments.webshop.goals import Goal, human_goal, synthetic_goals
from tacit.environments.webshop.product import Product
from tacit.environments.webshop.search import Index

HELD_OUT = 20
"""per cent of what belongs together that is for tests"""


@dataclass(frozen=True)
class Wanted:
    """A sentence that asks for one product, and what of it counts."""

    product: str
    sentence: str
    attributes: tuple[str, ...]
    values: tuple[str, ...] = ()
    """the options that people said; a sentence made from a product's attributes gets all choices of its options instead"""


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Immutable, and shared by all worlds of a process."""

    name: str
    products: Sequence[Product]
    synthetic: Sequence[Wanted] = ()
    human: Sequence[Wanted] = ()
    failures: tuple[str, ...] = ()
    """`file, product n: why`, one for each that could not be read"""
    left_out: int = 0
    """records without a proper id, or with one that was there before"""

    @cached_property
    def by_id(self) -> Mapping[str, Product]:
        return {product.id: product for product in self.products}

    @cached_property
    def index(self) -> Index:
        return Index([product.indexed.lower() for product in self.products])

    @cached_property
    def digest(self) -> str:
        """Of what is sold: a task is only what it says in the shop it was made for."""
        told = "\n".join(f"{p.id} {p.title} {p.pricing} {sorted(p.options.items())}" for p in self.products)
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    @cached_property
    def tested(self) -> frozenset[str]:
        """The ids of the products that are for tests."""
        decided = {wanted.product for wanted in self.synthetic}
        others = [wanted for wanted in self.human if wanted.product not in decided]
        return frozenset((*_held_out(self.synthetic), *_held_out(others)))

    @cached_property
    def _tested_sentences(self) -> frozenset[str]:
        return frozenset(wanted.sentence for wanted in self.human if wanted.product in self.tested)

    def search(self, query: str) -> list[Product]:
        return [self.products[place] for place in self.index.find(query)]

    def goals(self, test: bool, human: bool = False) -> Iterator[Goal]:
        """In the order of the catalogue."""
        for wanted in self.human if human else self.synthetic:
            if (wanted.product in self.tested) != test or (human and not test and wanted.sentence in self._tested_sentences):
                continue
            product = self.by_id[wanted.product]
            if human:
                yield human_goal(product, wanted.sentence, wanted.attributes, wanted.values)
            else:
                yield from synthetic_goals(product, wanted.sentence, wanted.attributes)

    @property
    def report(self) -> str:
        text = f"{len(self.products)} products"
        if self.left_out:
            text += f", {self.left_out} left out (no proper id, or one that was there before)"
        if self.failures:
            shown = "\n".join(f"  {failure}" for failure in self.failures[:5])
            more = f"\n  … and {len(self.failures) - 5} more" if len(self.failures) > 5 else ""
            text += f", {len(self.failures)} could not be read:\n{shown}{more}"
        return text


def _held_out(wanted: Iterable[Wanted]) -> Iterator[str]:
    """Products whose part of the catalogue is for tests."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    products = []
    for want in wanted:
        # Sentences sort before products, so that the smallest name of a part is one.
        first, second = root(f"0 {want.sentence}"), root(f"1 {want.product}")
        parent[max(first, second)] = min(first, second)
        products.append(want.product)
    for product in dict.fromkeys(products):
        share = int.from_bytes(hashlib.sha256(root(f"1 {product}").encode()).digest()[:4], "big") % 100
        if share < HELD_OUT:
            yield product
