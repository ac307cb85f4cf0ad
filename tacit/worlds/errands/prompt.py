"""Wordings: `full` for language models, `terse` for models of about a million parameters."""

from __future__ import annotations

from tacit.core.types import Observation, Task
from tacit.core.world import Brief, Numbered
from tacit.worlds.errands.world import DOORS, HERE, MAX_STEPS, parse_observation

RULES = f"""You run errands in a town. Everything is kept behind one of eight doors, three things behind each.
Nothing is ever moved.
Each turn, do one of these:
open DOOR: see what is behind it. The doors: {", ".join(DOORS)}
take THING: take one of the things you see
You have {MAX_STEPS} turns to take what is wanted."""


class FullWording(Numbered):
    rules, asked, between = RULES, "Your errand: ", " "

    def seen(self, observation: Observation) -> str:
        door, things, refused = parse_observation(observation.text)
        why = f"Your last action was refused: {refused}. " if refused else ""
        here = " Here it is." if observation.text.endswith(HERE) else ""
        return why + (f"Behind the {door} door you see: {', '.join(things)}.{here}" if door else "You stand in the street.")


class TerseWording(Brief):
    """`wanted in the kitchen: mug`, then the observations."""

    then = " : "

    def task(self, task: Task) -> str:
        return task.goal
