"""WebShop's text mode in plain Python, with a generated catalogue or the published products."""

from __future__ import annotations

from random import Random

from tacit.core.types import Observation
from tacit.core.world import Environment
from tacit.worlds.webshop.skills import (
    ALPHABET,
    HANDBOOK,
    Oracle,
    PaperTracker,
    Shopper,
    ShopTracker,
    act_on_prompt,
    failure,
    hindsight,
)
from tacit.worlds.webshop.tasks import FAMILIES, KINDS, NAME, PANELS, SPLITS, tasks
from tacit.worlds.webshop.world import MAX_STEPS, FullWording, TerseWording, WebShop, read_page


def place(action: str, observation: Observation) -> str:
    """The product that a click opened; empty for other actions, such as going back or choosing an option."""
    text = action.strip().removeprefix("click[").removesuffix("]").lower()
    if not action.strip().startswith("click[") or text == "< prev":
        return ""
    seen = read_page(observation)
    return text if seen.kind == "item" and all(text not in values for values in seen.options.values()) else ""


GOALS = 150
NAMED = 20  # repetitions of each product kind's words, so that rare words get short tokens


def example_texts(seed: int) -> list[str]:
    """Text to train a tiny tokenizer: both wordings, state blocks and actions of expert episodes, and all product words."""
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


ENVIRONMENT = Environment(
    name=NAME,
    summary="WebShop: search, read, choose options and buy what a sentence asks for; graded by the published reward",
    max_steps=MAX_STEPS,
    make=WebShop,
    tasks=tasks,
    splits=SPLITS,
    families=FAMILIES,
    wordings={"full": FullWording(), "terse": TerseWording()},
    experts={"shopper": Shopper, "oracle": Oracle},
    alphabet=ALPHABET,
    tracker=ShopTracker(),
    forms={"paper": PaperTracker()},
    reader=act_on_prompt,
    failure=failure,
    hindsight=hindsight,
    handbook=HANDBOOK,
    example_texts=example_texts,
    questions=questions,
    action_tokens=48,
    skills={"shop": FAMILIES},
    family_tasks=tasks,
    panels=PANELS,
    published={"original_test": 500, "original_valid": 1000},
    place=place,
)
