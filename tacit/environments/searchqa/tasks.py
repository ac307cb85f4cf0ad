"""Questions by split.

    train, test      a generated land for every 32 questions: 12 of one hop, 12 of two, 8 comparisons
    hard             chains of three facts
    published_train, published_test     from files (published.py)

Nobody and nothing asked about in one generated split is named in another (land.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tacit.core.errors import check_asked
from tacit.core.types import Task
from tacit.environments.searchqa.asking import Question, draw_question
from tacit.environments.searchqa.files import FAMILIES
from tacit.environments.searchqa.land import make_land
from tacit.environments.searchqa.published import NAME, USUAL_RETRIEVER, published_tasks
from tacit.environments.searchqa.published import SPLITS as PUBLISHED

GENERATED = ("train", "test", "hard")
SPLITS = (*GENERATED, *PUBLISHED)
QUESTIONS_PER_LAND = 32
_BLOCK = (("one_hop", 1),) * 3 + (("bridge", 2),) * 3 + (("comparison", 2),) * 2
"""(family, facts in the chain) of every eight questions, in random order"""
_HARD_BLOCK = (("bridge", 3),) * len(_BLOCK)
_MOST_LANDS_PER_TASK = 8
"""lands that are gone through for each question of a family: a split may not have it"""


def tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> Sequence[Task]:
    """`count` different questions of the split; a larger count begins with the same ones. Of some families only, in the order
    they have among all."""
    check_asked(NAME, SPLITS, split, count)
    if split in PUBLISHED:
        return published_tasks(split, count, seed, families)
    found: list[Task] = []
    for number in range(_MOST_LANDS_PER_TASK * count):
        if len(found) >= count:
            break
        found += [task for task in _of_land(split, seed, number) if task.family in families]
    return found[:count]


def _of_land(split: str, seed: int, number: int) -> list[Task]:
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
