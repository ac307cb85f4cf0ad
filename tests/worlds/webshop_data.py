"""Writes small WebShop catalogues to disk in the original's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def record(asin: str, name: str = "Acme Steel Bar Stool", **changed: Any) -> dict[str, Any]:
    """A product record as in the original's files."""
    return {
        "asin": asin,
        "name": name,
        "query": "Bar Stools",
        "category": "garden",
        "product_category": "Home › Furniture › Bar Stools",
        "pricing": "$40.00",
        "full_description": "A stool.",
        "small_description": ["Easy to assemble", "With a steel frame"],
        "customization_options": {"Color": [{"value": "Red"}, {"value": "Light Blue"}], "Size": None},
        **changed,
    }


def about(*attributes: str) -> dict[str, Any]:
    sentence = f"Find me {', '.join(attributes)} bar stools"
    return {"attributes": list(attributes), "instruction": sentence, "instruction_attributes": list(attributes)}


def write_shop(folder: Path, products: list[Any], known: dict[str, Any], **others: Any) -> Path:
    files = {"items_shuffle_1000": products, "items_ins_v2_1000": known, **others}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
