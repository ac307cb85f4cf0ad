"""MiniHack: rooms, mazes, keys and rivers of NetHack as text. Playing needs the extra `minihack`; listing tasks does not."""

from __future__ import annotations

from tacit.core.world import Environment, texts_of_play
from tacit.worlds.minihack import world as game
from tacit.worlds.minihack.skills import ALPHABET, HANDBOOK, Explorer, MiniHackTracker, failure, hindsight, place, questions
from tacit.worlds.minihack.world import FAMILIES, NAME, PANELS, SPLITS, FullWording, MiniHackWorld, TerseWording, tasks

ENVIRONMENT = Environment(
    name=NAME,
    summary="MiniHack: reach the stairs past monsters, through a maze, into a locked closet, or over a river",
    max_steps=game.MAX_STEPS,
    make=MiniHackWorld,
    tasks=tasks,
    splits=SPLITS,
    families=FAMILIES,
    wordings={"full": FullWording(), "terse": TerseWording()},
    experts={"explorer": Explorer},
    alphabet=ALPHABET,
    tracker=MiniHackTracker(),
    failure=failure,
    hindsight=hindsight,
    handbook=HANDBOOK,
    example_texts=lambda seed: texts_of_play(
        MiniHackWorld(), tasks("train", 60, seed), Explorer, (TerseWording(), FullWording())
    ),
    questions=questions,
    action_tokens=12,
    family_tasks=tasks,
    panels=PANELS,
    place=place,
    requires=game.REQUIRES,
    extra=game.EXTRA,
)
