"""Wordings: `full` for language models, `terse` for models of about a million parameters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from tacit.core.types import Observation, Task
from tacit.core.world import Brief, Numbered
from tacit.worlds.scienceworld.tasks import SIZES, TASKS, tasks
from tacit.worlds.scienceworld.world import AMBIGUOUS

COMMANDS = """You are in a small world of rooms, things and instruments, with a task of simple science. These commands exist:
open THING, close THING, go to PLACE, look around, look at THING, look in THING, examine THING, read THING, inventory, task
pick up THING, put down THING, move THING to PLACE, pour THING into THING, dunk THING in THING, mix THING
activate THING, deactivate THING, use THING [on THING], connect THING to THING, disconnect THING, eat THING, flush THING
focus on THING (says that this is the one the task means: the wrong one ends the task), wait (10 steps), wait1 (1 step)
Where a command could mean several things you are asked for a number; answer with the number alone."""


class FullWording(Numbered):
    """Never lists admissible actions: there are always hundreds."""

    rules, asked, word = COMMANDS, "", "command"

    def seen(self, observation: Observation) -> str:
        return tidy(observation.text)

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        return super().now(number, observation, admissible=False)


class TerseWording(Brief):
    """`kitchen: stove off, sink off; bathroom?, hallway` for a room (`?` is a closed door), one line per turn."""

    ends = " >"

    def brief(self, observation: Observation) -> str:
        return brief(observation.text)

    def task(self, task: Task) -> str:
        return " ".join(task.goal.split()).removeprefix("Your task is to ")

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        return super().now(number, observation, admissible=False)


_BRIEF = tuple(
    (re.compile(pattern), short)
    for pattern, short in (
        (r"This (?:room|outside location) is called the ([\w ]{1,80})\. (?:In it|Here),? you see:? ?", r"\1: "),
        (r"; You also see:", " |"),
        (r"; (?:the agent|a substance called air)(?=;|$)", ""),
        (r"A door to the ([\w ]{1,80}) \(that is closed\)", r"\1?"),
        (r"A door to the ([\w ]{1,80}) \(that is open\)", r"\1"),
        (r"\ba substance called ", ""),
        (r", which is (?:turned )?(?:on|activated)\b", " on"),
        (r", which is (?:turned off|deactivated|off)\b", " off"),
        (r"\. The [\w ]{1,80} door is (closed|open)\.", r" \1"),
        (r"\.? (?:On|In) the [\w ]{1,80} is: nothing\.?", ""),
        (r"\.? (?:On|In) the [\w ]{1,80} is: ", ": "),
        (r" \(containing nothing\)", ""),
        (r"\(containing ", "("),
        (r"In your inventory, you see:", "have"),
        (r"the thermometer measures a temperature of (-?\d+) degrees celsius", r"\1 C"),
        (r", currently reading a temperature of (-?\d+) degrees celsius", r" \1 C"),
        (r"You decide to wait for (\d+) iterations\.", r"waited \1"),
        (r"No known action matches that input\.", "no such command"),
        (r"Ambiguous request: Please enter the number for the action you intended \(or blank to cancel\):", "which?"),
        (r"(?<=; )(?:an?|the|some) ", ""),
        (r"\s+", " "),
        (r"\.(?=;| \||$)", ""),
        (r" ?; ?", "; "),
        (r"([:|]) ?; ", r"\1 "),
    )
)


def tidy(text: str) -> str:
    """Without spaces at the ends of lines and without empty ones."""
    return "\n".join(line.rstrip() for line in text.split("\n") if line.strip())


def brief(text: str) -> str:
    """An observation on one line, shortened to what an agent can act on."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if text.startswith(AMBIGUOUS):  # the numbered options may differ only in small words: keep them
        return f"which? {'; '.join(lines[1:])}"
    text = "; ".join(lines)
    for pattern, short in _BRIEF:
        text = pattern.sub(short, text)
    return text.strip(" ;")


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


def example_texts(seed: int) -> Sequence[str]:
    rng = Random(f"scienceworld/texts/{seed}")
    texts = [text for task in tasks("train", GOALS, seed) for text in _example_turns(rng, task)]
    return [*texts, *(name.replace("-", " ") for name in TASKS for _ in range(20)), str(SIZES)]


def _example_turns(rng: Random, task: Task) -> list[str]:
    texts = []
    for wording in (TerseWording(), FullWording()):
        texts.append(wording.task(task))
        for number in range(1, TURNS + 1):
            words = {
                "a": rng.choice(THINGS), "b": rng.choice(THINGS), "room": rng.choice(ROOMS), "next": rng.choice(ROOMS),
                "n": str(rng.randrange(-50, 2000)),
            }  # fmt: skip
            said, done = (rng.choice(choices).format(**words) for choices in (_EXAMPLE_ANSWERS, _EXAMPLE_ACTIONS))
            texts += [wording.now(number, Observation(said), False), wording.turn(number, Observation(said), done), done]
    return texts
