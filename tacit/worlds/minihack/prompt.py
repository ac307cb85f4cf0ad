"""Wordings: `full` for language models, `terse` for models of about a million parameters."""

from __future__ import annotations

from tacit.core.types import Observation, Task
from tacit.core.world import Brief, Numbered
from tacit.worlds.minihack.world import LEVELS, Scene, parse_scene

RULES = """You are exploring a level of NetHack, seen from above; north is up. In the dark you see only what is next to you.
The map shows what you have seen so far, one symbol for each square, and the legend says what the symbols mean.
Moving into a monster attacks it. Moving into a boulder pushes it. Walking into deep water can kill you."""
MEANS = {
    "pick_up": "pick_up takes what lies on your own square",
    "apply": "apply unlocks and opens a door that is straight beside you, once you have the key",
}


class FullWording(Numbered):
    version = "1"

    def task(self, task: Task) -> str:
        level = LEVELS[str(task.data["level"])]
        moves = [word for word in level.actions if word not in MEANS]
        known = "; ".join([f"{', '.join(moves)} move one square", *(MEANS[word] for word in level.actions if word in MEANS)])
        return f"{RULES}\nYour task: {task.goal} You have {level.turns} turns.\nActions: {known}."

    def turn(self, number: int, observation: Observation, action: str) -> str:
        scene = parse_scene(observation.text)
        where = "out of sight" if scene.here is None else f"at row {scene.here[0] + 1}, column {scene.here[1] + 1}"
        return f"Turn {number}, {where}{f' ({scene.message})' if scene.message else ''}: {_one_line(action)}"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        scene = parse_scene(observation.text)
        lines = [
            f"Turn {number}.{f' The game says: {scene.message}' if scene.message else ''}",
            f"HP: {scene.hp} of {scene.most_hp}",
        ]
        if scene.holds:
            lines.append(f"You hold: {scene.holds}")
        lines.append("Legend: " + ", ".join(f"{symbol} = {meaning}" for symbol, meaning in scene.legend.items()))
        lines += ["Map:", *scene.rows]
        if admissible and observation.actions:
            lines.append(f"Possible actions: {', '.join(observation.actions)}")
        return "\n".join(lines)


class TerseWording(Brief):
    """The map, then `12/12 key >`: health and inventory; `!` means that the last action was refused. Past turns show only the
    action."""

    version = "1"

    def task(self, task: Task) -> str:
        return str(task.data["level"])

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{_mark(parse_scene(observation.text))}> {_one_line(action)}"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        scene = parse_scene(observation.text)
        text = "\n".join([*scene.rows, f"{scene.hp}/{scene.most_hp} {f'{scene.holds} ' if scene.holds else ''}{_mark(scene)}>"])
        if admissible and observation.actions:
            text += f" [{'; '.join(observation.actions)}]"
        return text


def _mark(scene: Scene) -> str:
    """`! ` if the game's message reports a failure (it also reports fights)."""
    refused = ("solid", "wall", "That is no action", "nothing here to pick", "no key", "no door", "in vain", "can't move")
    return "! " if any(part in scene.message for part in refused) else ""


def _one_line(action: str, most: int = 40) -> str:
    return " ".join(action[: 4 * most].split())[:most]
