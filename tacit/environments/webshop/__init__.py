"""WebShop: its text mode without a server, a JVM or a download, and its own files where they are."""

from __future__ import annotations

from tacit.core.types import Observation
from tacit.core.world import Environment
from tacit.environments.webshop.alphabet import ALPHABET
from tacit.environments.webshop.examples import example_texts, questions
from tacit.environments.webshop.expert import Oracle, Shopper
from tacit.environments.webshop.failures import failure
from tacit.environments.webshop.forms import FORMS
from tacit.environments.webshop.handbook import HANDBOOK
from tacit.environments.webshop.hindsight import hindsight
from tacit.environments.webshop.observed import read_page
from tacit.environments.webshop.panels import PANELS
from tacit.environments.webshop.prompt import FullWording, TerseWording
from tacit.environments.webshop.reader import act
from tacit.environments.webshop.tasks import FAMILIES, NAME, SPLITS, tasks
from tacit.environments.webshop.tracker import ShopTracker
from tacit.environments.webshop.world import MAX_STEPS, WebShop


def place(action: str, observation: Observation) -> str:
    """The product whose page a click opened; coming back from a page about it, and choosing, are no movement."""
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
    reader=act,
    failure=failure,
    hindsight=hindsight,
    handbook=HANDBOOK,
    example_texts=example_texts,
    questions=questions,
    action_tokens=48,
    skills={"shop": FAMILIES},
    family_tasks=tasks,
    panels=PANELS,
    place=place,
)
