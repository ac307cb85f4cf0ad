"""ScienceWorld: 30 elementary science tasks, in the simulator of the `scienceworld` package (an extra; needs Java).

The package is imported and the JVM started only when an episode begins; tasks, panels and wordings need neither.
"""

from __future__ import annotations

from random import Random

from tacit.core.types import Observation
from tacit.core.world import Environment
from tacit.worlds.scienceworld.skills import ALPHABET, HANDBOOK, failure, hindsight
from tacit.worlds.scienceworld.tasks import FAMILIES, NAME, PANELS, SIZES, SPLITS, TASKS, tasks
from tacit.worlds.scienceworld.tracker import PaperTracker, ScienceTracker
from tacit.worlds.scienceworld.world import EXTRA, REQUIRES, SERVED, FullWording, GoldPath, TerseWording, lacks, read_room

MAX_STEPS = 120  # the largest of ETO's limits; ETO's evaluation splits have one per task


def place(action: str, observation: Observation) -> str:
    """The room at the start of an episode or after `go`."""
    return read_room(observation.text) if action.split()[:1] in ([], ["go"]) else ""


# Text to train a tiny tokenizer, made of goals and synthetic turns: no simulator is started.

GOALS = 600
TURNS = 3  # synthetic turns per goal
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
_EXAMPLE_ANSWERS = (
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
_EXAMPLE_ACTIONS = (
    "open door to {room}", "go to {room}", "look around", "pick up {a}", "focus on {a}", "move {a} to {b}",
    "activate {a}", "use thermometer in inventory on {a}", "examine {a}", "wait1", "0", "pour {a} into {b}", "mix {a}",
    "inventory", "connect {a} terminal 1 to anode in {b}", "move {a} in inventory to {b}", "open {a}", "deactivate {a}",
    "read {a} in inventory",
)  # fmt: skip


def example_texts(seed: int) -> list[str]:
    rng, texts = Random(f"scienceworld/texts/{seed}"), list[str]()
    for task in tasks("train", GOALS, seed):
        for wording in (TerseWording(), FullWording()):
            texts.append(wording.task(task))
            for number in range(1, TURNS + 1):
                words = {"a": THINGS, "b": THINGS, "room": ROOMS, "next": ROOMS, "n": range(-50, 2000)}
                drawn = {name: rng.choice(choices) for name, choices in words.items()}
                said, done = (rng.choice(choices).format(**drawn) for choices in (_EXAMPLE_ANSWERS, _EXAMPLE_ACTIONS))
                texts += [wording.now(number, Observation(said), False), wording.turn(number, Observation(said), done), done]
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
