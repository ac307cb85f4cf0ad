"""The generated shop: 600 products with options, prices and sentences, the same on every machine, so that nothing needs to be
downloaded. Twenty of each kind, each with four of its nine attributes, one of them in the title; descriptions and features name
all four, so what is asked for (the one in the title, and one or two more) can be found out by reading. Prices are whole
dollars."""

from __future__ import annotations

from functools import lru_cache
from random import Random

from tacit.environments.webshop.catalogue import Catalogue, Wanted
from tacit.environments.webshop.product import Product, Review
from tacit.environments.webshop.shelves import BRANDS, KINDS, Kind

NAME = "generated"
VERSION = 1
"""of the catalogue: raised, with the panels' version, whenever it changes"""
OF_EACH = 20
ATTRIBUTES = 4
CHOICES = (3, 5)
"""how many values an option has"""


@lru_cache(1)
def generated() -> Catalogue:
    rng = Random(f"webshop/catalogue/{VERSION}")
    products: list[Product] = []
    wanted: list[Wanted] = []
    for kind in KINDS:
        met: set[frozenset[str]] = set()
        for brand in BRANDS[:OF_EACH]:
            attributes = rng.sample(kind.attributes, ATTRIBUTES)
            while frozenset(attributes) in met:
                attributes = rng.sample(kind.attributes, ATTRIBUTES)
            met.add(frozenset(attributes))
            product = _product(rng, f"B{100 + len(products)}", kind, brand, tuple(attributes))
            asked = [attributes[0], *rng.sample(attributes[1:], rng.choice((1, 2)))]
            rng.shuffle(asked)
            products.append(product)
            wanted.append(Wanted(product.id, _sentence(kind, asked), tuple(asked)))
    return Catalogue(NAME, tuple(products), tuple(wanted))


def _product(rng: Random, number: str, kind: Kind, brand: str, attributes: tuple[str, ...]) -> Product:
    options = {}
    for name, values in kind.options.items():
        chosen = rng.sample(values, rng.randint(CHOICES[0], min(CHOICES[1], len(values))))
        options[name] = tuple(value for value in values if value in chosen)
    low, high = kind.prices
    return Product(
        id=number,
        title=f"{brand} {kind.one.title()}, {attributes[0].title()}",
        query=kind.many,
        family=kind.family,
        path=kind.path,
        pricing=(float(rng.randint(low, high)),),
        description=f"{kind.one.capitalize()} by {brand}: {', '.join(attributes)}.",
        features=attributes,
        options=options,
        attributes=attributes,
        reviews=tuple(_review(rng, attributes) for _ in range(rng.randint(0, 2))),
        rating=str(rng.randint(30, 50) / 10),
    )


def _review(rng: Random, attributes: tuple[str, ...]) -> Review:
    score = rng.randint(1, 5)
    told = rng.choice(attributes)
    return Review("As described" if score > 2 else "Not for me", str(score), f"It says {told}, and it is.")


def _sentence(kind: Kind, asked: list[str]) -> str:
    """`Find me waterproof, easy clean backpacks`"""
    return f"Find me {', '.join(asked)} {kind.many}"
