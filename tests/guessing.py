"""Two worlds that take milliseconds and that a tiny policy can partly learn: repeat the letter you read."""

from __future__ import annotations

from tacit.core.types import ActionStyle, Observation, Task, Transition
from tacit.core.world import Alphabet, Environment, Wording

LETTERS = "abcdefgh"


class Say:
    """The agent reads a letter and must answer with the one `shift` places later in the alphabet."""

    def __init__(self, shift: int) -> None:
        self._shift, self._letter = shift, ""

    def reset(self, task: Task) -> Observation:
        self._letter = letter_of(task)
        return Observation(f"say {self._letter}")

    def step(self, action: str) -> Transition:
        right = LETTERS[(LETTERS.index(self._letter) + self._shift) % len(LETTERS)]
        return Transition(Observation("done"), done=True, success=action == right, effective=action in LETTERS)

    def close(self) -> None:
        pass


def letter_of(task: Task) -> str:
    return LETTERS[(task.seed + int(task.id.rpartition("/")[2])) % len(LETTERS)]


class Knowing:
    def __init__(self, task: Task, shift: int) -> None:
        self._said = LETTERS[(LETTERS.index(letter_of(task)) + shift) % len(LETTERS)]

    def act(self, observation: Observation) -> str:
        return self._said


class Words(Wording):
    """Prompts with only the observation."""

    separator = "\n"

    def task(self, task: Task) -> str:
        return ""

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return action

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        return observation.text

    def request(self, style: ActionStyle) -> str:
        return ""


def environment(name: str, shift: int) -> Environment:
    def tasks(split: str, count: int, seed: int) -> list[Task]:
        return [Task(name, f"{split}/{i}", "letters", split, seed, "Say the letter.") for i in range(count)]

    return Environment(
        name=name,
        summary="Say a letter.",
        max_steps=1,
        make=lambda: Say(shift),
        tasks=tasks,
        splits=("train", "test"),
        families=("letters",),
        wordings={"full": Words(), "terse": Words()},
        experts={"knowing": lambda task: Knowing(task, shift)},
        example_texts=lambda seed: [f"say {letter} {letter}" for letter in LETTERS] * 20,
        action_tokens=4,
        alphabet=Alphabet(("SAY",), lambda trajectory: ["SAY"] * len(trajectory)),
    )


SAME = environment("same", 0)
NEXT = environment("next", 1)
