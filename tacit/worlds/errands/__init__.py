"""Errands: a world that needs experience. Things keep their places across episodes, and no prompt reveals them."""

from __future__ import annotations

from tacit.core.world import Environment, texts_of_play
from tacit.worlds.errands.world import (
    ALPHABET,
    FAMILY,
    HANDBOOK,
    MAX_STEPS,
    NAME,
    PANELS,
    SPLITS,
    ErrandsWorld,
    ErrandTracker,
    FullWording,
    Resident,
    Stranger,
    TerseWording,
    failure,
    hindsight,
    tasks,
)

ENVIRONMENT = Environment(
    name=NAME,
    summary="Errands: fetch things in a town that never changes; remember or guess which of eight doors they are behind",
    max_steps=MAX_STEPS,
    make=ErrandsWorld,
    tasks=tasks,
    splits=SPLITS,
    families=(FAMILY,),
    wordings={"full": FullWording(), "terse": TerseWording()},
    experts={"resident": Resident, "stranger": Stranger},
    alphabet=ALPHABET,
    tracker=ErrandTracker(),
    failure=failure,
    hindsight=hindsight,
    handbook=HANDBOOK,
    example_texts=lambda seed: texts_of_play(
        ErrandsWorld(), tasks("elsewhere", 200, seed), Resident, (TerseWording(), FullWording()), present=False
    ),
    action_tokens=12,
    panels=PANELS,
)
