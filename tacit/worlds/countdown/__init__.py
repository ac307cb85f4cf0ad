"""Countdown-Stepwise: make the target from all numbers, one operation at a time."""

from __future__ import annotations

from tacit.core.world import Environment, texts_of_play
from tacit.worlds.countdown.skills import ALPHABET, HANDBOOK, CountdownTracker, Solver, failure, hindsight, questions
from tacit.worlds.countdown.world import (
    FAMILIES,
    MAX_STEPS,
    NAME,
    PANELS,
    SPLITS,
    CountdownWorld,
    FullWording,
    TerseWording,
    tasks,
)

ENVIRONMENT = Environment(
    name=NAME,
    summary="Countdown-Stepwise: make the target from all numbers, one operation at a time; rollback and reset",
    max_steps=MAX_STEPS,
    make=CountdownWorld,
    tasks=tasks,
    splits=SPLITS,
    families=tuple(FAMILIES.values()),
    wordings={"full": FullWording(), "terse": TerseWording()},
    experts={"solver": Solver},
    alphabet=ALPHABET,
    tracker=CountdownTracker(),
    failure=failure,
    hindsight=hindsight,
    handbook=HANDBOOK,
    example_texts=lambda seed: [
        text
        for task in tasks("train", 200, seed)
        for text in (
            *texts_of_play(CountdownWorld(), [task], Solver, (TerseWording(), FullWording()), present=False),
            *("rollback", "reset"),
        )
    ],
    questions=questions,
    action_tokens=24,
    panels=PANELS,
)
