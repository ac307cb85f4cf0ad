"""Wordings: `full` for language models, `terse` for models of about a million parameters."""

from __future__ import annotations

from tacit.core.types import ActionStyle, Observation
from tacit.core.world import Brief, Numbered
from tacit.worlds.sokoban.world import WALL, parse_observation

RULES = """You are playing Sokoban. The room is shown row by row, one symbol for each cell:
W wall, . floor, A box, C target, @ you, * box on a target, + you on a target
Each turn, go one cell up, down, left or right. Going towards a box pushes it, if the cell behind it is free.
A box cannot be pulled, nor two be pushed at once. A box that is pushed into a corner stays there."""


class FullWording(Numbered):
    rules, listed = RULES, ", "

    def seen(self, observation: Observation) -> str:
        shown = parse_observation(observation.text)
        refused = f"Your last action was refused: {shown.refused}.\n" if shown.refused else ""
        return refused + "\n".join(shown.rows)

    def request(self, style: ActionStyle) -> str:
        if style == "bare":
            return "Answer with one direction alone."
        return "Think step by step inside <think> </think>, then give one direction inside <action> </action>."


class TerseWording(Brief):
    """`. . C . / . A @ . / W . . . / . . . .`: the rows without the outer walls; `!` means the last action was refused."""

    then, ends, listed = " : ", " :", ", "

    def brief(self, observation: Observation) -> str:
        shown = parse_observation(observation.text)
        rows = shown.rows
        around = rows[0] + rows[-1] + "".join(row[0] + row[-1] for row in rows)
        inner = [row[1:-1] for row in rows[1:-1]] if set(around) == {WALL} else rows
        return " / ".join(" ".join(row) for row in inner) + (" !" if shown.refused else "")
