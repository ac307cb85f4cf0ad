"""WebShop's text mode without a server or a JVM, with a generated catalogue or the published files."""

from __future__ import annotations

from tacit.core.types import Observation
from tacit.core.world import Environment
from tacit.worlds.webshop.expert import Oracle, Shopper, act_on_prompt
from tacit.worlds.webshop.pages import read_page
from tacit.worlds.webshop.prompt import FullWording, TerseWording, example_texts, questions
from tacit.worlds.webshop.skills import ALPHABET, HANDBOOK, failure, hindsight
from tacit.worlds.webshop.tasks import FAMILIES, NAME, PANELS, SPLITS, tasks
from tacit.worlds.webshop.tracker import FORMS, ShopTracker
from tacit.worlds.webshop.world import MAX_STEPS, WebShop


def place(action: str, observation: Observation) -> str:
    """The product whose page a click opened; empty for going back and for choosing options."""
    text = action.strip().removeprefix("click[").removesuffix("]").lower()
    if not action.strip().startswith("click[") or text == "< prev":
        return ""
    seen = read_page(observation)
    return text if seen.kind == "item" and all(text not in values for values in seen.options.values()) else ""


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
    forms=FORMS,
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
