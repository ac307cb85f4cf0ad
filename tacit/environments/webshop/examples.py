"""Text of the shop for training a tiny tokenizer, and questions about it for pretraining a small one."""

from __future__ import annotations

from random import Random

from tacit.core.types import Observation
from tacit.environments.webshop.expert import Shopper
from tacit.environments.webshop.observed import read_page
from tacit.environments.webshop.prompt import FullWording, TerseWording
from tacit.environments.webshop.shelves import KINDS
from tacit.environments.webshop.tasks import tasks
from tacit.environments.webshop.tracker import ShopTracker
from tacit.environments.webshop.world import WebShop

GOALS = 150
NAMED = 20
"""how often every word of the shelves is named besides, so that a rare one is spelled in few tokens too"""


def example_texts(seed: int) -> list[str]:
    """Tasks, pages, past turns, blocks and actions along the expert's visits, and all that is on the shelves."""
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
    """What something costs, and what is called so: `price b156? 56.6`, `which jorvik rain jacket, hooded? b156`."""
    seen = read_page(observation)
    if seen.kind == "results" and seen.offers:
        offer = rng.choice(seen.offers)
        return [(f"price {offer.id}", f"{offer.lowest:g}"), (f"which {offer.title.lower()}", offer.id)]
    if seen.kind == "item" and seen.options:
        name = rng.choice(sorted(seen.options))
        value = rng.choice(seen.options[name]) if seen.options[name] else "none"
        return [(f"what is {value}", name)]
    return []
