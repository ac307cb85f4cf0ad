"""The pages of the shop as the original's text mode tells them, parts joined by ` [SEP] `, and what can be clicked on each.

    search    WebShop, Instruction:, the sentence, Search
    results   Instruction:, the sentence, Back to Search, Page 1 (Total results: 50), [< Prev,] Next >, id, title, price of ten
    item      …, Back to Search, < Prev, each option's name and values, title, Price:, Rating:, Description, Features, Reviews,
              Buy Now
    detail    …, Back to Search, < Prev, and the description, the features, the reviews or the attributes
    done      Thank you for shopping with us!, Your score (min 0.0, max 1.0), the score

As there, the text of an item does not show which options are chosen, `Next >` is on every page of results, and a click is told
by what is written on the thing, in small letters. The last page is shorter than the original's, which ends with forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.environments.webshop.product import Product

SEPARATOR = " [SEP] "
BACK, PREVIOUS, NEXT, BUY, SEARCH = "Back to Search", "< Prev", "Next >", "Buy Now", "Search"
DETAILS = ("Description", "Features", "Reviews", "Attributes")
PER_PAGE = 10
THANKS, SCORE = "Thank you for shopping with us!", "Your score (min 0.0, max 1.0)"


@dataclass(frozen=True)
class Page:
    """What is seen, and what can be clicked, by the text on it in small letters, in the order in which it is listed."""

    text: str
    clickables: tuple[str, ...] = ()
    has_search_bar: bool = False


def search_page(sentence: str) -> Page:
    return Page(_joined("WebShop", "Instruction:", sentence, SEARCH), (SEARCH.lower(),), True)


def results_page(sentence: str, found: Sequence[Product], number: int) -> Page:
    shown = found[(number - 1) * PER_PAGE : number * PER_PAGE]
    buttons = (BACK, PREVIOUS, NEXT) if number > 1 else (BACK, NEXT)
    heading = f"Page {number} (Total results: {len(found)})"
    listed = [part for product in shown for part in (product.id, product.title, product.tag)]
    text = _joined("Instruction:", sentence, BACK, heading, *buttons[1:], *listed)
    return Page(text, _clickable(*buttons, *(product.id for product in shown)))


def item_page(sentence: str, product: Product, attributes: bool) -> Page:
    details = DETAILS if attributes else DETAILS[:3]
    options = [part for name, values in product.options.items() for part in (name, *values)]
    told = (product.title, f"Price: {product.tag}", f"Rating: {product.rating}", *details, BUY)
    values = [value for values in product.options.values() for value in values]
    text = _joined("Instruction:", sentence, BACK, PREVIOUS, *options, *told)
    return Page(text, (*_clickable(BACK, PREVIOUS, *details, BUY), *dict.fromkeys(values)))


def detail_page(sentence: str, product: Product, detail: str) -> Page:
    told: list[str] = []
    if detail == "Description":
        told = [product.description]
    elif detail == "Features":
        told = list(product.features)
    elif detail == "Reviews":
        told = [part for review in product.reviews for part in (f'"{review.title}"', review.score, review.body)]
    elif detail == "Attributes":
        told = [*product.attributes, product.family, product.query, product.path]
    return Page(_joined("Instruction:", sentence, BACK, PREVIOUS, *told), _clickable(BACK, PREVIOUS))


def done_page(score: float) -> Page:
    return Page(_joined(THANKS, SCORE, str(score)))


def _clickable(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.lower() for name in names))


def _joined(*parts: str) -> str:
    return SEPARATOR.join(part.strip() for part in parts if part.strip())
