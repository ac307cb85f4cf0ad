"""How errands are told: `full` to a language model, `terse` to a policy of a million parameters."""

from __future__ import annotations

from tacit.core.types import ActionStyle, Observation, Task
from tacit.environments.errands.town import DOORS
from tacit.environments.errands.world import HERE, MAX_STEPS, read

RULES = f"""You run errands in a town. Everything is kept behind one of eight doors, three things behind each.
Nothing is ever moved.
Each turn, do one of these:
open DOOR: see what is behind it. The doors: {", ".join(DOORS)}
take THING: take one of the things you see
You have {MAX_STEPS} turns to take what is wanted."""


class FullWording:
    separator = "\n\n"

    def task(self, task: Task) -> str:
        return f"{RULES}\nYour errand: {task.goal}"

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"Turn {number}. {_sentence(observation)} You did: {action}"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        text = f"Turn {number}. {_sentence(observation)}"
        if admissible and observation.actions:
            text += f"\nPossible actions: {'; '.join(observation.actions)}"
        return text

    def request(self, style: ActionStyle) -> str:
        if style == "bare":
            return "Answer with the next action alone."
        return "Think step by step inside <think> </think>, then give one action inside <action> </action>."


class TerseWording:
    """`wanted in the kitchen: mug`, and what is seen."""

    separator = "\n"

    def task(self, task: Task) -> str:
        return task.goal

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{observation.text} : {action}"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        listed = f" [{'; '.join(observation.actions)}]" if admissible and observation.actions else ""
        return observation.text + listed

    def request(self, style: ActionStyle) -> str:
        return ""


def _sentence(observation: Observation) -> str:
    door, things, refused = read(observation.text)
    why = f"Your last action was refused: {refused}. " if refused else ""
    here = " Here it is." if observation.text.endswith(HERE) else ""
    return why + (f"Behind the {door} door you see: {', '.join(things)}.{here}" if door else "You stand in the street.")
