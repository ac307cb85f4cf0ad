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
from dataclasses import dataclass, replace

from tacit.core.signals import component_names, counted, summed
from tacit.core.types import Observation, Task, Transition
from tacit.environments.webshop.observed import DETAIL_CLICKS
from tacit.environments.webshop.pages import BUY
from tacit.environments.webshop.visit import Visit, after, begin

PROGRESS: Mapping[str, float] = {"option": 0.15, "ready": 0.10}
ERRORS: Mapping[str, float] = {
    "wrong_option": 0.10,
    "premature": 0.25,
    "loop": 0.10,
    "product_again": 0.08,
    "page_again": 0.08,
}
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
