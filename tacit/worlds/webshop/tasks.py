"""WebShop tasks, and the generated catalogue. Instructions are generated, or written by people in `human_*`.

The `original_*` splits have the original's order, for comparison with published numbers. They share products and sentences, and
in some of their goals even the target product with the requested options scores below 1 (`rectangular` matches the color `tan`,
for example). The other splits omit such goals.
"""

from __future__ import annotations

import json
import logging
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tacit.core.errors import TacitError, check_split_and_count, install_command, unknown
from tacit.core.registry import path_from_env
from tacit.core.tasks import parse_panels, shuffle_key
from tacit.core.types import Task
from tacit.worlds.webshop.catalogue import Catalogue, Goal, Instruction, Product, Review, load_tagger

# The published catalogue, from the directory (or product file) in WEBSHOP_DATA: products, their attributes and instructions,
# and, if available, human instructions and reviews. Unreadable records are reported and skipped.

DATA_VARIABLE = "WEBSHOP_DATA"
PUBLISHED = "published"
HUMAN_FILE = "items_human_ins.json"
NO_TAGGER = (
    "WebShop: spaCy's tagger is not installed, so nouns are guessed from word lists: r_type of a wrong product is off in about "
    f"6% of purchases, success in 1 of 6,000. {install_command('webshop')} installs it."
)
LONGEST_ID = 10
_PRODUCTS = ("items_shuffle_1000.json", "items_shuffle.json", "products_*.json")
_ATTRIBUTES = {"items_shuffle.json": "items_ins_v2.json"}
_USUAL_ATTRIBUTES = "items_ins_v2_1000.json"
_NO_DIGIT = re.compile(r"[^\d.]")
_log = logging.getLogger(__name__)


MISSING = (
    f"WebShop's products not found: set {DATA_VARIABLE} to the directory with items_shuffle_1000.json and "
    "items_ins_v2_1000.json (the data folder that WebShop's setup.sh fills), or use a generated split."
)


def load_published() -> Catalogue:
    return load_catalogue(str(path_from_env(DATA_VARIABLE, MISSING)))


@lru_cache(2)
def load_catalogue(source: str) -> Catalogue:
    file = Path(source)
    if file.is_dir():
        found_file = next((products for pattern in _PRODUCTS for products in sorted(file.glob(pattern))), None)
        if found_file is None:
            raise TacitError(
                f"{source} holds no products: none of {', '.join(_PRODUCTS)}. WebShop's setup.sh (`-d small`, `-d all`) "
                "downloads them."
            )
        file = found_file
    elif not file.is_file():
        raise TacitError(f"no such file or directory: {source} (set by {DATA_VARIABLE}).")
    folder = file.parent
    attributes = _mapping(folder / _ATTRIBUTES.get(file.name, _USUAL_ATTRIBUTES))
    people = _mapping(folder / HUMAN_FILE) if (folder / HUMAN_FILE).exists() else {}
    rated = _read(folder / "reviews.json", list) if (folder / "reviews.json").exists() else []
    reviews = {str(row["asin"]): row for row in rated if isinstance(row, dict) and "asin" in row}
    failures: list[str] = []
    products: dict[str, Product] = {}
    left_out = 0
    for place, record in enumerate(_read(file, list), 1):
        where = f"{file}, product {place}"
        try:
            if not isinstance(record, dict):
                raise TypeError(f"a product is a JSON object, not {type(record).__name__}")
            asin = str(record["asin"])
            if asin in products or asin == "nan" or len(asin) > LONGEST_ID:
                left_out += 1
                continue
            where += f" ({asin})"
            products[asin] = read_product(record, attributes.get(asin, {}), reviews.get(asin, {}))
        except KeyError as error:
            failures.append(f"{where}: it has no {error}.")
        except (TypeError, ValueError, AttributeError) as error:
            failures.append(f"{where}: {error}.")
    if not products:
        raise TacitError(f"{file} has no readable product. {failures[0] if failures else 'It is empty.'}")
    synthetic, human = [], []
    for asin in products:
        about = attributes.get(asin) or {}
        sentence, counted = about.get("instruction"), about.get("instruction_attributes")
        if sentence and counted:
            synthetic.append(Instruction(asin, str(sentence), tuple(map(str, counted))))
        elif sentence:
            failures.append(f"the sentence of product {asin} has no instruction_attributes: {sentence!r}.")
    for asin in products:
        for place, record in enumerate(people.get(asin) or (), 1):
            try:
                lists = [tuple(map(str, record[f"instruction_{name}"])) for name in ("attributes", "options")]
                if lists[0]:
                    human.append(Instruction(asin, str(record["instruction"]), *lists))
            except (KeyError, TypeError) as error:
                failures.append(f"{HUMAN_FILE}, sentence {place} of product {asin}: {error!r} is missing or not a list.")
    catalogue = Catalogue(PUBLISHED, tuple(products.values()), synthetic, human, tuple(failures), left_out, load_tagger())
    if failures:
        _log.warning("%s: %s", file, catalogue.report)
    if catalogue.tagger is None:
        _log.warning("%s", NO_TAGGER)
    return catalogue


def read_product(record: Mapping[str, Any], about: Mapping[str, Any], reviewed: Mapping[str, Any]) -> Product:
    """A product from a record of the original files. Raises KeyError, TypeError or ValueError if it is malformed."""
    features = record["small_description"] or []
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in (record["customization_options"] or {}).items():
        if contents is not None:
            values = (str(content["value"]).strip().replace("/", " | ").lower() for content in contents)
            options[name.lower()] = tuple(values)
    prices = tuple(float(_NO_DIGIT.sub("", price)) for price in (record.get("pricing") or "").split("$")[1:])  # $19.99$27.99
    reviews = [
        Review(str(review.get("title", "")), str(review.get("score", review.get("stars", ""))), str(review.get("review", "")))
        for review in reviewed.get("reviews") or ()
    ]
    return Product(
        id=_text(record, "asin"),
        title=_text(record, "name"),
        query=_text(record, "query").lower().strip(),
        family=_text(record, "category"),
        path=_text(record, "product_category"),
        pricing=prices[:2],
        description=_text(record, "full_description"),
        features=tuple(map(str, features)) if isinstance(features, list) else (str(features),),
        options=options,
        attributes=tuple(map(str, about.get("attributes") or ())),
        reviews=tuple(reviews),
        rating=str(reviewed.get("average_rating") or "N.A."),
    )


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record[key]
    if value is not None and not isinstance(value, str):
        raise TypeError(f"its {key!r} is a {type(value).__name__}, not a string")
    return value or ""


def _mapping(file: Path) -> Mapping[str, Any]:
    if not file.exists():
        raise TacitError(
            f"{file} is missing: it contains the attributes and sentences of the products. WebShop's setup.sh downloads it."
        )
    return {asin: about for asin, about in _read(file, dict).items() if isinstance(about, dict | list)}


def _read(file: Path, kind: type) -> Any:
    """Load a JSON file with a list of records, or an object from product ids to records. Raises TacitError otherwise."""
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TacitError(f"{file} cannot be read as JSON (truncated, or not such a file?): {error}.") from error
    if not isinstance(loaded, kind):
        raise TacitError(
            f"{file} should be a JSON list, but is a {type(loaded).__name__}."
            if kind is list
            else f"{file} should be a JSON object with product ids as keys."
        )
    return loaded


# Tasks and the generated catalogue.


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
