"""Errands: success needs experience. Where a thing is kept never changes, and no episode reveals it in advance."""

from __future__ import annotations

from tacit.core.world import Environment, texts_of_play
from tacit.worlds.errands.expert import Resident, Stranger
from tacit.worlds.errands.prompt import FullWording, TerseWording
from tacit.worlds.errands.skills import ALPHABET, HANDBOOK, failure, hindsight
from tacit.worlds.errands.tasks import FAMILY, NAME, PANELS, SPLITS, tasks
from tacit.worlds.errands.tracker import ErrandTracker
from tacit.worlds.errands.world import MAX_STEPS, ErrandsWorld


def example_texts(seed: int) -> list[str]:
    """Text to train a tiny tokenizer: both wordings along the expert's episodes."""
    return texts_of_play(
        ErrandsWorld(), tasks("elsewhere", 200, seed), Resident, (TerseWording(), FullWording()), present=False
    )


ENVIRONMENT = Environment(
    name=NAME,
    summary="errands in a town that never changes: what lies behind which of eight doors must be remembered or guessed",
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
    example_texts=example_texts,
    action_tokens=12,
    panels=PANELS,
)
