"""Progress tracker for constant-context agents (Xie et al., 2026, §3.1), experts, skill alphabet, handbook and hindsight.

Amounts are from the paper's Table 6 (PROGRESS, ERRORS). Errors are positive; the reward term subtracts them. Each achievement
is rewarded once. Options that the instruction does not mention are neither right nor wrong. The state block has what an agent
with perfect memory would know: the chosen options (which no page shows), the unconfirmed words of the instruction for the
current product, and the opened products.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tacit.core.errors import TacitError
from tacit.core.hindsight import component_names, critical_steps, score_events, sum_signals, tracker_states
from tacit.core.types import Observation, Skills, StopReason, Task, Trajectory, Transition
from tacit.core.world import Alphabet
from tacit.worlds.webshop import world as shop
from tacit.worlds.webshop.catalogue import NO_LIMIT, Goal
from tacit.worlds.webshop.world import DETAIL_CLICKS, Offer, ParsedPage, ShoppingRequest, parse_request, read_page, read_parts


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


# Agents that need no model: `Shopper` (acts on what it has read), `Oracle` (knows the target product) and `act_on_prompt` (the
# rule agent); the skill alphabet, handbook and hindsight rule. The alphabet is ours, not the paper's: seven atomic skills,
# which refused searches and clicks have, too.

STEPS = 15  # the step limit: before it, the shopper buys the best product seen
PAGES = 3  # results pages to look through
LOOK = 4  # steps to inspect a product: its page, its features, and back twice


class _VisitingExpert(ABC):
    def __init__(self, task: Task) -> None:
        self._task, self._action, self._turn = task, "", 0
        self._visit: Visit | None = None

    def act(self, observation: Observation) -> str:
        self._turn += 1
        if self._visit is None:
            self._visit = Visit(parse_request(self._task.goal), read_page(observation))
        else:
            self._visit = update_visit(self._visit, self._action, observation)
        self._action = self._choose(self._visit)
        return self._action

    def happened(self, action: str) -> None:
        self._action = action

    @abstractmethod
    def _choose(self, visit: Visit) -> str: ...


class Shopper(_VisitingExpert):
    """Searches with the words of the instruction, opens results in order, and reads features while words are unconfirmed. Buys
    the first product that has all words, with the requested options; before the steps run out, the best one seen."""

    def _choose(self, visit: Visit) -> str:
        if visit.page.kind == "search":
            return _search(visit.wish)
        if visit.page.kind == "detail":
            return "click[< prev]"
        return self._browse(visit) if visit.page.kind == "results" else self._consider(visit)

    def _browse(self, visit: Visit) -> str:
        """Open the next product, or return to the best one if there is no time to inspect another."""
        here = [offer.id for offer in visit.page.offers]
        fresh = [product for product in _unopened(visit) if product in here]
        best = self._best(visit)
        if best and (not self._time_for_another(visit, 0) or not _unopened(visit)):
            if best in here:
                return f"click[{best}]"
            return "click[< prev]" if visit.page.number > 1 else _search(visit.wish)
        if fresh:
            return f"click[{fresh[0]}]"
        if visit.page.number < min(PAGES, -(-visit.page.total // shop.PER_PAGE)):
            return "click[next >]"
        return f"click[{here[0]}]" if here else "click[back to search]"

    def _consider(self, visit: Visit) -> str:
        product, about = visit.product, visit.known[visit.product]
        missing, left = visit.missing(product), self._left
        if self._is_unsuitable(visit, product) and left >= 3 + len(visit.wanted):  # back, open another, options, buy
            return "click[< prev]"
        if missing and "features" not in about.details and left >= len(visit.remaining) + 3:
            return "click[features]"
        best = self._best(visit)
        better = bool(best) and best != product and left >= len(visit.wanted) + 3
        if (missing and _unopened(visit) and self._time_for_another(visit, 1)) or (better and not visit.chosen):
            return "click[< prev]"
        for name, value in visit.remaining.items():
            if value in (about.options or {}).get(name, ()):
                return f"click[{value}]"
        return "click[buy now]"

    @property
    def _left(self) -> int:
        """steps left, including this one"""
        return STEPS - self._turn + 1

    def _time_for_another(self, visit: Visit, more: int) -> bool:
        """Whether there is time to inspect another product and still buy the best one."""
        return self._left >= more + LOOK + 1 + len(visit.wish.options) + 1

    def _best(self, visit: Visit) -> str:
        """The suitable opened product with the fewest unconfirmed words."""
        fit = [p for p in visit.opened if not self._is_unsuitable(visit, p)]
        return min(fit, key=lambda p: len(visit.missing(p)), default="")

    def _is_unsuitable(self, visit: Visit, product: str) -> bool:
        about = visit.known[product]
        options = about.options or {}
        wanted = visit.wish.wanted(options)
        missing = any(value not in options.get(name, ()) for name, value in wanted.items())
        return missing or not about.affordable(visit.wish.limit)


class Oracle(_VisitingExpert):
    """Knows the target product: searches for its title, pages to it, chooses the options, buys."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._goal = Goal.from_data(task.data["goal"])

    def _choose(self, visit: Visit) -> str:
        wanted = self._goal.product.lower()
        if visit.page.kind == "item" and visit.product == wanted:
            chosen = visit.chosen
            done = [chosen.get(name) == value if name else value in chosen.values() for name, value in self._goal.options]
            left = [value for (_, value), there in zip(self._goal.options, done, strict=True) if not there]
            return f"click[{left[0]}]" if left else "click[buy now]"
        if visit.page.kind in ("item", "detail"):
            return "click[< prev]"
        if visit.page.kind == "results" and visit.page.offers:
            there = wanted in [offer.id for offer in visit.page.offers]
            return f"click[{wanted}]" if there else "click[next >]"
        return f"search[{self._goal.title}]"


def _search(wish: ShoppingRequest) -> str:
    return f"search[{' '.join((wish.thing, *wish.options.values())).lower()}]"


def _unopened(visit: Visit) -> list[str]:
    """Affordable products that were listed but not opened, in listing order."""
    return [p for p, known in visit.known.items() if p not in visit.opened and known.affordable(visit.wish.limit)]


# The rule agent: a baseline without learning for prompts with a state block. It reads one prompt (either form of the block,
# either wording) and has no memory. It opens the first product that the block does not list as opened, and leaves it if a
# requested option is missing or words are unconfirmed after reading its features; otherwise it chooses the options and buys.
# The paper's form of the block does not list opened products: there it buys the first affordable one.

PATIENCE = 3  # products to open before settling for one
_FIELD = re.compile(
    r"^(phase|query|product|chosen|to choose|not read of it|pages read|opened before|"
    r"inspected_product|remaining_options|ready_to_purchase): (.*)$",
    re.M,
)
_TASK = re.compile(r"^Your task is to: (.*)\.$", re.M)
_NOW = re.compile(r"your current observation is: (.*)\.\n(?:Now it's|Your admissible)", re.S | re.I)
_RESULTS = re.compile(r"p(\d+) of (\d+)")
_OFFER = re.compile(r"(\S+) (.*) ([\d.]+(?:-[\d.]+)?)")


def act_on_prompt(prompt: str) -> str:
    fields: dict[str, str] = dict(_FIELD.findall(prompt))
    if not fields.keys() & {"phase", "ready_to_purchase"}:
        raise TacitError("the rule agent of webshop needs a prompt with a state block: --state-block --history 1.")
    task, now = _TASK.search(prompt), _NOW.search(prompt)
    if task and now:
        wish = parse_request(task[1])
        page = read_parts([part[1:-1] for part in now[1].split(shop.SEPARATOR)], names=tuple(wish.options))
    else:
        lines = prompt.strip().split("\n")
        thing, *rest = lines[0].split(" / ")  # `waterproof backpacks / color: navy / under 40`
        limit = next((part.removeprefix("under ") for part in rest if re.fullmatch(r"under [\d.]+", part)), None)
        options = dict(part.split(": ", 1) for part in rest if ": " in part)
        wish = ShoppingRequest(thing, options, float(limit) if limit else None)
        page = _terse_page(lines[-1].removesuffix(">").strip())
    before = fields.get("opened before", "none")
    opened = [] if before == "none" else before.split(", ")
    if page.kind == "results":
        payable = [offer.id for offer in page.offers if wish.limit is None or offer.lowest <= wish.limit]
        chosen = next((product for product in payable if product not in opened), payable[0] if payable else "next >")
        return f"click[{chosen}]"
    if page.kind == "detail":
        return "click[< prev]"
    if page.kind != "item":
        return _search(wish)
    pairs = (option.partition(": ") for option in fields.get("to choose", fields.get("remaining_options", "")).split("; "))
    to_choose = {name: value for name, _, value in pairs if value}
    offered = [value for name, value in to_choose.items() if value in page.options.get(name, ())]
    missing = fields.get("not read of it", "none") != "none"
    patient = "opened before" in fields and len(opened) < PATIENCE
    if patient and len(offered) < len(to_choose):
        return "click[< prev]"
    if missing and "features" not in fields.get("pages read", "features"):
        return "click[features]"
    if patient and missing:
        return "click[< prev]"
    return f"click[{offered[0]}]" if offered else "click[buy now]"


def _terse_page(line: str) -> ParsedPage:
    first, *rest = line.split(" / ")
    results = _RESULTS.fullmatch(first)
    if results:
        matches = (_OFFER.fullmatch(part) for part in rest)
        offers = tuple(Offer(m[1], m[2], tuple(float(price) for price in m[3].split("-"))) for m in matches if m)
        return ParsedPage("results", offers, int(results[1]), int(results[2]))
    if first == "search" and not rest:
        return ParsedPage("search")
    if rest and re.fullmatch(r"[\d.]+(?:-[\d.]+)?", rest[0]):
        options = dict(part.split(": ", 1) for part in rest[1:] if ": " in part)
        return ParsedPage("item", title=first, options={name: tuple(values.split(", ")) for name, values in options.items()})
    return ParsedPage("detail", texts=(line,))


SKILLS = ("SEARCH", "OPEN", "MORE", "BACK", "INSPECT", "CHOOSE", "BUY")
_BY_TEXT = {
    shop.NEXT.lower(): "MORE",
    **dict.fromkeys((shop.PREVIOUS.lower(), shop.BACK.lower()), "BACK"),
    **dict.fromkeys(shop.DETAIL_CLICKS, "INSPECT"),
    shop.BUY.lower(): "BUY",
}


def project(trajectory: Trajectory) -> Iterator[str]:
    for step in trajectory.steps:
        name, argument = split_action(step.action)
        if name == "search" and "[" in step.action:
            yield "SEARCH"
        elif name == "click" and "[" in step.action:
            other = "OPEN" if read_page(step.observation).kind == "results" else "CHOOSE"
            yield _BY_TEXT.get(argument, other)


ALPHABET = Alphabet(SKILLS, project)
HANDBOOK = {
    "": (
        "search for the thing and what is said of it in few words; look at the price of a result before opening it; read the "
        "features where words of the request are missing; choose every option that is asked for, then click[buy now] before "
        "the steps run out"
    ),
    "fashion": "colour and size are options on the product's page: choose both before buying",
}


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed: what was wrong with the purchase, `never_opened` a product, `timeout`, or the stop reason."""
    if trajectory.stop is StopReason.FAILURE:
        return trajectory.end_label or str(trajectory.stop)
    if trajectory.stop is not StopReason.STEP_LIMIT:
        return str(trajectory.stop)
    opened = any(read_page(observation).kind == "item" for observation in trajectory.observations)
    return "timeout" if opened else "never_opened"


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success, how the product was found; after a failure, the target product. Advice for steps comes from `Shopper`,
    which uses only the agent's observations."""
    steps = critical_steps(trajectory, Shopper(trajectory.task), ShopTracker(), achieved=("progress.option", "progress.ready"))
    if trajectory.success:
        visit = tracker_states(trajectory, ShopTracker())[-2].visit  # before the purchase
        chosen = [f"choose {format_options(visit.chosen)}"] if visit.chosen else []
        done = (f"search[{visit.query}]", f"open {truncate(visit.known[visit.product].title)}", *chosen, "buy now")
        return Skills(", ".join(done), steps, f"Bought in {len(trajectory)} steps.")
    goal, label = Goal.from_data(trajectory.task.data["goal"]), failure(trajectory)
    options = format_options({name or "option": value for name, value in goal.options})
    choice = f"choose {options}, then buy it" if goal.options else "and buy it"
    missing = {
        shop.WRONG_OPTIONS: f"before buying, choose {options}",
        shop.TOO_EXPENSIVE: f"look at the price before buying: no more than ${goal.limit:g}" if goal.limit < NO_LIMIT else "",
    }
    right = f"the right one is {goal.product.lower()}, {truncate(goal.title)}: search for it, open it, {choice}"
    return Skills(missing.get(label) or right, steps, f"Failed: {label}.")
