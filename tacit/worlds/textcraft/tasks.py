"""TextCraft tasks: a goal, the recipes towards it, and distractor recipes. A digest of the goal decides its split.

Distractors share an ingredient with a listed recipe, as in the package; if there are too few, other recipes are added.
Published splits have ten, as in the package. Built-in splits have up to four, and at most sixteen recipes in all, so that
prompts fit tiny models. `adapt_test` is the 200 test games of ADaPT (Prasad et al., 2024), from its result file in
$TEXTCRAFT_ADAPT.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random

from tacit.core.errors import TacitError, check_split_and_count, describe_error
from tacit.core.tasks import parse_panels, shuffle_key, take_distinct
from tacit.core.types import Task
from tacit.worlds.textcraft.recipes import NAMESPACE, PUBLISHED, WORKSHOP, display_name, open_book

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
