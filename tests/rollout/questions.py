"""A question world: it searches a few lines of text, rewards hits, and is case-sensitive."""

from __future__ import annotations

from tacit.core.actions import Tags
from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Environment, Wording

LINES = ("Emma was written by Jane Austen.", "EMMA is a database.", "Ulm lies on the Danube.")
FOUND = 0.25
"""reward of a search with a hit"""


class Library:
    def reset(self, task: Task) -> Observation:
        self._answer = task.data["answer"]
        return Observation("Nothing was looked up yet.")

    def step(self, action: str) -> Transition:
        kind, _, query = action.partition(" ")
        if kind == "search":
            found = [line for line in LINES if query in line]
            signals = {"progress": float(bool(found)), "error": float(not found)}
            return Transition(Observation(" ".join(found) or "Nothing."), reward=FOUND * bool(found), signals=signals)
        if kind == "answer":
            right = query == self._answer
            return Transition(
                Observation("Right." if right else "Wrong."),
                done=True,
                success=right,
                score=0.5 + 0.5 * right,
                reward=float(right),
                signals={"progress": float(right), "error": float(not right)},
            )
        return Transition(Observation("I only search and answer."), effective=False, signals={"progress": 0.0, "error": 1.0})

    def close(self) -> None:
        pass


class Words(Wording):
    separator = "\n"
    formats = {"tags": Tags(("search", "answer"), keep_case=True)}

    def task(self, task: Task) -> str:
        return task.goal

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{observation.text} > {action}"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        return observation.text

    def request(self, style: str) -> str:
        return "Think, then <search> or <answer>."


class Reader:
    """Searches once, then gives the right answer."""

    def __init__(self, task: Task) -> None:
        self._todo = [f"search {task.data['about']}", f"answer {task.data['answer']}"]

    def act(self, observation: Observation) -> str:
        return self._todo.pop(0)


def question(about: str, answer: str) -> Task:
    return Task(
        "questions", f"questions/{about}", "who", "train", 0, f"Who or what is {about}?", {"about": about, "answer": answer}
    )


QUESTIONS = Environment(
    name="questions",
    summary="Questions about a few lines of text.",
    max_steps=4,
    make=Library,
    tasks=lambda split, count, seed: [question("Emma", "Jane Austen"), question("EMMA", "a database")][:count],
    splits=("train", "test"),
    families=("who",),
    wordings={"full": Words()},
    experts={"reader": Reader},
    step_rewards=True,
)
