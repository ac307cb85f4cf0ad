"""WebShop's pages in the original text mode: rendering, parsing pages back, and parsing instructions.

Parts of a page are joined by ` [SEP] `:

    search    WebShop, Instruction:, the sentence, Search
    results   Instruction:, the sentence, Back to Search, Page 1 (Total results: 50), [< Prev,] Next >, id, title, price of ten
    item      …, Back to Search, < Prev, each option's name and values, title, Price:, Rating:, Description, Features, Reviews,
              Buy Now
    detail    …, Back to Search, < Prev, and the description, the features, the reviews or the attributes
    done      Thank you for shopping with us!, Your score (min 0.0, max 1.0), the score

As in the original, an item page does not show the chosen options, `Next >` is on every results page, and a click names the
lower-case text of a button. The last page is shorter than the original's, which ends with forms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

from tacit.core.types import Observation
from tacit.worlds.webshop.catalogue import Product

SEPARATOR = " [SEP] "
BACK, PREVIOUS, NEXT, BUY, SEARCH = "Back to Search", "< Prev", "Next >", "Buy Now", "Search"
DETAILS = ("Description", "Features", "Reviews", "Attributes")
PER_PAGE = 10
THANKS, SCORE = "Thank you for shopping with us!", "Your score (min 0.0, max 1.0)"


@dataclass(frozen=True)
class Page:
    """A page's text and its clickable texts, in lower case and display order."""

    text: str
    clickables: tuple[str, ...] = ()
    has_search_bar: bool = False


def search_page(sentence: str) -> Page:
    return Page(_join_parts("WebShop", "Instruction:", sentence, SEARCH), (SEARCH.lower(),), True)


def results_page(sentence: str, found: Sequence[Product], number: int) -> Page:
    shown = found[(number - 1) * PER_PAGE : number * PER_PAGE]
    buttons = (BACK, PREVIOUS, NEXT) if number > 1 else (BACK, NEXT)
    heading = f"Page {number} (Total results: {len(found)})"
    listed = [part for product in shown for part in (product.id, product.title, product.price_tag)]
    text = _join_parts("Instruction:", sentence, BACK, heading, *buttons[1:], *listed)
    return Page(text, _clickable(*buttons, *(product.id for product in shown)))


def item_page(sentence: str, product: Product, attributes: bool) -> Page:
    details = DETAILS if attributes else DETAILS[:3]
    options = [part for name, values in product.options.items() for part in (name, *values)]
    details_shown = (product.title, f"Price: {product.price_tag}", f"Rating: {product.rating}", *details, BUY)
    values = [value for values in product.options.values() for value in values]
    text = _join_parts("Instruction:", sentence, BACK, PREVIOUS, *options, *details_shown)
    return Page(text, (*_clickable(BACK, PREVIOUS, *details, BUY), *dict.fromkeys(values)))


def detail_page(sentence: str, product: Product, detail: str) -> Page:
    texts: list[str] = []
    if detail == "Description":
        texts = [product.description]
    elif detail == "Features":
        texts = list(product.features)
    elif detail == "Reviews":
        texts = [part for review in product.reviews for part in (f'"{review.title}"', review.score, review.body)]
    elif detail == "Attributes":
        texts = [*product.attributes, product.family, product.query, product.path]
    # As in the original, an empty feature is an empty part of the page, and any other empty text is none.
    shown = [text.strip() for text in texts if text.strip() or detail == "Features"]
    text = SEPARATOR.join([_join_parts("Instruction:", sentence, BACK, PREVIOUS), *shown])
    return Page(text, _clickable(BACK, PREVIOUS))


def done_page(score: float) -> Page:
    return Page(_join_parts(THANKS, SCORE, str(score)))


def _clickable(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.lower() for name in names))


def _join_parts(*parts: str) -> str:
    return SEPARATOR.join(part.strip() for part in parts if part.strip())


# Parsing of pages, for the experts, the tracker and the wordings: they see only the observation.

_HEADING = re.compile(r"Page (\d+) \(Total results: (\d+)\)")
_PRICE = re.compile(r"\$([\d.]+)")
_NAMES = """
color, color name, fit type, flavor, flavor name, item shape, material, material type, number of items, pattern, pattern name,
scent, shape, size, size name, style, volume, width
"""
_USUAL_NAMES = frozenset(name.strip() for name in _NAMES.split(","))
"""usual option names, to tell names from values if the clickables are unknown"""


class Offer(NamedTuple):
    """One line of the results."""

    id: str
    title: str
    prices: tuple[float, ...]

    @property
    def lowest(self) -> float:
        return min(self.prices, default=0.0)


@dataclass(frozen=True)
class ParsedPage:
    kind: str  # search, results, item, detail or done
    offers: tuple[Offer, ...] = ()
    number: int = 0  # of the page of results
    total: int = 0
    title: str = ""
    prices: tuple[float, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    texts: tuple[str, ...] = ()  # the text of a detail page or of the done page


@lru_cache(256)
def read_page(observation: Observation) -> ParsedPage:
    clickables = tuple(action[6:-1] for action in observation.actions if action.startswith("click["))
    return read_parts(parts_of(observation.text), clickables)


def parts_of(text: str) -> tuple[str, ...]:
    """The parts of a page below its instruction."""
    parts = text.split(SEPARATOR)
    begin = parts.index("Instruction:") + 2 if "Instruction:" in parts else 0
    return tuple(parts[begin:])


def read_parts(parts: Sequence[str], clickables: Sequence[str] = (), names: Sequence[str] = ()) -> ParsedPage:
    """Parse a page. `names` are additional option names, for prompts that do not list the clickables."""
    if parts and parts[0] == THANKS:
        return ParsedPage("done", texts=tuple(parts))
    if not parts or parts[0] != BACK:
        return ParsedPage("search")
    heading = _HEADING.fullmatch(parts[1]) if len(parts) > 1 else None
    if heading:
        return ParsedPage("results", tuple(_offers(parts[2:])), int(heading[1]), int(heading[2]))
    below = [part for part in parts[1:] if part != PREVIOUS]
    if parts[-1] == BUY:
        return _item(below, clickables, {*_USUAL_NAMES, *names})
    return ParsedPage("detail", texts=tuple(below))


def parse_prices(text: str) -> tuple[float, ...]:
    return tuple(float(price.rstrip(".")) for price in _PRICE.findall(text) if price.strip("."))


def _offers(parts: Sequence[str]) -> list[Offer]:
    """The listed products; each ends with its price."""
    found: list[Offer] = []
    line: list[str] = []
    for part in parts:
        if not line and part in (PREVIOUS, "Next >"):
            continue
        line.append(part)
        if len(line) > 1 and part.startswith("$"):
            found.append(Offer(line[0].lower(), " ".join(line[1:-1]), parse_prices(part)))
            line = []
    return found


def _item(parts: Sequence[str], clickables: Sequence[str], names: set[str]) -> ParsedPage:
    place = next((n for n, part in enumerate(parts) if part.startswith("Price: ")), 0)
    options: dict[str, list[str]] = {}
    for part in parts[: max(place - 1, 0)]:
        if part not in clickables if clickables else part in names or not options:
            options[part] = []
        elif options:
            options[next(reversed(options))].append(part)
    title = parts[place - 1] if place else ""
    shown = {name: tuple(values) for name, values in options.items()}
    return ParsedPage("item", title=title, prices=parse_prices(parts[place]) if place else (), options=shown)


DETAIL_CLICKS = tuple(name.lower() for name in DETAILS)


# Parsing of instructions:
#
# Find me easy clean backpacks with color: navy, and size: large, and price lower than 40.00 dollars
#         thing --------------      options ---------------------                      limit

MAX_REQUEST = 4000  # characters of a sentence; those of WebShop have up to 500
_PRICE_WORDS = re.compile(r"[, ]{0,20}(?:and )?price lower than \$?([\d.]+) dollars?\s*$", re.I)
_OPTION = re.compile(r"((?:(?! with )[^:,])+): (.+)")
_BEGINNING = re.compile(r"^(?:find|get|show|buy) (?:me )?", re.I)
_PARTING = re.compile(r", (?:and )?| with | for | and ")
_WORD = re.compile(r"[^\W_]+")
_SAYING_NOTHING = """
a an and are as at be by for from i in is it like looking me my need of on or some that the this to want with
would
"""
_EMPTY = frozenset(_SAYING_NOTHING.split())


@dataclass(frozen=True)
class ShoppingRequest:
    thing: str  # the sentence without options and price
    options: Mapping[str, str]  # name -> value, if the sentence names them
    limit: float | None

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The content words, in order."""
        return tuple(dict.fromkeys(word for word in split_words(self.thing) if word not in _EMPTY))

    @property
    def parts(self) -> tuple[str, ...]:
        """The whole phrase and each of its pieces."""
        pieces = [piece.strip() for piece in _PARTING.split(self.thing)]
        return tuple(dict.fromkeys(piece for piece in (self.thing, *pieces) if piece))

    def wanted(self, offered: Mapping[str, tuple[str, ...]]) -> Mapping[str, str]:
        """The requested value of each offered option: as named in the sentence, else the longest value it mentions."""
        if self.options:
            return self.options
        text = f" {' '.join(split_words(self.thing))} "
        found = {}
        for name, values in offered.items():
            mentioned = [value for value in values if f" {' '.join(split_words(value))} " in text and split_words(value)]
            if mentioned:
                found[name] = max(mentioned, key=len)
        return found


@lru_cache(256)
def parse_request(sentence: str) -> ShoppingRequest:
    sentence = sentence[:MAX_REQUEST]
    price = _PRICE_WORDS.search(sentence)
    rest = sentence[: price.start()] if price else sentence
    thing, options = _options(rest)
    return ShoppingRequest(_BEGINNING.sub("", thing).strip(), options, _number(price[1]) if price else None)


def split_words(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("'s", "").replace("’s", ""))


def stem(word: str) -> str:
    """A minimal stemmer: `backpacks` -> `backpack`."""
    if word.endswith("ves") and len(word) > 4:
        return word[:-3] + "f"
    if word.endswith(("xes", "ches", "shes", "sses")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 3 else word


def _options(sentence: str) -> tuple[str, dict[str, str]]:
    """Split ` with name: value, and name: value` off the end."""
    for match in re.finditer(r" with ", sentence):
        pieces = sentence[match.end() :].split(", and ")
        named = [_OPTION.fullmatch(piece) for piece in pieces]
        if named[0] is None:
            continue
        options: dict[str, str] = {}
        last = ""
        for piece, option in zip(pieces, named, strict=True):
            if option is None:  # a value that contains the separator
                options[last] += f", and {piece}"
            else:
                last = option[1].strip()
                options[last] = option[2].strip()
        return sentence[: match.start()], options
    return sentence, {}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
