"""WebShop's text mode in plain Python: pages, parsing of pages and instructions, the world, and its wordings.

`search` and `click` must be lower case; the text in brackets may have any case. Any other action returns the same page. The
hidden queries `<r>`, `<a>`, `<c>` and `<q>` are not supported. As in the original, ` [SEP] ` joins the parts of a page, an item
page does not show the chosen options, and `Next >` is on every results page. The last page is shorter than the original's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

from tacit.core.errors import TacitError
from tacit.core.types import ActionStyle, Observation, Task, Transition
from tacit.core.world import Brief, StepCountWording
from tacit.worlds.webshop.catalogue import Catalogue, Goal, Product
from tacit.worlds.webshop.tasks import catalogue_of

SEPARATOR = " [SEP] "
BACK, PREVIOUS, NEXT, BUY, SEARCH = "Back to Search", "< Prev", "Next >", "Buy Now", "Search"
DETAILS = ("Description", "Features", "Reviews", "Attributes")
PER_PAGE = 10
THANKS, SCORE = "Thank you for shopping with us!", "Your score (min 0.0, max 1.0)"


@dataclass(frozen=True)
class Page:
    text: str
    clickables: tuple[str, ...] = ()  # in lower case and display order
    has_search_bar: bool = False


def detail_page(sentence: str, product: Product, detail: str) -> Page:
    texts = [part for review in product.reviews for part in (f'"{review.title}"', review.score, review.body)]
    if detail != "Reviews":
        texts = [product.description] if detail == "Description" else list(product.features)
    # As in the original, empty features are empty parts of the page; other empty texts are omitted.
    parts = [text.strip() for text in texts if text.strip() or detail == "Features"]
    text = SEPARATOR.join([_join_parts("Instruction:", sentence, BACK, PREVIOUS), *parts])
    return Page(text, _clickable(BACK, PREVIOUS))


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
"""common option names, to distinguish names from values if the clickables are unknown"""


class Offer(NamedTuple):
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
    number: int = 0  # number of the results page
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
        offers, line = list[Offer](), list[str]()
        for part in parts[2:]:  # the listed products; each ends with its price
            if line or part not in (PREVIOUS, NEXT):
                line.append(part)
            if len(line) > 1 and part.startswith("$"):
                offers.append(Offer(line[0].lower(), " ".join(line[1:-1]), _prices(part)))
                line = []
        return ParsedPage("results", tuple(offers), int(heading[1]), int(heading[2]))
    below = [part for part in parts[1:] if part != PREVIOUS]
    if parts[-1] != BUY:
        return ParsedPage("detail", texts=tuple(below))
    place = next((n for n, part in enumerate(below) if part.startswith("Price: ")), 0)
    options: dict[str, list[str]] = {}
    for part in below[: max(place - 1, 0)]:
        if part not in clickables if clickables else part in (*_USUAL_NAMES, *names) or not options:
            options[part] = []
        elif options:
            options[next(reversed(options))].append(part)
    values_by_option = {name: tuple(values) for name, values in options.items()}
    title, prices = (below[place - 1], _prices(below[place])) if place else ("", ())
    return ParsedPage("item", title=title, prices=prices, options=values_by_option)


def _prices(text: str) -> tuple[float, ...]:
    return tuple(float(price.rstrip(".")) for price in _PRICE.findall(text) if price.strip("."))


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
_SAYING_NOTHING = """a an and are as at be by for from i in is it like looking me my need of on or some that the this to want
with would"""
_EMPTY = frozenset(_SAYING_NOTHING.split())


@dataclass(frozen=True)
class ShoppingRequest:
    thing: str  # the sentence without options and price
    options: Mapping[str, str]  # name -> value, if the sentence names them
    limit: float | None

    @cached_property
    def words(self) -> tuple[str, ...]:
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
        requested = {}
        for name, values in offered.items():
            mentioned = [value for value in values if f" {' '.join(split_words(value))} " in text and split_words(value)]
            if mentioned:
                requested[name] = max(mentioned, key=len)
        return requested


@lru_cache(256)
def parse_request(sentence: str) -> ShoppingRequest:
    sentence = sentence[:MAX_REQUEST]
    price = _PRICE_WORDS.search(sentence)
    thing, options = sentence[: price.start()] if price else sentence, dict[str, str]()
    for match in re.finditer(r" with ", thing):  # split ` with name: value, and name: value` off the end
        pieces = thing[match.end() :].split(", and ")
        named = [_OPTION.fullmatch(piece) for piece in pieces]
        if named[0] is None:
            continue
        last = ""
        for piece, option in zip(pieces, named, strict=True):
            if option is None:  # a value that contains the separator
                options[last] += f", and {piece}"
            else:
                last = option[1].strip()
                options[last] = option[2].strip()
        thing = thing[: match.start()]
        break
    number = price is not None and re.fullmatch(r"\d+\.?\d*|\.\d+", price[1])  # the pattern also matches invalid numbers: 1.2.3
    return ShoppingRequest(_BEGINNING.sub("", thing).strip(), options, float(number[0]) if number else None)


def split_words(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("'s", "").replace("’s", ""))


def stem(word: str) -> str:
    """A minimal stemmer: `backpacks` -> `backpack`."""
    if word.endswith("ves") and len(word) > 4:
        return word[:-3] + "f"
    if word.endswith(("xes", "ches", "shes", "sses")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 3 else word


MAX_STEPS = 15
LONGEST_ACTION = 4000  # further characters of an action are ignored
WRONG_TYPE, WRONG_PRODUCT, WRONG_OPTIONS, TOO_EXPENSIVE = "wrong_type", "wrong_product", "wrong_options", "too_expensive"
_DETAILS = {name.lower(): name for name in DETAILS}


class WebShop:
    page, _searches, _detail = Page(""), tuple[str, ...](), ""
    catalogue: Catalogue
    goal: Goal
    _playing = False
    _product: Product | None = None
    _number = 0  # number of the results page, 0 before the first search

    def __init__(self) -> None:
        self._found, self.chosen = list[Product](), dict[str, str]()

    def reset(self, task: Task) -> Observation:
        try:
            self.goal, self.catalogue = Goal.from_data(task.data["goal"]), catalogue_of(task)
        except (KeyError, TypeError, ValueError) as error:
            raise TacitError(f"task {task.id!r} is not a WebShop task: {error!r}. Create tasks with `tasks`.") from error
        self._searches = tuple(f"search[{part}]" for part in parse_request(self.goal.sentence).parts)
        self._found, self._playing = [], True
        self._open_search()
        return self._observe()

    def step(self, action: str) -> Transition:
        if not self._playing:
            raise TacitError("no episode has been started: call reset(task) first.")
        name, argument = parse_action(action)
        if name == "search":
            self._found, self._number = self.catalogue.search(argument.lower()), 1
            self._open_results()
        elif name == "click" and argument.lower() in self.page.clickables and not self.page.has_search_bar:
            clicked = argument.lower()
            if clicked == BUY.lower() and self._product is not None and not self._detail:
                return self._buy(self._product)
            self._click(clicked)
        else:
            return Transition(self._observe(), effective=False)
        return Transition(self._observe())

    def close(self) -> None:
        self._playing = False

    def _click(self, clicked: str) -> None:
        if clicked == BACK.lower():
            self._open_search()
        elif self._product is None:
            if clicked in (NEXT.lower(), PREVIOUS.lower()):
                self._number += 1 if clicked == NEXT.lower() else -1
                self._open_results()
            else:
                self._open_item(next(product for product in self._found if product.id.lower() == clicked))
        elif self._detail:
            self._open_item(self._product, self.chosen)
        elif clicked == PREVIOUS.lower():
            self._open_results()
        elif clicked in _DETAILS:
            self._detail = _DETAILS[clicked]
            self.page = detail_page(self.goal.sentence, self._product, self._detail)
        else:
            # If two options have the value, the later one is chosen, as in the original.
            name = next(name for name, values in reversed(list(self._product.options.items())) if clicked in values)
            self.chosen[name] = clicked

    def _open_search(self) -> None:
        self._product, self._detail, self.chosen, self._number = None, "", {}, 0
        self.page = Page(_join_parts("WebShop", "Instruction:", self.goal.sentence, SEARCH), (SEARCH.lower(),), True)

    def _open_results(self) -> None:
        self._product, self._detail, self.chosen, number = None, "", {}, self._number
        products = self._found[(number - 1) * PER_PAGE : number * PER_PAGE]
        buttons = (BACK, PREVIOUS, NEXT) if number > 1 else (BACK, NEXT)
        heading = f"Page {number} (Total results: {len(self._found)})"
        listed = [part for product in products for part in (product.id, product.title, product.price_tag)]
        text = _join_parts("Instruction:", self.goal.sentence, BACK, heading, *buttons[1:], *listed)
        self.page = Page(text, _clickable(*buttons, *(product.id for product in products)))

    def _open_item(self, product: Product, chosen: dict[str, str] | None = None) -> None:
        self._product, self._detail, self.chosen = product, "", chosen or {}
        details = DETAILS[:3]  # the original omits the attributes by default
        options = [part for name, values in product.options.items() for part in (name, *values)]
        about = (product.title, f"Price: {product.price_tag}", f"Rating: {product.rating}", *details, BUY)
        text = _join_parts("Instruction:", self.goal.sentence, BACK, PREVIOUS, *options, *about)
        values = dict.fromkeys(value for values in product.options.values() for value in values)
        self.page = Page(text, (*_clickable(BACK, PREVIOUS, *details, BUY), *values))

    def _buy(self, product: Product) -> Transition:
        verdict = self.catalogue.judge(product, self.chosen, self.goal)
        score = verdict.reward
        self.page = Page(_join_parts(THANKS, SCORE, str(score)))
        label = ""  # what was wrong; the worst error if there are several
        if score != 1.0:
            label = WRONG_OPTIONS if verdict.options < len(self.goal.options) else TOO_EXPENSIVE
            label = WRONG_PRODUCT if verdict.attributes < len(self.goal.attributes) else label
            label = WRONG_TYPE if verdict.kind < 1 else label
        parts = {f"score.{name}": share for name, share in verdict.parts.items()}
        return Transition(Observation(self.page.text), True, score == 1.0, score, label=label, signals=parts)

    def _observe(self) -> Observation:
        if self.page.has_search_bar:
            return Observation(self.page.text, self._searches)
        return Observation(self.page.text, tuple(f"click[{text}]" for text in self.page.clickables))


def parse_action(action: str) -> tuple[str, str]:
    """`search[red shoes]` -> search, red shoes; two empty strings for an invalid action. Values may contain brackets.

    As in the original, only the first line counts, up to its last bracket, and a leading blank is refused.
    """
    name, _, rest = action[:LONGEST_ACTION].partition("\n")[0].partition("[")
    argument = rest[: max(0, rest.rfind("]"))]
    return (name, argument) if argument else ("", "")


ANY_SEARCH = "search[<your query>]"


class FullWording(StepCountWording):
    end = "."

    def task(self, task: Task) -> str:
        return (
            "You are an expert autonomous agent operating in the WebShop e-commerce environment.\n"
            f"Your task is to: {task.goal}."
        )

    def describe(self, observation: Observation) -> str:
        """The parts of the page, each in quotes."""
        return SEPARATOR.join(f"'{part}'" for part in parts_of(observation.text))

    def list_actions(self, observation: Observation) -> str:
        actions = "\n".join(f"'{action}'," for action in _listed_actions(observation))
        return f"\nYour admissible actions of the current situation are:\n[\n{actions}\n]."

    def request(self, style: ActionStyle) -> str:
        if style == "bare":
            return (
                "Now it's your turn to take one action for the current step: search[words] or click[text]. Answer with the "
                "action alone."
            )
        return (
            "Now it's your turn to take one action for the current step.\n"
            "You should first reason step-by-step about the current situation, then think carefully which admissible action "
            "best advances the shopping goal. This reasoning process MUST be enclosed within <think> </think> tags.\n"
            "Once you've finished your reasoning, you should choose an admissible action for current step and present it "
            "within <action> </action> tags."
        )


class TerseWording(Brief):
    """`p1 of 33 / b156 jorvik rain jacket, hooded 56 / b141 …`, `jorvik rain jacket, hooded / 56 / color: red, … / size: …`"""

    ends, list_start = " >", "\n["

    def task(self, task: Task) -> str:
        """`waterproof, easy clean backpacks / color: navy / size: large / under 40`"""
        wish = parse_request(task.goal)
        limit = f"under {wish.limit:g}" if wish.limit is not None else ""
        return " / ".join(p for p in (wish.thing, *(f"{n}: {v}" for n, v in wish.options.items()), limit) if p).lower()

    def turn(self, number: int, observation: Observation, action: str) -> str:
        seen = read_page(observation)
        return f"{f'p{seen.number}' if seen.kind == 'results' else seen.kind} > {action}"

    def brief(self, observation: Observation) -> str:
        return brief(read_page(observation))

    def offered(self, observation: Observation) -> list[str]:
        return _listed_actions(observation)


LONGEST = 600  # maximum characters of a detail page in the terse wording; generated products never reach it


def brief(seen: ParsedPage) -> str:
    if seen.kind == "results":
        offers = (f"{offer.id} {offer.title} {_cost(offer.prices)}" for offer in seen.offers)
        return " / ".join((f"p{seen.number} of {seen.total}", *offers)).lower()
    if seen.kind == "item":
        options = (f"{name}: {', '.join(values)}" for name, values in seen.options.items())
        return " / ".join((seen.title, _cost(seen.prices), *options)).lower()
    return "; ".join(seen.texts).lower()[:LONGEST] if seen.texts else seen.kind


def _cost(prices: tuple[float, ...]) -> str:
    return "-".join(f"{price:g}" for price in prices)


def _listed_actions(observation: Observation) -> list[str]:
    """The admissible actions, with all searches as one entry."""
    actions = (ANY_SEARCH if action.startswith("search[") else action for action in observation.actions)
    return list(dict.fromkeys(actions))
