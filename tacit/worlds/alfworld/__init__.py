"""ALFWorld: the published text games, word for word and fast, in plain Python."""

from __future__ import annotations

from tacit.core.types import Observation
from tacit.core.world import Environment
from tacit.worlds.alfworld.expert import Explorer, Oracle, act_on_prompt
from tacit.worlds.alfworld.prompt import FullWording, TerseWording, example_texts
from tacit.worlds.alfworld.published import NAME, SIZES
from tacit.worlds.alfworld.skills import ALPHABET, HANDBOOK, failure, hindsight
from tacit.worlds.alfworld.tasks import PANELS, SPLITS, tasks
from tacit.worlds.alfworld.tracker import FORMS, AlfworldTracker
from tacit.worlds.alfworld.world import FAMILIES, PUBLISHED_TYPES, AlfWorld

MAX_STEPS = 50
SKILLS = {
    "pick": ("pick", "pick2"),  # pick2 is pick, twice (constant-context paper, §7.1)
    "look": ("look",),
    "clean": ("clean",),
    "heat": ("heat",),
    "cool": ("cool",),
}
"""skill module -> the families it serves"""


def place(action: str, observation: Observation) -> str:
    """`go to fridge 1` leads to fridge 1. No action leads back to the middle of the room, where an episode begins."""
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
    reader=act_on_prompt,
    failure=failure,
    hindsight=hindsight,
    published_families=PUBLISHED_TYPES,
    handbook=HANDBOOK,
    example_texts=example_texts,
    action_tokens=32,
    skills=SKILLS,
    family_tasks=tasks,
    published=SIZES,
    panels=PANELS,
    place=place,
)
