"""TextWorld-Cooking in plain Python: follow a recipe through a house; some mistakes are irreversible."""

from __future__ import annotations

from tacit.core.world import Environment, texts_of_play
from tacit.worlds.cooking.skills import (
    ALPHABET,
    FORMS,
    HANDBOOK,
    CookingTracker,
    Explorer,
    FullWording,
    TerseWording,
    act_on_prompt,
    failure,
    hindsight,
    place,
)
from tacit.worlds.cooking.tasks import FAMILIES, NAME, PANELS, SPLITS, tasks
from tacit.worlds.cooking.world import MAX_STEPS, CookingWorld

ENVIRONMENT = Environment(
    name=NAME,
    summary="TextWorld-Cooking: find the recipe, gather, cut, cook, prepare, eat; burning and wrong cuts are final",
    max_steps=MAX_STEPS,
    make=CookingWorld,
    tasks=tasks,
    splits=SPLITS,
    families=FAMILIES,
    wordings={"full": FullWording(), "terse": TerseWording()},
    experts={"explorer": Explorer},
    alphabet=ALPHABET,
    tracker=CookingTracker(),
    forms=FORMS,
    reader=act_on_prompt,
    failure=failure,
    hindsight=hindsight,
    handbook=HANDBOOK,
    example_texts=lambda seed: texts_of_play(
        CookingWorld(), tasks("train", 100, seed), Explorer, (TerseWording(), FullWording())
    ),
    action_tokens=24,
    panels=PANELS,
    step_rewards=True,
    place=place,
)
