"""Text of the household for training a tiny tokenizer: both wordings along random play in generated houses."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random

from tacit.core.types import Observation, Task
from tacit.environments.alfworld.house_rules import FITS
from tacit.environments.alfworld.house_tables import ROOMS
from tacit.environments.alfworld.houses import house_tasks
from tacit.environments.alfworld.prompt import FullWording, TerseWording
from tacit.environments.alfworld.world import AlfWorld

GAMES = 60
STEPS = 25
NAMED = 200
"""how often every kind is named besides, so that a rare one is spelled in few tokens too"""

PUBLISHED_ONLY = (
    "bathtub", "blinds", "boots", "chair", "curtains", "floorlamp", "footstool", "laundryhamperlid", "lightswitch",
    "mirror", "painting", "papertowelroll", "plunger", "poster", "scrubbrush", "showerdoor", "showerglass", "sink",
    "stoveknob", "toaster", "window",
)  # fmt: skip
"""kinds of object (and one receptacle) that published games name and ours do not"""


def example_texts(seed: int) -> list[str]:
    """Tasks, turns, present observations and commands, and every kind of thing that any game names."""
    rng = Random(f"alfworld/texts/{seed}")
    texts = [text for task in house_tasks("train", GAMES, seed) for text in _played(rng, task)]
    kinds = {*FITS, *PUBLISHED_ONLY, *(kind for room in ROOMS.values() for kind in room.belongings)}
    return [*texts, *(f"{kind} 1: a {kind} {2 + n % 20}, some {kind} in" for kind, n in product(sorted(kinds), range(NAMED)))]


def _played(rng: Random, task: Task) -> Iterator[str]:
    world, wordings = AlfWorld(), (TerseWording(), FullWording())
    observation = world.reset(task)
    yield from (wording.task(task) for wording in wordings)
    yield FullWording().request("tags")
    for number in range(1, STEPS + 1):
        action = _any_command(rng, observation)
        for wording in wordings:
            yield wording.now(number, observation, admissible=number % 10 == 1)
            yield wording.turn(number, observation, action)
        yield action
        observation = world.step(action).observation


def _any_command(rng: Random, observation: Observation) -> str:
    """A random verb, then a random command with it: going is only one thing to do, though most of the list."""
    by_verb: dict[str, list[str]] = {}
    for command in observation.actions:
        by_verb.setdefault(command.partition(" ")[0], []).append(command)
    return rng.choice(by_verb[rng.choice(sorted(by_verb))])
