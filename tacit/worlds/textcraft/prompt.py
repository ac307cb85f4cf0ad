"""Wordings: `full` for language models, BiPACE's template (appendix J), which lists no actions; `terse` for models of about a
million parameters."""

from __future__ import annotations

from tacit.core.types import ActionStyle, Observation, Task
from tacit.core.world import Brief, StepCountWording
from tacit.worlds.textcraft.recipes import NOTHING, display_name, format_amounts, format_opening, parse_observation
from tacit.worlds.textcraft.world import open_task

INTRODUCTION = (
    "You are an expert agent operating in the TextCraft interactive crafting environment, modeled after Minecraft. Your goal "
    "is to craft a target item by combining ingredients along a chain of recipes."
)
RULES = (
    "You can issue exactly one action per step, using one of these three formats:\n"
    "- `craft <out_count> <out_item> using <in_count_1> <in_item_1>, ...` -- apply a recipe (the inputs must already be in "
    "your inventory).\n"
    "- `get <count> <item>` -- fetch a raw (non-craftable) base material directly from the environment.\n"
    "- `inventory` -- print what you currently hold.\n"
    "Items are spelled out in lower-case with spaces between words (e.g. `oak planks`, not `minecraft:oak_planks`).\n"
    "Recipe matching rules (important -- follow all of these):\n"
    "- Use ONLY the crafting commands shown in the recipe list; do not invent new recipes.\n"
    "- The target item AND its count must match a recipe line EXACTLY. You cannot use a partial recipe.\n"
    "- The ingredient counts must ALSO match the recipe EXACTLY.\n"
    "- The target item must be a SPECIFIC item (e.g. `dark oak sign`); a generic family name (e.g. just `planks`) is not "
    "valid.\n"
    "- If a recipe lists a GENERIC ingredient (e.g. `using 4 planks`), substitute a specific variant from the same family "
    "(e.g. `using 4 oak planks`).\n"
    "- It is fine to produce more of the target than the goal requires; repeat the craft in a later step if one craft is not "
    "enough."
)
EXAMPLE = (
    "Example of one well-formed turn (format only):\n"
    "Recipes available include: `craft 3 dark oak sign using 6 dark oak planks, 1 stick`, `craft 1 fletching table using 4 "
    "planks, 2 flint`.\n"
    "Goal: craft fletching table.\n"
    "Current inventory: 4 oak planks, 2 flint.\n"
    "<think>I need a fletching table. The recipe needs 4 planks (generic) and 2 flint. I have 4 oak planks and 2 flint, so I "
    "substitute `oak planks` for the generic `planks` and craft directly.</think>\n"
    "<action>craft 1 fletching table using 4 oak planks, 2 flint</action>"
)
BEGINNING = "nothing has been done yet"
"""stands for the first observation, since the prompt itself states the recipes and the goal"""


class FullWording(StepCountWording):
    def task(self, task: Task) -> str:
        _, goal, commands = open_task(task)
        return f"{INTRODUCTION}\nTask context (constant across the episode):\n{format_opening(commands, goal)}"

    def describe_past(self, observation: Observation) -> str:
        shown = parse_observation(observation.text)
        return BEGINNING if shown.opening else shown.answer

    def describe(self, observation: Observation) -> str:
        held = format_amounts(parse_observation(observation.text).held) or NOTHING
        return f"{self.describe_past(observation)}\nCurrent inventory: {held}"

    def request(self, style: ActionStyle) -> str:
        if style == "bare":
            return f"{RULES}\nNow it's your turn to take one action for the current step. Answer with the action alone."
        return (
            f"{RULES}\n{EXAMPLE}\n"
            "Now it's your turn to take one action for the current step.\n"
            "You should first reason step-by-step about the current situation, what intermediate items you already have, and "
            "which next recipe step brings you closest to the goal. This reasoning process MUST be enclosed within <think> "
            "</think> tags.\n"
            "Once you've finished your reasoning, choose an action and present it within <action> </action> tags. Output "
            "exactly one action; do not chain multiple actions in one response."
        )


class TerseWording(Brief):
    """`4 ash boards: 1 ash log` for a recipe, `have 1 ash log >` for the inventory; `!`: the last command was refused."""

    ends = " >"

    def task(self, task: Task) -> str:
        _, goal, commands = open_task(task)
        recipes = (command.removeprefix("craft ").replace(" using ", ": ", 1) for command in commands)
        return "\n".join((*recipes, f"goal: {display_name(goal)}"))

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{'! ' if parse_observation(observation.text).refused else ''}> {action}"

    def brief(self, observation: Observation) -> str:
        shown = parse_observation(observation.text)
        return f"{'! ' if shown.refused else ''}have {format_amounts(shown.held) or NOTHING}"
