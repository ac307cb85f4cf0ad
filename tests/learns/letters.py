"""The smallest world to learn: one of four letters is right, and only trying shows which."""

from __future__ import annotations

from random import Random

from guessing import Words

from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Environment

LETTERS = "abcd"
RIGHT = "c"


class Letters:
    def reset(self, task: Task) -> Observation:
        return Observation("letter?")

    def step(self, action: str) -> Transition:
        return Transition(Observation("done"), done=True, success=action == RIGHT, effective=action in LETTERS)

    def close(self) -> None:
        pass


class Guesser:
    """Demonstrates only the format: every letter is equally likely."""

    def __init__(self, task: Task) -> None:
        self._random = Random(task.id)

    def act(self, observation: Observation) -> str:
        return self._random.choice(LETTERS)


def tasks(split: str, count: int, seed: int) -> list[Task]:
    return [Task("letters", f"{split}/{i}", "letters", split, seed, "Say the letter.") for i in range(count)]


class Lenient(Letters):
    """Counts every letter as a success, so demonstrations of all four are kept."""

    def step(self, action: str) -> Transition:
        return Transition(Observation("done"), done=True, success=True)


def environment(make=Letters) -> Environment:
    return Environment(
        name="letters",
        summary="One of four letters is right.",
        max_steps=1,
        make=make,
        tasks=tasks,
        splits=("train", "test"),
        families=("letters",),
        wordings={"full": Words(), "terse": Words()},
        experts={"guesser": Guesser},
        example_texts=lambda seed: ["letter? a b c d"] * 20,
        action_tokens=4,
    )
