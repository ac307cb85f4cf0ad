"""Sokoban: generated 6x6 rooms with one or two boxes, or Boxoban's levels. All rooms are solvable; pushes are irreversible."""

from __future__ import annotations

from tacit.core.world import Environment, texts_of_play
from tacit.worlds.sokoban.skills import ALPHABET, HANDBOOK, SokobanTracker, Solver, failure, hindsight, place, questions
from tacit.worlds.sokoban.tasks import FAMILIES, MANY, NAME, PANELS, SIZES, SPLITS, tasks
from tacit.worlds.sokoban.world import MAX_STEPS, FullWording, SokobanWorld, TerseWording

ENVIRONMENT = Environment(
    name=NAME,
    summary="Sokoban: push every box onto a target in a room of 6 by 6; what is pushed wrong cannot be pulled back",
    max_steps=MAX_STEPS,
    make=SokobanWorld,
    tasks=tasks,
    splits=SPLITS,
    families=(*FAMILIES.values(), MANY),
    skills={FAMILIES[1]: (FAMILIES[1],), FAMILIES[2]: (FAMILIES[2], MANY)},  # generated rooms have no more than two boxes
    wordings={"full": FullWording(), "terse": TerseWording()},
    experts={"solver": Solver},
    alphabet=ALPHABET,
    tracker=SokobanTracker(),
    failure=failure,
    hindsight=hindsight,
    handbook=HANDBOOK,
    example_texts=lambda seed: texts_of_play(
        SokobanWorld(), tasks("train", 60, seed), Solver, (TerseWording(), FullWording()), SokobanTracker(), present=False
    ),
    questions=questions,
    action_tokens=8,
    panels=PANELS,
    published=SIZES,
    step_rewards=True,
    place=place,
)
