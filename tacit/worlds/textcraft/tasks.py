"""Goals and what is told of the book with them: the recipes that lead to the goal, and some that do not.

    train, test           goals of the workshop, two to four recipes deep, each depth as often
    hard                  goals four deep only
    published_train       goals of the published recipes, four fifths of them, each once
    published_test        the others

A digest of the goal decides its split, so what is to be made in `test` is never to be made in `train`. The distractors take
an ingredient of some recipe that is told, as in the package; where there are too few of those, any recipe will do. The
package adds ten and so do the published splits; the workshop adds four, or fewer where there would be more than sixteen lines
with the others, so that a tiny policy can read them.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from functools import cache
from random import Random

from tacit.core.errors import TacitError, check_asked
from tacit.core.tasks import parse_panels, shuffle_key
from tacit.core.types import Task
from tacit.worlds.textcraft.recipes import NAMESPACE, PUBLISHED, WORKSHOP, Book, open_book, spoken

NAME = "textcraft"
DEPTHS = (2, 3, 4)
FAMILIES = ("depth_2", "depth_3", "depth_4")
SPLITS = ("train", "test", "hard", "published_train", "published_test")
SIZES = {"published_train": 328, "published_test": 91}
"""goals of the published recipes"""
DISTRACTORS, WORKSHOP_DISTRACTORS, WORKSHOP_LINES = 10, 4, 16


def tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> list[Task]:
    """`count` different tasks of a split, of some families only; a larger count begins with the same ones. Of a published
    split, as many of these families as there are."""
    check_asked(NAME, SPLITS, split, count)
    if split in SIZES:
        return _published(split, count, seed, families)
    depths = DEPTHS[-1:] if split == "hard" else DEPTHS
    if not any(_family(depth) in families for depth in depths):
        return []
    rng = Random(f"{NAME}/{split}/{seed}")
    found: dict[str, Task] = {}
    while len(found) < count:
        for depth in rng.sample(depths, len(depths)):
            task = make_task(WORKSHOP, rng.choice(_workshop_goals(split, depth)), split, seed, rng)
            if task.family in families:
                found.setdefault(task.id, task)
    return list(found.values())[:count]


def make_task(book_name: str, goal: str, split: str = "own", seed: int = 0, rng: Random | None = None) -> Task:
    """Any goal of a book as a task. Without `rng`, only what leads to the goal is told."""
    book = open_book(book_name)
    told = [recipe.text for recipe in book.leading_to(goal)]
    if rng is not None:
        room = min(WORKSHOP_DISTRACTORS, max(0, WORKSHOP_LINES - len(told))) if book_name == WORKSHOP else DISTRACTORS
        told += _distractors(book, goal, room, rng)
        told = list(dict.fromkeys(told))
        rng.shuffle(told)
    mark = hashlib.sha256("\n".join(told).encode()).hexdigest()[:10]
    return Task(
        world=NAME,
        id=f"{NAME}/{split}/{goal.removeprefix(NAMESPACE)}-{mark}",
        family=_family(book.depth(goal)),
        split=split,
        seed=seed,
        goal=f"craft {spoken(goal)}",
        data={"book": book_name, "digest": book.digest, "goal": goal, "commands": told},
    )


def split_of(goal: str, depth: int, published: bool = False) -> str:
    """The only split in which this is to be made."""
    share = zlib.crc32(goal.encode()) % 10
    if published:
        return "published_test" if share >= 8 else "published_train"
    return "hard" if share >= 8 and depth == DEPTHS[-1] else "test" if share >= 6 else "train"


def _published(split: str, count: int, seed: int, families: Sequence[str]) -> list[Task]:
    book = open_book(PUBLISHED)
    goals = [goal for goal in book.goals() if split_of(goal, book.depth(goal), published=True) == split]
    wanted = [goal for goal in goals if _family(book.depth(goal)) in families]
    if len(wanted) < count and len(wanted) == len(goals):
        raise TacitError(f"{count} goals of {split!r} were asked for, but the published recipes here have {len(goals)}.")
    wanted.sort(key=lambda goal: shuffle_key(seed, goal))
    return [make_task(PUBLISHED, goal, split, seed, Random(f"{seed}/{goal}")) for goal in wanted[:count]]


@cache
def _workshop_goals(split: str, depth: int) -> tuple[str, ...]:
    book = open_book(WORKSHOP)
    return tuple(goal for goal in book.goals() if book.depth(goal) == depth and split_of(goal, depth) == split)


def _family(depth: int) -> str:
    return f"depth_{depth}"


def _distractors(book: Book, goal: str, wanted: int, rng: Random) -> list[str]:
    leading = dict.fromkeys(recipe.text for recipe in book.leading_to(goal))
    parts = dict.fromkeys(part.name for recipe in book.leading_to(goal) for part in recipe.of)
    near = dict.fromkeys(recipe.text for part in parts for recipe in book.uses.get(part, ()) if recipe.text not in leading)
    chosen = rng.sample(list(near), min(wanted, len(near)))
    if len(chosen) < wanted:
        far = [text for text in book.by_text if text not in leading and text not in near]
        chosen += rng.sample(far, min(wanted - len(chosen), len(far)))
    return chosen


PANELS = parse_panels("""
train            16:f0b311ebd395e756 128:0df2964cd27e0297 256:53bab4b1f3cac7d6 512:30d6f6b15a6c2703 1024:38773b4c1a3c682d
test             16:518d06a996450141 128:dda704d0e3deae94 256:f4d55af8fdfc5270 512:9f4ec041f3861962 1024:d9d6a464fadde2ee
hard             16:0a392b20d2459739 128:2467f3fc1546246c 256:63e780e5d7614ced 512:068429571f005b3c 1024:c0c5cd84685d02f3
published_train  16:745d1adbae0ad8ba 128:4229bb10b583aa54 256:726e6b043be9db05 328:882d6a0922990e17
published_test   16:0d4f6c2a95d060ab 91:f2c6ded37498c819
""")
"""split -> number of tasks -> panel hash"""
