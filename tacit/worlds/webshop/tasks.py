"""WebShop tasks, and the generated catalogue. Instructions are generated, or written by people in `human_*`.

The `original_*` splits have the original's order, for comparison with published numbers. They share products and sentences, and
in some of their goals even the target product with the requested options scores below 1 (`rectangular` matches the color `tan`,
for example). The other splits omit such goals.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from tacit.core.errors import TacitError, check_split_and_count, unknown
from tacit.core.tasks import parse_panels, shuffle_key
from tacit.core.types import Task
from tacit.worlds.webshop.catalogue import Catalogue, Goal, Instruction, Product, Review
from tacit.worlds.webshop.published import HUMAN_FILE, PUBLISHED, load_published


class Kind(NamedTuple):
    one: str  # singular, as in titles
    many: str  # plural, as in queries
    family: str
    path: str
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    prices: tuple[int, int]


_DEPARTMENTS = tomllib.loads(Path(__file__).with_name("products.toml").read_text(encoding="utf-8"))["departments"]
KINDS = tuple(
    Kind(one, many, of["family"], f"{of['path']} › {many}", tuple(attributes.split(", ")), options, (low, high))
    for of in _DEPARTMENTS
    for options in [{name: tuple(values.split(", ")) for name, values in of["options"].items()}]
    for one, (many, low, high, attributes) in of["kinds"].items()
)
BRANDS = (
    "Norvo", "Alpira", "Kestow", "Bramble", "Ostra", "Fennic", "Marlow", "Tindra", "Quillan", "Sorrel", "Vexley", "Hollin",
    "Arvest", "Dunmore", "Ilsa", "Perrin", "Jorvik", "Calder", "Wistan", "Ember",
)  # fmt: skip
GENERATED = "generated"
VERSION = 1  # increased, together with the panel version, whenever the generated catalogue changes
OF_EACH = 20
ATTRIBUTES = 4
CHOICES = (3, 5)  # minimum and maximum values of an option


@lru_cache(1)
def generated_catalogue() -> Catalogue:
    """600 products, the same on every machine: 20 of each kind, each with four of its kind's nine attributes. One attribute is
    in the title; the description and the features list all four, so they confirm every instruction."""
    rng = Random(f"webshop/catalogue/{VERSION}")
    products: list[Product] = []
    wanted: list[Instruction] = []
    for kind in KINDS:
        used: set[frozenset[str]] = set()
        for brand in BRANDS[:OF_EACH]:
            attributes = rng.sample(kind.attributes, ATTRIBUTES)
            while frozenset(attributes) in used:
                attributes = rng.sample(kind.attributes, ATTRIBUTES)
            used.add(frozenset(attributes))
            product = _product(rng, f"B{100 + len(products)}", kind, brand, tuple(attributes))
            requested = [attributes[0], *rng.sample(attributes[1:], rng.choice((1, 2)))]
            rng.shuffle(requested)
            products.append(product)
            wanted.append(Instruction(product.id, f"Find me {', '.join(requested)} {kind.many}", tuple(requested)))
    return Catalogue(GENERATED, tuple(products), tuple(wanted))


def _product(rng: Random, number: str, kind: Kind, brand: str, attributes: tuple[str, ...]) -> Product:
    options = {}
    for name, values in kind.options.items():
        chosen = rng.sample(values, rng.randint(CHOICES[0], min(CHOICES[1], len(values))))
        options[name] = tuple(value for value in values if value in chosen)
    price, reviews = float(rng.randint(*kind.prices)), []
    for _ in range(rng.randint(0, 2)):
        score, attribute = rng.randint(1, 5), rng.choice(attributes)
        title = "As described" if score > 2 else "Not for me"
        reviews.append(Review(title, str(score), f"It says {attribute}, and it is."))
    return Product(
        id=number,
        title=f"{brand} {kind.one.title()}, {attributes[0].title()}",
        query=kind.many,
        family=kind.family,
        path=kind.path,
        pricing=(price,),
        description=f"{kind.one.capitalize()} by {brand}: {', '.join(attributes)}.",
        features=attributes,
        options=options,
        attributes=attributes,
        reviews=tuple(reviews),
        rating=str(rng.randint(30, 50) / 10),
    )


NAME = "webshop"
FAMILIES = ("beauty", "electronics", "fashion", "garden", "grocery")
_CATALOGUES: Mapping[str, Callable[[], Catalogue]] = {GENERATED: generated_catalogue, PUBLISHED: load_published}
_SOURCES: Mapping[str, tuple[str, bool, bool]] = {
    "train": (GENERATED, False, False),
    "test": (GENERATED, True, False),
    "published_train": (PUBLISHED, False, False),
    "published_test": (PUBLISHED, True, False),
    "human_train": (PUBLISHED, False, True),
    "human_test": (PUBLISHED, True, True),
}  # split -> (catalogue, held out for tests, instructions written by people)
ORIGINAL: Mapping[str, slice] = {
    "original_test": slice(0, 500),
    "original_valid": slice(500, 1500),
    "original_train": slice(1500, None),
}  # split -> slice of the goals in the original's order
SPLITS = (*_SOURCES, *ORIGINAL)


def tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> list[Task]:
    """`count` goals of the split, the same on every machine. With `families`, fewer if there are not enough."""
    check_split_and_count(NAME, SPLITS, split, count)
    name, test, human = _SOURCES.get(split, (PUBLISHED, False, False))
    catalogue, every = _CATALOGUES[name](), set(families) >= set(FAMILIES)
    if split in ORIGINAL:  # test and validation in the original's order; training in a seeded order
        order = catalogue.published_order
        numbered = [n for n in range(len(order))[ORIGINAL[split]] if every or order[n].family in families]
        if split == "original_train":
            numbered.sort(key=lambda n: shuffle_key(seed, str(n)))
        if len(numbered) < count and every:
            raise TacitError(
                f"{count} goals of {split!r} were requested, but the published shop ({catalogue.report}) has {len(numbered)}."
            )
        return [replace(_task(catalogue, order[n], split, seed), id=f"{NAME}/{split}/{n}") for n in numbered[:count]]
    if human and not catalogue.human:
        raise TacitError(
            f"{split!r} needs {HUMAN_FILE} next to the product file, with instructions for its products; WebShop's setup.sh "
            "downloads it. `published_train` and `published_test` do not need it."
        )
    drawn_tasks: list[Task] = []
    for goal in _goals(catalogue, test, human, seed):
        if len(drawn_tasks) == count:
            break
        if (every or goal.family in families) and (name == GENERATED or winnable(catalogue, goal)):
            drawn_tasks.append(_task(catalogue, goal, split, seed))
    if len(drawn_tasks) < count and every:
        raise TacitError(
            f"{count} goals of {split!r} were requested, but the {name} shop ({catalogue.report}) has {len(drawn_tasks)}."
        )
    return drawn_tasks


@lru_cache(65536)
def winnable(catalogue: Catalogue, goal: Goal) -> bool:
    """Whether the target product with the requested options has reward 1."""
    chosen = {name or str(place): value for place, (name, value) in enumerate(goal.options)}
    return catalogue.judge(catalogue.by_id[goal.product], chosen, goal).reward == 1.0


def catalogue_of(task: Task) -> Catalogue:
    """The catalogue of a task. Raises TacitError if it has changed since the task was made."""
    name = task.data["catalogue"]
    if name not in _CATALOGUES:
        raise unknown("catalogue of world 'webshop'", str(name), _CATALOGUES)
    catalogue = _CATALOGUES[name]()
    if catalogue.digest != task.data["digest"]:
        raise TacitError(
            f"task {task.id!r} was made for another {name} catalogue ({task.data['digest']}) than this one "
            f"({catalogue.digest}, {len(catalogue.products)} products): point WEBSHOP_DATA at the files it was made with."
        )
    return catalogue


@lru_cache(8)
def _goals(catalogue: Catalogue, test: bool, human: bool, seed: int) -> tuple[Goal, ...]:
    """All goals of a split in the seed's order, without duplicates."""
    unique = {goal.key: goal for goal in catalogue.goals(test, human)}
    ordered = sorted(unique, key=lambda key: shuffle_key(seed, key))
    return tuple(unique[key] for key in ordered)


def _task(catalogue: Catalogue, goal: Goal, split: str, seed: int) -> Task:
    data = {"catalogue": catalogue.name, "digest": catalogue.digest, "goal": goal.to_data()}
    return Task(NAME, f"{NAME}/{split}/{goal.key}", goal.family, split, seed, goal.sentence, data)


PANELS = parse_panels("""
train  16:7e55a8122bce2801 128:fa10c1e5b8c24dcb 256:0b33ad5fc4ffcb01 512:708b2ca2b6a482f9 1024:68fe03adb550e694
test   16:0afcfe540f2c1953 128:4ca1164a39d8d04d 256:e29aafc7658f649e 512:ae303b7fc25f3840 1024:333f9384ae0babff
""")  # split -> number of tasks -> panel hash
