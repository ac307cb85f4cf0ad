"""WebShop's text mode in plain Python.

    search[words]   the best fifty matches, ten per page; allowed on any page, as in the original
    click[text]     any clickable text: a product, an option's value, Next >, < Prev, Back to Search, Description, Features,
                    Reviews, Buy Now

    success         Buy Now with reward 1 (catalogue.py)
    score           the reward of the purchase
    timeout         15 steps (counted by the rollout), the usual training setting

`search` and `click` must be lower case; the text in brackets need not be. Any other action returns the same page. The
original's hidden queries `<r>`, `<a>`, `<c>` and `<q>` are not supported. Possible queries cannot be listed: the admissible
actions of the search page are parts of the instruction, and wordings show them as `search[<your query>]`, as verl-agent does.
"""

from __future__ import annotations

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition
from tacit.worlds.webshop.catalogue import Catalogue, Goal, Product, Verdict
from tacit.worlds.webshop.pages import (
    BACK,
    BUY,
    DETAILS,
    NEXT,
    PREVIOUS,
    Page,
    detail_page,
    done_page,
    item_page,
    parse_request,
    results_page,
    search_page,
)
from tacit.worlds.webshop.tasks import catalogue_of

MAX_STEPS = 15
LONGEST_ACTION = 4000  # further characters of an action are ignored
WRONG_TYPE, WRONG_PRODUCT, WRONG_OPTIONS, TOO_EXPENSIVE = "wrong_type", "wrong_product", "wrong_options", "too_expensive"
_DETAILS = {name.lower(): name for name in DETAILS}


class WebShop:
    """One visit at a time. `show_attributes` adds the attributes page, which the original omits by default."""

    def __init__(self, show_attributes: bool = False) -> None:
        self._show_attributes = show_attributes
        self._catalogue: Catalogue | None = None
        self._goal: Goal | None = None
        self._searches: tuple[str, ...] = ()
        self._page = Page("")
        self._found: list[Product] = []
        self._number = 0  # number of the results page, 0 before the first search
        self._product: Product | None = None
        self._detail = ""
        self._chosen: dict[str, str] = {}

    @property
    def page(self) -> Page:
        """The current page."""
        return self._page

    @property
    def chosen(self) -> dict[str, str]:
        return dict(self._chosen)

    def reset(self, task: Task) -> Observation:
        try:
            self._goal = Goal.from_data(task.data["goal"])
            self._catalogue = catalogue_of(task)
        except (KeyError, TypeError, ValueError) as error:
            raise TacitError(f"task {task.id!r} is not a WebShop task: {error!r}. Create tasks with `tasks`.") from error
        self._searches = tuple(f"search[{part}]" for part in parse_request(self.goal.sentence).parts)
        self._found = []
        self._open_search()
        return self._observe()

    def step(self, action: str) -> Transition:
        name, argument = parse_action(action)
        if name == "search":
            self._found, self._number = self.catalogue.search(argument.lower()), 1
            self._open_results()
        elif name == "click" and argument.lower() in self._page.clickables and not self._page.has_search_bar:
            clicked = argument.lower()
            if clicked == BUY.lower() and self._product is not None and not self._detail:
                return self._buy(self._product)
            self._click(clicked)
        else:
            return Transition(self._observe(), effective=False)
        return Transition(self._observe())

    def close(self) -> None:
        self._catalogue = self._goal = None

    @property
    def goal(self) -> Goal:
        if self._goal is None:
            raise TacitError("no episode has been started: call reset(task) first.")
        return self._goal

    @property
    def catalogue(self) -> Catalogue:
        if self._catalogue is None:
            raise TacitError("no episode has been started: call reset(task) first.")
        return self._catalogue

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
            self._open_item(self._product, self._chosen)
        elif clicked == PREVIOUS.lower():
            self._open_results()
        elif clicked in _DETAILS:
            self._detail = _DETAILS[clicked]
            self._page = detail_page(self.goal.sentence, self._product, self._detail)
        else:
            # If two options have the value, the later one is chosen, as in the original.
            name = next(name for name, values in reversed(list(self._product.options.items())) if clicked in values)
            self._chosen[name] = clicked

    def _open_search(self) -> None:
        self._product, self._detail, self._chosen, self._number = None, "", {}, 0
        self._page = search_page(self.goal.sentence)

    def _open_results(self) -> None:
        self._product, self._detail, self._chosen = None, "", {}
        self._page = results_page(self.goal.sentence, self._found, self._number)

    def _open_item(self, product: Product, chosen: dict[str, str] | None = None) -> None:
        self._product, self._detail, self._chosen = product, "", chosen or {}
        self._page = item_page(self.goal.sentence, product, self._show_attributes)

    def _buy(self, product: Product) -> Transition:
        verdict = self.catalogue.judge(product, self._chosen, self.goal)
        score = verdict.reward
        self._page = done_page(score)
        success = score == 1.0
        parts = {f"score.{name}": share for name, share in verdict.parts.items()}
        label = "" if success else _label(verdict, self.goal)
        return Transition(Observation(self._page.text), True, success, score, label=label, signals=parts)

    def _observe(self) -> Observation:
        if self._page.has_search_bar:
            return Observation(self._page.text, self._searches)
        return Observation(self._page.text, tuple(f"click[{text}]" for text in self._page.clickables))


def parse_action(action: str) -> tuple[str, str]:
    """`search[red shoes]` -> search, red shoes; two empty strings if it is no action. Values may contain brackets.

    As in the original, only the first line counts, without what follows the last bracket, and a leading blank is refused.
    """
    name, _, rest = action[:LONGEST_ACTION].partition("\n")[0].partition("[")
    argument = rest[: max(0, rest.rfind("]"))]
    return (name, argument) if argument else ("", "")


def _label(verdict: Verdict, goal: Goal) -> str:
    """What was wrong with a purchase; the worst error if there are several."""
    if verdict.kind < 1:
        return WRONG_TYPE
    if verdict.attributes < len(goal.attributes):
        return WRONG_PRODUCT
    return WRONG_OPTIONS if verdict.options < len(goal.options) else TOO_EXPENSIVE
