"""Progress tracker for constant-context agents (Xie et al., 2026, §3.1); amounts from its Table 6 (PROGRESS, ERRORS).

Errors are positive; the reward term subtracts them. Each achievement is rewarded once. Options that the instruction does not
mention are neither right nor wrong. The state block has what an agent with perfect memory would know: the chosen options (which
no page shows), the unconfirmed words of the instruction for the current product, and the opened products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tacit.core.hindsight import component_names, score_events, sum_signals
from tacit.core.types import Observation, Task, Transition
from tacit.worlds.webshop import world as shop
from tacit.worlds.webshop.world import DETAIL_CLICKS, ParsedPage, ShoppingRequest, parse_request, read_page


@dataclass(frozen=True)
class ProductNotes:
    title: str
    prices: tuple[float, ...]
    words: frozenset[str]  # stems of all words read about it
    options: Mapping[str, tuple[str, ...]] | None = None  # None until its page was opened
    details: frozenset[str] = frozenset()  # its detail pages that were read

    def affordable(self, limit: float | None) -> bool:
        """Whether the price, or the lower end of its range, is at most `limit`; True without a limit."""
        return limit is None or min(self.prices, default=0.0) <= limit


@dataclass(frozen=True)
class Visit:
    """Everything read and chosen in an episode so far. Pages do not show chosen options, so they are inferred from clicks."""

    wish: ShoppingRequest
    page: ParsedPage
    query: str = ""
    product: str = ""  # the current product
    chosen: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, ProductNotes] = field(default_factory=dict)  # by id, in the order first seen
    opened: tuple[str, ...] = ()  # opened products, in order

    @property
    def wanted(self) -> Mapping[str, str]:
        """The requested options, as far as they are known."""
        here = self.known.get(self.product)
        return self.wish.wanted(here.options or {} if here else {})

    @property
    def remaining(self) -> Mapping[str, str]:
        """The requested options that are not chosen; all of them if no product is open."""
        return {name: value for name, value in self.wanted.items() if self.chosen.get(name) != value}

    @property
    def ready(self) -> bool:
        return bool(self.product) and not self.remaining

    def missing(self, product: str) -> tuple[str, ...]:
        """Words of the instruction that were not found in the texts read about a product."""
        words = self.known[product].words if product in self.known else frozenset()
        return tuple(word for word in self.wish.words if shop.stem(word) not in words)


def update_visit(visit: Visit, action: str, observation: Observation) -> Visit:
    page, before = read_page(observation), visit.page
    name, argument = split_action(action)
    known = dict(visit.known)
    for offer in page.offers:
        known.setdefault(offer.id, ProductNotes(offer.title, offer.prices, _stems(offer.title)))
    if page.kind in ("search", "results"):
        query = argument.strip() if name == "search" and page.kind == "results" else visit.query
        return replace(visit, page=page, query=query, product="", chosen={}, known=known)
    if page.kind == "item":
        product, chosen, opened = visit.product, visit.chosen, visit.opened
        if before.kind == "results":
            product, chosen = argument, {}
            opened = (*(p for p in opened if p != product), product)
        elif before.kind == "item" and name == "click":
            group = next((g for g, values in reversed(list(page.options.items())) if argument in values), "")
            chosen = {**chosen, group: argument} if group else chosen
        about = known.get(product, ProductNotes(page.title, page.prices, frozenset()))
        known[product] = replace(about, words=about.words | _stems(page.title), options=page.options)
        return replace(visit, page=page, product=product, chosen=chosen, known=known, opened=opened)
    if page.kind == "detail" and visit.product in known:
        about = known[visit.product]
        details = about.details | {argument} if argument in DETAIL_CLICKS else about.details
        known[visit.product] = replace(about, words=about.words | _stems(" ".join(page.texts)), details=details)
    return replace(visit, page=page, known=known)


def split_action(action: str) -> tuple[str, str]:
    """`click[Buy Now]` -> click, buy now"""
    name, _, argument = action.strip().partition("[")
    return name, argument.removesuffix("]").lower()


def _stems(text: str) -> frozenset[str]:
    return frozenset(shop.stem(word) for word in shop.split_words(text))


PROGRESS: Mapping[str, float] = {"option": 0.15, "ready": 0.10}
ERRORS: Mapping[str, float] = {"wrong_option": 0.10, "premature": 0.25, "loop": 0.10, "product_again": 0.08, "page_again": 0.08}
SHOWN_PRODUCTS = 8
LONGEST_FIELD = 160  # maximum characters of one line
BOUND = 1000  # maximum characters of a state block


@dataclass(frozen=True)
class ShopState:
    visit: Visit
    bought: bool = False
    recent: tuple[str, ...] = ()  # the last two actions
    rewarded: frozenset[str] = frozenset()  # events that are not rewarded again
    progress: tuple[str, ...] = ()  # events of PROGRESS in the last step
    errors: tuple[str, ...] = ()

    @property
    def phase(self) -> str:
        searching = "browse" if self.visit.page.kind == "results" else "search"
        shopping = "purchase" if self.visit.ready else "options" if self.visit.product else searching
        return "done" if self.bought else shopping


class ShopTracker:
    version = "webshop-1"
    components = component_names(PROGRESS, ERRORS)

    def start(self, task: Task, observation: Observation) -> ShopState:
        return ShopState(Visit(parse_request(task.goal), read_page(observation)))

    def update(self, state: ShopState, action: str, transition: Transition) -> ShopState:
        before = state.visit
        name, argument = split_action(action)
        clicked = argument if name == "click" else ""
        if transition.done:
            premature = ("premature",) if clicked == shop.BUY.lower() and before.remaining else ()
            return replace(state, bought=True, progress=(), errors=premature)
        visit = update_visit(before, action, transition.observation)
        chosen = visit.chosen if visit.product == before.product and visit.chosen != before.chosen else {}
        new = {name: value for name, value in chosen.items() if before.chosen.get(name) != value and name in visit.wanted}
        good = [f"option {name}" for name, value in new.items() if visit.wanted[name] == value]
        bad = ["wrong_option"] * (len(new) - len(good))
        if visit.ready and not before.ready:
            good.append("ready")
        if len(state.recent) == 2 and action == state.recent[0] != state.recent[1]:
            bad.append("loop")
        if before.page.kind == "results" and visit.page.kind == "item" and visit.product in before.opened:
            bad.append("product_again")
        about = before.known.get(before.product)
        if visit.page.kind == "detail" and about and clicked in DETAIL_CLICKS and clicked in about.details:
            bad.append("page_again")
        paid = [event for event in good if event not in state.rewarded]
        return ShopState(
            visit=visit,
            recent=(*state.recent, action)[-2:],
            rewarded=state.rewarded | set(paid),
            progress=tuple(event.partition(" ")[0] for event in paid),
            errors=tuple(bad),
        )

    def render(self, state: ShopState) -> str:
        visit = state.visit
        fields = {"phase": state.phase, "query": visit.query or "none"}
        if visit.product:
            fields |= {"product": visit.product, "chosen": format_options(visit.chosen)}
        fields["to choose"] = format_options(visit.remaining)
        if visit.product:
            fields["not read of it"] = ", ".join(visit.missing(visit.product)) or "none"
            fields["pages read"] = ", ".join(sorted(visit.known[visit.product].details)) or "none"
        opened = [product for product in visit.opened if product != visit.product]
        fields["opened before"] = ", ".join(opened[-SHOWN_PRODUCTS:]) or "none"
        return "\n".join(f"{name}: {truncate(value)}" for name, value in fields.items())

    def signals(self, before: ShopState, after: ShopState) -> Mapping[str, float]:
        return sum_signals(score_events(after.progress, PROGRESS), score_events(after.errors, ERRORS))


def format_options(options: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in options.items()) or "none"


def truncate(value: str) -> str:
    return value if len(value) <= LONGEST_FIELD else f"{value[: LONGEST_FIELD - 1]}…"


class PaperTracker(ShopTracker):
    version = "webshop-paper-1"

    def render(self, state: ShopState) -> str:
        visit = state.visit
        fields = {
            "current_query": visit.query or "None",
            "inspected_product": visit.product or "None",
            "selected_options": format_options(visit.chosen).replace("none", "None"),
            "remaining_options": format_options(visit.remaining).replace("none", "None"),
            "ready_to_purchase": "yes" if visit.ready else "no",
        }
        return "\n".join(f"{name}: {truncate(value)}" for name, value in fields.items())
