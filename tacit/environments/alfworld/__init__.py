"""The household: ALFWorld's text games, word for word and fast, in plain Python."""

from __future__ import annotations

from tacit.core.types import Observation
from tacit.core.world import Environment
from tacit.environments.alfworld.alphabet import ALPHABET
from tacit.environments.alfworld.examples import example_texts
from tacit.environments.alfworld.expert import Explorer
from tacit.environments.alfworld.failures import failure
from tacit.environments.alfworld.forms import FORMS
from tacit.environments.alfworld.game import FAMILIES
from tacit.environments.alfworld.handbook import HANDBOOK
from tacit.environments.alfworld.hindsight import hindsight
from tacit.environments.alfworld.oracle import Oracle
from tacit.environments.alfworld.panels import PANELS
from tacit.environments.alfworld.prompt import FullWording, TerseWording
from tacit.environments.alfworld.published import NAME, SIZES
from tacit.environments.alfworld.reader import act
from tacit.environments.alfworld.tasks import SPLITS, tasks
from tacit.environments.alfworld.tracker import AlfworldTracker
from tacit.environments.alfworld.world import AlfWorld

MAX_STEPS = 50
SKILLS = {
    "pick": ("pick", "pick2"),  # two objects are one object, twice: no procedure of its own (§7.1 of constant context)
    "look": ("look",),
    "clean": ("clean",),
    "heat": ("heat",),
    "cool": ("cool",),
}
"""which skill module serves which families"""


def place(action: str, observation: Observation) -> str:
    """`go to fridge 1` leads to fridge 1; an episode begins in the middle of the room, where one never comes again."""
    return action.strip().removeprefix("go to ").strip() if action.strip().startswith("go to ") else ""


ENVIRONMENT = Environment(
    name=NAME,
    summary="ALFWorld: find, clean, heat, cool, light and put household objects where they belong",
    max_steps=MAX_STEPS,
    make=AlfWorld,
    tasks=tasks,
    splits=SPLITS,
    panel_split="unseen",
    families=FAMILIES,
    wordings={"full": FullWording(), "terse": TerseWording()},
    experts={"explorer": Explorer, "oracle": Oracle},
    alphabet=ALPHABET,
    tracker=AlfworldTracker(),
    forms=FORMS,
    reader=act,
    failure=failure,
    hindsight=hindsight,
    handbook=HANDBOOK,
    example_texts=example_texts,
    action_tokens=32,
    skills=SKILLS,
    family_tasks=tasks,
    published=SIZES,
    panels=PANELS,
    place=place,
)
