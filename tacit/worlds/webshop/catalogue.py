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
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from itertools import product as combinations
from random import Random
from typing import Any

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.platform import load_bm25s
from tacit.core.tasks import describe_failures

# What is sold: a product as the shop shows it, and what a buyer pays for it.
#
# A price that the catalogue gives as a range is somewhere in it, at a point that a digest of the product's id decides: the same
# on every machine and in every process. (The original draws it anew in each process.)

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


# What is to be bought, and the sentence that asks for it.
#
# A product of the original has one sentence of its own ("Find me easy assemble bar stools with steel frame"); a goal adds one
# choice of options and a price ("with color: red, and size: large, and price lower than 60.00 dollars"). The limit is the
# larger of two of the next four full tens above the price, drawn by a digest of the product's id.

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


# Finds products by words: BM25 as the original's search engine has it, without a JVM.
#
# There it is Lucene through Pyserini with its defaults, which are: words in small letters, without 33 stop words, stemmed by
# Porter's rules; k₁ = 0.9, b = 0.4; the fifty best that share a word with the query. Here it is `bm25s` with Lucene's variant
# of
# the formula; words are cut at everything that is no letter or digit, a possessive 's is dropped. Equal scores are in the order
# of the catalogue.

K1, B = 0.9, 0.4
MOST_HITS = 50
LONGEST_QUERY = 64
"""words that are looked at; no instruction has as many"""
_KEPT = 4096
"""queries whose answers are remembered: the members of a group often ask the same"""
_SEARCH_WORD = re.compile(r"[^\W_]+")
_POSSESSIVE = re.compile(r"[’']s\b")
_STOP_WORDS = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they
this to was will with
"""
_STOP = frozenset(_STOP_WORDS.split())


class Index:
    """An inverted index over texts; immutable once made."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._stemmer = _package("Stemmer", "PyStemmer").Stemmer("porter")
        self._size = len(texts)
        self._bm25 = load_bm25s().BM25(method="lucene", k1=K1, b=B)
        if texts:
            self._bm25.index([self.words(text) or [""] for text in texts], show_progress=False)
        self.find = lru_cache(_KEPT)(self._find)
        """query -> positions of the best texts, best first"""

    def words(self, text: str) -> list[str]:
        """`The women's Blouses` -> women, blous"""
        plain = _POSSESSIVE.sub("", text.lower())
        stems = self._stemmer.stemWords([word for word in _SEARCH_WORD.findall(plain) if word not in _STOP])
        return [stem for stem in stems if stem]  # of `s` Porter's rules leave nothing

    def _find(self, query: str) -> tuple[int, ...]:
        words = self.words(query)[:LONGEST_QUERY]
        if not words or not self._size:
            return ()
        scores = self._bm25.get_scores(words)
        best = np.argsort(-scores, kind="stable")[:MOST_HITS]
        return tuple(int(place) for place in best if scores[place] > 0)


def _package(module: str, name: str) -> Any:
    try:
        return __import__(module)
    except ImportError as error:
        raise TacitError(
            f"the shop's search needs the package {name}, which is not installed: `pip install {name}`."
        ) from error


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
        return text + describe_failures(self.failures)


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
