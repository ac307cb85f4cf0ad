"""MiniHack: rooms, mazes, keys and rivers of NetHack as text. Needs the extra `minihack`; its tasks can be listed without."""

from __future__ import annotations

from random import Random

from tacit.core.types import Observation
from tacit.core.world import Environment, texts_of_play
from tacit.worlds.minihack import world as game
from tacit.worlds.minihack.skills import ALPHABET, HANDBOOK, Explorer, MiniHackTracker, failure, hindsight
from tacit.worlds.minihack.world import (
    COMPASS,
    FAMILIES,
    NAME,
    PANELS,
    SPLITS,
    FullWording,
    MiniHackWorld,
    TerseWording,
    parse_scene,
    shift,
    tasks,
)


def place(action: str, observation: Observation) -> str:
    """The agent's square, at the start of an episode or after a move."""
    here = parse_scene(observation.text).here
    return f"{here[0]},{here[1]}" if here and (not action or action in COMPASS) else ""


def questions(rng: Random, observation: Observation) -> list[tuple[str, str]]:
    """Pretraining questions about the neighboring squares: `what is north? boulder`."""
    scene = parse_scene(observation.text)
    if scene.here is None:
        return []
    word = rng.choice(list(COMPASS))
    symbol = scene.at(shift(scene.here, word))
    return [(f"what is {word}", scene.legend.get(symbol, "wall"))]


ENVIRONMENT = Environment(
    name=NAME,
    summary="MiniHack: reach the stairs through a room of monsters, a maze, a locked closet, over a river",
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
