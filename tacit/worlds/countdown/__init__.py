"""Countdown-Stepwise: make the target from all numbers, one operation at a time."""

from __future__ import annotations

from tacit.core.world import Environment, texts_of_play
from tacit.worlds.countdown import world as game
from tacit.worlds.countdown.world import ALPHABET, HANDBOOK, CountdownTracker, Solver, failure, hindsight, questions

ENVIRONMENT = Environment(
    name=game.NAME,
    summary="Countdown-Stepwise: make the target from all numbers, one operation at a time; rollback and reset",
    max_steps=game.MAX_STEPS,
    make=game.CountdownWorld,
    tasks=game.tasks,
    splits=game.SPLITS,
    families=tuple(game.FAMILIES.values()),
    wordings={"full": game.FullWording(), "terse": game.TerseWording()},
    experts={"solver": Solver},
    alphabet=ALPHABET,
    tracker=CountdownTracker(),
    failure=failure,
    hindsight=hindsight,
    handbook=HANDBOOK,
    example_texts=lambda seed: [
        text
        for task in game.tasks("train", 200, seed)
        for text in (
            *texts_of_play(game.CountdownWorld(), [task], Solver, (game.TerseWording(), game.FullWording()), present=False),
            *("rollback", "reset"),
        )
    ],
    questions=questions,
    action_tokens=24,
    panels=game.PANELS,
)
