"""Puzzles from a seed: solvable with all numbers by construction, and in one split only by construction.

A puzzle is made as reasoning-gym makes it: draw 3 or 4 numbers from 1..100, fold them left to right with random
operators, keep it if the value lies in 10..999 (a subtraction takes the smaller from the larger; a division that is not
exact becomes a subtraction). A digest of the sorted numbers, without the target, decides the split, so no two splits
share even a set of numbers:

    train   eight tenths of all number sets
    test    one tenth, the same distribution
    hard    one tenth, four numbers only
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from tacit.core.errors import check_split_and_count
from tacit.core.tasks import parse_panels, split_by_digest, take_distinct
from tacit.core.types import Task
from tacit.worlds.countdown.world import Operation, evaluate

NAME = "countdown"
SPLITS = ("train", "test", "hard")
FAMILIES = {3: "three_numbers", 4: "four_numbers"}
LARGEST_NUMBER = 100
TARGETS = range(10, 1000)


def tasks(split: str, count: int, seed: int) -> list[Task]:
    """`count` different puzzles of the split; a larger count begins with the same ones."""
    check_split_and_count(NAME, SPLITS, split, count)
    rng = Random(f"{NAME}/{split}/{seed}")

    def draw() -> Iterator[Task]:
        while True:
            size = 4 if split == "hard" else rng.choice((3, 4))
            numbers = [rng.randint(1, LARGEST_NUMBER) for _ in range(size)]
            target = numbers[0]
            for number in numbers[1:]:
                value = evaluate(Operation(rng.choice("+-*/"), target, number))
                target = abs(target - number) if value is None else value
                if target == 0:
                    break
            else:
                rng.shuffle(numbers)
            if target in TARGETS and split_of(numbers) == split:
                yield make_task(numbers, target, split, seed)

    return take_distinct(draw(), count, lambda task: (*sorted(task.data["numbers"]), task.data["target"]))


def make_task(numbers: Sequence[int], target: int, split: str = "own", seed: int = 0) -> Task:
    """A task for any puzzle."""
    listed = "-".join(map(str, numbers))
    return Task(
        world=NAME,
        id=f"{NAME}/{split}/{listed}={target}",
        family=FAMILIES.get(len(numbers), f"{len(numbers)}_numbers"),
        split=split,
        seed=seed,
        goal=f"Use {', '.join(map(str, numbers))} to make {target}.",
        data={"numbers": list(numbers), "target": target},
    )


def split_of(numbers: Sequence[int]) -> str:
    """The split of all puzzles over these numbers."""
    return split_by_digest(" ".join(map(str, sorted(numbers))))


PANELS = parse_panels("""
train  16:541ba3d932674ebd 128:700e3b8081487440 256:edcde876b02e9766 512:c7a0eefacafd9eed 1024:0834aff843f17264
test   16:7d09d6740b442f0a 128:65e52a882e6f7b61 256:7b6df9cbf1f87a77 512:61e6a24d700a989c 1024:9d5638b37cabda0d
hard   16:0351ea03d89b0bc4 128:4c1810295cab772c 256:0113646fb2b8edef 512:aa6bb44469cf3344 1024:e2eeb1c1263b6e9b
""")
