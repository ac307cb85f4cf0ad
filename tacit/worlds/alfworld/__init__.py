"""ALFWorld in plain Python, with the text of the published games."""

from __future__ import annotations

import re
from itertools import product
from random import Random

from tacit.core.types import Observation
from tacit.core.world import Environment
from tacit.worlds.alfworld.published import NAME, SIZES
from tacit.worlds.alfworld.skills import ALPHABET, HANDBOOK, Explorer, Oracle, act_on_prompt, failure, hindsight
from tacit.worlds.alfworld.tasks import FITS, PANELS, PUBLISHED_KINDS, ROOMS, SPLITS, tasks
from tacit.worlds.alfworld.tracker import FORMS, AlfworldTracker
from tacit.worlds.alfworld.world import FAMILIES, PUBLISHED_TYPES, AlfWorld, FullWording, TerseWording

MAX_STEPS = 50
SKILLS = {"pick": ("pick", "pick2"), **{family: (family,) for family in ("look", "clean", "heat", "cool")}}
"""skill module -> its families; `pick` includes pick2 (constant-context paper, §7.1)"""
NAMES = re.compile(r"\b([a-z]+) (\d+(?:-\d+)?(?: \d+(?:-\d+)?)*)")
"""matches `drawer 1`, and the abbreviation `drawer 1-3 5` of state blocks"""
GAMES, STEPS, NAMED = 60, 25, 200
"""games and steps of example texts; repetitions of each object kind, so that rare kinds get short tokens"""


def example_texts(seed: int) -> list[str]:
    """Text to train a tiny tokenizer: both wordings along random episodes in generated houses, and every object kind."""
    rng, texts, world, wordings = Random(f"alfworld/texts/{seed}"), list[str](), AlfWorld(), (TerseWording(), FullWording())
    for task in tasks("train", GAMES, seed):
        observation = world.reset(task)
        texts += [*(wording.task(task) for wording in wordings), FullWording().request("tags")]
        for number in range(1, STEPS + 1):
            # A random verb, then a random command with that verb: most commands are `go to`.
            by_verb: dict[str, list[str]] = {}
            for command in observation.actions:
                by_verb.setdefault(command.partition(" ")[0], []).append(command)
            action = rng.choice(by_verb[rng.choice(sorted(by_verb))])
            for wording in wordings:
                texts.append(wording.now(number, observation, admissible=number % 10 == 1))
                texts.append(wording.turn(number, observation, action))
            texts.append(action)
            observation = world.step(action).observation
    kinds = {*FITS, *PUBLISHED_KINDS, *(kind for room in ROOMS.values() for kind in room.belongings)}
    return [*texts, *(f"{kind} 1: a {kind} {2 + n % 20}, some {kind} in" for kind, n in product(sorted(kinds), range(NAMED)))]


def place(action: str, observation: Observation) -> str:
    """The receptacle of a `go to` action; empty for other actions, and for the middle of the room, where episodes begin."""
    return action.strip().removeprefix("go to ").strip() if action.strip().startswith("go to ") else ""


ENVIRONMENT = Environment(
    name=NAME,
    summary="ALFWorld: find, clean, heat, cool, light and put household objects where they belong",
    max_steps=MAX_STEPS,
    make=AlfWorld,
    tasks=tasks,
    splits=SPLITS,
    panel_split="unseen",
    families=FAMILIES,
    wordings={"full": FullWording(), "terse": TerseWording()},
    experts={"explorer": Explorer, "oracle": Oracle},
    alphabet=ALPHABET,
    tracker=AlfworldTracker(),
    forms=FORMS,
    reader=act_on_prompt,
    failure=failure,
    hindsight=hindsight,
    published_families=PUBLISHED_TYPES,
    handbook=HANDBOOK,
    example_texts=example_texts,
    names=NAMES,
    action_tokens=32,
    skills=SKILLS,
    family_tasks=tasks,
    published=SIZES,
    panels=PANELS,
    place=place,
)
