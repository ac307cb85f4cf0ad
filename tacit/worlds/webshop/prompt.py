"""Wordings: `full` for language models, the template that GiGPO, BiPACE and OPID train with (BiPACE appendix J), and `terse`
for models of about a million parameters: one line per page, and only the kind of past pages."""

from __future__ import annotations

from random import Random

from tacit.core.types import ActionStyle, Observation, Task
from tacit.core.world import Brief, StepCountWording
from tacit.worlds.webshop.expert import Shopper
from tacit.worlds.webshop.pages import SEPARATOR, ParsedPage, parse_request, parts_of, read_page
from tacit.worlds.webshop.tasks import KINDS, tasks
from tacit.worlds.webshop.tracker import ShopTracker
from tacit.worlds.webshop.world import WebShop

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
    """A page as one line."""
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
    shown = (ANY_SEARCH if action.startswith("search[") else action for action in observation.actions)
    return list(dict.fromkeys(shown))


GOALS = 150
NAMED = 20  # how often the words of each product kind are repeated, so that rare words get short tokens too


def example_texts(seed: int) -> list[str]:
    """Text to train a tiny tokenizer: both wordings, state blocks and actions along the expert's episodes, and all products."""
    world, tracker, wordings, texts = WebShop(), ShopTracker(), (TerseWording(), FullWording()), []
    for task in tasks("train", GOALS, seed):
        expert, observation, done, number = Shopper(task), world.reset(task), False, 1
        state = tracker.start(task, observation)
        texts += [wording.task(task) for wording in wordings]
        while not done:
            action = expert.act(observation)
            for wording in wordings:
                texts += [wording.now(number, observation, False), wording.turn(number, observation, action)]
            texts += [tracker.render(state), action]
            transition = world.step(action)
            state = tracker.update(state, action, transition)
            observation, done, number = transition.observation, transition.done, number + 1
    for kind in KINDS:
        values = [f"click[{value}]" for values in kind.options.values() for value in values]
        texts += [", ".join((*kind.attributes, kind.one, kind.many, *values))] * NAMED
    return texts


def questions(rng: Random, observation: Observation) -> list[tuple[str, str]]:
    """Pretraining questions about a page: `price b156? 56.6`, `which jorvik rain jacket, hooded? b156`."""
    seen = read_page(observation)
    if seen.kind == "results" and seen.offers:
        offer = rng.choice(seen.offers)
        return [(f"price {offer.id}", f"{offer.lowest:g}"), (f"which {offer.title.lower()}", offer.id)]
    if seen.kind == "item" and seen.options:
        name = rng.choice(sorted(seen.options))
        value = rng.choice(seen.options[name]) if seen.options[name] else "none"
        return [(f"what is {value}", name)]
    return []
