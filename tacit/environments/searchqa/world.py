"""Search QA (Search-R1; OPID §4): find the answer to a question in at most four turns.

    actions   search QUERY    the world answers with the three passages that fit best, between <information> tags
              answer TEXT     ends the episode
    success   exact match with an answer of the question; the score is F1 (answers.py)
    timeout   four turns (the rollout counts them)

What is neither, a query without a word and an empty answer are refused: the turn is spent, and the observation says why.
Nothing that was asked is repeated by the world, and no passage can end the information (observed.py).
"""

from __future__ import annotations

from pathlib import Path

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition
from tacit.environments.searchqa.answers import exact_match, f1
from tacit.environments.searchqa.library import Library, library_of
from tacit.environments.searchqa.observed import REFUSED, Passage, plain, proposals, show
from tacit.environments.searchqa.retrieval import Encode

MAX_STEPS = 4
LONGEST_QUERY = 400
"""characters that are looked up; what comes after them is not read"""
WRONG = "wrong_answer"


class SearchWorld:
    """One question at a time. `root` is where its corpus lies, if not where SEARCHQA_DATA says; `encode` a sentence encoder of
    one's own."""

    def __init__(self, root: Path | None = None, encode: Encode | None = None) -> None:
        self._root, self._encode = root, encode
        self._library: Library | None = None
        self._question = ""
        self._answers: tuple[str, ...] = ()
        self._passages: tuple[Passage, ...] = ()

    def reset(self, task: Task) -> Observation:
        try:
            self._question, self._answers = plain(str(task.data["question"])), tuple(map(str, task.data["answers"]))
        except KeyError as missing:
            raise TacitError(f"task {task.id!r} is no search question: its data has no {missing}.") from None
        self._library, self._passages = library_of(task, self._root, self._encode), ()
        return self._observe(f"Question: {self._question}")

    def step(self, action: str) -> Transition:
        if self._library is None:
            raise TacitError("this world has no question yet: call reset(task) first.")
        kind, said = parse_action(action)
        if kind == "answer":
            right = exact_match(said, self._answers)
            seen = Observation("Right." if right else "Wrong.")
            return Transition(seen, True, right, score=f1(said, self._answers), label="" if right else WRONG)
        if kind == "search":
            self._passages = self._library.search(said)
            return Transition(self._observe(show(self._passages)))
        return Transition(self._observe(f"{REFUSED}{said}"), effective=False)

    def close(self) -> None:
        self._library = None

    def _observe(self, text: str) -> Observation:
        return Observation(text, proposals(self._question, self._passages))


def parse_action(action: str) -> tuple[str, str]:
    """(`search` or `answer`, what) or ("", why not)"""
    kind, _, said = action.strip().partition(" ")
    kind, said = kind.lower(), plain(said[: 4 * LONGEST_QUERY])[:LONGEST_QUERY]
    if kind not in ("search", "answer"):
        return "", "neither a search nor an answer"
    if not any(c.isalnum() for c in said):
        return "", f"there is no word to {kind}" if kind == "search" else "the answer is empty"
    return kind, said
