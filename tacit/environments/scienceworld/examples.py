"""Text of ScienceWorld for training a tiny tokenizer: what every task asks for, and the words of the rooms. No simulator is
started for it; what an episode says is made of these words."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tacit.core.types import Observation, Task
from tacit.environments.scienceworld.prompt import FullWording, TerseWording
from tacit.environments.scienceworld.tasks import SIZES, TASKS, tasks

GOALS = 600
TURNS = 3
"""made-up turns for each goal"""
ROOMS = (
    "art studio", "bathroom", "bedroom", "foundry", "greenhouse", "hallway", "kitchen", "living room", "outside", "workshop",
)  # fmt: skip
THINGS = (
    "air", "apple seed", "battery", "bathtub", "bed", "bee hive", "black wire", "blast furnace", "blue jay egg",
    "bookcase", "bowl", "ceramic cup", "chair", "closet", "couch", "counter", "cupboard", "desk", "dove egg", "drawer",
    "electric buzzer", "electric motor", "fire pit", "flower pot 1", "flower pot 2", "fountain", "freezer", "fridge",
    "gas generator", "glass cup", "glass jar", "green box", "ground", "hot plate", "ice", "inclined plane", "jug",
    "large cupboard", "lead", "lemon tree in the adult stage", "lighter", "liquid tin", "metal fork", "metal pot",
    "mercury", "nuclear generator", "orange", "oven", "painting", "picture", "recipe", "red light bulb", "seed jar",
    "shovel", "sink", "soap", "sodium chloride", "soil", "solar panel", "steam", "steel table", "stopwatch", "stove",
    "sugar", "switch", "table", "terminal 1", "thermometer", "toilet", "ultra low temperature freezer",
    "unknown substance B", "water", "wind turbine", "wood", "wood block", "wood cup", "yellow paint",
)  # fmt: skip
_SAID = (
    "You move the {a} to the {b}.",
    "You move to the {room}.",
    "You focus on the {a}.",
    "The {a} is now activated.",
    "The {a} is now open.",
    "The door is already open.",
    "No known action matches that input.",
    "the thermometer measures a temperature of {n} degrees celsius",
    "You decide to wait for 1 iterations.",
    "terminal 1 on {a} is now connected to anode on {b}",
    "You pour the contents of the {a} into the {b}.",
    "a {a} (containing a substance called {b})",
    "In your inventory, you see:\n\ta {a}\n\ta {b}",
    "This room is called the {room}. In it, you see: \n\tthe agent\n\ta substance called air\n\ta {a}. On the {a} is: a {b}."
    "\n\ta {b}, which is turned off. In the {b} is: nothing.\n\ta {a}. The {a} door is closed. \nYou also see:\n\t"
    "A door to the {next} (that is closed)\n\tA door to the {room} (that is open)",
)
_DONE = (
    "open door to {room}", "go to {room}", "look around", "pick up {a}", "focus on {a}", "move {a} to {b}",
    "activate {a}", "use thermometer in inventory on {a}", "examine {a}", "wait1", "0", "pour {a} into {b}", "mix {a}",
    "inventory", "connect {a} terminal 1 to anode in {b}", "move {a} in inventory to {b}", "open {a}", "deactivate {a}",
    "read {a} in inventory",
)  # fmt: skip


def example_texts(seed: int) -> Sequence[str]:
    rng = Random(f"scienceworld/texts/{seed}")
    texts = [text for task in tasks("train", GOALS, seed) for text in _told(rng, task)]
    return [*texts, *(name.replace("-", " ") for name in TASKS for _ in range(20)), str(SIZES)]


def _told(rng: Random, task: Task) -> list[str]:
    texts = []
    for wording in (TerseWording(), FullWording()):
        texts.append(wording.task(task))
        for number in range(1, TURNS + 1):
            words = {
                "a": rng.choice(THINGS), "b": rng.choice(THINGS), "room": rng.choice(ROOMS), "next": rng.choice(ROOMS),
                "n": str(rng.randrange(-50, 2000)),
            }  # fmt: skip
            said, done = (rng.choice(choices).format(**words) for choices in (_SAID, _DONE))
            texts += [wording.now(number, Observation(said), False), wording.turn(number, Observation(said), done), done]
    return texts
