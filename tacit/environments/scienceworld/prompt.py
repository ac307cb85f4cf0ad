"""How ScienceWorld is told: `full` to a language model, `terse` to a policy of a million parameters."""

from __future__ import annotations

import re

from tacit.core.types import Observation, Task
from tacit.core.wording import Brief, Numbered
from tacit.environments.scienceworld.observed import AMBIGUOUS

COMMANDS = """You are in a small world of rooms, things and instruments, with a task of simple science. These commands exist:
open THING, close THING, go to PLACE, look around, look at THING, look in THING, examine THING, read THING, inventory, task
pick up THING, put down THING, move THING to PLACE, pour THING into THING, dunk THING in THING, mix THING
activate THING, deactivate THING, use THING [on THING], connect THING to THING, disconnect THING, eat THING, flush THING
focus on THING (says that this is the one the task means: the wrong one ends the task), wait (10 steps), wait1 (1 step)
Where a command could mean several things you are asked for a number; answer with the number alone."""


class FullWording(Numbered):
    """Without the list of what is possible: the simulator takes hundreds of commands everywhere."""

    rules, asked, word = COMMANDS, "", "command"

    def seen(self, observation: Observation) -> str:
        return tidy(observation.text)

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        return super().now(number, observation, admissible=False)


class TerseWording(Brief):
    """`kitchen: stove off, sink off; bathroom?, hallway` for a room (`?` is a closed door), one line a turn."""

    ends = " >"

    def brief(self, observation: Observation) -> str:
        return brief(observation.text)

    def task(self, task: Task) -> str:
        return task.goal.removeprefix("Your task is to ")

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        return super().now(number, observation, admissible=False)


_BRIEF = tuple(
    (re.compile(pattern), short)
    for pattern, short in (
        (r"This (?:room|outside location) is called the ([\w ]+)\. (?:In it|Here),? you see:? ?", r"\1: "),
        (r"; You also see:", " |"),
        (r"; (?:the agent|a substance called air)(?=;|$)", ""),
        (r"A door to the ([\w ]+) \(that is closed\)", r"\1?"),
        (r"A door to the ([\w ]+) \(that is open\)", r"\1"),
        (r"\ba substance called ", ""),
        (r", which is (?:turned )?(?:on|activated)\b", " on"),
        (r", which is (?:turned off|deactivated|off)\b", " off"),
        (r"\. The [\w ]+ door is (closed|open)\.", r" \1"),
        (r"\.? (?:On|In) the [\w ]+ is: nothing\.?", ""),
        (r"\.? (?:On|In) the [\w ]+ is: ", ": "),
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
    """An answer on one line, in as few words as keep what an agent can act on."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if text.startswith(AMBIGUOUS):  # what the numbers stand for differs in small words alone: they are left
        return f"which? {'; '.join(lines[1:])}"
    text = "; ".join(lines)
    for pattern, short in _BRIEF:
        text = pattern.sub(short, text)
    return text.strip(" ;")
