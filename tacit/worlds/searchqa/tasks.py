"""Search QA tasks.

    train, test      32 questions per generated land: 12 with one hop, 12 with two, 8 comparisons
    hard             chains of three facts
    published_train, published_test     from files (published.py)

No two generated splits share a name (land.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tacit.core.errors import check_split_and_count
from tacit.core.tasks import parse_panels
from tacit.core.types import Task
from tacit.worlds.searchqa.land import Question, draw_question, make_land
from tacit.worlds.searchqa.published import FAMILIES, NAME, USUAL_RETRIEVER, published_tasks
from tacit.worlds.searchqa.published import SPLITS as PUBLISHED

GENERATED = ("train", "test", "hard")
SPLITS = (*GENERATED, *PUBLISHED)
QUESTIONS_PER_LAND = 32
_BLOCK = (("one_hop", 1),) * 3 + (("bridge", 2),) * 3 + (("comparison", 2),) * 2
"""(family, number of facts) of every eight questions, in random order"""
_HARD_BLOCK = (("bridge", 3),) * len(_BLOCK)
_MOST_LANDS_PER_TASK = 8  # lands to try per question of a family: a split may not have any


def tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> Sequence[Task]:
    """`count` different questions of the split; a larger count begins with the same ones. `families` filters them."""
    check_split_and_count(NAME, SPLITS, split, count)
    if split in PUBLISHED:
        return published_tasks(split, count, seed, families)
    found: list[Task] = []
    for number in range(_MOST_LANDS_PER_TASK * count):
        if len(found) >= count:
            break
        found += [task for task in _land_tasks(split, seed, number) if task.family in families]
    return found[:count]


def _land_tasks(split: str, seed: int, number: int) -> list[Task]:
    name = f"{split}/{seed}/{number}"
    land, rng = make_land(name), Random(f"{NAME}/questions/{name}")
    found: dict[str, Question] = {}
    while len(found) < QUESTIONS_PER_LAND:
        block = list(_HARD_BLOCK if split == "hard" else _BLOCK)
        rng.shuffle(block)
        for family, hops in block:
            before = len(found)
            while len(found) == before:
                question = draw_question(rng, land, family, hops)
                found.setdefault(question.text, question)
    return [_task(split, seed, name, i, question) for i, question in enumerate(found.values())]


def _task(split: str, seed: int, land: str, number: int, question: Question) -> Task:
    data = {
        "question": question.text,
        "answers": list(question.answers),
        "titles": list(question.titles),
        "land": land,
        "retriever": USUAL_RETRIEVER,
    }
    return Task(NAME, f"{NAME}/{land}/{number}", question.family, split, seed, question.text, data)


PANELS = parse_panels("""
train  16:31566ca9517afa40 128:f50226e6bda05ed7 256:9c1b1c15a2519030 512:8b9f9f28fe20ad43 1024:7774f2fc8d3e35a8
test   16:cfdd23168a5bd6eb 128:dc267d2d7a5558d2 256:6b1b08ed90fc3892 512:855356dbfabd5037 1024:5a3879f294d1e5ca
hard   16:ce06a395437720a9 128:02407ef46908fc85 256:d6a33c55b0ad6e35 512:0a70d005535801d6 1024:976756c77bf001ab
""")  # split -> number of tasks -> panel hash
