"""The published catalogue, from the directory (or product file) in WEBSHOP_DATA: products, their attributes and instructions,
and, if available, human instructions and reviews. Unreadable records are reported and skipped."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError, install_command
from tacit.core.registry import path_from_env
from tacit.worlds.webshop.catalogue import Catalogue, Instruction, Product, Review, load_tagger

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
