"""The shop's progress state for constant-context agents (Xie et al., 2026, §3.1), and what it is worth (Table 6).

    phase      search -> browse -> options -> purchase -> done
    progress   +0.15 for choosing an option that is asked for; +0.10 when all of them are chosen and the phase becomes purchase
    error      0.10 for choosing another value than is asked for, 0.25 for buying before all are chosen, 0.10 for an action
               loop A, B, A, 0.08 for opening a product again, 0.08 for reading the same page about it again

Errors are positive amounts; the reward term subtracts them. Nothing good is paid twice, so choosing to and fro earns nothing.
An option that the sentence says nothing of is neither right nor wrong.

The block says what somebody would know who remembered every turn: which words of the sentence were read of the product that is
looked at, which products were opened before. The text of a page does not even say what is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tacit.core.hindsight import component_names, counted, summed
from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Tracker
from tacit.worlds.webshop.pages import BUY, DETAIL_CLICKS, Seen, Wish, read_page, read_wish, stem, words_of

# A visit to the shop as somebody would remember it who forgets nothing: a fold over actions and what was then seen.
#
# It knows what the text tells. Which options are chosen no page shows: they are known by the clicks, so the action that was
# really taken has to be told.


@dataclass(frozen=True)
class Known:
    """What was read of one product."""

    title: str
    prices: tuple[float, ...]
    words: frozenset[str]
    """stems of all that was read of it"""
    options: Mapping[str, tuple[str, ...]] | None = None
    """None before its page was opened"""
    details: frozenset[str] = frozenset()
    """the pages about it that were read"""

    def affordable(self, limit: float | None) -> bool:
        """Whether it may cost no more than that; a range may."""
        return limit is None or min(self.prices, default=0.0) <= limit


@dataclass(frozen=True)
class Visit:
    wish: Wish
    page: Seen
    query: str = ""
    product: str = ""
    """the one that is looked at"""
    chosen: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, Known] = field(default_factory=dict)
    """by id, in the order they were first seen"""
    opened: tuple[str, ...] = ()
    """products whose page was opened, in order"""

    @property
    def wanted(self) -> Mapping[str, str]:
        """The options that are asked for, as far as one can tell here."""
        here = self.known.get(self.product)
        return self.wish.wanted(here.options or {} if here else {})

    @property
    def remaining(self) -> Mapping[str, str]:
        """What is asked for and not chosen; all of it where no product is looked at."""
        return {name: value for name, value in self.wanted.items() if self.chosen.get(name) != value}

    @property
    def ready(self) -> bool:
        """On a product with everything chosen that is asked for."""
        return bool(self.product) and not self.remaining

    def missing(self, product: str) -> tuple[str, ...]:
        """Words of the wish that were not read of a product."""
        words = self.known[product].words if product in self.known else frozenset()
        return tuple(word for word in self.wish.words if stem(word) not in words)


def begin(sentence: str, observation: Observation) -> Visit:
    return Visit(read_wish(sentence), read_page(observation))


def after(visit: Visit, action: str, observation: Observation) -> Visit:
    """The visit after one more action and what was then seen."""
    page, before = read_page(observation), visit.page
    name, _, argument = action.strip().partition("[")
    argument = argument.removesuffix("]").lower()
    known = dict(visit.known)
    for offer in page.offers:
        known.setdefault(offer.id, Known(offer.title, offer.prices, _stems(offer.title)))
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
        about = known.get(product, Known(page.title, page.prices, frozenset()))
        known[product] = replace(about, words=about.words | _stems(page.title), options=page.options)
        return replace(visit, page=page, product=product, chosen=chosen, known=known, opened=opened)
    if page.kind == "detail" and visit.product in known:
        about = known[visit.product]
        details = about.details | {argument} if argument in DETAIL_CLICKS else about.details
        known[visit.product] = replace(about, words=about.words | _stems(" ".join(page.told)), details=details)
    return replace(visit, page=page, known=known)


def _stems(text: str) -> frozenset[str]:
    return frozenset(stem(word) for word in words_of(text))


PROGRESS: Mapping[str, float] = {"option": 0.15, "ready": 0.10}
ERRORS: Mapping[str, float] = {"wrong_option": 0.10, "premature": 0.25, "loop": 0.10, "product_again": 0.08, "page_again": 0.08}
SHOWN_PRODUCTS = 8
LONGEST_FIELD = 160
"""characters of one line of the block"""
BOUND = 1000
"""the most characters a state block has"""


@dataclass(frozen=True)
class ShopState:
    visit: Visit
    bought: bool = False
    recent: tuple[str, ...] = ()
    """the last two actions"""
    rewarded: frozenset[str] = frozenset()
    """what was good and is not paid again"""
    progress: tuple[str, ...] = ()
    """what was good about the last action, one of PROGRESS each"""
    errors: tuple[str, ...] = ()

    @property
    def phase(self) -> str:
        if self.bought:
            return "done"
        if self.visit.ready:
            return "purchase"
        if self.visit.product:
            return "options"
        return "browse" if self.visit.page.kind == "results" else "search"


class ShopTracker:
    version = "webshop-1"
    components = component_names(PROGRESS, ERRORS)

    def start(self, task: Task, observation: Observation) -> ShopState:
        return ShopState(begin(task.goal, observation))

    def update(self, state: ShopState, action: str, transition: Transition) -> ShopState:
        before = state.visit
        clicked = _clicked(action)
        if transition.done:
            premature = ("premature",) if clicked == BUY.lower() and before.remaining else ()
            return replace(state, bought=True, progress=(), errors=premature)
        visit = after(before, action, transition.observation)
        good, bad = [], []
        chosen = visit.product == before.product and visit.chosen != before.chosen
        for name, value in visit.chosen.items() if chosen else ():
            if before.chosen.get(name) == value or name not in visit.wanted:
                continue
            if visit.wanted[name] == value:
                good.append(f"option {name}")
            else:
                bad.append("wrong_option")
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
            fields["product"] = visit.product
            fields["chosen"] = told(visit.chosen)
        fields["to choose"] = told(visit.remaining)
        if visit.product:
            read = sorted(visit.known[visit.product].details)
            fields["not read of it"] = ", ".join(visit.missing(visit.product)) or "none"
            fields["pages read"] = ", ".join(read) or "none"
        opened = [product for product in visit.opened if product != visit.product]
        fields["opened before"] = ", ".join(opened[-SHOWN_PRODUCTS:]) or "none"
        return "\n".join(f"{name}: {cut(value)}" for name, value in fields.items())

    def signals(self, before: ShopState, after: ShopState) -> Mapping[str, float]:
        return summed(counted(after.progress, PROGRESS), counted(after.errors, ERRORS))


def told(options: Mapping[str, str]) -> str:
    """`color: red; size: large`"""
    return "; ".join(f"{name}: {value}" for name, value in options.items()) or "none"


def cut(value: str) -> str:
    return value if len(value) <= LONGEST_FIELD else f"{value[: LONGEST_FIELD - 1]}…"


def _clicked(action: str) -> str:
    name, _, text = action.strip().partition("[")
    return text.removesuffix("]").lower() if name == "click" else ""


# The shop's state block in other forms.
#
# full    tracker.py: also what was read of the product, and which were opened before
# paper   the five fields that §3.1 names (Xie et al., 2026), in its order: the current query, the inspected product, the
#         selected options, the remaining options, and whether one is ready to purchase


class PaperTracker(ShopTracker):
    version = "webshop-paper-1"

    def render(self, state: ShopState) -> str:
        visit = state.visit
        fields = {
            "current_query": visit.query or "None",
            "inspected_product": visit.product or "None",
            "selected_options": told(visit.chosen).replace("none", "None"),
            "remaining_options": told(visit.remaining).replace("none", "None"),
            "ready_to_purchase": "yes" if visit.ready else "no",
        }
        return "\n".join(f"{name}: {cut(value)}" for name, value in fields.items())


FORMS: Mapping[str, Tracker] = {"paper": PaperTracker()}
"""beside `full`"""
