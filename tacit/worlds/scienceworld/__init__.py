"""ScienceWorld: 30 elementary science tasks in the simulator of the `scienceworld` package (an extra; needs Java).

The first episode imports the package and starts the JVM; tasks, panels and wordings need neither.
"""

from __future__ import annotations

from random import Random

from tacit.core.types import Observation
from tacit.core.world import Environment
from tacit.worlds.scienceworld.skills import ALPHABET, HANDBOOK, PaperTracker, ScienceTracker, failure, hindsight
from tacit.worlds.scienceworld.world import (
    EXTRA,
    FAMILIES,
    NAME,
    PANELS,
    REQUIRES,
    SERVED,
    SIZES,
    SPLITS,
    TABLES,
    TASKS,
    FullWording,
    GoldPath,
    TerseWording,
    lacks,
    read_room,
    tasks,
)

MAX_STEPS = 120  # the largest of ETO's limits; ETO's evaluation splits have one per task


def place(action: str, observation: Observation) -> str:
    """The room at the start of an episode or after `go`; else empty."""
    return read_room(observation.text) if action.split()[:1] in ([], ["go"]) else ""


# Text to train a tiny tokenizer: goals and synthetic turns, without the simulator.

GOALS = 600
TURNS = 3  # synthetic turns per goal


def example_texts(seed: int) -> list[str]:
    rng, texts, parts = Random(f"scienceworld/texts/{seed}"), list[str](), TABLES["examples"]
    things, rooms = parts["things"], parts["rooms"]
    words = {"a": things, "b": things, "room": rooms, "next": rooms, "n": range(-50, 2000)}
    for task in tasks("train", GOALS, seed):
        for wording in (TerseWording(), FullWording()):
            texts.append(wording.task(task))
            for number in range(1, TURNS + 1):
                drawn = {name: rng.choice(choices) for name, choices in words.items()}
                text, done = (rng.choice(parts[kind]).format(**drawn) for kind in ("answers", "actions"))
                texts += [wording.now(number, Observation(text), False), wording.turn(number, Observation(text), done), done]
    return [*texts, *(name.replace("-", " ") for name in TASKS for _ in range(20)), str(SIZES)]


ENVIRONMENT = Environment(
    name=NAME,
    summary="ScienceWorld: 30 tasks of elementary science in ten rooms, in its own simulator",
    max_steps=MAX_STEPS,
    make=SERVED,
    tasks=tasks,
    splits=SPLITS,
    panel_split="eto_test",
    families=FAMILIES,
    wordings={"full": FullWording(), "terse": TerseWording()},
    experts={"gold": GoldPath},
    alphabet=ALPHABET,
    tracker=ScienceTracker(),
    forms={"paper": PaperTracker()},
    failure=failure,
    hindsight=hindsight,
    handbook=HANDBOOK,
    example_texts=example_texts,
    action_tokens=40,
    slow=True,
    family_tasks=tasks,
    published=SIZES,
    panels=PANELS,
    step_rewards=True,
    place=place,
    requires=REQUIRES,
    extra=EXTRA,
    lacks=lacks,
)
