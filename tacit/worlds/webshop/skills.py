"""Agents that need no model: `Shopper` (acts on what it has read), `Oracle` (knows the target product) and `act_on_prompt` (the
rule agent); the skill alphabet, handbook and hindsight rule. The alphabet is ours, not the paper's: seven atomic skills, which
refused searches and clicks have, too."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator

from tacit.core.errors import TacitError
from tacit.core.hindsight import critical_steps, tracker_states
from tacit.core.types import Observation, Skills, StopReason, Task, Trajectory
from tacit.core.world import Alphabet
from tacit.worlds.webshop import world as shop
from tacit.worlds.webshop.catalogue import NO_LIMIT, Goal
from tacit.worlds.webshop.tracker import ShopTracker, Visit, format_options, split_action, truncate, update_visit
from tacit.worlds.webshop.world import Offer, ParsedPage, ShoppingRequest, parse_request, read_page, read_parts

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
