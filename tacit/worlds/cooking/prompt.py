"""Wordings: `full` for language models, `terse` for models of about a million parameters."""

from __future__ import annotations

from tacit.core.types import Observation
from tacit.core.world import Brief, Numbered
from tacit.worlds.cooking.tracker import Scene, read_recipe, read_scene

COMMANDS = """You are playing a cooking game in text. These commands exist:
look, inventory, examine <thing>, go <direction>, open <thing>, close <thing>
take <thing> from <place>, drop <thing>, put <thing> on <place>, insert <thing> into <container>
chop <food> with knife, slice <food> with knife, dice <food> with knife
cook <food> with stove (fries), with oven (roasts), with BBQ (grills)
prepare meal (in the kitchen, once every ingredient is as the recipe wants it), eat meal
A wrong cut or a wrong way of cooking loses the game. Food that is cooked already burns if it is cooked again."""


class FullWording(Numbered):
    version = "2"
    """1 listed other commands: all ingredients for `prepare meal`, `examine` of what is carried, no `drink`"""
    rules, word = COMMANDS, "command"


class TerseWording(Brief):
    """`kitchen | fridge? table: knife | north south? | has sliced carrot`: `?` means closed, `!` a refused command.

    The turn that reads the recipe shows it as `recipe: slice carrot, fry carrot`. Past turns keep only the recipe, the refusal
    mark and the action.
    """

    version = "2"

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{_answer(read_scene(observation.text))}: {action}"

    def brief(self, observation: Observation) -> str:
        scene = read_scene(observation.text)
        things = [_place(scene, place) for place in scene.places]
        ways = [way + (f" {door}?" if door in scene.closed else "") for way, door in scene.exits.items()]
        has = [item.text for item in scene.carried.values()]
        sections = (_answer(scene), scene.room, "; ".join(things), "; ".join(ways), f"has {', '.join(has)}" if has else "")
        return " | ".join(section for section in sections if section)


def _place(scene: Scene, place: str) -> str:
    if place in scene.closed:
        return f"{place}?"
    items = ", ".join(item.text for item in scene.places[place])
    return f"{place}: {items}" if items else place


def _answer(scene: Scene) -> str:
    recipe = read_recipe(scene.answer)
    if recipe is not None:
        return f"recipe: {recipe.text}"
    return "!" if scene.refused else ""
